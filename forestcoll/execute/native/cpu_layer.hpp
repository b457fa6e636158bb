// The interpreter's layer for CPUs: bounded connections, semaphores, barriers, progress. It is the same
// whether ranks are threads or processes: all that it changes is in shared memory.
//
// Thread blocks are not operating system threads. A few workers run thousands of them: a wait that is
// not fulfilled returns false, the worker turns to another thread block, and whoever fulfils the wait
// wakes the first one. Since everything that is waited for has a known set of possible waiters, waking
// needs no list of waiters: a block announces the address of what it waits for, looks once more, and
// only then goes to sleep; the other side changes the value and then reads the announcement. Both do
// so in sequentially consistent order, so that one of the two sees the other.

#pragma once

#include <algorithm>
#include <cstring>

#include "far.hpp"
#include "machine.hpp"

namespace forestcoll {

// Multiples of every element.
constexpr Amount copy_tile = Amount{sizeof(Fp8)} << 15;  // between looks at the abort flag
constexpr Amount combine_tile = sizeof(Fp8) << 8;        // stays in the first-level cache

// Puts a block back in line if it waits; defined by the scheduler.
// `worker`: who does; -1: none of the workers.
void wake(Machine& machine, int worker, Index block);

// To be called once `object` has changed, for a block that may wait for that.
inline void notify(Machine& machine, int worker, Index block, const void* object) {
  if (machine.blocks[block].awaited.load() == object) wake(machine, worker, block);
}

inline void notify(Machine& machine, int worker, const std::vector<Index>& blocks, const void* object) {
  for (const Index block : blocks) notify(machine, worker, block, object);
}

class CpuLayer {
 public:
  CpuLayer(Machine& machine, int worker)
      : machine_(machine), worker_(worker), far_(machine.far.get()),
        ticks_(machine.queues[worker].ticks) {}

  void enter(Index block) {
    block_ = block;
    self_ = &machine_.blocks[block];
    const Block& b = machine_.plan.blocks[block];
    in_ = b.incoming < 0 ? nullptr : &machine_.connections[b.incoming];
    out_ = b.outgoing < 0 ? nullptr : &machine_.connections[b.outgoing];
    incoming_ = b.incoming;
    outgoing_ = b.outgoing;
    addresses_ = machine_.options.addresses.data() +
                 machine_.control->turn * machine_.options.ranks * addresses_each;
    self_->awaited.store(nullptr, std::memory_order_relaxed);
  }

  const Tables& tables() const { return machine_.tables; }
  const Geometry& geometry() const { return machine_.options.geometry; }
  byte* address(Amount rank, Amount buffer) const {
    return addresses_[rank * addresses_each + buffer];
  }
  bool aborted() const { return machine_.control->abort.load(std::memory_order_relaxed); }
  void report(const Position&) { ticks_.add(); }  // the position lives in the block's state already

  bool reached(Index block, Count progress) {
    const auto& value = machine_.blocks[block].progress;
    return await(value, Awaits::dependency, block, progress,
                 [&] { return value.load() >= progress; });
  }

  bool can_send() {
    const Count next = out_->posted.load(std::memory_order_relaxed);
    const Count slots = machine_.options.slots;
    return await(out_->taken, Awaits::slot, outgoing_, next + 1 - slots,
                 [&] { return next - out_->taken.load() < slots; });
  }

  bool can_receive(byte* target, const byte* operand, Amount bytes) {
    const Count next = in_->taken.load(std::memory_order_relaxed);
    const auto arrived = [&] { return in_->posted.load() > next; };
    // Sums that stay float32 are this rank's own business.
    if (!arrived() && !crosses(incoming_) && !accumulates()) offer(next, target, operand, bytes);
    if (!await(in_->posted, Awaits::message, incoming_, next + 1,
               arrived))
      return false;
    const Slot& slot = header(incoming_, next);
    if (slot.bytes != bytes) return mismatch(bytes, slot.bytes);
    return true;
  }

  byte* outgoing_slot() { return slot_memory(outgoing_, out_->posted.load(std::memory_order_relaxed)); }

  void deliver(const byte* source, Amount bytes) {
    const Count number = out_->posted.load(std::memory_order_relaxed);
    Slot& slot = header(outgoing_, number);
    Count offer = number + 1;
    // A receiver that expects another size must find the message in its slot and report it.
    slot.landed = !crosses(outgoing_) && out_->landing.load() == offer && out_->landing_bytes == bytes &&
                  out_->landing.compare_exchange_strong(offer, 0);
    byte* const memory = slot_memory(outgoing_, number);
    if (slot.landed)
      store(out_->landing_target, source, out_->landing_operand, bytes);
    else if (source != memory)
      copy(memory, source, bytes);
    slot.bytes = bytes;
    out_->posted.store(number + 1);
    if (crosses(outgoing_)) return far_->deliver(outgoing_, number, bytes);
    notify(machine_.plan.readers[outgoing_], &out_->posted);
  }

  void take(byte* target, const byte* operand, Amount bytes) {
    const Count number = in_->taken.load(std::memory_order_relaxed);
    if (!header(incoming_, number).landed) {
      in_->landing.store(0);  // a message in a slot means that the offer was not taken
      store(target, slot_memory(incoming_, number), operand, bytes);
    }
    conclude(target, operand, 0, bytes);
    in_->taken.store(number + 1);
    if (crosses(incoming_)) return far_->take(incoming_, number + 1);
    notify(machine_.plan.writers[incoming_], &in_->taken);
  }

  void complete(Count progress) {
    self_->progress.store(progress);
    notify(machine_.dependents[block_], &self_->progress);
  }

  void signal(Index index) {
    if (far_ && !far_->owns(index)) return far_->raise(index);
    auto& value = machine_.semaphores[index].value;
    value.fetch_add(1);
    notify(machine_.takers[index], &value);
  }

  bool acquire(Index index) {
    auto& value = machine_.semaphores[index].value;
    return await(value, Awaits::semaphore, index, 1, [&] {
      Count present = value.load();
      while (present > 0)
        if (value.compare_exchange_weak(present, present - 1)) return true;
      return false;
    });
  }

  bool drained() {
    if (!far_) return true;
    const auto& rest = far_->under_way(rank());
    return await(rest, Awaits::puts, rank(), 0, [&] { return rest.load() == 0; });
  }

  // Asked once for each window, however often the instruction is begun.
  bool fetched(const byte* address, Amount bytes) {
    auto& rest = far_->fetches(block_);
    Position& asked = self_->fetched;
    if (address) {
      const bool again = asked.pc == self_->at.pc && asked.round == self_->at.round;
      if (!again && is_far(address)) far_->fetch(block_, address, bytes);
      return false;
    }
    asked = self_->at;
    if (!await(rest, Awaits::fetches, block_, 0, [&] { return rest.load() == 0; })) return false;
    asked.pc = -1;
    return true;
  }

  Count arrive(Index index, Index group) {
    auto& arrived = machine_.barriers[index].value;
    const Count size = group;
    const Count ticket = (arrived.fetch_add(1) / size + 1) * size;
    notify(machine_.members[index], &arrived);
    return ticket;
  }

  bool passed(Index index, Count ticket) {
    const auto& arrived = machine_.barriers[index].value;
    return await(arrived, Awaits::barrier, index, ticket,
                 [&] { return arrived.load() >= ticket; });
  }

  bool arrived(Amount rank, const byte* packets, Amount bytes) {
    const auto& count = machine_.inboxes[rank].value;
    return await(count, Awaits::packets, rank, launch(), [&] {
      count.load();  // before the packets: who announces more of them will find us waiting
      for (Amount done = 0; done < bytes; done += packet_data)
        if (read_packet(packets + 2 * done) >> 32 != launch()) return false;
      return true;
    });
  }

  void pack(Amount rank, byte* packets, const byte* source, Amount bytes) {
    make_packets(rank, packets, bytes, [&](Amount at) {
      std::uint32_t data;
      std::memcpy(&data, source + at, packet_data);
      return data;
    });
  }

  void forward(Amount rank, byte* packets, const byte* source, Amount bytes) {
    make_packets(rank, packets, bytes, [&](Amount at) { return read_packet(source + 2 * at); });
  }

  void unpack(byte* target, const byte* packets, Amount bytes) {
    for (Amount done = 0; done < bytes; done += packet_data) {
      const std::uint32_t data = read_packet(packets + 2 * done);
      std::memcpy(target + done, &data, packet_data);
    }
    if (accumulates()) pass_exact(target, nullptr, bytes);
    ticks_.add();
  }

  void combine_packets(byte* target, const byte* const* packets, int n, const byte* own,
                       Amount bytes) {
    alignas(64) byte parts[2][combine_tile];
    // In the runtime's order: the packets first, what the rank has itself last.
    add_up(target, n + 1, bytes, [&](int i, Amount done, Amount size) -> const byte* {
      if (i == n) return own + done;
      byte* const part = parts[i > 0];
      unpack(part, packets[i] + 2 * done, size);
      return part;
    });
    conclude(target, target, instruction().sources, bytes);
  }

  void copy(byte* target, const byte* source, Amount bytes) {
    if (target == source) return;
    if (is_far(target)) return far_->put(rank(), target, source, bytes);
    if (accumulates()) pass_exact(target, source, bytes);
    const bool apart = target + bytes <= source || source + bytes <= target;
    if (!apart) {  // a plan's fault, but no reason for undefined behaviour here
      std::memmove(target, source, bytes);
      return;
    }
    for (Amount done = 0; done < bytes && !aborted(); done += copy_tile) {
      const Amount n = std::min(copy_tile, bytes - done);
      std::memcpy(target + done, source + done, n);
      ticks_.add();
    }
  }

  void combine(byte* target, const byte* const* sources, int n, Amount bytes) {
    const bool far = is_far(target);
    const Kept kept = far ? make_kept(bytes) : nullptr;
    byte* const to = far ? kept.get() : target;
    if (n == 1)
      copy(to, sources[0], bytes);
    else
      add_up(to, n, bytes, [&](int i, Amount done, Amount) { return sources[i] + done; });
    if (far) far_->put(-1, target, to, bytes, kept);
    conclude(target, target, instruction().sources, bytes);
  }

 private:
  template <class Fulfilled>
  bool await(const std::atomic<Count>& value, Awaits kind, Index object, Amount wanted,
             Fulfilled fulfilled) {
    if (fulfilled()) return true;
    self_->awaits = kind;
    self_->object = object;
    self_->wanted = wanted;
    self_->awaited.store(&value);
    if (!fulfilled()) return false;
    self_->awaited.store(nullptr, std::memory_order_relaxed);
    return true;
  }

  void notify(const auto& blocks, const void* object) {
    forestcoll::notify(machine_, worker_, blocks, object);
  }

  const Instruction& instruction() const { return machine_.tables.instructions[self_->at.pc]; }

  // target = a op b, of a tile at most. The target may be either.
  void merge(byte* target, const byte* a, const byte* b, Amount bytes) {
    const auto user = machine_.options.user;
    if (!user) return machine_.combine(target, a, b, bytes);
    alignas(64) byte other[combine_tile];
    std::memcpy(other, b, bytes);
    if (target != a) std::memcpy(target, a, bytes);
    user(target, other, bytes / geometry().element_bytes);
  }

  // What is done to a sum if it is complete now; `at`: its place in the instruction's operand.
  void conclude(byte* target, const byte* at, Index operand, Amount bytes) {
    const Epilogue& epilogue = machine_.options.epilogue;
    if (epilogue.completes.empty() || epilogue.completes[self_->at.pc] < 0) return;
    const Operand& whole = machine_.tables.operands[instruction().operands + operand];
    const Amount element = geometry().element_bytes, begin = epilogue.completes[self_->at.pc] - whole.offset;
    const Amount first = begin * geometry().chunk_bytes + (at - address(rank(), whole.buffer));
    epilogue.apply(machine_.options.type, first / element, bytes / element, target);
  }

  Index rank() const { return machine_.plan.blocks[block_].rank; }
  bool is_far(const byte* address) const { return far_ && far_->is_far(address); }
  bool crosses(Index connection) const { return far_ && far_->crosses(connection); }
  static Kept make_kept(Amount bytes) {
    return {new (std::align_val_t{64}) byte[bytes], [](byte* p) { operator delete[](p, std::align_val_t{64}); }};
  }

  static constexpr Amount packet_data = 4;

  // Eight bytes at once, as every device that knows packets can: data and number never part.
  static std::uint64_t read_packet(const byte* at) {
    auto* word = reinterpret_cast<std::uint64_t*>(const_cast<byte*>(at));
    return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
  }

  void write_packet(byte* at, std::uint32_t data) {
    const std::uint64_t word = std::uint64_t{launch()} << 32 | data;
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at))
        .store(word, std::memory_order_release);
  }

  // Of the data that `word(place)` tells; in memory of their own if they are for another process.
  template <class Word>
  void make_packets(Amount rank, byte* packets, Amount bytes, Word word) {
    const bool far = is_far(packets);
    const Kept kept = far ? make_kept(2 * bytes) : nullptr;
    byte* const to = far ? kept.get() : packets;
    for (Amount done = 0; done < bytes; done += packet_data) write_packet(to + 2 * done, word(done));
    if (far) return far_->put_packets(rank, packets, kept, 2 * bytes);
    ticks_.add();
    auto& count = machine_.inboxes[rank].value;
    count.fetch_add(1);
    notify(machine_.packet_readers[rank], &count);
  }

  std::uint32_t launch() const { return machine_.control->launch.load(std::memory_order_relaxed); }

  Slot& header(Index connection, Count number) const {
    return *reinterpret_cast<Slot*>(machine_.slot(connection, number));
  }

  byte* slot_memory(Index connection, Count number) const {
    return machine_.slot(connection, number) + slot_head;
  }

  // Once a message: the sender may be writing there from the moment that it took the offer.
  void offer(Count number, byte* target, const byte* operand, Amount bytes) {
    if (self_->offered == number + 1) return;
    self_->offered = number + 1;
    in_->landing_target = target;
    in_->landing_operand = operand;
    in_->landing_bytes = bytes;
    in_->landing.store(number + 1);
  }

  bool mismatch(Amount wanted, Amount present) {
    Control& control = *machine_.control;
    if (!control.mismatch.exchange(true))
      control.culprit = {block_,    self_->at, false,  Awaits::message,
                         incoming_, wanted,    present};
    control.abort.store(true);
    return false;
  }

  // target = a, or a op b
  void store(byte* target, const byte* a, const byte* b, Amount bytes) {
    if (!b) return copy(target, a, bytes);
    add_up(target, 2, bytes, [&](int i, Amount done, Amount) { return (i ? b : a) + done; });
  }

  // As `combine`, of n sources that `part(i, done, size)` tells. Tile by tile, with the sum so far in a
  // place of its own: the target may be one of the sources.
  template <class Part>
  void add_up(byte* target, int n, Amount bytes, Part part) {
    if (accumulates()) return accumulate(target, n, bytes, part);
    alignas(64) byte sum[combine_tile];
    for (Amount done = 0; done < bytes && !aborted(); done += combine_tile) {
      const Amount size = std::min(combine_tile, bytes - done);
      const byte* so_far = part(0, done, size);
      if (n == 1) std::memmove(target + done, so_far, size);
      for (int i = 1; i < n; ++i) {
        byte* const to = i < n - 1 ? sum : target + done;
        merge(to, so_far, part(i, done, size), size);
        so_far = to;
      }
      ticks_.add();
    }
  }

  // --- sums that stay float32 until they leave the rank
  //
  // Every buffer has its values as float32 beside it, as they were before they were rounded to what
  // lies there. That they still belong to it is seen by rounding them again: peers write as well.

  bool accumulates() const { return !machine_.exact.empty(); }

  Amount values(Amount bytes) const {
    return bytes / geometry().element_bytes * wire_values(machine_.options.type);
  }

  float* exact_of(const byte* address) const {
    for (Amount k = rank() * buffers_each; k < (rank() + 1) * buffers_each; ++k) {
      const Area& area = machine_.options.exact[k];
      if (address >= area.start && address < area.start + area.bytes)
        return machine_.exact[k] + values(address - area.start);
    }
    return nullptr;
  }

  // What is copied keeps them; of what comes from elsewhere there are none (NaN).
  void pass_exact(byte* target, const byte* source, Amount bytes) {
    float* const to = exact_of(target);
    const float* const from = exact_of(source);
    if (to && from)
      std::memmove(to, from, values(bytes) * sizeof(float));
    else if (to)
      std::memset(to, 0xff, values(bytes) * sizeof(float));
  }

  void widen(float* to, const byte* source, Amount bytes) {
    machine_.widen(reinterpret_cast<byte*>(to), source, values(bytes));
    const float* const exact = exact_of(source);
    if (!exact) return;
    alignas(64) byte again[combine_tile];
    machine_.narrow(again, reinterpret_cast<const byte*>(exact), values(bytes));
    const Amount step = geometry().element_bytes, each = values(step);
    for (Amount at = 0, value = 0; at < bytes; at += step, value += each)
      if (!std::memcmp(again + at, source + at, step))
        std::memcpy(to + value, exact + value, each * sizeof(float));
  }

  // As `add_up`, rounded once.
  template <class Part>
  void accumulate(byte* target, int n, Amount bytes, Part part) {
    alignas(64) float sum[combine_tile], other[combine_tile];
    byte* const wide = reinterpret_cast<byte*>(sum);
    for (Amount done = 0; done < bytes && !aborted(); done += combine_tile) {
      const Amount size = std::min(combine_tile, bytes - done), count = values(size);
      widen(sum, part(0, done, size), size);
      for (int i = 1; i < n; ++i) {
        widen(other, part(i, done, size), size);
        machine_.combine_wide(wide, wide, reinterpret_cast<const byte*>(other), count * sizeof(float));
      }
      if (float* const exact = exact_of(target + done)) std::memcpy(exact, sum, count * sizeof(float));
      machine_.narrow(target + done, wide, count);
      ticks_.add();
    }
  }

  Machine& machine_;
  const int worker_;
  Far* const far_;
  Ticks& ticks_;
  Index block_ = -1, incoming_ = -1, outgoing_ = -1;
  BlockState* self_ = nullptr;
  byte* const* addresses_ = nullptr;
  Connection* in_ = nullptr;
  Connection* out_ = nullptr;
};

}  // namespace forestcoll
