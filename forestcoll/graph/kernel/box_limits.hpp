// Lowering the links into boxes until every tree has to enter each of them exactly once.
#pragma once

#include <vector>

#include "graph.hpp"

namespace forestcoll {

// Lowers capacities into the boxes (box[v] >= 0) while the demand can still be met. Boxes that cannot
// be brought down to what is rooted outside of them are dissolved: their nodes get box -1.
void tighten(Digraph& graph, const Demand& demand, std::vector<int>& box);

}  // namespace forestcoll
