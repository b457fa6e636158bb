// Threads of waits, transfers and posts over links: who is done when.
//
// Times are microseconds, rates bytes a microsecond (GB/s times 1000).
#pragma once

#include <cstdint>
#include <vector>

#include "code.hpp"
#include "sharing.hpp"

namespace forestcoll::simulate {

enum class Rule : std::int32_t { fair, fifo, weighted };

// The links that a transfer crosses one stage after the other; those of a stage all at once: in
// `Network::links` first those that it shares, then those where it waits in a queue.
struct Stage {
  std::int32_t first, queued, end;
};

struct Route {
  std::int32_t first = 0, end = 0;  // its stages
  double lead = 0;  // microseconds before the first byte sets off: a read's request is on its way
  double latency = 0;
  double narrowest = kUnlimited;  // bytes a microsecond of the links with queues
  bool weighted = false, queues = false;
};

struct Network {
  std::vector<double> capacity;  // per link
  std::vector<Rule> rule;
  std::vector<Route> routes{};
  std::vector<Stage> stages{};
  std::vector<int> links{};
};

// A transfer or delay of a thread; `operation`: which one of its.
struct Span {
  std::int32_t thread, operation, round;
  double start, end;
};

struct Mark {  // bytes of a rank's buffer that are read, or written
  std::int32_t rank, buffer, reads, round;
  double low, high, time;
};

struct Stuck {
  std::int32_t thread, operation;
};

struct Outcome {
  double time = 0;
  std::vector<double> bytes;  // per link
  std::vector<Span> spans;
  std::vector<Stuck> stuck;
  std::vector<Mark> marks;
  std::int64_t transfers = 0;
};

// `seed`: 0 lets threads that could go on at one time do so in the order in which they came to wait;
// others draw it. What takes more than `until` microseconds is left there: its time is infinite.
// `poll` is called now and then, and may throw.
Outcome run(const Network& network, const Threads& threads, bool cut_through,
            std::uint64_t seed, bool timeline, double until, void (*poll)());

}  // namespace forestcoll::simulate
