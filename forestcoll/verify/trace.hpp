// One abstract run of a program: its events in a possible order, and what orders them.
//
// Events are numbered in the order of the run, so that every arrow of the happens-before relation goes from
// a smaller to a larger number. Memory plays no part here: one trace serves in place and out of place.

#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "columns.hpp"

namespace forestcoll::verify {

constexpr int sync_only = -2;  // `Trace::item` of an event that touches no memory
constexpr int whole = -1;      // of one that does its instruction's whole data work

struct Line {
  int instruction, round;  // round of its loop, or -1
};

// All thread blocks with their loops unrolled: what each runs in a launch.
struct Code {
  const Columns& columns;
  int rounds;
  std::vector<int> first;  // line of each block, and the end
  std::vector<Line> lines;

  Code(const Columns& columns, int rounds);
  int blocks() const { return count_of(columns.blocks); }
  int length(int block) const { return first[block + 1] - first[block]; }
  const Block& block(int b) const { return columns.blocks[b]; }
  const Instruction& at(int line) const {
    return columns.instructions[static_cast<std::size_t>(lines[line].instruction)];
  }
};

// `chain`: events of one chain (a thread block, a rank's caller, one asynchronous put) are related by `prev`:
// event e comes after prev[e] and after all events of its chain before prev[e]. `cross`: further events that
// e comes after. `block`: a thread block, or ~rank for the caller of a rank between launches. `line`: counted
// over all blocks; for a caller the launch that follows. `item`: sync_only, whole, or which part of a message
// (fifo), destination (asynchronous put) or packet the event handles. `weak`: events that happened before e,
// whose reads are over but whose writes e need not see (onesided_run.cpp says when).
struct Trace {
  std::vector<int> block, line, launch, item, chain, prev, crosses{0}, cross;
  std::vector<int> weak_event, weak;  // in the order of the events
  std::int64_t piece = 1;                      // chunks in a part of a message; where it is 1, a part is an atom

  int size() const { return count_of(block); }
  std::span<const int> across(int e) const {
    return {cross.data() + crosses[e], cross.data() + crosses[e + 1]};
  }
  int add(int b, int at, int turn, int what, int of, int before, std::span<const int> others) {
    block.push_back(b);
    line.push_back(at);
    launch.push_back(turn);
    item.push_back(what);
    chain.push_back(of);
    prev.push_back(before);
    cross.insert(cross.end(), others.begin(), others.end());
    crosses.push_back(count_of(cross));
    return size() - 1;
  }
};

enum class Need : int { message, space, step, signal, semaphore, barrier, packets };

// Why a thread block cannot go on: its line, what it needs (of a rank, a line, a number, a location), and
// the thread block that it waits for (-1: none).
struct Blocked {
  int line;
  Need need;
  int of, on;
};

struct Waiting {
  int block;
  Blocked why;
};

}  // namespace forestcoll::verify
