// Neighbouring locations that a program always touches together, as one: its atoms.

#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "trace.hpp"

namespace forestcoll::verify {

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

}  // namespace forestcoll::verify
