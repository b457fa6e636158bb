// Lower trees than packing finds, looked for by changing trees one parent at a time.
#pragma once

#include <optional>
#include <vector>

#include "packing.hpp"

namespace forestcoll {

// Maps of the nodes, the identity among them: a group whose elements move every node, or the identity
// alone. `element[i][v]` is where element i brings v.
using Elements = std::vector<std::vector<int>>;

// Trees as `pack_exact` gives them whose height is less than `below`, or nothing where none were found
// in a bounded time, or there are too many to search: it proves nothing. The lowest heights are tried
// first, from the largest distance of two nodes on. Where the graph and the supply are alike under the
// elements, the trees are too, and only one root of each orbit is searched for.
std::optional<std::vector<Batch>> pack_lowest(const Digraph& graph, const std::vector<Amount>& supply,
                                              const Elements& elements, int below);

}  // namespace forestcoll
