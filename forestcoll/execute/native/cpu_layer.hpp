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

#include "machine.hpp"

namespace forestcoll {

constexpr std::int64_t copy_tile = std::int64_t{1} << 20;  // between looks at the abort flag
constexpr std::int64_t combine_tile = 8192;                // stays in the first-level cache

// Puts a block back in line if it waits; defined by the scheduler.
void wake(Machine& machine, int worker, std::int32_t block);

class CpuLayer {
 public:
  CpuLayer(Machine& machine, int worker)
      : machine_(machine), worker_(worker), ticks_(machine.queues[worker].ticks) {}

  void enter(std::int32_t block) {
    block_ = block;
    self_ = &machine_.blocks[block];
    const Block& b = machine_.plan.blocks[static_cast<std::size_t>(block)];
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
  byte* address(std::int64_t rank, std::int64_t buffer) const {
    return addresses_[rank * addresses_each + buffer];
  }
  bool aborted() const { return machine_.control->abort.load(std::memory_order_relaxed); }
  void report(const Position&) { ticks_.add(); }  // the position lives in the block's state already

  bool reached(std::int32_t block, std::uint64_t progress) {
    const auto& value = machine_.blocks[block].progress;
    return await(value, Awaits::dependency, block, static_cast<std::int64_t>(progress),
                 [&] { return value.load() >= progress; });
  }

  bool can_send() {
    const std::uint64_t next = out_->posted.load(std::memory_order_relaxed);
    const std::uint64_t slots = slot_count();
    return await(out_->taken, Awaits::slot, outgoing_, static_cast<std::int64_t>(next + 1 - slots),
                 [&] { return next - out_->taken.load() < slots; });
  }

  bool can_receive(byte* target, const byte* operand, std::int64_t bytes) {
    const std::uint64_t next = in_->taken.load(std::memory_order_relaxed);
    const auto arrived = [&] { return in_->posted.load() > next; };
    if (!arrived()) offer(next, target, operand, bytes);
    if (!await(in_->posted, Awaits::message, incoming_, static_cast<std::int64_t>(next + 1),
               arrived))
      return false;
    const Slot& slot = header(incoming_, next);
    if (slot.bytes != bytes) return mismatch(bytes, slot.bytes);
    return true;
  }

  byte* outgoing_slot() { return slot_memory(outgoing_, out_->posted.load(std::memory_order_relaxed)); }

  void deliver(const byte* source, std::int64_t bytes) {
    const std::uint64_t number = out_->posted.load(std::memory_order_relaxed);
    Slot& slot = header(outgoing_, number);
    std::uint64_t offer = number + 1;
    // A receiver that expects another size must find the message in its slot and report it.
    slot.landed = out_->landing.load() == offer && out_->landing_bytes == bytes &&
                  out_->landing.compare_exchange_strong(offer, 0);
    byte* const memory = slot_memory(outgoing_, number);
    if (slot.landed)
      store(out_->landing_target, source, out_->landing_operand, bytes);
    else if (source != memory)
      copy(memory, source, bytes);
    slot.bytes = bytes;
    out_->posted.store(number + 1);
    notify(machine_.plan.readers[static_cast<std::size_t>(outgoing_)], &out_->posted);
  }

  void take(byte* target, const byte* operand, std::int64_t bytes) {
    const std::uint64_t number = in_->taken.load(std::memory_order_relaxed);
    if (!header(incoming_, number).landed) {
      in_->landing.store(0);  // a message in a slot means that the offer was not taken
      store(target, slot_memory(incoming_, number), operand, bytes);
    }
    in_->taken.store(number + 1);
    notify(machine_.plan.writers[static_cast<std::size_t>(incoming_)], &in_->taken);
  }

  void complete(std::uint64_t progress) {
    self_->progress.store(progress);
    for (const std::int32_t block : machine_.dependents[static_cast<std::size_t>(block_)])
      notify(block, &self_->progress);
  }

  void signal(std::int32_t index) {
    auto& value = machine_.semaphores[index].value;
    value.fetch_add(1);
    for (const std::int32_t block : machine_.takers[static_cast<std::size_t>(index)])
      notify(block, &value);
  }

  bool acquire(std::int32_t index) {
    auto& value = machine_.semaphores[index].value;
    return await(value, Awaits::semaphore, index, 1, [&] {
      std::int64_t present = value.load();
      while (present > 0)
        if (value.compare_exchange_weak(present, present - 1)) return true;
      return false;
    });
  }

  std::uint64_t arrive(std::int32_t index, std::int32_t group) {
    auto& arrived = machine_.barriers[index].arrived;
    const auto size = static_cast<std::uint64_t>(group);
    const std::uint64_t ticket = (arrived.fetch_add(1) / size + 1) * size;
    for (const std::int32_t block : machine_.members[static_cast<std::size_t>(index)])
      notify(block, &arrived);
    return ticket;
  }

  bool passed(std::int32_t index, std::uint64_t ticket) {
    const auto& arrived = machine_.barriers[index].arrived;
    return await(arrived, Awaits::barrier, index, static_cast<std::int64_t>(ticket),
                 [&] { return arrived.load() >= ticket; });
  }

  bool arrived(std::int64_t rank, const byte* packets, std::int64_t bytes) {
    const auto& count = machine_.inboxes[rank].count;
    return await(count, Awaits::packets, static_cast<std::int32_t>(rank), launch(), [&] {
      count.load();  // before the packets: who announces more of them will find us waiting
      for (std::int64_t done = 0; done < bytes; done += packet_data)
        if (read_packet(packets + 2 * done) >> 32 != launch()) return false;
      return true;
    });
  }

  void pack(std::int64_t rank, byte* packets, const byte* source, std::int64_t bytes) {
    for (std::int64_t done = 0; done < bytes; done += packet_data) {
      std::uint32_t data;
      std::memcpy(&data, source + done, packet_data);
      write_packet(packets + 2 * done, data);
    }
    announce(rank);
  }

  void forward(std::int64_t rank, byte* packets, const byte* source, std::int64_t bytes) {
    for (std::int64_t done = 0; done < bytes; done += packet_data)
      write_packet(packets + 2 * done, static_cast<std::uint32_t>(read_packet(source + 2 * done)));
    announce(rank);
  }

  void unpack(byte* target, const byte* packets, std::int64_t bytes) {
    for (std::int64_t done = 0; done < bytes; done += packet_data) {
      const auto data = static_cast<std::uint32_t>(read_packet(packets + 2 * done));
      std::memcpy(target + done, &data, packet_data);
    }
    ticks_.add();
  }

  // In the runtime's order: the packets first, what the rank has itself last.
  void combine_packets(byte* target, const byte* const* packets, int n, const byte* own,
                       std::int64_t bytes) {
    alignas(64) byte sum[combine_tile], part[combine_tile];
    for (std::int64_t done = 0; done < bytes && !aborted(); done += combine_tile) {
      const std::int64_t size = std::min(combine_tile, bytes - done);
      if (n) unpack(sum, packets[0] + 2 * done, size);
      for (int i = 1; i < n; ++i) {
        unpack(part, packets[i] + 2 * done, size);
        machine_.combine(sum, sum, part, size);
      }
      if (n)
        machine_.combine(target + done, sum, own + done, size);
      else
        std::memmove(target + done, own + done, static_cast<std::size_t>(size));
    }
  }

  void copy(byte* target, const byte* source, std::int64_t bytes) {
    if (target == source) return;
    const bool apart = target + bytes <= source || source + bytes <= target;
    if (!apart) {  // a plan's fault, but no reason for undefined behaviour here
      std::memmove(target, source, static_cast<std::size_t>(bytes));
      return;
    }
    for (std::int64_t done = 0; done < bytes && !aborted(); done += copy_tile) {
      const std::int64_t n = std::min(copy_tile, bytes - done);
      std::memcpy(target + done, source + done, static_cast<std::size_t>(n));
      ticks_.add();
    }
  }

  // Tile by tile, with the sum so far in a place of its own: the target may be one of the sources.
  void combine(byte* target, const byte* const* sources, int n, std::int64_t bytes) {
    if (n <= 2) {
      store(target, sources[0], n == 2 ? sources[1] : nullptr, bytes);
      return;
    }
    alignas(64) byte sum[combine_tile];
    for (std::int64_t done = 0; done < bytes && !aborted(); done += combine_tile) {
      const std::int64_t size = std::min(combine_tile, bytes - done);
      machine_.combine(sum, sources[0] + done, sources[1] + done, size);
      for (int i = 2; i < n - 1; ++i) machine_.combine(sum, sum, sources[i] + done, size);
      machine_.combine(target + done, sum, sources[n - 1] + done, size);
      ticks_.add();
    }
  }

 private:
  template <class Fulfilled>
  bool await(const auto& value, Awaits kind, std::int32_t object, std::int64_t wanted,
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

  void notify(std::int32_t block, const void* object) {
    if (machine_.blocks[block].awaited.load() == object)
      wake(machine_, worker_, block);
  }

  static constexpr std::int64_t packet_data = 4;

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

  void announce(std::int64_t rank) {
    ticks_.add();
    auto& count = machine_.inboxes[rank].count;
    count.fetch_add(1);
    for (const std::int32_t block : machine_.packet_readers[static_cast<std::size_t>(rank)])
      notify(block, &count);
  }

  std::uint32_t launch() const { return machine_.control->launch.load(std::memory_order_relaxed); }

  std::uint64_t slot_count() const { return static_cast<std::uint64_t>(machine_.options.slots); }

  std::uint64_t slot_index(std::int32_t connection, std::uint64_t number) const {
    return static_cast<std::uint64_t>(connection) * slot_count() + number % slot_count();
  }

  Slot& header(std::int32_t connection, std::uint64_t number) const {
    return machine_.slots[slot_index(connection, number)];
  }

  byte* slot_memory(std::int32_t connection, std::uint64_t number) const {
    return machine_.slot_bytes + slot_index(connection, number) *
                                     static_cast<std::uint64_t>(machine_.options.slot_bytes);
  }

  // Once a message: the sender may be writing there from the moment that it took the offer.
  void offer(std::uint64_t number, byte* target, const byte* operand, std::int64_t bytes) {
    if (self_->offered == number + 1) return;
    self_->offered = number + 1;
    in_->landing_target = target;
    in_->landing_operand = operand;
    in_->landing_bytes = bytes;
    in_->landing.store(number + 1);
  }

  bool mismatch(std::int64_t wanted, std::int64_t present) {
    Control& control = *machine_.control;
    if (!control.mismatch.exchange(true))
      control.culprit = {block_,    self_->at, false,  Awaits::message,
                         incoming_, wanted,    present};
    control.abort.store(true);
    return false;
  }

  // target = a, or a op b
  void store(byte* target, const byte* a, const byte* b, std::int64_t bytes) {
    if (!b) {
      copy(target, a, bytes);
      return;
    }
    for (std::int64_t done = 0; done < bytes && !aborted(); done += copy_tile) {
      machine_.combine(target + done, a + done, b + done, std::min(copy_tile, bytes - done));
      ticks_.add();
    }
  }

  Machine& machine_;
  const int worker_;
  Ticks& ticks_;
  std::int32_t block_ = -1, incoming_ = -1, outgoing_ = -1;
  BlockState* self_ = nullptr;
  byte* const* addresses_ = nullptr;
  Connection* in_ = nullptr;
  Connection* out_ = nullptr;
};

}  // namespace forestcoll
