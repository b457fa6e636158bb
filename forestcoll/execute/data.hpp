// What ranks put in and what must come out, computed from the definition of the collective alone.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "elements.hpp"

namespace forestcoll {

// How the values of one test are drawn. `reducing`: `op` will be applied over `ranks` ranks; values
// are then chosen so that every order of evaluation is exact in `type`.
struct Pattern {
  Type type = Type::float32;
  Reduction op = Reduction::sum;
  bool reducing = false;
  int ranks = 1;
};

constexpr int reduced = -1;  // in place of a rank: the reduction over all ranks

// Writes what `source` (a rank, or `reduced`) has at positions first ... first + count - 1.
void fill(const Pattern& pattern, int source, std::int64_t first, std::int64_t count, byte* target,
          int threads);

struct Difference {
  int buffer;
  std::int64_t element;
  std::string expected, found;
};

struct Comparison {
  std::vector<std::int64_t> wrong;  // elements, per buffer
  std::vector<Difference> first;    // the first few of each buffer, in order
};

// Compares each buffer, bit by bit, with what `fill` would write there.
Comparison compare(const Pattern& pattern, int source, std::int64_t first, std::int64_t count,
                   const std::vector<const byte*>& buffers, int limit, int threads);

}  // namespace forestcoll
