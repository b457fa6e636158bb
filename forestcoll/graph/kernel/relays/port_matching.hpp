// How a switch's incoming units are matched with its outgoing units, before any cut is looked at.
#pragma once

#include "graph.hpp"

namespace forestcoll {

// One side of a switch: a neighbour, how many units run to or from it, and its box (numbered from 0).
struct Port {
  int node = 0;
  Amount units = 0;
  int box = 0;
};
using Ports = std::vector<Port>;

// `units` from in-port `in` to out-port `out` (positions).
struct Match {
  int in = 0, out = 0;
  Amount units = 0;
};

// Matches in-ports with out-ports as far as both have units. `grade[in * outs + out]` says how welcome
// a pair is, 0 the best; a pair of a worse grade is used only where better ones cannot do. Grades
// below `even` are spread: first every pair of boxes gets as nearly the same as possible, then, within
// that, every pair of ports, those of a better grade first. Thin and wide links make low trees, and
// boxes that reach each other equally well need no way over a third.
std::vector<Match> spread(const Ports& in, const Ports& out,
                          const Ints& grade, int even);

}  // namespace forestcoll
