// Abstract runs: a program's atoms, its events in a possible order and what orders them, and whether it gets stuck.
//
// Events are numbered in the order of the run, so that every arrow of the happens-before relation goes from
// a smaller to a larger number. Memory plays no part in a trace: one serves in place and out of place.

#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <unordered_map>
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
  const Instruction& at(int line) const { return columns.instructions[lines[line].instruction]; }
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
    append(cross, others);
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

// --- neighbouring locations that a program always touches together: atoms

// What the proof is told of a program besides its columns: program/chunks.py, program/collective.py.
struct Shape {
  std::int64_t input, output, part;  // chunks of a rank's buffers, and of a part of the data
  std::vector<std::int64_t> scratch;
  std::int64_t grain;        // locations of a chunk
  bool double_scratch;       // two halves, taken by turns
  bool inputs_each, outputs_each, reduces;
  int rooted;       // 0: no; 1: the root is the source; 2: the target
  int shorter;      // buffer that in place is a rank's part of the other, or -1
};

struct Span {
  int low, high;  // locations, or atoms, [low, high)
  bool operator==(const Span&) const = default;
};

// Where every chunk of every rank lies; a location is a chunk, or one of `grain` equal slices of it.
class Layout {
 public:
  explicit Layout(const Shape& shape);

  std::int64_t chunks(int rank, int buffer) const {
    return buffer == input ? shape.input : buffer == output ? shape.output : shape.scratch[rank];
  }
  int base(int rank, int buffer) const { return bases_[3 * rank + buffer]; }
  Span buffer(int rank, int which) const {
    return {base(rank, which), base(rank, which) + static_cast<int>(chunks(rank, which) * shape.grain)};
  }
  int ranks() const { return count_of(shape.scratch); }
  int size() const { return bases_.back(); }
  int owner(int location) const;
  bool input_longer() const { return shape.input > shape.output; }
  // The locations of input and output that are one memory in place.
  std::array<Span, 2> shared(int rank) const;

  const Shape& shape;

 private:
  std::vector<int> bases_;  // of each rank's buffers, and the end
};

// What each line works on, as spans of locations (first) or atoms (after).
struct Spans {
  std::vector<int> first;  // of each line, sources before targets; and the end
  std::vector<Span> spans;
};

struct Atoms {
  std::vector<int> starts;  // first location of each, and the end of all
  std::vector<int> number;  // of each location
  Spans operands;
  std::unordered_map<int, std::vector<Span>> in_place;  // lines that are taken for other memory in place

  int size() const { return count_of(starts) - 1; }
  Span span(Span locations) const { return {number[locations.low], number[locations.high - 1] + 1}; }
};

// `finest`: every location by itself.
Atoms find_atoms(const Code& code, const Layout& layout, std::int64_t piece, bool finest);

// --- runs

// How a fifo program's messages go: most chunks in a piece of one; pieces that a connection holds.
struct Messages {
  std::int64_t piece, queue;
};

struct PacketsTwice {
  int line, earlier, atom;
};

// A run's trace, and where it went wrong: thread blocks that wait for ever, packets written twice.
struct Outcome {
  Trace trace;
  std::vector<Waiting> stuck;
  std::optional<PacketsTwice> twice;
};

// One pass of a fifo program. Of a receiving event the first crossing arrow comes from the event that sent its
// message.
Outcome run_fifo(const Code& code, const Atoms& atoms, const Messages& messages);

// All launches of a onesided program, packets or not.
Outcome run_onesided(const Code& code, const Atoms& atoms, int launches);

// Atom by atom, what an operation on packets works on: the atoms of its sources, and of its targets.
struct Packet {
  std::vector<int> sources, targets;
};

std::vector<Packet> spread(const Columns& columns, const Instruction& i, std::span<const Span> sources,
                           std::span<const Span> targets);

}  // namespace forestcoll::verify
