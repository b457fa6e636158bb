#include "far.hpp"

#include "cpu_layer.hpp"

namespace forestcoll {

Far::Far(Machine& machine, const Space& space, Division division)
    : machine_(machine), space_(space), division_(std::move(division)),
      crosses_(machine.connection_count()),
      under_way_(machine.options.ranks), fetches_(machine.block_count()),
      drainers_(machine.options.ranks), order_(space.processes()), told_(space.processes()),
      heard_(space.processes()) {
  const auto home = [&](Index block) { return division_.homes[machine.plan.blocks[block].rank]; };
  for (Index c = 0; c < machine.connection_count(); ++c) {
    const int writer = home(machine.plan.writers[c]), reader = home(machine.plan.readers[c]);
    crosses_[c] = writer != reader && (writer == space.self() || reader == space.self());
    if (crosses_[c] && reader == space.self()) machine.slots[c] = space.arena(reader) + division_.slots[c];
  }
  for (int peer = 0; peer < space.processes(); ++peer) {
    told_[peer].resize(machine.plan.semaphores.size() + machine.options.ranks);
    heard_[peer] = told_[peer];
  }
  for (Index block = 0; block < machine.block_count(); ++block) {
    const Block& b = machine.plan.blocks[block];
    if (!is_here(b.rank)) continue;
    for (Index pc = b.begin; pc < b.end; ++pc)
      if (machine.plan.instructions[pc].drains & drains_puts) {
        drainers_[b.rank].push_back(block);
        break;
      }
  }
}

void Far::post(int peer, Effect effect) {
  if (effect.rank >= 0) under_way_[effect.rank].fetch_add(1);
  wire_->post(peer, std::move(effect));
}

Amount Far::place_of(const byte* address) const {
  return (address - space_.arena(0)) % space_.stride();
}

void Far::put(Index rank, const byte* target, const byte* source, Amount bytes, Kept kept) {
  post(space_.process_of(target), {{Number::none, 0, 0, place_of(target), bytes}, source, kept, rank});
}

// Several thread blocks count one number up: the wire gets its values in their order.
void Far::count_up(int peer, Effect effect) {
  const Index before = effect.number == Number::packets ? machine_.plan.semaphores.size() : 0;
  const std::lock_guard lock(order_[peer]);
  effect.value = ++told_[peer][before + effect.object];
  post(peer, std::move(effect));
}

void Far::put_packets(Index rank, const byte* target, const Kept& packets, Amount bytes) {
  count_up(space_.process_of(target),
           {{Number::packets, rank, 0, place_of(target), bytes}, packets.get(), packets});
}

void Far::raise(Index semaphore) {
  count_up(division_.homes[division_.owners[semaphore]], {{Number::raised, semaphore}});
}

void Far::deliver(Index connection, Count number, Amount bytes) {
  const byte* const mirror = machine_.slot(connection, number);
  const Index reader = machine_.plan.blocks[machine_.plan.readers[connection]].rank;
  const Amount place = division_.slots[connection] + (mirror - machine_.slots[connection]);
  post(division_.homes[reader], {{Number::posted, connection, number + 1, place, slot_head + bytes}, mirror});
}

void Far::take(Index connection, Count taken) {
  const Index writer = machine_.plan.blocks[machine_.plan.writers[connection]].rank;
  post(division_.homes[writer], {{Number::taken, connection, taken}});
}

void Far::fetch(Index block, const byte* address, Amount bytes) {
  fetches_[block].fetch_add(1);
  post(space_.process_of(address), {{Number::asked, block, Count(bytes), place_of(address)}});
}

byte* Far::place(int peer, const Effect& effect) {
  if (!fits(effect, space_.stride())) return nullptr;
  return space_.arena(effect.number == Number::fetched ? peer : space_.self()) + effect.place;
}

bool Far::arrived(int peer, const Effect& effect) {
  Machine& m = machine_;
  const Index object = effect.object;
  const Count value = effect.value;
  ticks_.add();
  const auto below = [&](auto n) { return object >= 0 && object < static_cast<Index>(n); };
  const auto news = [&](Index index) -> Count {  // how far the peer's count has come since
    return value - std::exchange(heard_[peer][index], value);
  };
  switch (effect.number) {
    case Number::posted:
    case Number::taken: {
      if (!below(m.connection_count()) || !crosses_[object]) return false;
      const bool posted = effect.number == Number::posted;
      auto& present = posted ? m.connections[object].posted : m.connections[object].taken;
      present.store(value);
      notify(m, -1, (posted ? m.plan.readers : m.plan.writers)[object], &present);
      return true;
    }
    case Number::raised: {
      if (!below(m.plan.semaphores.size())) return false;
      auto& present = m.semaphores[object].value;
      present.fetch_add(news(object));
      notify(m, -1, m.takers[object], &present);
      return true;
    }
    case Number::packets: {
      if (!below(m.options.ranks)) return false;
      auto& count = m.inboxes[object].value;
      count.fetch_add(news(m.plan.semaphores.size() + object));
      notify(m, -1, m.packet_readers[object], &count);
      return true;
    }
    case Number::asked: {
      Effect answer{{Number::fetched, object, 0, effect.place, Amount(value)}};
      if (effect.bytes || !(answer.source = place(space_.self(), answer))) return false;
      post(peer, std::move(answer));
      return true;
    }
    case Number::fetched:
      if (!below(m.block_count()) || !fetches_[object].load()) return false;
      fetches_[object].fetch_sub(1);
      notify(m, -1, object, &fetches_[object]);
      return true;
    case Number::none: return true;
  }
  return false;
}

void Far::left(const Effect& effect) {
  ticks_.add();
  if (effect.rank < 0) return;
  auto& rest = under_way_[effect.rank];
  if (rest.fetch_sub(1) != 1) return;
  notify(machine_, -1, drainers_[effect.rank], &rest);
}

}  // namespace forestcoll
