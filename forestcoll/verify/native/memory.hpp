// Memory along a trace: what every atom holds, which accesses meet in one place, and what is left at the end.

#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runs.hpp"

namespace forestcoll::verify {

// A slice of the data, and the set of ranks that have contributed to it, as a number; {0, 0}: nothing defined.
struct Value {
  int slice = 0, ranks = 0;
  bool operator==(const Value&) const = default;
  explicit operator bool() const { return ranks != 0; }
};

// Sets of ranks, each once: 0 nobody, 1 + r rank r alone.
class RankSets {
 public:
  explicit RankSets(int ranks);
  int one(int rank) const { return 1 + rank; }
  int everyone() const { return everyone_; }
  // Both together; 0 where they have a rank in common.
  int join(int x, int y);
  std::vector<int> members(int set) const;
  std::vector<int> common(int x, int y) const;
  int count(int set) const;

 private:
  int number(const std::vector<std::uint64_t>& bits);
  const std::uint64_t* bits(int set) const { return bits_.data() + set * words_; }

  std::size_t words_;
  int everyone_ = 0;
  std::vector<std::uint64_t> bits_;
  std::unordered_map<std::uint64_t, int> joined_;
  std::unordered_multimap<std::uint64_t, int> numbers_;
};

struct Pair {
  int a, b;  // events, a < b
  auto operator<=>(const Pair&) const = default;
};

// Those of the pairs where no chain of arrows leads from a to b; `weak`: nor one with weak arrows.
std::vector<Pair> unordered(const Trace& trace, std::vector<Pair> pairs, bool weak);

struct Collision {
  int atom;
  bool light;  // only a read with a later write
};

using Collisions = std::unordered_map<std::uint64_t, Collision>;

// Who used each atom last, and which events met there: the pairs whose order matters.
//
// Accesses come in the order of the trace. A pair is noted where one of the two writes, and unless their order
// is plain to see. Last writers and the readers since then are enough: an order of all neighbours is an order
// of all.
//
// Accesses of launches after the first are compared with those of the first only. (Two of them are the same as
// two an equal number of launches earlier.) That leaves none unchecked as long as no atom is used in the first
// launch after it was used in a later one, which is possible only where ranks are a launch apart; `mixed` then
// says that the run has to be repeated with all of them compared.
class Accesses {
 public:
  Accesses(const Trace& trace, int atoms);
  void read(int event, Span span, bool later);
  void write(int event, Span span, bool later);
  void take(int event, int atom, bool later);  // `event` reads packets, and has waited for just those

  std::vector<int> writer;  // last event that wrote an atom
  Collisions collisions;
  bool mixed = false;

 private:
  struct Reader {
    int event, rest;
  };

  void meet(int earlier, int event, int atom, bool light);
  void meet_writers(int event, Span span);
  void meet_readers(int event, Span span);
  void look_at(Span span);

  const Trace& trace_;
  std::vector<int> readers_;  // who read an atom since it was written: index of readers, 0 nobody
  std::vector<Reader> lists_{{-1, 0}};
  std::vector<char> used_;  // in a later launch than the first
};

// A value as it comes to be at a rank: what it is made from, as indices of earlier ones, or -1. `order`: how
// its ranks' data was added up, as a number; values of one rank and the same ranks' data may differ there.
struct Noted {
  int rank, slice, length, first, second;
  bool complete;
  int order;
};

// A line (Code::at) that adds up what is then the sum over all ranks, of `length` from `slice` on.
struct Completion {
  int line, slice, length;
};

struct WrongSum {
  int event;
  Value x, y;
};

struct WrongResult {
  int rank, buffer, place;  // location from the buffer's start
  Value holds, needs;
  int writer;  // event, or -1
};

struct Overlap {
  int line, atom;
};

// One mode's memory (in place or not), through the whole trace. Values are followed through the first launch
// only: later launches run the same instructions on new input. In place, the atoms of the shorter user buffer
// stand for nothing: those of the longer one that are the same memory stand in for them.
class Replay {
 public:
  // `every`: all collisions are wanted; `notes`: values are noted as they come to be.
  Replay(const Code& code, const Layout& layout, const Atoms& atoms, const Trace& trace, RankSets& sets,
         bool in_place, bool every, bool notes);

  bool run();  // false: two operands of an instruction overlap
  int find_root(int told) const;
  std::vector<WrongResult> wrong_results(int root) const;
  std::vector<int> outputs(int rank, int root) const;  // as values noted

  Accesses accesses;
  std::optional<WrongSum> wrong;
  std::optional<Overlap> overlap;
  std::vector<Noted> noted;
  std::vector<Completion> completed;  // of each line in the order of its operands
  bool reordered = false;  // a value came to be a second time, added up in another order

 private:
  struct Work {  // where its spans begin; `idle`: the first of its flags
    int spans, sources, targets;
    bool copies, skips;  // skips: some targets are their own sources
  };
  struct Kept {
    std::vector<Value> values;
    std::vector<int> writers;
  };

  Span buffer(int rank, int which) const;
  Value input_value(int rank, std::int64_t place) const;
  std::optional<Value> output_value(int rank, int root, std::int64_t place) const;
  void keep(int rank);
  const Work* work(int line);
  std::optional<int> clash(const Instruction& i, std::span<const Span> src, std::span<const Span> dst) const;
  Value add(int event, Value x, Value y);
  Span part(int event, Span span) const;
  bool message(int event);
  bool one_event(int event);
  void caller(int event);
  void touch(int event, const Work& work);
  void local(int event, const Work& work);
  bool packet(int event);
  int half(int event, int atom, bool packets) const;
  int find_noted(int rank, Value value) const;
  void note(int rank, Value value, int length, int first, int second);
  void move(int from, int to, std::span<const Value> values);
  int rank_of(int event) const { return code_.block(trace_.block[event]).rank; }
  int owner(int atom) const { return layout_.owner(atoms_.starts[atom]); }

  const Code& code_;
  const Columns& columns_;
  const Layout& layout_;
  const Atoms& atoms_;
  const Trace& trace_;
  RankSets& sets_;
  const bool in_place_, every_, notes_;
  std::vector<int> number_;  // the atom that an atom really is
  std::vector<Value> values_;
  std::vector<Value> pool_;                  // of messages
  std::vector<std::int64_t> sent_;           // where each event's message begins
  std::vector<int> work_;           // of each line, 1 + index
  std::vector<Work> works_;
  std::vector<Span> spans_;
  std::unordered_map<int, std::vector<Packet>> packets_;  // of a line
  std::vector<Value> sum_, data_;
  std::vector<Kept> kept_;  // of each rank: input, output
  std::unordered_map<std::uint64_t, std::vector<int>> known_;  // by slice and ranks: noted values
  std::unordered_map<std::uint64_t, int> orders_;              // by the orders of both summands
};

}  // namespace forestcoll::verify
