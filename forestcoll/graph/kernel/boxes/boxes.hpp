// Packing by boxes: first which link each tree enters each box by, then every box on its own.
#pragma once

#include "packing/packing.hpp"

namespace forestcoll {

// Trees as `pack_exact` gives them, found in parts. `group` names each node's box, or -1. Where a box's
// incoming links can be lowered until each tree enters it exactly once, the links inside only have to
// carry every tree from where it enters: a small problem of the same kind, and the same one for boxes
// alike. Nothing where no box can be treated so.
std::optional<Batches> pack_nested(const Digraph& graph, const Amounts& supply,
                                              const Ints& group);

// box_limits.cpp: lowering the links into boxes until every tree has to enter each of them once.

// Lowers capacities into the boxes (box[v] >= 0) while the demand can still be met. Boxes that cannot
// be brought down to what is rooted outside of them are dissolved: their nodes get box -1.
void tighten(Digraph& graph, const Demand& demand, Ints& box);

// box_entries.cpp: by which arc the trees of each root enter each box.

// Boxes numbered from 0; every node in none is a box of its own.
struct Boxes {
  Ints of;                    // per node
  Ints place;                 // per node, its position in its box
  Lists members;  // per box

  int count() const { return number_of(members); }
};

// The boxes of nodes with the same number; those with -1 are boxes of their own.
Boxes number_boxes(const Ints& box);

// Equal trees between boxes: the arc by which they enter each box, -1 for the root's own.
struct Outline {
  int root = 0;
  Amount weight = 0;
  Ints arc;

  // The node of box b where they begin in it.
  int entry(const Digraph& graph, int b) const { return arc[b] >= 0 ? graph.head[arc[b]] : root; }
};
using Outlines = std::vector<Outline>;

// Outlines of the trees of all roots, at most capacity[e] over arc e; each box is entered once. In
// layers of boxes where that can be done, else by exact packing, which always can as long as every
// box could receive all trees that are rooted outside.
Outlines outline(const Digraph& graph, const Boxes& boxes,
                             const Amounts& supply);

}  // namespace forestcoll
