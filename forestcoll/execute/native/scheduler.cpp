#include "launch.hpp"

#include <mutex>

#include "cpu_layer.hpp"

namespace forestcoll {
namespace {

void ring_bell(Team& team) {
  team.bell.fetch_add(1);
  wake_sleepers(team.bell);
}

void enqueue(Machine& m, Queue& queue, Index block) {
  const std::lock_guard lock(queue.mutex);
  m.rings[queue.ring + (queue.head + queue.size++) % queue.capacity] = block;
}

// In the own queue, or in that of the block's own rank.
void push(Machine& m, int worker, Index block) {
  Team& team = m.team[m.team_of(block)];
  const bool own = worker >= team.first && worker < team.first + team.workers;
  enqueue(m, m.queues[own ? worker : team.first], block);
  team.ready.fetch_add(1);
  if (team.sleepers.load() > 0 && team.sleepers.exchange(0) > 0) ring_bell(team);
}

// A worker takes the newest of its own, whose data is in its cache, or another one's oldest.
bool pop(Machine& m, Team& team, int worker, Index& block) {
  if (team.ready.load() == 0) return false;
  for (int i = 0; i < team.workers; ++i) {
    Queue& queue = m.queues[team.first + (worker - team.first + i) % team.workers];
    const std::lock_guard lock(queue.mutex);
    if (queue.size == 0) continue;
    --queue.size;
    std::uint32_t at = queue.head + queue.size;
    if (i != 0) at = queue.head++;
    block = m.rings[queue.ring + at % queue.capacity];
    team.ready.fetch_sub(1);
    return true;
  }
  return false;
}

// Sleeps until there may be work; false: the launch is over.
bool rest(Machine& m, Team& team) {
  const std::uint32_t seen = team.bell.load();
  team.sleepers.fetch_add(1);
  // Whoever brings work raises `ready` before it looks for sleepers.
  while (m.control->over.load() == 0 && team.ready.load() == 0 && team.bell.load() == seen)
    sleep_while(team.bell, seen);
  return m.control->over.load() == 0;
}

void wait_for_start(Machine& m) {
  Control& control = *m.control;
  if (control.arrived.fetch_add(1) + 1 == static_cast<unsigned>(m.workers)) {
    control.begin = Clock::now();
    control.go.store(1);
    wake_sleepers(control.go);
    return;
  }
  while (control.go.load() == 0) sleep_while(control.go, 0);
}

// No block of this process can go on; where there are others, they may still wake one. A worker may
// come here late, after a block that it put to sleep was woken and all have finished.
void stop_stuck(Machine& m) {
  if (!m.far && m.control->unfinished.load() > 0) stop(m, true);
}

void run_block(Machine& m, CpuLayer& layer, int worker, Index block) {
  Control& control = *m.control;
  BlockState& state = m.blocks[block];
  state.phase.store(running);
  layer.enter(block);
  const Block& code = m.plan.blocks[block];
  if (run_thread_block(layer, code, state.at) == Outcome::done) {
    state.phase.store(finished);
    // In this order: whoever sees that nobody is active must see who has finished.
    if (control.unfinished.fetch_sub(1) == 1) {
      control.active.fetch_sub(1);
      stop(m, false);
    } else if (control.active.fetch_sub(1) == 1) {
      stop_stuck(m);
    }
    return;
  }
  if (control.abort.load()) return;  // `at` and `awaits` tell where it was
  int seen = running;
  if (state.phase.compare_exchange_strong(seen, asleep)) {
    if (control.active.fetch_sub(1) == 1) stop_stuck(m);
    return;
  }
  state.phase.store(queued);  // woken in the meantime
  push(m, worker, block);
}

}  // namespace

void wake(Machine& m, int worker, Index block) {
  auto& phase = m.blocks[block].phase;
  int seen = phase.load();
  for (;;) {
    if (seen == asleep) {
      if (!phase.compare_exchange_weak(seen, queued)) continue;
      m.control->active.fetch_add(1);
      push(m, worker, block);
      return;
    }
    if (seen != running || phase.compare_exchange_weak(seen, woken)) return;
  }
}

void stop(Machine& m, bool stuck) {
  Control& control = *m.control;
  if (control.closing.exchange(true)) return;
  control.finish = Clock::now();
  control.stuck = stuck;
  control.over.store(1);
  wake_sleepers(control.over);
  for (int t = 0; t < m.teams; ++t) ring_bell(m.team[t]);
}

void run_worker(Machine& m, int worker) {
  Team& team = m.team[m.teams == 1 ? 0 : worker];
  CpuLayer layer(m, worker);
  wait_for_start(m);
  while (!m.control->abort.load(std::memory_order_relaxed)) {
    Index block;
    if (pop(m, team, worker, block))
      run_block(m, layer, worker, block);
    else if (!rest(m, team))
      return;
  }
  stop(m, false);
}

namespace {

bool is_here(const Machine& m, Index block) {
  return !m.far || m.far->is_here(m.plan.blocks[block].rank);
}

void reset_states(Machine& m) {
  for (Index i = 0; i < m.block_count(); ++i) {
    BlockState& b = *std::construct_at(&m.blocks[i]);
    b.phase.store(is_here(m, i) ? queued : finished);
    b.at.pc = m.plan.blocks[i].begin;
  }
}

void reset_control(Machine& m) {
  Round& round = *std::construct_at<Round>(m.control);
  Amount here = 0;
  for (Index i = 0; i < m.block_count(); ++i) here += is_here(m, i);
  round.active.store(here);
  round.unfinished.store(here);
}

// Receivers are taken first (the newest entry is), so that senders find an offer to write to.
void fill_queues(Machine& m) {
  for (int w = 0; w < m.workers; ++w) m.queues[w].head = m.queues[w].size = 0;
  for (int t = 0; t < m.teams; ++t) {
    m.team[t].sleepers.store(0);
    m.team[t].ready.store(0);
  }
  const Index n = m.block_count();
  for (const bool receiving : {false, true})
    for (Index block = 0; block < n; ++block) {
      if ((m.plan.blocks[block].incoming >= 0) != receiving || !is_here(m, block)) continue;
      const int share = Amount{block} * m.workers / n;
      push(m, m.teams == 1 ? share : m.team[m.team_of(block)].first, block);
    }
}

}  // namespace

void prepare_launch(Machine& m) {
  reset_states(m);
  reset_control(m);
  fill_queues(m);
}

}  // namespace forestcoll
