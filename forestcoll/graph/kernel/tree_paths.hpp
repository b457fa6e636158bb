// From trees of logical links back to trees of concrete paths.
#pragma once

#include <vector>

#include "packing.hpp"
#include "edge_splitting.hpp"

namespace forestcoll {

// `weight` equal trees; `paths` in growth order, one per node but the root.
struct PathTree {
  int root = 0;
  Amount weight = 0;
  std::vector<int> paths;
};

// Hands every tree edge one path. A batch is divided only where no single path holds all of it; equal
// trees come out as one.
std::vector<PathTree> expand(std::vector<Batch> batches, Logical logical);

}  // namespace forestcoll
