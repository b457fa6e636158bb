// Threads for the event engine: lists of waits, posts and transfers.
//
// A thread is what does one thing after the other: a thread block, or a proxy that moves data for one. It runs
// through its segments, each of which repeats its operations.

#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "../../native/columns.hpp"

namespace forestcoll::simulate {

// What an operation does with `object` (a counter, or a route); `full` and `last` are its bytes (of a
// delay: microseconds) in all rounds of its segment but the last, and in that.
//
//   take   waits until `amount` more are in the counter than have been taken, and takes them
//   reach  waits until `amount` + `stride` * round have been posted in the counter in all
//   post   posts `amount`, `full` microseconds from now
//   move   a transfer; goes on when the last byte has left
//   fetch  a transfer; goes on when the last byte is here
//   start  a transfer; goes on at once
//   join   waits for the last bytes of all transfers that the thread has started
//   delay  does something on its own
//   mark   notes that a place is read, or `full` microseconds from now written; a read waits for its producer
//
// A transfer posts one in its counter when its last byte has arrived.
enum class Kind : std::int32_t { take, reach, post, move, fetch, start, join, delay, mark };

struct alignas(32) Operation {  // two to a cache line
  Kind kind;
  std::int32_t object;
  std::int32_t amount;  // of a transfer: its counter, or -1
  std::int32_t stride;  // of a transfer: how many share the rate of its thread block; 0: it has no limit
  double full, last;
};

struct Origin {  // the instruction that an operation comes from
  int step = -1, op = 0, peer = -1;
};

struct Size {  // bytes in all rounds of a loop but the last, and in that
  double full = 0, last = 0;
  Size times(double factor) const { return {full * factor, last * factor}; }
};

// Bytes of a rank's buffer, from `low` to `high`: all rounds of a segment but the last go over `stride` of them.
struct Place {
  int rank, buffer;
  bool reads;
  double low, high, stride;
};

// A thread in the making. `block` is -1 where a proxy works for several.
struct Thread {
  int rank, block;
  bool proxy;
  Origin origin{};
  std::vector<Operation> operations{};
  std::vector<Origin> origins{};
  std::vector<std::pair<int, int>> segments{};  // first operation, rounds

  int count() const { return verify::count_of(operations); }
  int end(int segment) const {
    return segment + 1 < verify::count_of(segments) ? segments[segment + 1].first : count();
  }
  // What follows is repeated so often.
  void loop(int rounds) {
    if (segments.empty() || segments.back() != std::pair{count(), rounds}) segments.push_back({count(), rounds});
  }
  // Waits for one more in the counter, and takes it.
  void take(int counter) { add({Kind::take, counter, 1, 0, 0, 0}); }
  // Waits until so many, and `stride` more each round, have been posted.
  void reach(int counter, int amount, int stride) {
    add({Kind::reach, counter, amount, stride, 0, 0});
  }
  // Posts one in the counter, some microseconds from now.
  void post(int counter, double delay = 0) { add({Kind::post, counter, 1, 0, delay, delay}); }
  // Bytes over a route, as one of so many `sharers`.
  void transfer(Kind kind, int route, Size size, int sharers, int post = -1) {
    add({kind, route, post, sharers, size.full, size.last});
  }
  // Waits for all transfers that were started.
  void join() { add({Kind::join, 0, 0, 0, 0, 0}); }
  // Microseconds of work that no link sees.
  void delay(double full, double last) {
    if (full > 0 || last > 0) add({Kind::delay, 0, 0, 0, full, last});
  }

  // Notes that a place is read, or written.
  void mark(int place, double delay) { add({Kind::mark, place, 0, 0, delay, delay}); }

 private:
  void add(const Operation& operation) {
    if (segments.empty()) segments.push_back({0, 1});
    operations.push_back(operation);
    origins.push_back(origin);
  }
};

// Threads and counters of one simulation.
struct Threads {
  std::deque<Thread> threads;  // references stay
  std::vector<std::int64_t> counters;
  double rate = 0;     // bytes a microsecond that a thread block moves; 0: no limit
  bool marks = false;  // whether reads and writes of inputs and outputs are noted
  std::vector<Place> places{};
  std::vector<std::pair<double, double>> produced{};  // bytes of each input so far, microseconds

  Thread& thread(int rank, int block, bool proxy = false) {
    return threads.emplace_back(Thread{rank, block, proxy});
  }
  int counter(std::int64_t value = 0) {
    counters.push_back(value);
    return verify::count_of(counters) - 1;
  }
};

}  // namespace forestcoll::simulate
