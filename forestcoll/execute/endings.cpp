// Where everything stood when a launch ended.

#include "endings.hpp"

namespace forestcoll {
namespace {

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

}  // namespace

std::vector<Stop> stops_of(const Machine& machine) {
  std::vector<Stop> stops;
  for (std::size_t i = 0; i < machine.block_count(); ++i) {
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
  for (std::size_t i = 0; i < machine.plan.writers.size(); ++i) {
    const Connection& c = machine.connections[i];
    const auto unread = static_cast<std::int64_t>(c.posted.load() - c.taken.load());
    if (unread) found.push_back({0, static_cast<std::int32_t>(i), unread});
  }
  for (std::size_t i = 0; i < machine.plan.semaphores.size(); ++i) {
    const std::int64_t extra = machine.semaphores[i].value.load() - machine.plan.semaphores[i];
    if (extra) found.push_back({1, static_cast<std::int32_t>(i), extra});
  }
  return found;
}

}  // namespace forestcoll
