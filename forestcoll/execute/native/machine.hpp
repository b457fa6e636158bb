// Everything that the thread blocks of all ranks share while a plan runs.
//
// What changes during a launch lies in one region of shared memory and holds no pointers to anything
// else but buffers and slots, which are shared too; what only describes the plan is ordinary memory,
// of which every rank that is a process has inherited a copy.

#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "engine.hpp"

namespace forestcoll {

// --- memory and sleep that work between processes as well as between threads
//
// Regions are anonymous: they have no name, so that nothing can be left behind in a file system, and
// a process that is forked after they were made finds them at the same address. Sleeping is a futex
// that is not private to a process (Linux).

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// Zeroed address space: pages that are never touched take no memory.
class Region {
 public:
  Region(std::size_t bytes, bool shared, int access = PROT_READ | PROT_WRITE) : bytes_(bytes) {
    if (!bytes) return;
    const int kind = shared ? MAP_SHARED : MAP_PRIVATE;
    start_ = mmap(nullptr, bytes, access, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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

// Cuts a region into arrays. Run it once without memory to learn how much it takes.
class Carver {
 public:
  explicit Carver(byte* start) : start_(start) {}
  template <class T>
  T* array(std::size_t n) {
    constexpr std::size_t alignment = alignof(T) > 64 ? alignof(T) : 64;
    used_ = (used_ + alignment - 1) / alignment * alignment;
    const std::size_t begin = used_;
    used_ += n * sizeof(T);
    if (!start_) return nullptr;
    T* const first = reinterpret_cast<T*>(start_ + begin);
    for (std::size_t i = 0; i < n; ++i) new (first + i) T();
    return first;
  }
  byte* space(std::size_t bytes) {  // pages are touched by those who use them
    used_ = (used_ + 4095) / 4096 * 4096 + bytes;
    return start_ ? start_ + used_ - bytes : nullptr;
  }
  std::size_t used() const { return used_; }

 private:
  byte* start_;
  std::size_t used_ = 0;
};

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

// Sleeps while `word` is `seen`; returns early now and then, so callers look again.
inline void sleep_while(Word& word, std::uint32_t seen, const timespec* limit = nullptr) {
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, limit, nullptr, 0);
}

inline void wake_sleepers(Word& word, int how_many = 1 << 30) {
  syscall(SYS_futex, &word, FUTEX_WAKE, how_many, nullptr, nullptr, 0);
}

// A lock for a few instructions. 0: free, 1: held, 2: held and somebody sleeps.
class Mutex {
 public:
  void lock() {
    std::uint32_t seen = 0;
    if (state_.compare_exchange_strong(seen, 1, std::memory_order_acquire)) return;
    while (state_.exchange(2, std::memory_order_acquire) != 0) sleep_while(state_, 2);
  }
  void unlock() {
    if (state_.exchange(0, std::memory_order_release) == 2) wake_sleepers(state_, 1);
  }

 private:
  Word state_{0};
};

// --- the machine

enum Phase : int { queued, running, woken, asleep, finished };

struct alignas(64) BlockState {
  std::atomic<int> phase{0};
  std::atomic<const std::atomic<Count>*> awaited{nullptr};
  std::atomic<Count> progress{0};
  Position at;
  Position fetched{-1};  // whose sources have been asked for
  Awaits awaits = Awaits::nothing;  // the last wait that was not fulfilled
  Index object = -1;
  Amount wanted = 0;
  Count offered = 0;  // message number (+ 1) that was last offered a landing place
};

// In front of a message's bytes, in its slot.
struct Slot {
  Amount bytes;
  bool landed;  // the sender has put the message where it belongs already
};
constexpr Amount slot_head = 64;  // bytes from there to the message's

// One direction between two thread blocks. Messages are numbered from 0. `posted` is written by the
// sender alone, `taken` by the receiver alone. A receiver that has to wait offers its target as a
// landing place: `landing` = message number + 1; a sender that takes the offer (sets it to 0) writes
// there directly and spares the way through the slot.
struct alignas(64) Connection {
  std::atomic<Count> posted{0};
  alignas(64) std::atomic<Count> taken{0};
  alignas(64) std::atomic<Count> landing{0};
  byte* landing_target = nullptr;
  const byte* landing_operand = nullptr;
  Amount landing_bytes = 0;
};

// Of a semaphore, or of those who have come to a barrier, or of packets that have come to a rank: whoever
// waits for some of them looks again when it has changed.
struct alignas(64) Counter {
  std::atomic<Count> value{0};
};

struct alignas(64) Ticks {
  std::atomic<Count> count{0};  // of one worker; any change is progress
  void add() { count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};

// Blocks that can go on: a ring with room for every block of the team, which is in line once at most.
struct alignas(64) Queue {
  Mutex mutex;
  std::uint32_t head = 0, size = 0;
  std::uint32_t capacity = 0;
  Amount ring = 0;  // first of its entries in Machine::rings
  Ticks ticks;
};

// Workers that may run the same blocks: all of them where ranks are threads, else one rank's.
struct alignas(64) Team {
  Word bell{0};                  // changes when there is work for those who sleep
  std::atomic<int> sleepers{0};  // that nobody has called yet
  std::atomic<int> ready{0};     // entries of the team's queues
  Index first = 0, workers = 0;
};

// Of one launch: made anew for the next.
struct Round {
  std::atomic<bool> abort{false};
  std::atomic<bool> mismatch{false};
  Stop culprit;
  // Blocks in line or running. Only a running block can wake another one, so that nothing can ever
  // happen again once this is 0.
  alignas(64) std::atomic<Amount> active{0};
  std::atomic<Amount> unfinished{0};
  alignas(64) Word go{0};  // 1: everybody is there
  Word over{0};            // 1: the launch has ended
  Word parked{0};          // workers that have seen the end
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<bool> closing{false};
  bool stuck = false;
  Index turn = 0;     // which set of addresses it uses
  Clock::time_point begin, finish;
};

struct Control : Round {
  alignas(64) Word launch{0};  // its number, from 1; changes when one begins
};

class Far;
class ProcessPool;

// An engine: a plan, made ready for any number of launches.
struct Machine {
  // The caller has checked the plan (check.py): what its tables name is there.
  Machine(Plan plan, Options options);
  ~Machine();

  Plan plan;
  Tables tables{};
  Options options;
  Combine combine = nullptr, combine_wide = nullptr;  // of the type, of float32
  Convert widen = nullptr, narrow = nullptr;
  std::vector<std::vector<Index>> dependents;      // per block: blocks that wait for its progress
  std::vector<std::vector<Index>> takers;          // per semaphore: blocks that may wait for it
  std::vector<std::vector<Index>> members;         // per barrier: blocks
  std::vector<std::vector<Index>> packet_readers;  // per rank: blocks that wait for packets
  std::vector<std::vector<Area>> pages;            // per rank that is a process: what it reaches
  int workers = 0, teams = 0;

  std::unique_ptr<Region> memory, exact_memory;
  std::vector<float*> exact;  // of each of options.exact: its values before they were rounded
  Control* control = nullptr;
  BlockState* blocks = nullptr;
  Connection* connections = nullptr;
  Counter *semaphores = nullptr, *barriers = nullptr;
  Counter* inboxes = nullptr;  // per rank
  Team* team = nullptr;
  Queue* queues = nullptr;     // per worker
  Index* rings = nullptr;      // the queues' entries
  std::vector<byte*> slots;    // per connection: options.slots one after the other
  std::unique_ptr<Far> far;    // ranks of other processes, if there are any: before the first launch
  std::unique_ptr<ProcessPool> pool;  // ranks that are processes stay alive, waiting, between launches
  std::atomic<int> ending{0};         // Status that another thread ends the launch with

  Amount slot_stride() const { return slot_head + (options.slot_bytes + 63) / 64 * 64; }
  byte* slot(Index connection, Count message) const {
    return slots[connection] + message % options.slots * slot_stride();
  }
  Index block_count() const { return plan.blocks.size(); }
  Index connection_count() const { return plan.writers.size(); }
  int team_of(Index block) const {
    return teams == 1 ? 0 : plan.blocks[block].rank;
  }
};

}  // namespace forestcoll
