// Threads of waits, transfers and posts over links: who is done when.
//
// Times are microseconds, rates bytes a microsecond (GB/s times 1000).
#pragma once

#include <cstdint>
#include <vector>

#include "sharing.hpp"

namespace forestcoll::simulate {

enum class Rule : std::int32_t { fair, fifo, weighted };

struct Network {
  std::vector<double> capacity;  // per link
  std::vector<Rule> rule;
};

// The links that a transfer crosses one stage after the other; those of a stage all at once.
struct Stage {
  std::vector<int> shared, queued;
};

struct Route {
  std::vector<Stage> stages;
  double lead = 0;  // microseconds before the first byte sets off: a read's request is on its way
  double latency = 0;
  bool weighted = false;
  double narrowest = kUnlimited;  // bytes a microsecond of the links with queues
};

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
//
// A transfer posts one in counter `post` when its last byte has arrived.
enum class Kind : std::int32_t { take, reach, post, move, fetch, start, join, delay };

struct Operation {
  Kind kind;
  std::int32_t object, amount, stride, post;
  double full, last, cap;
};

struct Segment {
  std::int32_t thread, first, end, rounds;
};

struct Code {
  std::vector<Operation> operations;
  std::vector<Segment> segments;  // those of a thread together, in order
  std::vector<std::int64_t> counters;  // what is in them at first
  std::int32_t threads = 0;
};

// A transfer or delay of a thread.
struct Span {
  std::int32_t thread, operation, round;
  double start, end;
};

struct Stuck {
  std::int32_t thread, operation, round;
};

struct Outcome {
  double time = 0;
  std::vector<double> bytes;  // per link
  std::vector<double> ends;  // per thread
  std::vector<Span> spans;
  std::vector<Stuck> stuck;
  std::int64_t transfers = 0;
};

// `seed`: 0 lets threads that could go on at one time do so in the order in which they came to wait;
// others draw it. `poll` is called now and then, and may throw.
Outcome run(const Network& network, const std::vector<Route>& routes, const Code& code,
            bool cut_through, std::uint64_t seed, bool timeline, void (*poll)());

}  // namespace forestcoll::simulate
