// Low trees over boxes whose loads fit the links, by negotiated re-hanging: every box of every tree
// hangs straight on its root at first, then single boxes are hung elsewhere, at prices that rise on
// links which carry too much, until none does. After PathFinder (McMurchie, Ebeling 1995), which
// routes wires so; here trees of bounded height.
#pragma once

#include "rehanging/routes.hpp"

namespace forestcoll {

struct RehangOptions {
  int height = 2;      // hops that no tree may exceed, inside boxes one
  bool grow = false;   // start from trees grown nearest first, not from stars
  long moves = 0;      // how many re-hangings are tried at most
  unsigned seed = 0;
};

struct Rehung {
  Amount overload = 0;  // units above the capacities, summed over all resources: 0 is a solution
  long moves = 0;
  Lists ways;  // arcs from a rank of a box to one of another, all different
  // Per unit a tree: the ways by which all boxes but the root's hang, and before each way its
  // box's depth: hops from the root to where the tree enters. From the root outwards.
  Lists trees;
};

// Trees of these units. `overload` < 0 where some box cannot be reached at all within the height.
Rehung rehang(const BoxedGraph& boxed, const std::vector<Unit>& units, const RehangOptions& options);

}  // namespace forestcoll
