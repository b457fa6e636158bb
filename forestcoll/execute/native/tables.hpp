// A plan as flat arrays of plain integers: what tables.py builds and the interpreter reads.

#pragma once

#include <cstdint>

namespace forestcoll {

constexpr int max_sources = 80;  // operands of one reduction
constexpr std::int64_t buffers_each = 3;  // of a rank: input, output, scratch
constexpr std::int64_t addresses_each = 2 * buffers_each;  // and those of their allocations

struct Instruction {
  std::int32_t op;
  std::int32_t step;              // number in the plan; a pipeline's body shares one
  std::int32_t operands;          // first of `sources` + `targets` operands
  std::int32_t sources, targets;
  std::int32_t after, afters;     // dependencies
  std::int32_t names, named;      // semaphores to raise or to take from
  std::int32_t barrier, group;
  std::int32_t part, parts;       // the slice of each operand's whole range that is done
  std::int32_t loop;              // pipeline that it belongs to, -1: none
  std::int32_t unused[2];
};

// `buffer` counts as in Layer::address; only own memory is addressed by its allocation.
struct Operand {
  std::int64_t rank, buffer, offset, count;  // offset and count in chunks
};

struct Dependency {
  std::int32_t block, step, steps;  // steps: how many that block has, what one iteration counts
};

struct Loop {
  std::int64_t first, last;  // instructions of the body, both inclusive
  std::int64_t chunks, unit_bytes;
};

struct Block {
  std::int32_t rank, number;        // number: thread block of the rank
  std::int32_t begin, end;          // instructions
  std::int32_t steps;
  std::int32_t incoming, outgoing;  // connections, -1: none
  std::int32_t fifo;                // the whole list repeats for slice after slice of every chunk
};

struct Tables {
  const Instruction* instructions;
  const Operand* operands;
  const Dependency* dependencies;
  const std::int32_t* names;
  const Loop* loops;
};

}  // namespace forestcoll
