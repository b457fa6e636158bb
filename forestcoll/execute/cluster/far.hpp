// The ranks of other processes, as this process's thread blocks see them.
//
// A process has an arena for all that others write: buffers of its ranks, and slots for the messages
// that come from elsewhere. Every process knows how each arena is laid out, and keeps as much address
// space for those of the others, side by side: an address in there names a place, and memory is there
// only of what thread blocks here have fetched to read it. What a thread block does to such an address,
// to a semaphore or to a connection's other end becomes an effect on the wire (wire.hpp); what arrives
// changes the same numbers that thread blocks of this process change, and wakes those who wait for them.

#pragma once

#include <mutex>
#include <utility>

#include "engine.hpp"
#include "machine.hpp"
#include "wire.hpp"

namespace forestcoll {

// Address space for the arenas of all processes.
class Space {
 public:
  // Not `readable`: for addresses alone.
  Space(int processes, int self, Amount stride, bool readable)
      : processes_(processes), self_(self), stride_((stride + 4095) / 4096 * 4096),
        memory_(processes_ * stride_, false, readable ? PROT_READ | PROT_WRITE : PROT_NONE) {}
  byte* arena(int process) const { return memory_.start() + process * stride_; }
  int process_of(const byte* address) const {  // -1: outside
    return address < arena(0) || address >= arena(processes_) ? -1 : (address - arena(0)) / stride_;
  }
  int processes() const { return processes_; }
  int self() const { return self_; }
  Amount stride() const { return stride_; }

 private:
  const int processes_, self_;
  const Amount stride_;  // bytes of the largest arena, whole pages
  const Region memory_;
};

// How a plan's machine is dealt out. What is said of connections is -1 or 0 where both ends are here or
// both elsewhere.
struct Division {
  std::vector<Index> homes;       // per rank: its process
  std::vector<Index> owners;      // per semaphore: the rank that takes from it
  std::vector<Amount> slots;      // per connection between processes: place in the reader's arena
};

class Far : public Receiver {
 public:
  Far(Machine& machine, const Space& space, Division division);
  void join(Way& way) { way.join(*this, wire_); }

  // --- for thread blocks of this process

  bool is_here(Index rank) const { return division_.homes[rank] == space_.self(); }
  bool owns(Index semaphore) const { return is_here(division_.owners[semaphore]); }
  bool is_far(const byte* address) const {
    const int process = space_.process_of(address);
    return process >= 0 && process != space_.self();
  }
  // Posts bytes of `rank`, which stay as they are until its puts have left; or (-1) those that are kept.
  void put(Index rank, const byte* target, const byte* source, Amount bytes, Kept kept = {});
  // Packets for `rank`, which are kept.
  void put_packets(Index rank, const byte* target, const Kept& packets, Amount bytes);
  void raise(Index semaphore);
  // Asks for bytes that another process holds, on behalf of a block here; `fetches` counts them.
  void fetch(Index block, const byte* address, Amount bytes);
  std::atomic<Count>& fetches(Index block) { return fetches_[block]; }  // asked for, not yet here
  // A message of a connection that leaves this process, in its slot here; its number, from 0.
  void deliver(Index connection, Count number, Amount bytes);
  void take(Index connection, Count taken);  // so many messages of it have been taken here
  bool crosses(Index connection) const { return crosses_[connection]; }
  std::atomic<Count>& under_way(Index rank) { return under_way_[rank]; }  // puts that have not left

  // --- for the launch

  Wire& wire() { return *wire_; }
  Ticks& ticks() { return ticks_; }

  // --- for the wire

  byte* place(int peer, const Effect& effect) override;
  bool arrived(int peer, const Effect& effect) override;
  void left(const Effect& effect) override;

 private:
  Amount place_of(const byte* address) const;  // which an address here stands for
  void post(int peer, Effect effect);
  void count_up(int peer, Effect effect);

  Machine& machine_;
  const Space& space_;
  Division division_;
  std::vector<bool> crosses_;  // per connection: one end is here; the writer's slots mirror the reader's
  std::vector<std::atomic<Count>> under_way_;       // per rank
  std::vector<std::atomic<Count>> fetches_;         // per block
  std::vector<std::vector<Index>> drainers_;        // per rank: blocks that wait for that
  std::vector<std::mutex> order_;                   // per peer: values are posted in their order
  std::vector<std::vector<Count>> told_, heard_;    // per peer, of semaphores, then ranks: absolute counts
  Ticks ticks_;
  std::unique_ptr<Wire> wire_;
};

}  // namespace forestcoll
