#include "far.hpp"

#include <sys/mman.h>

#include <new>

#include "cpu_layer.hpp"

namespace forestcoll {

Space::Space(int processes, int self, Amount stride, bool readable)
    : processes_(processes), self_(self), stride_((stride + 4095) / 4096 * 4096) {
  const std::size_t all = processes_ * stride_;
  const int access = readable ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* const start = mmap(nullptr, all, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  start_ = static_cast<byte*>(start);
}

Space::~Space() { munmap(start_, processes_ * stride_); }

namespace {

Amount far_stride(const Machine& m) { return Far::head + (m.options.slot_bytes + 63) / 64 * 64; }

}  // namespace

Far::Far(Machine& machine, const Space& space, Division division)
    : machine_(machine), space_(space), division_(std::move(division)),
      slots_(machine.connection_count()), under_way_(machine.options.ranks),
      fetches_(machine.block_count()),
      drainers_(machine.options.ranks), order_(space.processes()), told_(space.processes()),
      heard_(space.processes()), ticks_(std::make_unique<Ticks>()) {
  const Amount each = machine.options.slots * far_stride(machine);
  const auto home = [&](Index block) { return division_.homes[machine.plan.blocks[block].rank]; };
  Amount mirrors = 0;
  std::vector<Amount> begins(slots_.size(), -1);
  for (Index c = 0; c < machine.connection_count(); ++c) {
    const int writer = home(machine.plan.writers[c]), reader = home(machine.plan.readers[c]);
    if (writer == reader) continue;
    if (reader == space.self()) slots_[c] = space.arena(reader) + division_.slots[c];
    if (writer != space.self()) continue;
    begins[c] = mirrors;
    mirrors += each;
  }
  mirrors_.reset(new byte[mirrors + 64]);
  byte* const first = mirrors_.get() + 63 - (reinterpret_cast<std::uintptr_t>(mirrors_.get()) + 63) % 64;
  for (Index c = 0; c < machine.connection_count(); ++c)
    if (begins[c] >= 0) slots_[c] = first + begins[c];
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

Far::~Far() = default;

byte* Far::slot(Index connection, Count number) const {
  return slots_[connection] + number % machine_.options.slots * far_stride(machine_);
}

void Far::post(int peer, Effect effect) {
  if (effect.rank >= 0) under_way_[effect.rank].fetch_add(1);
  wire_->post(peer, std::move(effect));
}

Effect Far::effect_at(const byte* address) const {
  Effect effect;
  effect.place = (address - space_.arena(0)) % space_.stride();
  return effect;
}

void Far::put(Index rank, byte* target, const byte* source, Amount bytes) {
  Effect effect = effect_at(target);
  effect.bytes = bytes;
  effect.source = source;
  effect.rank = rank;
  post(space_.process_of(target), std::move(effect));
}

Effect Far::effect_of_kept(const byte* target, std::shared_ptr<byte[]> bytes, Amount size) const {
  Effect effect = effect_at(target);
  effect.bytes = size;
  effect.source = bytes.get();
  effect.kept = std::move(bytes);
  return effect;
}

void Far::put_kept(byte* target, std::shared_ptr<byte[]> bytes, Amount size) {
  post(space_.process_of(target), effect_of_kept(target, std::move(bytes), size));
}

// Several thread blocks count one number up: the wire gets its values in their order.
void Far::count_up(int peer, Number number, Index object, Effect effect) {
  const Index index = number == Number::packets ? machine_.plan.semaphores.size() + object : object;
  effect.number = number;
  effect.object = object;
  const std::lock_guard lock(order_[peer]);
  effect.value = ++told_[peer][index];
  post(peer, std::move(effect));
}

void Far::put_packets(Index rank, byte* target, std::shared_ptr<byte[]> packets, Amount bytes) {
  const int peer = space_.process_of(target);
  count_up(peer, Number::packets, rank, effect_of_kept(target, std::move(packets), bytes));
}

void Far::raise(Index semaphore) {
  count_up(division_.homes[division_.owners[semaphore]], Number::raised, semaphore, {});
}

void Far::deliver(Index connection, Count number, Amount bytes) {
  const byte* const mirror = slot(connection, number);
  const Index reader = machine_.plan.blocks[machine_.plan.readers[connection]].rank;
  Effect effect;
  effect.number = Number::posted;
  effect.object = connection;
  effect.value = number + 1;
  effect.place = division_.slots[connection] + (mirror - slots_[connection]);
  effect.bytes = head + bytes;
  effect.source = mirror;
  post(division_.homes[reader], std::move(effect));
}

void Far::take(Index connection, Count taken) {
  const Index writer = machine_.plan.blocks[machine_.plan.writers[connection]].rank;
  Effect effect;
  effect.number = Number::taken;
  effect.object = connection;
  effect.value = taken;
  post(division_.homes[writer], std::move(effect));
}

void Far::fetch(Index block, const byte* address, Amount bytes) {
  fetches_[block].fetch_add(1);
  Effect effect = effect_at(address);
  effect.number = Number::asked;
  effect.object = block;
  effect.value = bytes;
  post(space_.process_of(address), std::move(effect));
}

byte* Far::place(int peer, const Effect& effect) {
  if (!fits(effect, space_.stride())) return nullptr;
  return space_.arena(effect.number == Number::fetched ? peer : space_.self()) + effect.place;
}

namespace {

void raise_to(std::atomic<Count>& number, Count value) {
  Count seen = number.load();
  while (seen < value && !number.compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

bool Far::arrived(int peer, const Effect& effect) {
  Machine& m = machine_;
  const Index object = effect.object;
  const Count value = effect.value;
  ticks_->add();
  const auto below = [&](auto n) { return object >= 0 && object < static_cast<Index>(n); };
  const auto news = [&](Index index) -> Count {  // how far the peer's count has come since
    Count& heard = heard_[peer][index];
    const Count more = value > heard ? value - heard : 0;
    heard += more;
    return more;
  };
  switch (effect.number) {
    case Number::posted:
      if (!below(m.connection_count()) || !slots_[object]) return false;
      raise_to(m.connections[object].posted, value);
      notify(m, -1, m.plan.readers[object], &m.connections[object].posted);
      return true;
    case Number::taken:
      if (!below(m.connection_count()) || !slots_[object]) return false;
      raise_to(m.connections[object].taken, value);
      notify(m, -1, m.plan.writers[object], &m.connections[object].taken);
      return true;
    case Number::raised: {
      if (!below(m.plan.semaphores.size())) return false;
      auto& present = m.semaphores[object].value;
      present.fetch_add(news(object));
      for (const Index block : m.takers[object]) notify(m, -1, block, &present);
      return true;
    }
    case Number::packets: {
      if (!below(m.options.ranks)) return false;
      auto& count = m.inboxes[object].count;
      count.fetch_add(news(m.plan.semaphores.size() + object));
      for (const Index block : m.packet_readers[object]) notify(m, -1, block, &count);
      return true;
    }
    case Number::asked: {
      Effect answer;
      answer.number = Number::fetched;
      answer.object = object;
      answer.place = effect.place;
      answer.bytes = value;
      if (effect.bytes || !(answer.source = place(space_.self(), answer))) return false;
      post(peer, std::move(answer));
      return true;
    }
    case Number::fetched:
      if (!below(m.block_count()) || fetches_[object].load() <= 0) return false;
      fetches_[object].fetch_sub(1);
      notify(m, -1, object, &fetches_[object]);
      return true;
    case Number::none: return true;
  }
  return false;
}

void Far::left(const Effect& effect) {
  ticks_->add();
  if (effect.rank < 0) return;
  auto& rest = under_way_[effect.rank];
  if (rest.fetch_sub(1) != 1) return;
  for (const Index block : drainers_[effect.rank]) notify(machine_, -1, block, &rest);
}

}  // namespace forestcoll
