// A program as columns of numbers: what the proof, the time and whoever counts read in place of objects.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace forestcoll::verify {

// What the proof and the time need to know of an operation: a row of program/ops.py.
struct Operation {
  std::int32_t remote_src, remote_dst, packet_src, packet_dst;
  bool sends, receives, adds, signals, waits, pairs, plain_move, data, put, packets;
};

// The operations that the runs treat by name, as their numbers.
struct Names {
  std::int32_t nop, copy, reduce, reduce_to, put_signal_flush, get, relaxed_signal, relaxed_wait, flush,
      barrier, acquire, release, put_packets, forward_packets, fabric_store, fabric_reduce_store;
};

enum Buffer : std::int32_t { input, output, scratch };
constexpr std::int32_t own_rank = -1;  // of an operand: of the rank whose instruction it is

struct Operand {
  std::int32_t rank, buffer, offset, count;
};

// Operands on switches stand once for every rank of the group. `at`: which one of its step it is.
struct Instruction {
  std::int32_t op, step, at;
  std::int32_t operands, sources, targets;
  std::int32_t after, afters;
  std::int32_t names, channels, semaphores;  // names: first the channels, then the semaphores
  std::int32_t ident, group, part, parts;
  std::int32_t loop;  // -1: none
};

struct Loop {
  std::int64_t chunks, unit_bytes;
};

struct Channel {
  std::int32_t peer, port, index;  // port: 0 memory, 1 port, 2 something unknown
};

struct After {
  std::int32_t block, step;
};

struct Block {
  std::int32_t rank, number, begin, end, recv, send, channel, channels, channel_count, steps;
};

struct Rank {
  std::int32_t blocks, semaphores;  // the first
};

// The words of program/ as numbers, and what they mean: made once.
class __attribute__((visibility("hidden"))) Words {
 public:
  // `rows`: op -> row of program/ops.py; `buffers`: in the order of `Buffer`; `loop`: the class of loops.
  Words(nanobind::dict rows, nanobind::sequence buffers, nanobind::object loop);

  std::vector<Operation> table;
  Names op{};
  nanobind::dict operations, buffers;
  nanobind::object loop;
};

struct Columns {
  std::vector<Operation> table;
  Names op{};
  bool fifo = false;
  std::vector<Rank> ranks;  // and one behind the last
  std::vector<Block> blocks;
  std::vector<Instruction> instructions;
  std::vector<Operand> operands;
  std::vector<After> after;
  std::vector<std::int32_t> names;
  std::vector<Channel> channels;
  std::vector<Loop> loops;
  std::vector<std::int32_t> semaphores;

  int rank_count() const { return static_cast<int>(ranks.size()) - 1; }
  const Operation& row(const Instruction& i) const { return table[static_cast<std::size_t>(i.op)]; }
  const Operand* sources(const Instruction& i) const { return operands.data() + i.operands; }
  const Operand* targets(const Instruction& i) const { return sources(i) + i.sources; }
  const std::int32_t* channels_of(const Instruction& i) const { return names.data() + i.names; }
  const std::int32_t* semaphores_of(const Instruction& i) const { return channels_of(i) + i.channels; }
  bool reads_by_port(const Block& block, const Instruction& i) const {
    for (int k = 0; row(i).put && k < i.channels; ++k) {
      const std::int32_t c = channels_of(i)[k];
      if (0 <= c && c < block.channel_count && channels[block.channels + c].port == 1) return true;
    }
    return false;
  }
};

// Numbers that 32 bits do not hold become the next that they do: whoever needs more of a program than its
// wiring has it checked before.
Columns read_program(nanobind::handle program, const Words& words);

}  // namespace forestcoll::verify
