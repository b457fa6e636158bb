// What differs between CUDA and HIP, under one name: the runtime's calls, and atomics that other GPUs
// and the host see ("system scope").

#pragma once

#include <cstdint>

#if defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define FC_GPU(name) hip##name
#define FC_DEVICE_PROPERTIES hipDeviceProp_t
// Coherent: the host and a running kernel see each other's words in it.
#define hipHostAllocMapped (hipHostMallocMapped | hipHostMallocCoherent)
#define hipHostAlloc hipHostMalloc
#define hipFreeHost hipHostFree
#define hipDevAttrMultiProcessorCount hipDeviceAttributeMultiprocessorCount
#else
#include <cuda_runtime.h>
#include <sched.h>
#define FC_GPU(name) cuda##name
#define FC_DEVICE_PROPERTIES cudaDeviceProp
#endif

#include "../native/interpreter.hpp"

// A function of its own, with registers of its own: of the many for types and operations a launch runs
// one, and all of them together in the kernel's body would take more than a thread has.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define FC_APART __device__ __noinline__
#else
#define FC_APART inline
#endif

// Starts a kernel; gives the runtime's error code.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define FC_LAUNCH(kernel, blocks, threads, stream, ...) \
  (kernel<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__), FC_GPU(GetLastError)())
#else
#define FC_LAUNCH(kernel, blocks, threads, stream, ...) \
  emulated_launch((blocks), (stream), [=] { kernel(__VA_ARGS__); })
#endif

namespace forestcoll::gpu {

#if defined(__CUDACC__) && !defined(__HIPCC__)

FC_DEVICE Count load_acquire(const Count* p) {
  Count value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
FC_DEVICE Count load_relaxed(const Count* p) {
  Count value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
  return value;
}
FC_DEVICE void store_release(Count* p, Count value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(p), "l"(value) : "memory");
}
FC_DEVICE void store_relaxed(Count* p, Count value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(p), "l"(value) : "memory");
}
FC_DEVICE Count fetch_add(Count* p, Count value) {
  Count before;
  asm volatile("atom.add.acq_rel.sys.global.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(p), "l"(value)
               : "memory");
  return before;
}
FC_DEVICE bool exchange_if(Count* p, Count expected, Count value) {
  Count before;
  asm volatile("atom.cas.acq_rel.sys.global.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(p), "l"(expected), "l"(value)
               : "memory");
  return before == expected;
}

#else
#if defined(__HIPCC__)
#define FC_ATOMIC(name, _, ...) __hip_atomic_##name(__VA_ARGS__, __HIP_MEMORY_SCOPE_SYSTEM)
#else  // the same source on a CPU, where a stand-in for the runtime drives it
#define FC_ATOMIC(_, name, ...) __atomic_##name(__VA_ARGS__)
inline void yield_to_others() { sched_yield(); }
#endif

FC_DEVICE Count load_acquire(const Count* p) {
  return FC_ATOMIC(load, load_n, p, __ATOMIC_ACQUIRE);
}
FC_DEVICE Count load_relaxed(const Count* p) {
  return FC_ATOMIC(load, load_n, p, __ATOMIC_RELAXED);
}
FC_DEVICE void store_release(Count* p, Count value) {
  FC_ATOMIC(store, store_n, p, value, __ATOMIC_RELEASE);
}
FC_DEVICE void store_relaxed(Count* p, Count value) {
  FC_ATOMIC(store, store_n, p, value, __ATOMIC_RELAXED);
}
FC_DEVICE Count fetch_add(Count* p, Count value) {
  return FC_ATOMIC(fetch_add, fetch_add, p, value, __ATOMIC_ACQ_REL);
}
FC_DEVICE bool exchange_if(Count* p, Count expected, Count value) {
  constexpr auto order = __ATOMIC_ACQ_REL, otherwise = __ATOMIC_ACQUIRE;
#if defined(__HIPCC__)
  return __hip_atomic_compare_exchange_strong(p, &expected, value, order, otherwise, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return __atomic_compare_exchange_n(p, &expected, value, false, order, otherwise);
#endif
}

#endif

}  // namespace forestcoll::gpu
