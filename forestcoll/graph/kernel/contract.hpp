// What the kernel's loops may take for granted, checked where Python hands them their arrays: with less
// they would not end, or leave their arrays.
//
//   all     arcs between known nodes; capacities, and supplies, no less than 0 and below 2^62 in all
//   trees   (trim, remove_relays, pack) supply at sinks alone, each named once; the links can carry the
//           whole supply to every sink
//   relays  (remove_relays) every node that is no sink sends as much as it receives; no loops
#pragma once

#include "cuts.hpp"
#include "python.hpp"

namespace forestcoll {

// Throws unless the amounts are no less than 0 and add up to less than 2^62, `times` over: no sum of two
// flows leaves 64 bits then.
inline void require_amounts(const Amounts& amounts, Amount times, const char* negative,
                            const char* large) {
  Amount room = (kInfinite - 1) / times;
  for (Amount amount : amounts) {
    require(amount >= 0, negative);
    require(amount <= room, large);
    room -= amount;
  }
}

inline Digraph digraph(int nodes, const Ints& tail, const Ints& head, const Amounts& capacity) {
  require(nodes > 0, "a graph needs nodes");
  require(tail.size() == head.size() && tail.size() == capacity.size(),
          "tail, head and capacity differ in length");
  require_below(tail, nodes, "an arc names an unknown node");
  require_below(head, nodes, "an arc names an unknown node");
  require_amounts(capacity, 1, "a capacity is negative", "capacities add up to 2^62 or more");
  return {nodes, tail, head, capacity};
}

inline void require_nodes(const Ints& list, int nodes) {
  require(!list.empty(), "a list of nodes is empty");
  require_below(list, nodes, "an unknown node is named");
}

// Per node whether the list names it.
inline Marks marked(const Ints& list, int nodes) {
  require_nodes(list, nodes);
  Marks marks(nodes, 0);
  for (int v : list) marks[v] = 1;
  return marks;
}

// `spanning`: trees from the supply to all sinks are asked for, so it must stand at sinks.
inline Demand demand(int nodes, const Amounts& supply, const Ints& sinks, bool spanning) {
  require(number_of(supply) == nodes, "supply needs one entry a node");
  require_amounts(supply, 1, "a supply is negative", "supplies add up to 2^62 or more");
  require_nodes(sinks, nodes);
  if (spanning) {
    Marks sink(nodes, 0);
    for (int v : sinks) {
      require(!sink[v], "a sink is named twice");
      sink[v] = 1;
    }
    for (int v : range(nodes))
      require(sink[v] || supply[v] == 0, "a node that is no sink has a supply");
  }
  return {supply, sinks};
}

// Throws unless every relay sends on as much as it receives, and no arc is a loop.
inline void require_balance(const Digraph& graph, const Marks& relay) {
  Amounts surplus(graph.nodes, 0);
  for (int e : graph.arcs()) {
    require(graph.tail[e] != graph.head[e], "an arc ends where it starts");
    surplus[graph.tail[e]] -= graph.capacity[e];
    surplus[graph.head[e]] += graph.capacity[e];
  }
  for (int v : range(graph.nodes))
    require(!relay[v] || surplus[v] == 0, "a relay does not send as much as it receives");
}

// What `run` returns. Where it ends in a state that theory excludes because the links were too thin
// from the start, says so: looking first would cost every sound call a flow to each sink.
template <typename Run>
auto blaming_thin_links(const Digraph& graph, const Demand& asked, Run run) {
  try {
    return run();
  } catch (const InternalError&) {
    require(!DemandCheck(graph, asked).violated(graph.capacity),
            "the links cannot carry the supply to every sink");
    throw;
  }
}

// Relays: all nodes that are no sinks.
inline Marks relays(int nodes, const Ints& sinks) {
  Marks relay(nodes, 1);
  for (int v : sinks) relay[v] = 0;
  return relay;
}

}  // namespace forestcoll
