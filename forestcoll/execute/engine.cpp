// The scheduler: a few workers run many thread blocks until all are done or none can go on.

#include "engine.hpp"

#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "cpu_layer.hpp"

namespace forestcoll {
namespace {

using Clock = std::chrono::steady_clock;

enum Phase : int { queued, running, woken, asleep, finished };

constexpr auto poll_interval = std::chrono::milliseconds(20);

// Blocks that can go on: each worker takes the newest of its own, whose data is in its cache, and the
// oldest of another worker's where it has none.
struct alignas(64) Queue {
  std::mutex mutex;
  std::deque<std::int32_t> blocks;
  Ticks ticks;
};

// Address space for slots: pages that no message ever needs are never touched.
class Region {
 public:
  explicit Region(std::size_t bytes) : bytes_(bytes) {
    if (!bytes) return;
    start_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Region() {
    if (bytes_) munmap(start_, bytes_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  byte* start() const { return static_cast<byte*>(start_); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* start_ = nullptr;
};

}  // namespace

struct Scheduler {
  explicit Scheduler(std::size_t workers) : queues(workers) {}
  std::vector<Queue> queues;
  std::atomic<std::int64_t> ready{0};  // entries of all queues
  std::atomic<int> idle{0};
  std::atomic<std::size_t> unfinished{0};
  std::mutex mutex;  // of `over`, and of going to sleep
  std::condition_variable work, end;
  bool over = false;
  bool stuck = false;
  std::size_t waiting_to_start = 0;
  Clock::time_point begin, finish;

  void push(int worker, std::int32_t block) {
    ready.fetch_add(1);
    Queue& queue = queues[static_cast<std::size_t>(worker)];
    {
      const std::lock_guard lock(queue.mutex);
      queue.blocks.push_back(block);
    }
    if (idle.load() > 0) {
      const std::lock_guard lock(mutex);
      work.notify_one();
    }
  }

  bool pop(int worker, std::int32_t& block) {
    for (std::size_t i = 0; i < queues.size(); ++i) {
      Queue& queue = queues[(static_cast<std::size_t>(worker) + i) % queues.size()];
      const std::lock_guard lock(queue.mutex);
      if (queue.blocks.empty()) continue;
      if (i == 0) {
        block = queue.blocks.back();
        queue.blocks.pop_back();
      } else {
        block = queue.blocks.front();
        queue.blocks.pop_front();
      }
      ready.fetch_sub(1);
      return true;
    }
    return false;
  }

  void stop(bool is_stuck) {
    const std::lock_guard lock(mutex);
    stop_locked(is_stuck);
  }

  void stop_locked(bool is_stuck) {
    if (!over) {
      finish = Clock::now();
      stuck = is_stuck;
    }
    over = true;
    work.notify_all();
    end.notify_all();
  }

  // Sleeps until there may be work; false: the launch is over. When all workers are here and nothing
  // is in line, nobody can ever wake anybody: stuck.
  bool rest() {
    std::unique_lock lock(mutex);
    if (over) return false;
    idle.fetch_add(1);
    if (idle.load() == static_cast<int>(queues.size()) && ready.load() == 0) stop_locked(true);
    work.wait(lock, [&] { return over || ready.load() > 0; });
    idle.fetch_sub(1);
    return !over;
  }
};

struct Engine::State : Machine {
  bool broken = false;  // a launch ended early: connections hold half a conversation
  std::unique_ptr<Region> slots;  // kept from launch to launch: its pages are there already
};

void wake(Machine& machine, int worker, std::int32_t block) {
  auto& phase = machine.blocks[static_cast<std::size_t>(block)].phase;
  int seen = phase.load();
  for (;;) {
    if (seen == asleep) {
      if (!phase.compare_exchange_weak(seen, queued)) continue;
      machine.scheduler->push(worker, block);
      return;
    }
    if (seen != running || phase.compare_exchange_weak(seen, woken)) return;
  }
}

namespace {

void wait_for_start(Scheduler& scheduler) {
  std::unique_lock lock(scheduler.mutex);
  if (--scheduler.waiting_to_start == 0) {
    scheduler.begin = Clock::now();
    scheduler.work.notify_all();
  }
  scheduler.work.wait(lock, [&] { return scheduler.waiting_to_start == 0 || scheduler.over; });
}

void run_worker(Machine& machine, Scheduler& scheduler, int worker) {
  CpuLayer layer(machine, worker, scheduler.queues[static_cast<std::size_t>(worker)].ticks);
  wait_for_start(scheduler);
  while (!machine.abort.load(std::memory_order_relaxed)) {
    std::int32_t block;
    if (!scheduler.pop(worker, block)) {
      if (!scheduler.rest()) return;
      continue;
    }
    BlockState& state = machine.blocks[static_cast<std::size_t>(block)];
    state.phase.store(running);
    layer.enter(block);
    const Block& code = machine.plan.blocks[static_cast<std::size_t>(block)];
    if (run_thread_block(layer, code, state.at) == Outcome::done) {
      state.phase.store(finished);
      if (scheduler.unfinished.fetch_sub(1) == 1) scheduler.stop(false);
      continue;
    }
    int seen = running;
    if (!state.phase.compare_exchange_strong(seen, asleep)) {
      state.phase.store(queued);
      scheduler.push(worker, block);
    }
  }
  scheduler.stop(false);
}

void check_options(const Options& options, std::size_t addresses, const Plan& plan) {
  std::size_t ranks = 0;
  for (const Block& b : plan.blocks) ranks = std::max(ranks, static_cast<std::size_t>(b.rank) + 1);
  const bool ok = options.chunk_bytes > 0 && options.slice_bytes > 0 && options.slots > 0 &&
                  options.threads > 0 && options.slot_bytes >= element_bytes(options.type) &&
                  options.chunk_bytes % element_bytes(options.type) == 0 &&
                  options.slice_bytes % element_bytes(options.type) == 0;
  if (!ok) throw std::invalid_argument("launch: sizes must be positive multiples of the element");
  if (addresses < ranks * 3) throw std::invalid_argument("launch: three addresses a rank");
}

// A message holds whole chunks if at least one fits a slot and slices are not forced, else a slice.
Geometry geometry_of(const Options& options) {
  Geometry g{};
  const std::int64_t element = element_bytes(options.type);
  g.chunk_bytes = options.chunk_bytes;
  g.element_bytes = element;
  g.slice_bytes = std::min({options.slice_bytes, options.slot_bytes, options.chunk_bytes});
  g.slice_bytes = g.slice_bytes / element * element;
  g.slices = (g.chunk_bytes + g.slice_bytes - 1) / g.slice_bytes;
  g.piece_chunks = g.slices > 1 ? 1 : options.slot_bytes / g.chunk_bytes;
  return g;
}

std::int64_t present(const Machine& m, const BlockState& state) {
  const auto at = static_cast<std::size_t>(state.object);
  switch (state.awaits) {
    case Awaits::nothing: return 0;
    case Awaits::dependency: return static_cast<std::int64_t>(m.blocks[at].progress.load());
    case Awaits::slot: return static_cast<std::int64_t>(m.connections[at].taken.load());
    case Awaits::message: return static_cast<std::int64_t>(m.connections[at].posted.load());
    case Awaits::semaphore: return m.semaphores[at].value.load();
    case Awaits::barrier: return static_cast<std::int64_t>(m.barriers[at].arrived.load());
    case Awaits::packets: return static_cast<std::int64_t>(m.inboxes[at].count.load());
  }
  return 0;
}

std::vector<Stop> stops_of(const Machine& machine) {
  std::vector<Stop> stops;
  for (std::size_t i = 0; i < machine.blocks.size(); ++i) {
    const BlockState& s = machine.blocks[i];
    const bool is_finished = s.phase.load() == finished;
    const bool is_waiting = s.phase.load() == asleep;
    stops.push_back({static_cast<std::int32_t>(i), s.at, is_finished,
                     is_waiting ? s.awaits : Awaits::nothing, s.object, s.wanted,
                     is_waiting ? present(machine, s) : 0});
  }
  return stops;
}

std::vector<Result::Leftover> leftovers_of(const Machine& machine) {
  std::vector<Result::Leftover> found;
  for (std::size_t i = 0; i < machine.connections.size(); ++i) {
    const Connection& c = machine.connections[i];
    const auto unread = static_cast<std::int64_t>(c.posted.load() - c.taken.load());
    if (unread) found.push_back({0, static_cast<std::int32_t>(i), unread});
  }
  for (std::size_t i = 0; i < machine.semaphores.size(); ++i) {
    const std::int64_t extra = machine.semaphores[i].value.load() - machine.plan.semaphores[i];
    if (extra) found.push_back({1, static_cast<std::int32_t>(i), extra});
  }
  return found;
}

void add_once(std::vector<std::int32_t>& list, std::int32_t value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// Who may wait for what: that is all that waking needs to know.
void connect_waiters(Machine& m) {
  for (std::size_t b = 0; b < m.plan.blocks.size(); ++b) {
    const Block& block = m.plan.blocks[b];
    const auto self = static_cast<std::int32_t>(b);
    for (std::int32_t pc = block.begin; pc < block.end; ++pc) {
      const Instruction& in = m.plan.instructions[static_cast<std::size_t>(pc)];
      for (std::int32_t i = in.after; i < in.after + in.afters; ++i) {
        const Dependency& on = m.plan.dependencies[static_cast<std::size_t>(i)];
        add_once(m.dependents[static_cast<std::size_t>(on.block)], self);
      }
      const Op op = static_cast<Op>(in.op);
      if (op == Op::wait || op == Op::relaxed_wait || op == Op::acquire)
        for (std::int32_t i = in.names; i < in.names + in.named; ++i)
          add_once(m.semaphores[static_cast<std::size_t>(m.plan.names[static_cast<std::size_t>(i)])]
                       .takers, self);
      if (op == Op::barrier) add_once(m.barriers[static_cast<std::size_t>(in.barrier)].members, self);
      if (op >= Op::forward_packets && op < Op::loop && op != Op::copy_packets)
        add_once(m.inboxes[static_cast<std::size_t>(block.rank)].readers, self);
    }
  }
}

}  // namespace

Engine::Engine(Plan plan) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.plan = std::move(plan);
  s.tables = {s.plan.instructions.data(), s.plan.operands.data(), s.plan.dependencies.data(),
              s.plan.names.data(), s.plan.loops.data()};
  s.blocks = std::vector<BlockState>(s.plan.blocks.size());
  s.dependents.resize(s.plan.blocks.size());
  s.connections = std::vector<Connection>(s.plan.writers.size());
  for (std::size_t i = 0; i < s.connections.size(); ++i) {
    s.connections[i].writer = s.plan.writers[i];
    s.connections[i].reader = s.plan.readers[i];
  }
  s.semaphores = std::vector<Semaphore>(s.plan.semaphores.size());
  for (std::size_t i = 0; i < s.semaphores.size(); ++i)
    s.semaphores[i].value.store(s.plan.semaphores[i]);
  s.barriers = std::vector<Barrier>(static_cast<std::size_t>(s.plan.barriers));
  std::size_t ranks = 0;
  for (const Block& b : s.plan.blocks) ranks = std::max(ranks, static_cast<std::size_t>(b.rank) + 1);
  for (const Operand& o : s.plan.operands) ranks = std::max(ranks, static_cast<std::size_t>(o.rank) + 1);
  s.inboxes = std::vector<Inbox>(ranks);
  connect_waiters(s);
}

Engine::~Engine() = default;

namespace {

void prepare(Machine& m, const Options& options, byte* slots) {
  m.geometry = geometry_of(options);
  m.combine = combine_function(options.type, options.op);
  m.slot_bytes = options.slot_bytes;
  m.abort.store(false);
  m.mismatch.store(false);
  for (BlockState& b : m.blocks) {
    b.progress.store(0);
    b.phase.store(queued);
    b.awaits = Awaits::nothing;
    b.at = {};
  }
  for (std::size_t i = 0; i < m.blocks.size(); ++i) m.blocks[i].at.pc = m.plan.blocks[i].begin;
  for (Connection& c : m.connections) {
    // Message numbers go on from launch to launch; the slot of a number may be another one now.
    c.slots.assign(static_cast<std::size_t>(options.slots), Slot{});
    c.memory = slots;
    slots += options.slots * options.slot_bytes;
  }
}

// Receivers are taken first (the newest entry is), so that senders find an offer to write to.
void fill_queues(const Machine& m, Scheduler& scheduler) {
  const std::size_t n = m.blocks.size();
  for (const bool receiving : {false, true})
    for (std::size_t i = 0; i < n; ++i) {
      if ((m.plan.blocks[i].incoming >= 0) != receiving) continue;
      const auto worker = static_cast<int>(i * scheduler.queues.size() / n);
      scheduler.push(worker, static_cast<std::int32_t>(i));
    }
}

// Waits on the calling thread for the end; gives up when told to, or when nothing moves any more.
Status supervise(Machine& m, Scheduler& scheduler, const Options& options,
                 const std::function<bool()>& poll) {
  std::uint64_t last = 0;
  auto since = Clock::now();
  std::unique_lock lock(scheduler.mutex);
  while (!scheduler.end.wait_for(lock, poll_interval, [&] { return scheduler.over; })) {
    lock.unlock();
    const bool interrupted = poll();
    std::uint64_t ticks = 0;
    for (const Queue& q : scheduler.queues) ticks += q.ticks.count.load(std::memory_order_relaxed);
    lock.lock();
    if (scheduler.over) break;
    const auto now = Clock::now();
    if (ticks != last) {
      last = ticks;
      since = now;
    }
    const bool stalled = std::chrono::duration<double>(now - since).count() > options.patience;
    if (!interrupted && !stalled) continue;
    m.abort.store(true);
    scheduler.stop_locked(false);
    return interrupted ? Status::interrupted : Status::stalled;
  }
  if (m.mismatch.load()) return Status::mismatch;
  return scheduler.stuck ? Status::stuck : Status::done;
}

Status run_all(Machine& m, Scheduler& scheduler, const Options& options,
               const std::function<bool()>& poll) {
  std::vector<std::jthread> workers;  // joined on every way out
  try {
    for (int i = 0; i < options.threads; ++i)
      workers.emplace_back([&m, &scheduler, i] { run_worker(m, scheduler, i); });
    return supervise(m, scheduler, options, poll);
  } catch (...) {
    m.abort.store(true);
    scheduler.stop(false);
    throw;
  }
}

}  // namespace

Result Engine::launch(const std::vector<byte*>& addresses, const Options& options,
                      const std::function<bool()>& poll) {
  State& s = *state_;
  check_options(options, addresses.size(), s.plan);
  if (s.broken) throw std::invalid_argument("launch: an earlier launch of this engine failed");
  s.addresses = addresses;
  const std::size_t slot_total = s.connections.size() * static_cast<std::size_t>(options.slots) *
                                 static_cast<std::size_t>(options.slot_bytes);
  if (!s.slots || s.slots->bytes() < slot_total) {
    s.slots.reset();
    s.slots = std::make_unique<Region>(slot_total);
  }
  prepare(s, options, s.slots->start());
  ++s.launch;
  Result result;
  if (s.blocks.empty()) return result;

  Scheduler scheduler(static_cast<std::size_t>(options.threads));
  scheduler.unfinished = s.blocks.size();
  scheduler.waiting_to_start = scheduler.queues.size();
  s.scheduler = &scheduler;
  fill_queues(s, scheduler);
  result.status = run_all(s, scheduler, options, poll);
  s.scheduler = nullptr;
  const auto time = scheduler.finish - scheduler.begin;
  result.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  s.broken = result.status != Status::done;
  if (s.broken) {
    result.stops = stops_of(s);
    result.culprit = s.culprit;
    return result;
  }
  result.leftovers = leftovers_of(s);
  if (!result.leftovers.empty()) {
    s.broken = true;
    result.status = Status::leftover;
  }
  return result;
}

}  // namespace forestcoll
