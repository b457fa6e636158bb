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

#if defined(__HIPCC__)

FC_DEVICE Count load_acquire(const Count* p) {
  return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
FC_DEVICE Count load_relaxed(const Count* p) {
  return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
FC_DEVICE void store_release(Count* p, Count value) {
  __hip_atomic_store(p, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
FC_DEVICE void store_relaxed(Count* p, Count value) {
  __hip_atomic_store(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
FC_DEVICE Count fetch_add(Count* p, Count value) {
  return __hip_atomic_fetch_add(p, value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_SYSTEM);
}
FC_DEVICE bool exchange_if(Count* p, Count expected, Count value) {
  return __hip_atomic_compare_exchange_strong(p, &expected, value, __ATOMIC_ACQ_REL,
                                              __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}

#elif defined(__CUDACC__)

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

#else  // neither: the same source on a CPU, where a stand-in for the runtime drives it

inline void yield_to_others() { sched_yield(); }

FC_DEVICE Count load_acquire(const Count* p) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
FC_DEVICE Count load_relaxed(const Count* p) {
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
FC_DEVICE void store_release(Count* p, Count value) {
  __atomic_store_n(p, value, __ATOMIC_RELEASE);
}
FC_DEVICE void store_relaxed(Count* p, Count value) {
  __atomic_store_n(p, value, __ATOMIC_RELAXED);
}
FC_DEVICE Count fetch_add(Count* p, Count value) {
  return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}
FC_DEVICE bool exchange_if(Count* p, Count expected, Count value) {
  return __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE);
}

#endif

}  // namespace forestcoll::gpu
