// Trees between boxes: by which arc the trees of each root enter each box.
#pragma once

#include <vector>

#include "graph.hpp"

namespace forestcoll {

// Boxes numbered from 0; every node in none is a box of its own.
struct Boxes {
  std::vector<int> of;                    // per node
  std::vector<int> place;                 // per node, its position in its box
  std::vector<std::vector<int>> members;  // per box

  int count() const { return static_cast<int>(members.size()); }
};

// The boxes of nodes with the same number; those with -1 are boxes of their own.
Boxes number_boxes(const std::vector<int>& box);

// Equal trees between boxes: the arc by which they enter each box, -1 for the root's own.
struct Outline {
  int root = 0;
  Amount weight = 0;
  std::vector<int> arc;
};

// Outlines of the trees of all roots, at most capacity[e] over arc e; each box is entered once. In
// layers of boxes where that can be done, else by exact packing, which always can as long as every
// box could receive all trees that are rooted outside.
std::vector<Outline> outline(const Digraph& graph, const Boxes& boxes,
                             const std::vector<Amount>& supply);

}  // namespace forestcoll
