// Makes finished trees lower without loading any link more.
#pragma once

#include <vector>

#include "packing.hpp"

namespace forestcoll {

// The largest depth of a node in any of the trees.
int height(const std::vector<Batch>& batches);

// The most hops from one of the roots to a node: no trees from them are lower.
int least_height(const Digraph& graph, const std::vector<int>& roots);

// Lets trees exchange their parents of a node (or take one that has room) as long as that brings the
// greatest height down; gives up after `tries` candidates. Weights, roots and feasibility stay.
void lower_trees(const Digraph& graph, std::vector<Batch>& batches, long tries);

}  // namespace forestcoll
