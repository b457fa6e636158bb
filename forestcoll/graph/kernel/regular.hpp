// Large regular graphs: colours, components, and the optimum where sinks are alike.
#pragma once

#include <optional>
#include <vector>

#include "cuts.hpp"
#include "graph.hpp"

namespace forestcoll {

// As `best_ratio`, where every rank is alike to one of `sinks`: no other rank needs a flow.
CutRatio best_ratio_alike(const Digraph& graph, const std::vector<int>& ranks,
                          const std::vector<int>& sinks);

// Colours 0, 1, ... by which nodes differ: two of the same colour started with the same one, and have
// equally many arcs of each capacity, in and out, to nodes of each colour. Compared by 64-bit hashes:
// nodes that differ may share a colour by accident, never the other way round.
std::vector<int> refine_colours(const Digraph& graph, std::vector<int> colour);

// Per node the number of its component, arcs taken both ways, when the nodes `outside` are gone;
// -1 for those.
std::vector<int> components(const Digraph& graph, const std::vector<char>& outside);

// The flow on each arc of a maximum flow from `source` to `sink`.
std::vector<Amount> maximum_flow(const Digraph& graph, int source, int sink);

}  // namespace forestcoll
