// Minimum cuts: the optimum of the collectives, the check that a demand can be met, and what graphs of
// thousands of nodes look like: colours and components.
#pragma once

#include "flow.hpp"

namespace forestcoll {

// A node set and what leaves it for what it holds: leaving / held, the parts of its ranks.
struct CutRatio {
  Amount leaving = 0;
  Amount held = 0;
  Ints inside;
};

// A node set that violates a demand: `short_by` units too few leave it on the way to `sink`.
struct Violation {
  int sink = 0;  // position in Demand::sinks
  Amount short_by = 0;
  Marks inside;  // per node
};

// The nodes of a set.
Ints list(const Marks& inside);

// The least leaving(S) / supply in S over the sets S that hold some but not all of the ranks, and a
// part of the supply. Every rank is alike to one of the sinks: no other rank needs a flow.
CutRatio best_ratio(const Digraph& graph, const Demand& demand);

// The least maximum flow from `source` to any of `sinks`, with the source side of its cut.
CutRatio least_flow(const Digraph& graph, int source, const Ints& sinks);

// The flow on each arc of a maximum flow from `source` to `sink`.
Amounts maximum_flow(const Digraph& graph, int source, int sink);

// A network that answers "can every sink receive everything?" again and again while arcs change.
class DemandCheck {
 public:
  // `graph` gives the arcs; capacities are read afresh by every call of `violated`.
  DemandCheck(const Digraph& graph, const Demand& demand);

  // The first violation at or after sink number `from`, or nothing; of the supply `times` over.
  std::optional<Violation> violated(const Amounts& capacity, int from = 0,
                                    Amount times = 1);

 private:
  const Demand& demand_;
  Amount total_;
  int source_;
  Residual net_;
  std::vector<std::pair<int, Amount>> feeds_;  // (arc from the source, supply)
};

// Colours 0, 1, ... by which nodes differ: two of the same colour started with the same one, and have
// equally many arcs of each capacity, in and out, to nodes of each colour. Compared by 64-bit hashes:
// nodes that differ may share a colour by accident, never the other way round.
Ints refine_colours(const Digraph& graph, Ints colour);

// Per node the number of its component, arcs taken both ways, when the nodes `outside` are gone;
// -1 for those.
Ints components(const Digraph& graph, const Marks& outside);

}  // namespace forestcoll
