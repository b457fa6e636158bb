// Runs single steps of the kernel without Python, so that a coverage build can tell which lines ran.
//
// Reads problems from standard input, whitespace between numbers:
//   step nodes arcs (tail head capacity)* supply[nodes] sinks (node)* group[nodes]
// with step one of split, split-plain (without detours), layered, exact, nested, trim; the packing
// steps take all nodes for sinks. Writes a line for each: "yes" or "no", whether the step had an
// answer, and before it what was packed, as trees (root weight parent[nodes])*, or what relays became,
// as paths (units hops node[hops])*.
#include <iostream>
#include <numeric>
#include <string>

#include "boxes/boxes.hpp"
#include "relays/edge_splitting.hpp"

namespace forestcoll {
void poll_signals() {}
}  // namespace forestcoll

namespace {

using namespace forestcoll;

struct Problem {
  Digraph graph;
  Demand demand;
  std::vector<char> relay;
  std::vector<int> group;
};

Problem read() {
  Problem p;
  int arcs = 0, sinks = 0;
  std::cin >> p.graph.nodes >> arcs;
  for (int e = 0; e < arcs; ++e) {
    int tail = 0, head = 0;
    Amount capacity = 0;
    std::cin >> tail >> head >> capacity;
    p.graph.tail.push_back(tail);
    p.graph.head.push_back(head);
    p.graph.capacity.push_back(capacity);
  }
  p.demand.supply.resize(p.graph.nodes);
  for (Amount& units : p.demand.supply) std::cin >> units;
  std::cin >> sinks;
  p.demand.sinks.resize(sinks);
  for (int& sink : p.demand.sinks) std::cin >> sink;
  p.relay.assign(p.graph.nodes, 1);
  for (int sink : p.demand.sinks) p.relay[sink] = 0;
  p.group.resize(p.graph.nodes);
  for (int& box : p.group) std::cin >> box;
  return p;
}

bool show(const std::optional<std::vector<Batch>>& batches) {
  if (!batches) return false;
  for (const Batch& batch : *batches) {
    std::cout << batch.root << " " << batch.weight << " ";
    for (int parent : batch.parent) std::cout << parent << " ";
  }
  return true;
}

bool split(const Problem& p, bool detours) {
  const Logical logical = remove_relays(p.graph, p.demand, p.relay, p.group, detours);
  for (const std::vector<PathUnits>& link : logical.units)
    for (const PathUnits& unit : link) {
      const std::vector<int>& path = logical.paths[unit.path];
      std::cout << unit.count << " " << path.size() << " ";
      for (int node : path) std::cout << node << " ";
    }
  return true;
}

bool run(const std::string& step, Problem& p) {
  if (step == "split") return split(p, true);
  if (step == "split-plain") return split(p, false);
  if (step == "layered") return show(pack_layered(p.graph, p.demand.supply));
  if (step == "exact") return show(pack_exact(p.graph, p.demand.supply));
  if (step == "nested") return show(pack_nested(p.graph, p.demand.supply, p.group));
  if (step == "trim") return trim(p.graph, p.demand, p.relay);
  throw std::invalid_argument("unknown step " + step);
}

}  // namespace

int main() {
  for (std::string step; std::cin >> step;) {
    Problem p = read();
    std::cout << (run(step, p) ? "yes" : "no") << "\n";
  }
}
