// A plan as flat arrays of plain integers: what tables.py builds and the interpreter reads.

#pragma once

#include <cstdint>

namespace forestcoll {

using Index = std::int32_t;   // into a table, or how many there are in it
using Amount = std::int64_t;  // bytes, chunks, elements, or a place among them
using Count = std::uint64_t;  // what only grows: messages, steps, arrivals

// forestcoll.program.Op: tables.py numbers them by this list.
#define FC_OPERATIONS(USE) \
  USE(nop) USE(copy) USE(reduce) USE(reduce_to) USE(send) USE(recv) USE(recv_copy_send) \
  USE(recv_reduce_send) USE(recv_reduce_copy) USE(recv_reduce_copy_send) USE(put) \
  USE(put_signal) USE(put_signal_flush) USE(get) USE(read_reduce) USE(read_reduce_put) \
  USE(reduce_put) USE(signal) USE(wait) USE(relaxed_signal) USE(relaxed_wait) USE(flush) \
  USE(barrier) USE(acquire) USE(release) USE(put_packets) USE(forward_packets) \
  USE(copy_packets) USE(unpack) USE(reduce_packets) USE(reduce_put_packets) \
  USE(reduce_copy_packets) USE(reduce_copy_put_packets) USE(fabric_store) \
  USE(fabric_reduce_store)
#define FC_OPERATION_MEMBER(name) name,
// `loop` is no instruction of a plan: the head of a pipeline's body, which follows it.
enum class Op : Index { FC_OPERATIONS(FC_OPERATION_MEMBER) loop };
#undef FC_OPERATION_MEMBER

// Of an instruction, where ranks are in other processes: it waits until all that its rank has put there
// has been read; it reads what lies there.
constexpr Index drains_puts = 1, fetches_sources = 2;

constexpr int max_sources = 80;  // operands of one reduction
constexpr Amount buffers_each = 3;  // of a rank: input, output, scratch
constexpr Amount addresses_each = 2 * buffers_each;  // and those of their allocations

struct Instruction {
  Op op;
  Index step;      // number in the plan; a pipeline's body shares one
  Index operands;  // first of `sources` + `targets` operands
  Index sources, targets;
  Index after, afters;  // dependencies
  Index names, named;   // semaphores to raise or to take from
  Index barrier, group;
  Index part, parts;  // the slice of each operand's whole range that is done
  Index loop;         // pipeline that it belongs to, -1: none
  Index drains;       // drains_puts, fetches_sources: what comes first where ranks lie apart
  Index unused;
};

// `buffer` counts as in Layer::address; only own memory is addressed by its allocation.
struct Operand {
  Amount rank, buffer, offset, count;  // offset and count in chunks
};

struct Dependency {
  Index block, step, steps;  // steps: how many that block has, what one iteration counts
};

struct Loop {
  Amount first, last;  // instructions of the body, both inclusive
  Amount chunks, unit_bytes;
};

struct Block {
  Index rank, number;  // number: thread block of the rank
  Index begin, end;    // instructions
  Index steps;
  Index incoming, outgoing;  // connections, -1: none
  Index fifo;                // the whole list repeats for slice after slice of every chunk
};

// What a thread block waits for.
enum class Awaits : Index { nothing, dependency, slot, message, semaphore, barrier, packets, puts, fetches };

// What a number belongs to that goes to another process. posted, taken: of a connection; raised: how
// often the sender has raised a semaphore; packets: how often it has put packets for a rank. asked: a
// thread block of the sender wants `value` bytes of this process's arena; fetched: here they are.
enum class Number : std::uint32_t { none, posted, taken, raised, packets, asked, fetched };

struct Tables {
  const Instruction* instructions;
  const Operand* operands;
  const Dependency* dependencies;
  const Index* names;
  const Loop* loops;
};

}  // namespace forestcoll
