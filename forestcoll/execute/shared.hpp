// Memory and sleep that work between processes as well as between threads.
//
// Regions are anonymous: they have no name, so that nothing can be left behind in a file system, and
// a process that is forked after they were made finds them at the same address. Sleeping is a futex
// that is not private to a process (Linux).

#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>

#include "interpreter.hpp"

namespace forestcoll {

using Clock = std::chrono::steady_clock;
using Nanoseconds = std::chrono::nanoseconds;

// Zeroed address space: pages that are never touched take no memory.
class Region {
 public:
  Region(std::size_t bytes, bool shared) : bytes_(bytes) {
    if (!bytes) return;
    const int kind = shared ? MAP_SHARED : MAP_PRIVATE;
    start_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
inline void sleep_while(Word& word, std::uint32_t seen, const Nanoseconds* limit = nullptr) {
  timespec time{};
  if (limit) {
    time.tv_sec = static_cast<std::time_t>(limit->count() / 1'000'000'000);
    time.tv_nsec = static_cast<long>(limit->count() % 1'000'000'000);
  }
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, limit ? &time : nullptr, nullptr, 0);
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

}  // namespace forestcoll
