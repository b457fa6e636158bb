// A program as columns of numbers: what the proof, the time and whoever counts read in place of objects.

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace forestcoll::verify {

template <class Items>
int count_of(const Items& items) {
  return static_cast<int>(items.size());
}

template <class Items, class More>
void append(Items& items, const More& more) {
  items.insert(items.end(), more.begin(), more.end());
}

// Two numbers as one key.
inline std::uint64_t key_of(int a, int b) {
  return static_cast<std::uint64_t>(a) << 32 | static_cast<std::uint32_t>(b);
}

// What the proof and the time need to know of an operation: a row of program/ops.py.
struct Operation {
  int remote_src, remote_dst, packet_src, packet_dst;
  bool sends, receives, adds, signals, waits, pairs, plain_move, data, put, packets;
};

// The operations that the runs treat by name, as their numbers.
struct Names {
  int nop, copy, reduce, reduce_to, put_signal_flush, get, relaxed_signal, relaxed_wait, flush,
      barrier, acquire, release, put_packets, forward_packets, fabric_store, fabric_reduce_store;
};

enum Buffer : int { input, output, scratch };
constexpr int own_rank = -1;  // of an operand: of the rank whose instruction it is

struct Operand {
  int rank, buffer, offset, count;
};

// Operands on switches stand once for every rank of the group. `at`: which one of its step it is.
struct Instruction {
  int op, step, at;
  int operands, sources, targets;
  int after, afters;
  int names, channels, semaphores;  // names: first the channels, then the semaphores
  int ident, group, part, parts;
  int loop;  // -1: none
};

struct Loop {
  std::int64_t chunks, unit_bytes;
};

struct Channel {
  int peer, port, index;  // port: 0 memory, 1 port, 2 something unknown
};

struct After {
  int block, step;
};

struct Block {
  int rank, number, begin, end, recv, send, channel, channels, channel_count, steps;
};

struct Rank {
  int blocks, semaphores;  // the first
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
  std::vector<int> names;
  std::vector<Channel> channels;
  std::vector<Loop> loops;
  std::vector<int> semaphores;

  int rank_count() const { return count_of(ranks) - 1; }
  const Operation& row(const Instruction& i) const { return table[i.op]; }
  const Operand* sources(const Instruction& i) const { return operands.data() + i.operands; }
  const Operand* targets(const Instruction& i) const { return sources(i) + i.sources; }
  const int* channels_of(const Instruction& i) const { return names.data() + i.names; }
  const int* semaphores_of(const Instruction& i) const { return channels_of(i) + i.channels; }
  bool reads_by_port(const Block& block, const Instruction& i) const {
    for (int k = 0; row(i).put && k < i.channels; ++k) {
      const int c = channels_of(i)[k];
      if (0 <= c && c < block.channel_count && channels[block.channels + c].port == 1) return true;
    }
    return false;
  }
};

// Numbers that 32 bits do not hold become the next that they do: whoever needs more of a program than its
// wiring has it checked before.
Columns read_program(nanobind::str style, nanobind::handle ranks, const Words& words);

}  // namespace forestcoll::verify
