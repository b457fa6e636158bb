// Running a plan on CPU threads: all ranks in one process, each with memory of its own.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "elements.hpp"
#include "interpreter.hpp"

namespace forestcoll {

// A plan's tables, numbered for the whole machine: blocks, connections, semaphores and barriers have
// one number each over all ranks. The caller has checked every index and range.
struct Plan {
  std::vector<Instruction> instructions;
  std::vector<Operand> operands;
  std::vector<Dependency> dependencies;
  std::vector<std::int32_t> names;
  std::vector<Loop> loops;
  std::vector<Block> blocks;
  std::vector<std::int32_t> writers, readers;  // per connection: block
  std::vector<std::int64_t> semaphores;        // initial values
  std::int32_t barriers = 0;
};

struct Options {
  std::int64_t chunk_bytes = 0;
  std::int64_t slice_bytes = 0;  // fifo: bytes of every chunk handled per iteration
  std::int64_t slot_bytes = 0;   // fifo: largest message
  int slots = 2;                 // fifo: messages that a connection holds
  Type type = Type::float32;
  Reduction op = Reduction::sum;
  int threads = 1;
  double patience = 60;  // seconds without any progress after which the launch is given up
};

enum class Status { done, stuck, stalled, mismatch, interrupted, leftover };

enum class Awaits { nothing, dependency, slot, message, semaphore, barrier, packets };

// Where a thread block stood when the launch ended, and what it waited for.
struct Stop {
  std::int32_t block = 0;
  Position at;
  bool finished = false;
  Awaits awaits = Awaits::nothing;
  std::int32_t object = -1;  // block, connection, semaphore, barrier or rank (packets)
  std::int64_t wanted = 0, present = 0;
};

struct Result {
  Status status = Status::done;
  std::int64_t nanoseconds = 0;
  std::vector<Stop> stops;  // of all thread blocks, unless done
  // leftover: connections (0) with unread messages and semaphores (1) off their initial value.
  struct Leftover {
    int kind;
    std::int32_t object;
    std::int64_t amount;
  };
  std::vector<Leftover> leftovers;
  Stop culprit;  // mismatch: the block that found a message of `present` bytes in place of `wanted`
};

class Engine {
 public:
  explicit Engine(Plan plan);
  ~Engine();
  // Runs the plan once. addresses: 3 per rank (input, output, scratch). `poll` is called a few times
  // a second on the calling thread; when it returns true the launch is interrupted.
  Result launch(const std::vector<byte*>& addresses, const Options& options,
                const std::function<bool()>& poll);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// target[i] = a[i] op b[i] for all elements of `bytes` bytes.
using Combine = void (*)(byte* target, const byte* a, const byte* b, std::int64_t bytes);
Combine combine_function(Type type, Reduction op);
std::int64_t element_bytes(Type type);

}  // namespace forestcoll
