// Minimum cuts: the optimum of the collectives and the check that a demand can be met.
#pragma once

#include <optional>
#include <vector>

#include "flow.hpp"
#include "graph.hpp"

namespace forestcoll {

// A node set and what leaves it per rank inside: leaving / ranks.
struct CutRatio {
  Amount leaving = 0;
  Amount ranks = 0;
  std::vector<int> inside;
};

// A node set that violates a demand: `short_by` units too few leave it on the way to `sink`.
struct Violation {
  int sink = 0;  // position in Demand::sinks
  Amount short_by = 0;
  std::vector<char> inside;  // per node
};

// The least leaving(S) / |S ∩ ranks| over the sets S that hold some but not all ranks.
CutRatio best_ratio(const Digraph& graph, const std::vector<int>& ranks);

// The least maximum flow from `source` to any of `sinks`, with the source side of its cut.
CutRatio least_flow(const Digraph& graph, int source, const std::vector<int>& sinks);

// A network that answers "can every sink receive everything?" again and again while arcs change.
class DemandCheck {
 public:
  // `graph` gives the arcs; capacities are read afresh by every call of `violated`.
  DemandCheck(const Digraph& graph, const Demand& demand);

  // The first violation at or after sink number `from`, or nothing.
  std::optional<Violation> violated(const std::vector<Amount>& capacity, int from = 0);

 private:
  const Demand& demand_;
  Amount total_;
  int source_;
  Residual net_;
};

}  // namespace forestcoll
