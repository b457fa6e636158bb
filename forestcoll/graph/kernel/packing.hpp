// Packing of spanning trees into logical links, exactly as many as the demand asks for.
#pragma once

#include <optional>
#include <vector>

#include "graph.hpp"

namespace forestcoll {

// `weight` equal trees: parent[v] for every node, -1 at the root.
struct Batch {
  int root = 0;
  Amount weight = 0;
  std::vector<int> parent;
};

// The lowest trees there are, if they can be packed: each node hangs one hop farther from the root
// than its parent. Then any choice of parents is a tree, and the packing falls apart into one
// transportation problem a node: roots need units, arcs that enter it offer them. Nothing where
// some node has no solution.
std::optional<std::vector<Batch>> pack_layered(const Digraph& graph,
                                               const std::vector<Amount>& supply);

// Trees that span all nodes: for every node r, supply[r] of them rooted at r, at most capacity[e]
// over arc e. Exact: succeeds whenever every node can receive the whole supply. Grows all trees
// level by level, so that they stay low. `seed` breaks ties.
// Source of the rule: Berczi, Frank (2010), as used by ForestColl.
std::vector<Batch> pack_exact(const Digraph& graph, const std::vector<Amount>& supply, unsigned seed);

}  // namespace forestcoll
