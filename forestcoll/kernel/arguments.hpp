// What the Python faces of the kernel ask of their arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <vector>

#include "graph.hpp"

namespace forestcoll {

using Ints = std::vector<int>;
using Amounts = std::vector<Amount>;

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

inline Digraph digraph(int nodes, const Ints& tail, const Ints& head, const Amounts& capacity) {
  require(nodes > 0, "a graph needs nodes");
  require(tail.size() == head.size() && tail.size() == capacity.size(),
          "tail, head and capacity differ in length");
  for (std::size_t e = 0; e < tail.size(); ++e) {
    require(0 <= tail[e] && tail[e] < nodes && 0 <= head[e] && head[e] < nodes,
            "an arc names an unknown node");
    require(capacity[e] >= 0, "a capacity is negative");
  }
  return {nodes, tail, head, capacity};
}

inline void require_nodes(const Ints& list, int nodes) {
  require(!list.empty(), "a list of nodes is empty");
  for (int v : list) require(0 <= v && v < nodes, "an unknown node is named");
}

void bind_rehanging(nanobind::module_& m);  // in rehanging_module.cpp

}  // namespace forestcoll
