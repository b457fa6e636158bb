// Packing by boxes: first which link each tree enters each box by, then every box on its own.
#pragma once

#include <optional>
#include <vector>

#include "packing.hpp"

namespace forestcoll {

// Trees as `pack_exact` gives them, found in parts. `group` names each node's box, or -1. Where a box's
// incoming links can be lowered until each tree enters it exactly once, the links inside only have to
// carry every tree from where it enters: a small problem of the same kind, and the same one for boxes
// alike. Nothing where no box can be treated so.
std::optional<std::vector<Batch>> pack_nested(const Digraph& graph, const std::vector<Amount>& supply,
                                              const std::vector<int>& group);

}  // namespace forestcoll
