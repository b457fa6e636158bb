// Running a plan on CPUs: each rank with memory of its own, as threads of one process or as processes.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "elements.hpp"
#include "interpreter.hpp"

namespace forestcoll {

// A plan's tables, numbered for the whole machine: blocks, connections, semaphores and barriers have
// one number each over all ranks. The caller has checked that every operand lies within its buffer.
struct Plan {
  std::vector<Instruction> instructions;
  std::vector<Operand> operands;
  std::vector<Dependency> dependencies;
  std::vector<Index> names;
  std::vector<Loop> loops;
  std::vector<Block> blocks;
  std::vector<Index> writers, readers;  // per connection: block
  std::vector<Amount> semaphores;       // initial values
  Index barriers = 0;
};

// Bytes of memory from `start` on.
struct Area {
  byte* start;
  Amount bytes;
};

// Values that the caller has in its own type, and the plan's buffers in that of the wire.
struct Passage {
  byte *own, *wire;
  Amount values, divides;  // avg: by the number of ranks, on the way out
};

// What is done to each complete sum: after its last addition, before any other rank has it. A step has a
// number: the factor, the divisor, the type that it is rounded to, none, the share that is dropped, the
// learning rate (execute/epilogue.py has them in this order).
enum class Work : int { scale, avg, cast, bias, dropout, adam };

// By the number of an element in the data, however they are cut and dealt out. `state`: launches since it
// began, this one counted; `biases` columns; Adam's weights, means, and means of squares, `count` of each.
struct Epilogue {
  static constexpr Amount biases = 1000;
  std::vector<std::pair<int, double>> steps;  // Work, number
  Amount part, padded;  // elements of each part of the data, and from the begin of one to the next's
  float* state;
  Amount count;
  // Behind those instructions that are not -1 here: the first chunk of the data that they complete where
  // their first target begins (of messages: their own operand).
  std::vector<Amount> completes;

  // To `n` elements from `first` on (padding counted), in `data`.
  void apply(Type type, Amount first, Amount n, byte* data) const;
};

// What is the same in all launches of an engine.
struct Options {
  Geometry geometry;
  Amount slot_bytes, slots;  // fifo: largest message, and how many a connection holds
  Type type;
  Reduction op;
  int ranks;
  bool processes;   // a process for each rank; else `threads` threads for all of them
  int threads;
  double patience;  // seconds without any progress after which a launch is given up
  // 6 per rank (of input, output and scratch, and of the allocations that they lie in), once for
  // every turn that launches may take. With `processes` all of it is shared memory.
  std::vector<byte*> addresses;
  std::vector<Area> sums;  // divided by the number of ranks once all blocks are done (avg)
  // Where the caller's data have another type than the wire's, `type`: what is converted before each
  // launch, and after it.
  Type data;
  std::vector<Passage> in, out;
  // Three per rank, or none: buffers whose sums stay float32 as well, until they leave the rank.
  std::vector<Area> exact;
  Epilogue epilogue;
  void (*user)(void* acc, const void* in, std::size_t n);  // in place of `op`: acc = acc op in, n elements
};

enum class Status { done, stuck, stalled, mismatch, interrupted, leftover, died, lost };

// Where a thread block stood when the launch ended, and what it waited for.
struct Stop {
  Index block = 0;
  Position at;
  bool finished = false;
  Awaits awaits = Awaits::nothing;
  Index object = -1;  // block, connection, semaphore, barrier or rank (packets)
  Amount wanted = 0, present = 0;
};

// A rank's process that has ended: rank, process, and the signal (0: none) or the exit code (-1: unknown).
using Death = std::tuple<int, int, int, int>;

struct Result {
  Status status = Status::done;
  Amount nanoseconds = 0;
  std::vector<Stop> stops;  // of all thread blocks, unless done at all processes
  // leftover: connections (0) with so many unread messages and semaphores (1) so far off their initial value.
  std::vector<std::tuple<int, Index, Amount>> leftovers;
  Stop culprit;  // mismatch: the block that found a message of `present` bytes in place of `wanted`
  std::vector<Death> deaths;  // died: the rank; stalled: ranks that somebody has stopped
};

// What the engine asks of those who launch.
struct Caller {
  std::function<bool()> poll;  // called a few times a second by the thread that launches
  std::function<void(const std::function<void()>&)> alone;  // does it while no other thread forks
  // With other processes: all have prepared the launch; all have ended it, and what each has sent to
  // this process in all launches (given: what this one has sent to each). Nothing: it ended badly, there
  // or here. false: interrupted.
  std::function<bool()> begin;
  std::function<bool(const std::vector<Count>& sent, std::vector<Count>& expected)> end;
};

// What another thread may ask of a launch with other processes.
struct Activity {
  bool idle = false;      // nothing here can go on by itself
  bool finished = false;  // all thread blocks here are done
  Count sent = 0, received = 0;
  Count ticks = 0;
};

template <class... Given>
using Function = void (*)(Given...);

// target[i] = a[i] op b[i] for all elements of `bytes` bytes.
using Combine = Function<byte* /*target*/, const byte* /*a*/, const byte* /*b*/, Amount /*bytes*/>;
Combine combine_function(Type type, Reduction op);  // avg: the sum
// target[i] = target[i] / ranks, as the type divides.
using Divide = Function<byte* /*target*/, Amount /*bytes*/, int /*ranks*/>;
Divide divide_function(Type type);

// Types of the wire. A block of fp8 is one element of so many bytes, and so many values.
Amount wire_bytes(Type type);
Amount wire_values(Type type);
// `values` values (whole blocks) to float32, and from there, rounded to nearest even.
using Convert = Function<byte* /*target*/, const byte* /*source*/, Amount /*values*/>;
Convert widen_function(Type type);
Convert narrow_function(Type type);

// work(k) for every k below `count`, by `threads` threads.
template <class Work>
void share_out(Amount count, int threads, Work work) {
  std::atomic<Amount> next{0};
  const auto run = [&] {
    for (Amount k; (k = next.fetch_add(1)) < count;) work(k);
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < std::min<Amount>(threads, count); ++i) others.emplace_back(run);
  run();
}

// work(first, n) for tiles of [0, count); one thread where it is not worth starting others.
template <class Work>
void for_tiles(Amount count, Amount tile, int threads, Work work) {
  share_out((count + tile - 1) / tile, count > tile * 4 ? threads : 1, [&](Amount k) {
    work(k * tile, std::min(tile, count - k * tile));
  });
}

// --- what ranks put in and what must come out, from the definition of the collective alone

// How the values of one test are drawn. `reducing`: `op` will be applied over `ranks` ranks; values
// are then chosen so that every order of evaluation is exact in `type`, and in the wire's.
struct Pattern {
  Type type = Type::float32;
  Reduction op = Reduction::sum;
  Index reducing = false;
  int ranks = 1;
  Type wire = Type::float32;
};

constexpr int reduced = -1;  // in place of a rank: the reduction over all ranks

// Writes what `source` (a rank, or `reduced`) has at positions first ... first + count - 1.
void fill(const Pattern& pattern, int source, Amount first, Amount count, byte* target,
          int threads);

using Difference = std::tuple<int, Amount, std::string, std::string>;  // buffer, element, expected, found

struct Comparison {
  std::vector<Amount> wrong;      // elements, per buffer
  std::vector<Difference> first;  // the first few of each buffer, in order
};

// Compares each buffer, bit by bit, with what `fill` would write there.
// `epilogue`: what has been done to it, or nullptr; its state goes on as in one launch.
Comparison compare(const Pattern& pattern, int source, Amount first, Amount count,
                   const std::vector<const byte*>& buffers, std::size_t limit, int threads,
                   const Epilogue* epilogue);

}  // namespace forestcoll
