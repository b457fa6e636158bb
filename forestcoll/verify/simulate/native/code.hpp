// Threads for the event engine: lists of waits, posts and transfers.
//
// A thread is what does one thing after the other: a thread block, or a proxy that moves data for one. It runs
// through its segments, each of which repeats its operations.

#pragma once

#include <algorithm>
#include <deque>
#include <utility>

#include "../../native/columns.hpp"
#include "engine.hpp"

namespace forestcoll::simulate {

struct Origin {  // the instruction that an operation comes from
  int step = -1, op = 0, peer = -1;
};

struct Size {  // bytes in all rounds of a loop but the last, and in that
  double full = 0, last = 0;
  Size times(double factor) const { return {full * factor, last * factor}; }
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
  // What follows is repeated so often.
  void loop(int rounds) {
    if (segments.empty() || segments.back() != std::pair{count(), rounds}) segments.push_back({count(), rounds});
  }
  // Waits for one more in the counter, and takes it.
  void take(int counter) { add({Kind::take, counter, 1, 0, -1, 0, 0, 0}); }
  // Waits until so many, and `stride` more each round, have been posted.
  void reach(int counter, int amount, int stride) {
    add({Kind::reach, counter, amount, stride, -1, 0, 0, 0});
  }
  // Posts one in the counter, some microseconds from now.
  void post(int counter, double delay = 0) { add({Kind::post, counter, 1, 0, -1, delay, delay, 0}); }
  // Bytes over a route, at most `cap` bytes a microsecond.
  void transfer(Kind kind, int route, Size size, double cap, int post = -1) {
    add({kind, route, 0, 0, post, size.full, size.last, cap});
  }
  // Waits for all transfers that were started.
  void join() { add({Kind::join, 0, 0, 0, -1, 0, 0, 0}); }
  // Microseconds of work that no link sees.
  void delay(double full, double last) {
    if (full > 0 || last > 0) add({Kind::delay, 0, 0, 0, -1, full, last, 0});
  }

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

  Thread& thread(int rank, int block, bool proxy = false) {
    return threads.emplace_back(Thread{rank, block, proxy});
  }
  int counter(std::int64_t value = 0) {
    counters.push_back(value);
    return verify::count_of(counters) - 1;
  }
  // All operations one after the other; threads without any are left out, `kept` lists the others.
  Code code(std::vector<const Thread*>& kept, std::vector<int>& starts) const {
    Code all;
    all.counters = counters;
    for (const Thread& thread : threads) {
      if (!thread.count()) continue;
      const auto first = verify::count_of(all.operations);
      for (std::size_t s = 0; s < thread.segments.size(); ++s) {
        const bool more = s + 1 < thread.segments.size();
        all.segments.push_back({all.threads, first + thread.segments[s].first,
                                first + (more ? thread.segments[s + 1].first : thread.count()),
                                thread.segments[s].second});
      }
      all.operations.insert(all.operations.end(), thread.operations.begin(), thread.operations.end());
      ++all.threads;
      kept.push_back(&thread);
      starts.push_back(first);
    }
    return all;
  }
};

}  // namespace forestcoll::simulate
