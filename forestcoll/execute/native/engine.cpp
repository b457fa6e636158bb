// Launches: the machine is laid out in memory, threads or processes run it, the caller watches.

#include "engine.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "far.hpp"
#include "process_pool.hpp"

namespace forestcoll {
namespace {

constexpr Nanoseconds poll_interval = std::chrono::milliseconds(20);
constexpr timespec poll_time{0, poll_interval.count()};
constexpr Nanoseconds longest_nap = std::chrono::seconds(1);
constexpr Amount pass_tile = 1 << 12;      // values, a multiple of a block's
constexpr Amount average_tile = 1 << 18;  // bytes, a multiple of every element

// --- where everything stood when a launch ended

std::vector<Stop> stops_of(const Machine& machine) {
  std::vector<Stop> stops;
  for (Index i = 0; i < machine.block_count(); ++i) {
    const BlockState& s = machine.blocks[i];
    const bool is_finished = s.phase.load() == finished;
    const bool is_waiting = s.phase.load() == asleep;
    stops.push_back({i, s.at, is_finished, is_waiting ? s.awaits : Awaits::nothing, s.object, s.wanted,
                     is_waiting ? Amount(s.awaited.load()->load()) : 0});
  }
  return stops;
}

decltype(Result::leftovers) leftovers_of(const Machine& machine) {
  decltype(Result::leftovers) found;
  for (Index i = 0; i < machine.connection_count(); ++i) {
    const Connection& c = machine.connections[i];
    if (machine.far && !machine.far->is_here(machine.plan.blocks[machine.plan.readers[i]].rank)) continue;
    const Amount unread = c.posted.load() - c.taken.load();
    if (unread) found.push_back({0, i, unread});
  }
  for (Index i = 0; i < std::ssize(machine.plan.semaphores); ++i) {
    if (machine.far && !machine.far->owns(i)) continue;
    const Amount extra = machine.semaphores[i].value.load() - machine.plan.semaphores[i];
    if (extra) found.push_back({1, i, extra});
  }
  return found;
}

void add_once(std::vector<Index>& list, Index value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

// Who may wait for what: that is all that waking needs to know.
void connect_waiters(Machine& m) {
  for (Index self = 0; self < m.block_count(); ++self) {
    const Block& block = m.plan.blocks[self];
    for (Index pc = block.begin; pc < block.end; ++pc) {
      const Instruction& in = m.plan.instructions[pc];
      for (Index i = in.after; i < in.after + in.afters; ++i) {
        const Dependency& on = m.plan.dependencies[i];
        add_once(m.dependents[on.block], self);
      }
      const Op op = in.op;
      if (op == Op::wait || op == Op::relaxed_wait || op == Op::acquire)
        for (Index i = in.names; i < in.names + in.named; ++i)
          add_once(m.takers[m.plan.names[i]], self);
      if (op == Op::barrier) add_once(m.members[in.barrier], self);
      if (op >= Op::forward_packets && op <= Op::reduce_copy_put_packets && op != Op::copy_packets)
        add_once(m.packet_readers[block.rank], self);
    }
  }
}

template <class Layout>
std::unique_ptr<Region> carve(bool shared, Layout layout) {
  Carver measure(nullptr);
  layout(measure);
  auto region = std::make_unique<Region>(measure.used(), shared);
  Carver cut(region->start());
  layout(cut);
  return region;
}

// All that changes. It stays from launch to launch: its pages are there already. Every worker of a team
// may hold all of the team's blocks.
void lay_out(Machine& m) {
  m.workers = m.options.processes ? m.options.ranks : m.options.threads;
  m.teams = m.options.processes ? m.options.ranks : 1;
  const Index each = m.workers / m.teams;
  const Amount room = m.options.slots * m.slot_stride();  // of a connection
  byte* slots = nullptr;
  m.memory = carve(m.options.processes, [&](Carver& carver) {
    m.control = carver.array<Control>(1);
    m.blocks = carver.array<BlockState>(m.block_count());
    m.connections = carver.array<Connection>(m.plan.writers.size());
    m.semaphores = carver.array<Counter>(m.plan.semaphores.size());
    m.barriers = carver.array<Counter>(m.plan.barriers);
    m.inboxes = carver.array<Counter>(m.options.ranks);
    m.team = carver.array<Team>(m.teams);
    m.queues = carver.array<Queue>(m.workers);
    m.rings = carver.array<Index>(Amount{m.block_count()} * each);
    slots = carver.space(m.connection_count() * room);
  });
  for (Index c = 0; c < m.connection_count(); ++c) m.slots.push_back(slots + c * room);
  for (Index i = 0; i < std::ssize(m.plan.semaphores); ++i)
    m.semaphores[i].value.store(m.plan.semaphores[i]);
  std::vector<Index> sizes(m.teams);
  for (Index i = 0; i < m.block_count(); ++i) ++sizes[m.team_of(i)];
  Amount ring = 0;
  for (int w = 0; w < m.workers; ++w) {
    const int t = w / each;
    m.team[t].workers = each;
    m.team[t].first = t * each;
    m.queues[w].ring = ring;
    m.queues[w].capacity = sizes[t];
    ring += sizes[t];
  }
}

// `avg`: complete sums, divided by the number of ranks, tile by tile.
void divide_sums(const Options& options) {
  std::vector<Area> tiles;
  for (const Area& sum : options.sums)
    for (Amount done = 0; done < sum.bytes; done += average_tile)
      tiles.push_back({sum.start + done, std::min(average_tile, sum.bytes - done)});
  const Divide divide = divide_function(options.type);
  const bool little = tiles.size() == options.sums.size();  // not worth starting a thread
  share_out(tiles.size(), little ? 1 : options.threads, [&](auto k) {
    divide(tiles[k].start, tiles[k].bytes, options.ranks);
  });
}

// What the caller has to what is sent, or back, through float32.
void pass(const Options& options, const std::vector<Passage>& passages, bool back) {
  const Type from = back ? options.type : options.data, to = back ? options.data : options.type;
  const Convert widen = widen_function(from), narrow = narrow_function(to);
  const Divide divide = divide_function(Type::float32);
  const auto at = [](byte* start, Type type, Amount value) {
    return start + value / wire_values(type) * wire_bytes(type);
  };
  for (const Passage& p : passages)
    for_tiles(p.values, pass_tile, options.threads, [&](Amount first, Amount n) {
      alignas(64) float tile[pass_tile];
      byte* const wide = reinterpret_cast<byte*>(tile);
      widen(wide, at(back ? p.wire : p.own, from, first), n);
      if (p.divides) divide(wide, n * sizeof(float), options.ranks);
      narrow(at(back ? p.own : p.wire, to, first), wide, n);
    });
}

// Values before they are rounded: none yet, as all buffers begin.
void lay_out_exact(Machine& m) {
  const Amount each = wire_values(m.options.type) * sizeof(float);
  m.exact_memory = carve(m.options.processes, [&](Carver& carver) {
    m.exact.clear();
    for (const Area& area : m.options.exact)
      m.exact.push_back(
          reinterpret_cast<float*>(carver.space(area.bytes / m.options.geometry.element_bytes * each)));
  });
}

}  // namespace

Machine::Machine(Plan given, Options wanted) : plan(std::move(given)), options(std::move(wanted)) {
  tables = {plan.instructions.data(), plan.operands.data(), plan.dependencies.data(), plan.names.data(),
            plan.loops.data()};
  dependents.resize(block_count());
  takers.resize(plan.semaphores.size());
  members.resize(plan.barriers);
  packet_readers.resize(options.ranks);
  combine = combine_function(options.type, options.op);
  combine_wide = combine_function(Type::float32, options.op);
  widen = widen_function(options.type);
  narrow = narrow_function(options.type);
  lay_out_exact(*this);
  lay_out(*this);
  connect_waiters(*this);
  if (options.processes) list_pages(*this);
}

Machine::~Machine() = default;

Activity activity(const Machine& s) {
  Wire& wire = s.far->wire();
  Activity a;
  // Counts first: what comes afterwards makes them older than they are, never newer.
  for (const Count each : wire.received()) a.received += each;
  a.idle = s.control->active.load() == 0 && wire.under_way() == 0;
  a.finished = s.control->unfinished.load() == 0;
  for (const Count each : wire.sent()) a.sent += each;
  for (int w = 0; w < s.workers; ++w) a.ticks += s.queues[w].ticks.count.load();
  a.ticks += s.far->ticks().count.load();
  return a;
}

void end_processes(Machine& m) { m.pool.reset(); }

void end(Machine& m, Status status) {
  m.ending.store(static_cast<int>(status));
  stop(m, false);
}

namespace {

// Sleeps until `word` has reached `wanted`; false: given up, and `result` says why.
bool await_end(Machine& m, Word& word, std::uint32_t wanted, const Caller& caller, Result& result) {
  Count last = ~Count{0};
  auto looked = Clock::now();
  Nanoseconds waited{0};
  const auto exhausted = [&] {  // nothing moves; time counts only as far as this process could look
    Count ticks = 0;
    for (int w = 0; w < m.workers; ++w) ticks += m.queues[w].ticks.count.load(std::memory_order_relaxed);
    const auto now = Clock::now();
    waited = ticks == last ? waited + std::min<Nanoseconds>(now - looked, longest_nap) : Nanoseconds(0);
    looked = now;
    last = ticks;
    return std::chrono::duration<double>(waited).count() > m.options.patience;
  };
  for (;;) {
    const std::uint32_t seen = word.load();
    if (seen >= wanted) return true;
    sleep_while(word, seen, &poll_time);
    if (word.load() >= wanted) return true;
    if (caller.poll()) {
      result.status = Status::interrupted;
      return false;
    }
    if (m.pool)
      if (const auto death = m.pool->death()) {
        result.status = Status::died;
        result.deaths = {*death};
        return false;
      }
    if (!m.far && exhausted()) {  // over all processes, it is not this one's to say
      result.status = Status::stalled;
      if (m.pool) result.deaths = m.pool->halted();
      return false;
    }
  }
}

Status status_of(const Machine& m) {
  if (m.control->mismatch.load()) return Status::mismatch;
  return m.control->stuck ? Status::stuck : Status::done;
}

void give_up(Machine& m) {
  m.control->abort.store(true);
  stop(m, false);
}

void run_threads(Machine& m, const Caller& caller, Result& result) {
  std::vector<std::jthread> workers;  // joined on every way out
  try {
    m.control->launch.fetch_add(1);
    for (int w = 0; w < m.workers; ++w) workers.emplace_back([&m, w] { run_worker(m, w); });
    if (await_end(m, m.control->over, 1, caller, result))
      result.status = status_of(m);
    else
      give_up(m);
  } catch (...) {
    m.control->go.store(1);  // those who exist must not wait for those who do not
    wake_sleepers(m.control->go);
    give_up(m);
    throw;
  }
}

void run_processes(Machine& m, const Caller& caller, Result& result) {
  if (!m.pool) caller.alone([&m] { m.pool = std::make_unique<ProcessPool>(m); });
  ProcessPool& pool = *m.pool;
  try {
    m.control->launch.fetch_add(1);
    wake_sleepers(m.control->launch);
    if (await_end(m, m.control->over, 1, caller, result)) {
      result.status = status_of(m);
      if (result.status == Status::done)
        await_end(m, m.control->parked, m.workers, caller, result);
    }
  } catch (...) {
    pool.kill();
    throw;
  }
  if (result.status == Status::done) return;
  if (const auto death = pool.death(); death && result.status != Status::died) {
    result.status = Status::died;  // whatever followed from it
    result.deaths = {*death};
  }
  pool.kill();
}

// Sleeps until `reached`; false: somebody has ended the launch meanwhile.
bool await(const std::function<bool()>& reached, const Caller& caller, const std::atomic<int>& ending) {
  for (int turn = 0; !reached(); ++turn) {
    if (ending.load()) return false;
    std::this_thread::sleep_for(turn < 100 ? Nanoseconds(20'000) : poll_interval);
    if (turn >= 100 && caller.poll()) return false;
  }
  return true;
}

// The part of a launch that is here, until all processes have ended theirs and all that was sent is
// there; false: it ended badly at one of them. Thread blocks that lie elsewhere count as done.
bool run_apart(Machine& m, const Caller& caller, Result& result) {
  Wire& wire = m.far->wire();
  const std::atomic<int>& ending = m.ending;
  const auto given_up = [&] {
    result.status = ending.load() ? static_cast<Status>(ending.load()) : Status::interrupted;
  };
  if (m.control->unfinished.load() > 0) {
    run_threads(m, caller, result);
    if (ending.load()) given_up();
  } else {
    m.control->launch.fetch_add(1);
    m.control->begin = m.control->finish = Clock::now();
  }
  std::vector<Count> sent, expected;
  const auto all_gone = [&] { return wire.under_way() == 0; };
  if (result.status == Status::done && !await(all_gone, caller, ending)) given_up();
  if (result.status == Status::done) sent = wire.sent();
  if (result.status == Status::interrupted || !caller.end(sent, expected)) {
    result.status = Status::interrupted;
    return false;
  }
  if (expected.empty()) return false;
  const auto all_here = [&] {
    const std::vector<Count> received = wire.received();
    return std::equal(received.begin(), received.end(), expected.begin(), std::greater_equal());
  };
  if (!await(all_here, caller, ending)) given_up();
  return result.status == Status::done;
}

}  // namespace

Result launch(Machine& s, int turn, const Caller& caller) {
  Result result;
  if (s.block_count() == 0) return result;
  const auto begin = Clock::now();
  pass(s.options, s.options.in, false);
  const auto passed = Clock::now() - begin;
  if (!s.exact.empty()) std::memset(s.exact_memory->start(), 0xff, s.exact_memory->bytes());
  prepare_launch(s);
  s.control->turn = turn;
  if (s.far && !caller.begin()) {
    result.status = Status::interrupted;
    return result;
  }
  bool well = true;
  if (s.far) {
    well = run_apart(s, caller, result);
  } else {
    (s.options.processes ? run_processes : run_threads)(s, caller, result);
  }
  if (result.status != Status::done || !well) {
    result.stops = stops_of(s);
    result.culprit = s.control->culprit;
    return result;
  }
  if (!s.options.sums.empty()) {
    divide_sums(s.options);
    s.control->finish = Clock::now();
  }
  const auto end = Clock::now();
  pass(s.options, s.options.out, true);
  const auto time = s.control->finish - s.control->begin + passed + (Clock::now() - end);
  result.nanoseconds = std::chrono::duration_cast<Nanoseconds>(time).count();
  result.leftovers = leftovers_of(s);
  if (!result.leftovers.empty()) result.status = Status::leftover;
  return result;
}

}  // namespace forestcoll
