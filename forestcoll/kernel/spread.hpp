// How a switch's incoming units are matched with its outgoing units, before any cut is looked at.
#pragma once

#include <vector>

#include "graph.hpp"

namespace forestcoll {

// One side of a switch: a neighbour and how many units run to or from it.
struct Port {
  int node = 0;
  Amount units = 0;
};

// `units` from in-port `in` to out-port `out` (positions).
struct Match {
  int in = 0, out = 0;
  Amount units = 0;
};

// Matches in-ports with out-ports as far as both have units. `grade(in, out)` says how welcome a
// pair is, 0 the best; a pair of a worse grade is used only where better ones cannot do. Within a
// grade every pair gets as nearly the same as possible: thin and wide links make low trees.
std::vector<Match> spread(const std::vector<Port>& in, const std::vector<Port>& out,
                          const std::vector<int>& grade);

}  // namespace forestcoll
