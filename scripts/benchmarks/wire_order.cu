// What `scripts/bench --wire-order` runs: does a GPU see bytes that an adapter has written into its memory
// before it sees the flag that the adapter has written there behind them?
//
//   wire_order ROUNDS BYTES KIND right|broken
//
// A round is BYTES of a pattern of its own and a flag, both put over UCX into the GPU's memory (of KIND, as
// UCX numbers them) by an endpoint of this process to itself; a kernel waits for the flag, compares, and
// says so. `broken` puts the flag first, which must be found. Prints `rounds N wrong W`.

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "device.hpp"

using namespace forestcoll;
using namespace forestcoll::gpu;

namespace {

constexpr Count slots = 16;  // rounds under way
constexpr Amount line = 128;
constexpr double patience = 20;  // seconds without a round

// In memory of the host, which the kernel reaches.
struct Shared {
  Count checked, wrong, ended;
};

FC_DEVICE Count pattern(Count round, Amount i) { return round * 0x9E3779B97F4A7C15u + i; }
inline Count pattern_of(Count round, Amount i) { return round * 0x9E3779B97F4A7C15u + i; }

__global__ void check_rounds(const byte* arena, Amount bytes, Count rounds, Shared* shared) {
  Count wrong = 0;
  for (Count round = 1; round <= rounds; ++round) {
    const Count slot = round % slots;
    const Count* flag = reinterpret_cast<const Count*>(arena + slots * bytes + slot * line);
    bool ended = false;
    for (Count turn = 1; threadIdx.x == 0 && !ended && load_relaxed(flag) != round; ++turn) {
      if (turn % 1024) continue;
#if !defined(__CUDACC__) && !defined(__HIPCC__)
      yield_to_others();
#endif
      ended = load_relaxed(&shared->ended) != 0;
    }
    if (threadIdx.x == 0) load_acquire(flag);
    if (__syncthreads_or(ended)) return;
    const Count* words = reinterpret_cast<const Count*>(arena + slot * bytes);
    bool bad = false;
    for (Amount i = threadIdx.x; i < bytes / 8; i += blockDim.x) bad |= words[i] != pattern(round, i);
    bad = __syncthreads_or(bad);
    if (threadIdx.x) continue;
    store_relaxed(&shared->wrong, wrong += bad);
    store_release(&shared->checked, round);
  }
}

void need(bool well, const char* what) {
  if (well) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(2);
}
void need_gpu(FC_GPU(Error_t) code, const char* what) {
  if (code != FC_GPU(Success)) std::fprintf(stderr, "%s: ", FC_GPU(GetErrorString)(code));
  need(code == FC_GPU(Success), what);
}

Count look(Count& value) { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }

// An endpoint of this process to itself, and its key to the arena.
struct Way {
  ucp_context_h context;
  ucp_worker_h worker;
  ucp_ep_h end;
  ucp_rkey_h key;

  Way(byte* arena, std::size_t bytes, int kind) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA;
    need(ucp_init(&params, nullptr, &context) == UCS_OK, "no context of UCX");
    ucp_worker_params_t own{};
    need(ucp_worker_create(context, &own, &worker) == UCS_OK, "no worker of UCX");
    ucp_address_t* address;
    std::size_t length;
    need(ucp_worker_get_address(worker, &address, &length) == UCS_OK, "no address of UCX");
    ucp_ep_params_t to{};
    to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    to.address = address;
    need(ucp_ep_create(worker, &to, &end) == UCS_OK, "no endpoint of UCX");
    ucp_mem_map_params_t map{};
    map.field_mask =
        UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
    map.address = arena;
    map.length = bytes;
    map.memory_type = static_cast<ucs_memory_type_t>(kind);
    ucp_mem_h memory;
    need(ucp_mem_map(context, &map, &memory) == UCS_OK, "UCX does not register the GPU's memory");
    void* packed;
    need(ucp_rkey_pack(context, memory, &packed, &length) == UCS_OK, "no key of UCX");
    need(ucp_ep_rkey_unpack(end, packed, &key) == UCS_OK, "no way of UCX to this process's own memory");
  }

  ucs_status_ptr_t put(const void* from, std::size_t bytes, byte* to) {
    const ucp_request_param_t plain{};
    const auto request =
        ucp_put_nbx(end, from, bytes, reinterpret_cast<std::uintptr_t>(to), key, &plain);
    need(!UCS_PTR_IS_ERR(request), "a put failed");
    return request;
  }
  void finish(ucs_status_ptr_t& request) {
    while (request && ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
    if (request) ucp_request_free(request);
    request = nullptr;
  }
};

}  // namespace

int main(int, char** words) {
  const Count rounds = std::strtoull(words[1], nullptr, 10);
  const Amount bytes = std::atoll(words[2]);
  const bool broken = !std::strcmp(words[4], "broken");
  const std::size_t all = slots * (bytes + line);
  byte *arena, *source;
  Shared *shared, *reached;
#if defined(__HIPCC__)
  need_gpu(hipExtMallocWithFlags(reinterpret_cast<void**>(&arena), all, hipDeviceMallocFinegrained), "no memory");
#else
  need_gpu(cudaMalloc(reinterpret_cast<void**>(&arena), all), "no memory");
#endif
  need_gpu(FC_GPU(Memset)(arena, 0, all), "no memory");
  need_gpu(FC_GPU(HostAlloc)(reinterpret_cast<void**>(&source), all, FC_GPU(HostAllocMapped)), "no memory");
  need_gpu(FC_GPU(HostAlloc)(reinterpret_cast<void**>(&shared), sizeof *shared, FC_GPU(HostAllocMapped)), "no memory");
  need_gpu(FC_GPU(HostGetDevicePointer)(reinterpret_cast<void**>(&reached), shared, 0), "no mapped memory");
  std::memset(shared, 0, sizeof *shared);
  need_gpu(FC_GPU(DeviceSynchronize)(), "the GPU");
  Way loop(arena, all, std::atoi(words[3]));
  FC_GPU(Stream_t) stream{};
  need_gpu(FC_GPU(StreamCreateWithFlags)(&stream, FC_GPU(StreamNonBlocking)), "no stream");
  need_gpu(FC_LAUNCH(check_rounds, 1, 256, stream, arena, bytes, rounds, reached), "the kernel");

  ucs_status_ptr_t requests[slots][2] = {};
  auto moved = std::chrono::steady_clock::now();
  Count last = 0;
  const auto wait_for = [&](Count round) {  // until so many are checked
    for (Count now; (now = look(shared->checked)) < round;) {
      ucp_worker_progress(loop.worker);
      const auto time = std::chrono::steady_clock::now();
      if (now != last) last = now, moved = time;
      if (std::chrono::duration<double>(time - moved).count() < patience) continue;
      __atomic_store_n(&shared->ended, 1, __ATOMIC_RELEASE);
      std::fprintf(stderr, "no flag for %g s, at round %llu\n", patience, static_cast<unsigned long long>(now + 1));
      std::exit(2);
    }
  };
  for (Count round = 1; round <= rounds; ++round) {
    const Count slot = round % slots;
    if (round > slots) wait_for(round - slots);
    for (auto& request : requests[slot]) loop.finish(request);
    auto* const data = reinterpret_cast<Count*>(source + slot * bytes);
    auto* const flag = reinterpret_cast<Count*>(source + slots * bytes + slot * line);
    for (Amount i = 0; i < bytes / 8; ++i) data[i] = pattern_of(round, i);
    *flag = round;
    for (const bool number : {broken, !broken}) {
      requests[slot][number] = number ? loop.put(flag, sizeof *flag, arena + slots * bytes + slot * line)
                                      : loop.put(data, bytes, arena + slot * bytes);
      if (number != broken) continue;
      need(ucp_worker_fence(loop.worker) == UCS_OK, "no fence of UCX");
      // Long enough for the kernel to see the flag.
      for (int turn = 0; broken && turn < 1000; ++turn) {
        ucp_worker_progress(loop.worker);
        if (turn % 100 == 0) std::this_thread::yield();
      }
    }
    ucp_worker_progress(loop.worker);
  }
  wait_for(rounds);
  need_gpu(FC_GPU(StreamSynchronize)(stream), "the kernel");
  std::printf("rounds %llu wrong %llu\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(look(shared->wrong)));
  std::fflush(stdout);
  need_gpu(FC_GPU(Free)(arena), "the GPU's memory");
  std::_Exit(0);  // UCX's own end is none of this
}
