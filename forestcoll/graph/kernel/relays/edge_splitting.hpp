// Switch removal by edge splitting, with the way back from logical links to paths.
#pragma once

#include "graph.hpp"

namespace forestcoll {

// `count` units of a logical link run over path number `path`.
struct PathUnits {
  int path = 0;
  Amount count = 0;
};

// Links between ranks only, each made of units of concrete paths.
struct Logical {
  Ints tail, head;
  std::vector<std::vector<PathUnits>> units;  // per link
  Lists paths;        // nodes of every path that `units` names
};

// Lowers capacities until every relay (node that is neither source of supply nor sink) has as much
// coming in as going out, while the demand can still be met. False where no way was found.
bool trim(Digraph& graph, const Demand& demand, const Marks& relay);

// Replaces every relay by direct links between the others such that the demand can still be met.
// Relays must be balanced and the demand met at the start. `group` names each node's box (or -1):
// a relay that joins several boxes should not be wasted on traffic inside one. Without `detours`,
// relays first lose what they could only send back and forth between each other.
// Source: Bang-Jensen, Frank, Jackson (1995) for the existence of a complete splitting.
Logical remove_relays(const Digraph& graph, const Demand& demand, const Marks& relay,
                      const Ints& group, bool detours);

}  // namespace forestcoll
