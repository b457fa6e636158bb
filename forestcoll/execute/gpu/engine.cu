// The GPU engine's native half: one process drives one GPU, and all ranks that live on it in one
// kernel. A library with a C interface, built on first use (compiler.py), called through ctypes (native.py).
//
// Every function returns 0, or -1 and fc_gpu_error() says why; every argument has eight bytes. Memory of a GPU is one piece, the arena,
// exported to the other processes as an IPC handle; what lies where in it is decided in Python.

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "layer.hpp"

namespace forestcoll::gpu {
namespace {

constexpr int threads_per_block = 512, fewest_threads = 64;
constexpr int averaging_blocks = 64;
constexpr std::size_t tables_of_launch = offsetof(Launch, geometry) / sizeof(void*);

thread_local std::string last_error;

int fail(const std::string& text) {
  last_error = text;
  return -1;
}

int check(FC_GPU(Error_t) code, const char* what) {
  if (code == FC_GPU(Success)) return 0;
  return fail(std::string(what) + ": " + FC_GPU(GetErrorString)(code));
}

#define FC_CHECK(call, words)                           \
  do {                                                  \
    if (const int bad = check((call), words)) return bad; \
  } while (false)
#define FC_TRY(call) FC_CHECK(call, #call)
// A call of the runtime.
#define FC_CALL(name, ...) FC_CHECK(FC_GPU(name)(__VA_ARGS__), "FC_GPU(" #name ")(" #__VA_ARGS__ ")")

// One thread block of the device for each of the plan's that live here. Two of them on a multiprocessor
// at least: all must run at once.
__global__ void __launch_bounds__(threads_per_block, 2) run_blocks(const Launch* launch) {
  const Index index = blockIdx.x;
  const Block& block = launch->blocks[launch->mine[index]];
  Layer layer(*launch, block, index);
  Position at;
  at.pc = block.begin;
  if (run_thread_block(layer, block, at) == Outcome::done) layer.finish();
}

// `avg`: complete sums, divided by the number of ranks.
__global__ void __launch_bounds__(threads_per_block)
    average(const Launch* launch, byte* sums, Amount bytes, int ranks) {
  const Amount size = launch->geometry.element_bytes;
  const Amount step = Amount{gridDim.x} * blockDim.x * size;
  const Amount first = Amount{blockIdx.x} * blockDim.x + threadIdx.x;
  for (Amount at = first * size; at < bytes; at += step)
    average_element(launch->type, sums + at, ranks);
}

struct Device {
  int number = 0;
  byte* arena = nullptr;
  byte* tables = nullptr;    // the launch's tables, uploaded
  Launch* launch = nullptr;  // in device memory
  Count* ticks = nullptr;
  Stop* stops = nullptr;         // in host memory, and as the device sees it
  Stop* device_stops = nullptr;
  Index* abort = nullptr;
  Index* device_abort = nullptr;
  Count* seen = nullptr;  // in host memory: what `ticks` were when last looked at
  Count* device_seen = nullptr;
  Index blocks = 0;
  unsigned threads = threads_per_block;  // of each
  FC_GPU(Stream_t) stream{}, side{};
  byte* pinned = nullptr;  // memory of the host, for the relay
  FC_GPU(Event_t) begin{}, end{};
  std::vector<void*> imported;
};

template <class T>
void** out(T** pointer) {
  return reinterpret_cast<void**>(pointer);
}

// Memory of the device that peers write while a kernel runs. There may be nothing in it.
template <class T>
FC_GPU(Error_t) allocate(T** pointer, std::size_t n) {
#if defined(__HIPCC__)
  // They are seen in fine-grained memory only.
  return hipExtMallocWithFlags(out(pointer), n * sizeof(T) + 8, hipDeviceMallocFinegrained);
#else
  return cudaMalloc(out(pointer), n * sizeof(T) + 8);
#endif
}

// Memory of the host that kernels reach, at `device`.
template <class T>
FC_GPU(Error_t) share(T** host, T** device, std::size_t n) {
  const auto bad = FC_GPU(HostAlloc)(out(host), n * sizeof(T) + 8, FC_GPU(HostAllocMapped));
  return bad != FC_GPU(Success) ? bad : FC_GPU(HostGetDevicePointer)(out(device), *host, 0);
}

}  // namespace
}  // namespace forestcoll::gpu

using namespace forestcoll;
using namespace forestcoll::gpu;

extern "C" {

// A plan in host memory; pointers inside its tables are the device's.
struct fc_gpu_plan {
  Launch launch;  // without what this GPU has of its own
  std::size_t bytes[tables_of_launch];
  Amount blocks;  // that this GPU runs
};

const char* fc_gpu_error() { return last_error.c_str(); }

int fc_gpu_count(int* count) {
  FC_CALL(GetDeviceCount, count);
  return 0;
}

// What follows in this thread is for that device.
int fc_gpu_use(Amount number) {
  FC_CALL(SetDevice, number);
  return 0;
}

// name|multiprocessors|total bytes|free bytes, of the one in use
int fc_gpu_describe(Amount number, char* text, Amount room) {
  FC_DEVICE_PROPERTIES properties;
  FC_CALL(GetDeviceProperties, &properties, number);
  std::size_t available = 0, total = 0;
  FC_CALL(MemGetInfo, &available, &total);
  std::snprintf(text, room, "%s|%d|%zu|%zu", properties.name,
                properties.multiProcessorCount, total, available);
  return 0;
}

// Whether kernels on `from` reach the memory of `to`, and may change it atomically.
int fc_gpu_reaches(Amount from, Amount to, int* access, int* atomics) {
  FC_CALL(DeviceGetP2PAttribute, access, FC_GPU(DevP2PAttrAccessSupported), from, to);
  FC_CALL(DeviceGetP2PAttribute, atomics, FC_GPU(DevP2PAttrNativeAtomicSupported), from, to);
  return 0;
}

int fc_gpu_open(Amount number, std::size_t arena_bytes, Device** out) {
  auto* d = *out = new Device;
  d->number = number;
  FC_CALL(SetDevice, number);
  FC_TRY(allocate(&d->arena, arena_bytes));
  FC_CALL(StreamCreateWithFlags, &d->stream, FC_GPU(StreamNonBlocking));
  FC_CALL(StreamCreateWithFlags, &d->side, FC_GPU(StreamNonBlocking));
  FC_CALL(EventCreate, &d->begin);
  FC_CALL(EventCreate, &d->end);
  FC_TRY(share(&d->abort, &d->device_abort, 1));
  return 0;
}

// Lets go of the others' memory. All processes do so before any of them frees its own.
int fc_gpu_detach(Device* d) {
  while (!d->imported.empty()) {
    void* const there = d->imported.back();
    d->imported.pop_back();
    FC_CALL(IpcCloseMemHandle, there);
  }
  return 0;
}

// Gives everything back that can be; the first failure is told.
int fc_gpu_close(Device* d) {
  if (!d) return 0;
  std::string first = fc_gpu_detach(d) ? last_error : "";
  const auto tell = [&](FC_GPU(Error_t) code, const char* what) {
    if (check(code, what) && first.empty()) first = last_error;
  };
  for (void* mine : std::initializer_list<void*>{d->arena, d->tables, d->launch, d->ticks})
    if (mine) tell(FC_GPU(Free)(mine), "freeing memory of the device");
  for (void* mine : std::initializer_list<void*>{d->stops, d->abort, d->seen, d->pinned})
    if (mine) tell(FC_GPU(FreeHost)(mine), "freeing memory of the host");
  for (const auto event : {d->begin, d->end})
    if (event) tell(FC_GPU(EventDestroy)(event), "destroying an event");
  for (const auto stream : {d->stream, d->side})
    if (stream) tell(FC_GPU(StreamDestroy)(stream), "destroying a stream");
  delete d;
  return first.empty() ? 0 : fail(first);
}

byte* fc_gpu_arena(const Device* d) { return d->arena; }

int fc_gpu_handle_bytes() { return sizeof(FC_GPU(IpcMemHandle_t)); }

int fc_gpu_export(Device* d, void* handle) {
  FC_GPU(IpcMemHandle_t) own;
  FC_CALL(IpcGetMemHandle, &own, d->arena);
  std::memcpy(handle, &own, sizeof own);
  return 0;
}

int fc_gpu_import(Device* d, const void* handle, void** address) {
  FC_GPU(IpcMemHandle_t) other;
  std::memcpy(&other, handle, sizeof other);
  FC_CALL(IpcOpenMemHandle, address, other, FC_GPU(IpcMemLazyEnablePeerAccess));
  d->imported.push_back(*address);
  return 0;
}

// Between the device's memory and the host's, by any thread, also while a kernel runs: its stream waits
// for no other one.
int fc_gpu_write(Device* d, void* address, const void* source, std::size_t bytes) {
  FC_CALL(SetDevice, d->number);
  FC_CALL(Memcpy, address, source, bytes, FC_GPU(MemcpyHostToDevice));
  return 0;
}

int fc_gpu_read(Device* d, const void* address, void* target, std::size_t bytes) {
  FC_CALL(SetDevice, d->number);
  FC_CALL(Memcpy, target, address, bytes, FC_GPU(MemcpyDeviceToHost));
  return 0;
}

// Within the device, behind what its stream does already; `wait`: until it is done.
int fc_gpu_copy(Device* d, void* to, const void* from, std::size_t bytes, Amount wait) {
  if (bytes)
    FC_CALL(MemcpyAsync, to, from, bytes, FC_GPU(MemcpyDeviceToDevice), d->stream);
  if (wait) FC_CALL(StreamSynchronize, d->stream);
  return 0;
}

int fc_gpu_set(Device*, void* address, Amount value, std::size_t bytes) {
  if (bytes) FC_CALL(Memset, address, value, bytes);
  FC_CALL(DeviceSynchronize);
  return 0;
}

// Memory of the host that kernels reach as well, at `device`.
int fc_gpu_pin(Device* d, std::size_t bytes, byte** host, byte** device) {
  FC_TRY(share(&d->pinned, device, bytes));
  *host = d->pinned;
  return 0;
}

// The kind of the GPU's memory, as UCX numbers them; 4 more where a kernel sees what an adapter has written
// there only once some of it was read back by the same way: up to Ampere, on AMD's, and where the
// processor's memory is the GPU's too.
int fc_gpu_memory([[maybe_unused]] const Device* d) {
#if defined(__HIPCC__)
  return 3 + 4;
#elif defined(__CUDACC__)
  int major = 0, shared = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->number);
  cudaDeviceGetAttribute(&shared, cudaDevAttrPageableMemoryAccessUsesHostPageTables, d->number);
  return 1 + 4 * (major < 9 || shared);
#else
  return 0 + 4;
#endif
}

// Chooses the threads of a block, as many as let `blocks` of them run at once: they wait for each
// other, so that all must. `held`: how many run at once, fewer than that if no choice does.
int fc_gpu_fit(Device* d, Amount blocks, int* held) {
  int processors = 0;
  FC_CALL(DeviceGetAttribute, &processors, FC_GPU(DevAttrMultiProcessorCount), d->number);
  for (int threads = threads_per_block; threads >= fewest_threads; threads /= 2) {
    int each = 0;
    FC_CALL(OccupancyMaxActiveBlocksPerMultiprocessor, &each, run_blocks, threads, 0);
    d->threads = threads;
    *held = each * processors;
    if (*held >= blocks) break;
  }
  return 0;
}

// Uploads the tables; they stay for all launches that follow.
int fc_gpu_load(Device* d, const fc_gpu_plan* plan) {
  std::size_t total = 256;
  for (const std::size_t bytes : plan->bytes) total += (bytes + 255) / 256 * 256;
  FC_CALL(Malloc, out(&d->tables), total);
  Launch launch = plan->launch;
  auto* const tables = reinterpret_cast<void**>(&launch);
  byte* place = d->tables;
  for (std::size_t i = 0; i < tables_of_launch; ++i) {
    if (plan->bytes[i])
      FC_CALL(Memcpy, place, tables[i], plan->bytes[i], FC_GPU(MemcpyHostToDevice));
    tables[i] = place;
    place += (plan->bytes[i] + 255) / 256 * 256;
  }
  d->blocks = plan->blocks;
  FC_TRY(allocate(&d->ticks, 2 * d->blocks + 1));
  FC_TRY(share(&d->seen, &d->device_seen, d->blocks));
  FC_TRY(share(&d->stops, &d->device_stops, d->blocks));
  launch.ticks = d->ticks;
  launch.rung = d->ticks + d->blocks;
  launch.stops = d->device_stops;
  launch.abort = d->device_abort;
  FC_CALL(Malloc, out(&d->launch), sizeof launch);
  FC_CALL(Memcpy, d->launch, &launch, sizeof launch, FC_GPU(MemcpyHostToDevice));
  return 0;
}

// Readies a launch: what is left of the last one goes, `addresses` (6 per rank) take the place of the
// loaded ones. All processes do so before any of them starts.
int fc_gpu_prepare(Device* d, byte* const* addresses, Amount count, Amount number) {
  Launch launch{};
  FC_CALL(Memcpy, &launch, d->launch, sizeof launch, FC_GPU(MemcpyDeviceToHost));
  launch.number = number;
  FC_CALL(Memcpy, d->launch, &launch, sizeof launch, FC_GPU(MemcpyHostToDevice));
  FC_CALL(Memcpy, const_cast<byte**>(launch.addresses), addresses, count * sizeof *addresses,
                        FC_GPU(MemcpyHostToDevice));
  FC_CALL(Memset, d->ticks, 0, (2 * d->blocks + 1) * sizeof *d->ticks);
  for (Index i = 0; i < d->blocks; ++i) d->stops[i] = {};
  *d->abort = 0;
  FC_CALL(DeviceSynchronize);
  return 0;
}

// Starts the kernel, and behind it the division of `count` outputs of `bytes` each (`avg`).
int fc_gpu_start(Device* d, byte* const* sums, Amount count, Amount bytes, Amount ranks) {
  const Launch* launch = d->launch;
  FC_CALL(EventRecord, d->begin, d->stream);
  if (d->blocks) FC_TRY(FC_LAUNCH(run_blocks, d->blocks, d->threads, d->stream, launch));
  for (int i = 0; i < count; ++i) {
    byte* const there = sums[i];
    FC_TRY(FC_LAUNCH(average, averaging_blocks, threads_per_block, d->stream, launch, there, bytes,
                     ranks));
  }
  FC_CALL(EventRecord, d->end, d->stream);
  return 0;
}

// running: 1 while the kernel runs. ticks: changes while thread blocks get on.
int fc_gpu_poll(Device* d, int* running, Count* ticks) {
  const auto state = FC_GPU(EventQuery)(d->end);
  if (state != FC_GPU(Success) && state != FC_GPU(ErrorNotReady)) return check(state, "the kernel");
  *running = state == FC_GPU(ErrorNotReady);
  *ticks = 0;
  if (!*running || !d->blocks) return 0;
  // To pinned memory, by the copy engine: thread blocks that wait leave no processor to anything else.
  FC_CALL(MemcpyAsync, d->seen, d->ticks, d->blocks * sizeof *d->seen,
                             FC_GPU(MemcpyDeviceToHost), d->side);
  FC_CALL(StreamSynchronize, d->side);
  for (Index i = 0; i < d->blocks; ++i) *ticks += d->seen[i];
  return 0;
}

void fc_gpu_abort(Device* d) { *static_cast<volatile Index*>(d->abort) = 1; }

int fc_gpu_nanoseconds(Device* d, Amount* elapsed) {
  float milliseconds = 0;
  FC_CALL(EventElapsedTime, &milliseconds, d->begin, d->end);
  *elapsed = static_cast<Amount>(milliseconds * 1e6);
  return 0;
}

int fc_gpu_stop_bytes() { return sizeof(Stop); }

int fc_gpu_stops(const Device* d, void* target) {
  std::memcpy(target, d->stops, d->blocks * sizeof(Stop));
  return 0;
}

}  // extern "C"
