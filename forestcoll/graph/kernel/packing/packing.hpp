// Packing of spanning trees into logical links, exactly as many as the demand asks for; lower trees
// than packing finds; and the way back to trees of concrete paths.
#pragma once

#include "relays/edge_splitting.hpp"

namespace forestcoll {

// `weight` equal trees: parent[v] for every node, -1 at the root.
struct Batch {
  int root = 0;
  Amount weight = 0;
  Ints parent;
};
using Batches = std::vector<Batch>;

// The lowest trees there are, if they can be packed: each node hangs one hop farther from the root
// than its parent. Then any choice of parents is a tree, and the packing falls apart into one
// transportation problem a node: roots need units, arcs that enter it offer them. Nothing where
// some node has no solution.
std::optional<Batches> pack_layered(const Digraph& graph,
                                               const Amounts& supply);

// Trees that span all nodes: for every node r, supply[r] of them rooted at r, at most capacity[e]
// over arc e. Exact: succeeds whenever every node can receive the whole supply. Grows all trees
// level by level, so that they stay low.
// Source of the rule: Berczi, Frank (2010), as used by ForestColl.
Batches pack_exact(const Digraph& graph, const Amounts& supply);

// Maps of the nodes, the identity among them: a group whose elements move every node, or the identity
// alone. `element[i][v]` is where element i brings v.
using Elements = Lists;

// Trees as `pack_exact` gives them whose height is less than `below`, or nothing where none were found
// in a bounded time, or there are too many to search: it proves nothing. The lowest heights are tried
// first, from the largest distance of two nodes on. Where the graph and the supply are alike under the
// elements, the trees are too, and only one root of each orbit is searched for.
std::optional<Batches> pack_lowest(const Digraph& graph, const Amounts& supply,
                                              const Elements& elements, int below);

// The largest depth of a node in any of the trees.
int height(const Batches& batches);

// Per node the arcs out of it that have capacity, as the nodes where they end.
Lists neighbours(const Digraph& graph);

// Hops from `root` to every node over these neighbours; `nowhere` where there is no way.
Ints hops_from(const Lists& out, int root, int nowhere);

// The most hops from one of the roots to a node: no trees from them are lower.
int least_height(const Digraph& graph, const Ints& roots);

// Lets trees exchange their parents of a node (or take one that has room) as long as that brings the
// greatest height down; gives up after `tries` candidates. Weights, roots and feasibility stay.
void lower_trees(const Digraph& graph, Batches& batches, long tries);

// `weight` equal trees; `paths` in growth order, one per node but the root.
struct PathTree {
  int root = 0;
  Amount weight = 0;
  Ints paths;
};

// Hands every tree edge one path. A batch is divided only where no single path holds all of it; equal
// trees come out as one.
std::vector<PathTree> expand(Batches batches, Logical logical);

}  // namespace forestcoll
