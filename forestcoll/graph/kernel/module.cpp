// The Python face of the kernel: flat arrays of integers in, flat arrays out, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <unordered_map>

#include "arguments.hpp"
#include "cuts.hpp"
#include "tree_paths.hpp"
#include "flattening.hpp"
#include "box_packing.hpp"
#include "regular.hpp"
#include "packing.hpp"
#include "parallel.hpp"
#include "tree_scan.hpp"
#include "local_search.hpp"
#include "edge_splitting.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace forestcoll {

void poll_signals() {
  if (stop_asked) {  // a thread that Python does not know
    if (*stop_asked) throw Stopped();
    return;
  }
  using Clock = std::chrono::steady_clock;
  thread_local Clock::time_point last = Clock::now();
  const Clock::time_point now = Clock::now();
  if (now - last < std::chrono::milliseconds(50)) return;
  last = now;
  nb::gil_scoped_acquire hold;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

namespace {

std::tuple<Amount, Amount, Ints> best_ratio_py(int nodes, const Ints& tail, const Ints& head,
                                               const Amounts& capacity, const Ints& ranks) {
  const Digraph graph = digraph(nodes, tail, head, capacity, ranks.size());
  require_nodes(ranks, nodes);
  require(ranks.size() >= 2, "a cut needs two ranks");
  nb::gil_scoped_release release;
  CutRatio best = best_ratio(graph, ranks);
  return {best.leaving, best.ranks, std::move(best.inside)};
}

std::tuple<Amount, Amount, Ints> best_ratio_alike_py(int nodes, const Ints& tail, const Ints& head,
                                                     const Amounts& capacity, const Ints& ranks,
                                                     const Ints& sinks) {
  const Digraph graph = digraph(nodes, tail, head, capacity, ranks.size());
  require_nodes(ranks, nodes);
  require_nodes(sinks, nodes);
  require(ranks.size() >= 2, "a cut needs two ranks");
  nb::gil_scoped_release release;
  CutRatio best = best_ratio_alike(graph, ranks, sinks);
  return {best.leaving, best.ranks, std::move(best.inside)};
}

Ints refine_colours_py(int nodes, const Ints& tail, const Ints& head, const Amounts& capacity,
                       const Ints& colour) {
  const Digraph graph = digraph(nodes, tail, head, capacity);
  require(static_cast<int>(colour.size()) == nodes, "colour needs one entry a node");
  nb::gil_scoped_release release;
  return refine_colours(graph, colour);
}

Ints components_py(int nodes, const Ints& tail, const Ints& head, const Ints& outside) {
  const Digraph graph = digraph(nodes, tail, head, Amounts(tail.size(), 1));
  std::vector<char> gone(nodes, 0);
  for (int v : outside) {
    require(0 <= v && v < nodes, "an unknown node is named");
    gone[v] = 1;
  }
  nb::gil_scoped_release release;
  return components(graph, gone);
}

Amounts maximum_flow_py(int nodes, const Ints& tail, const Ints& head, const Amounts& capacity,
                        int source, int sink) {
  const Digraph graph = digraph(nodes, tail, head, capacity);
  require_nodes({source, sink}, nodes);
  require(source != sink, "a flow needs two ends");
  nb::gil_scoped_release release;
  return maximum_flow(graph, source, sink);
}

std::tuple<Amount, Ints> least_flow_py(int nodes, const Ints& tail, const Ints& head,
                                       const Amounts& capacity, int source, const Ints& sinks) {
  const Digraph graph = digraph(nodes, tail, head, capacity);
  require_nodes({source}, nodes);
  require_nodes(sinks, nodes);
  nb::gil_scoped_release release;
  CutRatio best = least_flow(graph, source, sinks);
  return {best.leaving, std::move(best.inside)};
}

std::optional<std::tuple<int, Ints>> violated_py(int nodes, const Ints& tail, const Ints& head,
                                                 const Amounts& capacity, const Amounts& supply,
                                                 const Ints& sinks) {
  const Digraph graph = digraph(nodes, tail, head, capacity);
  const Demand asked = demand(nodes, supply, sinks, false);
  nb::gil_scoped_release release;
  const auto violation = DemandCheck(graph, asked).violated(graph.capacity);
  if (!violation) return std::nullopt;
  Ints inside;
  for (int v = 0; v < nodes; ++v)
    if (violation->inside[v]) inside.push_back(v);
  return std::tuple{asked.sinks[violation->sink], std::move(inside)};
}

std::optional<Amounts> trim_py(int nodes, const Ints& tail, const Ints& head,
                               const Amounts& capacity, const Amounts& supply, const Ints& sinks) {
  Digraph graph = digraph(nodes, tail, head, capacity);
  const Demand asked = demand(nodes, supply, sinks, true);
  nb::gil_scoped_release release;
  const bool done = blaming_thin_links(
      graph, asked, [&] { return trim(graph, asked, relays(nodes, sinks)); });
  if (!done) return std::nullopt;
  return std::move(graph.capacity);
}

Logical remove_relays_py(int nodes, const Ints& tail, const Ints& head, const Amounts& capacity,
                         const Amounts& supply, const Ints& sinks, const Ints& group,
                         bool detours) {
  const Digraph graph = digraph(nodes, tail, head, capacity);
  const Demand asked = demand(nodes, supply, sinks, true);
  require(static_cast<int>(group.size()) == nodes, "group needs one entry a node");
  const std::vector<char> relay = relays(nodes, sinks);
  require_balance(graph, relay);
  nb::gil_scoped_release release;
  return blaming_thin_links(
      graph, asked, [&] { return remove_relays(graph, asked, relay, group, detours); });
}

// The logical links with the sinks numbered 0, 1, ...
Digraph compact(const Logical& logical, const Ints& sinks, int nodes) {
  Ints position(nodes, -1);
  for (std::size_t i = 0; i < sinks.size(); ++i) position[sinks[i]] = static_cast<int>(i);
  Digraph graph;
  graph.nodes = static_cast<int>(sinks.size());
  for (std::size_t a = 0; a < logical.tail.size(); ++a) {
    require(logical.tail[a] < nodes && logical.head[a] < nodes, "a logical link ends at no sink");
    graph.tail.push_back(position[logical.tail[a]]);
    graph.head.push_back(position[logical.head[a]]);
    require(graph.tail.back() >= 0 && graph.head.back() >= 0, "a logical link ends at no sink");
    Amount sum = 0;
    for (const PathUnits& unit : logical.units[a]) sum += unit.count;
    graph.capacity.push_back(sum);
  }
  return graph;
}

// What the packing steps work on: the logical links, and the supply, of the sinks alone.
struct Packing {
  Digraph graph;
  Demand asked;
};

Packing packing_input(const Logical& logical, const Amounts& supply, const Ints& sinks) {
  const int nodes = static_cast<int>(supply.size());
  demand(nodes, supply, sinks, true);
  Demand asked;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    asked.supply.push_back(supply[sinks[i]]);
    asked.sinks.push_back(static_cast<int>(i));
  }
  return {compact(logical, sinks, nodes), std::move(asked)};
}

using TreeTuple = std::tuple<int, Amount, Ints>;

std::vector<TreeTuple> over_paths(std::vector<Batch> batches, const Logical& logical,
                                  const Ints& sinks, int nodes) {
  for (Batch& batch : batches) {
    Ints parent(nodes, -1);
    for (std::size_t v = 0; v < sinks.size(); ++v)
      if (batch.parent[v] >= 0) parent[sinks[v]] = sinks[batch.parent[v]];
    batch.parent = std::move(parent);
    batch.root = sinks[batch.root];
  }
  std::vector<TreeTuple> result;
  for (PathTree& tree : expand(std::move(batches), logical))
    result.emplace_back(tree.root, tree.weight, std::move(tree.paths));
  return result;
}

using Packed = std::tuple<int, std::vector<TreeTuple>>;

// Trees in layers (the lowest there are) or, with `exact`, always trees, lowered afterwards.
std::optional<Packed> pack_py(const Logical& logical, const Amounts& supply, const Ints& sinks,
                              bool exact) {
  const int nodes = static_cast<int>(supply.size());
  const Packing input = packing_input(logical, supply, sinks);
  const Digraph& graph = input.graph;
  const Demand& asked = input.asked;
  nb::gil_scoped_release release;
  auto batches = blaming_thin_links(graph, asked, [&]() -> std::optional<std::vector<Batch>> {
    if (!exact) return pack_layered(graph, asked.supply);
    std::vector<Batch> trees = pack_exact(graph, asked.supply, 0);
    const long edges = static_cast<long>(trees.size()) * graph.nodes;
    lower_trees(graph, trees, std::min(1'000'000L, 1'700 * edges));  // half a second at most
    return trees;
  });
  if (!batches) return std::nullopt;
  const int most = height(*batches);
  return std::tuple{most, over_paths(std::move(*batches), logical, sinks, nodes)};
}

std::optional<Packed> pack_nested_py(const Logical& logical, const Amounts& supply,
                                     const Ints& sinks, const Ints& group) {
  const int nodes = static_cast<int>(supply.size());
  const Packing input = packing_input(logical, supply, sinks);
  const Digraph& graph = input.graph;
  const Demand& asked = input.asked;
  require(static_cast<int>(group.size()) == nodes, "group needs one entry a node");
  Ints boxes;
  for (int v : sinks) boxes.push_back(group[v]);
  nb::gil_scoped_release release;
  auto batches = blaming_thin_links(
      graph, asked, [&] { return pack_nested(graph, asked.supply, boxes); });
  if (!batches) return std::nullopt;
  const int most = height(*batches);
  return std::tuple{most, over_paths(std::move(*batches), logical, sinks, nodes)};
}

std::optional<Packed> pack_lowest_py(const Logical& logical, const Amounts& supply,
                                     const Ints& sinks, const Elements& elements, int below) {
  const int nodes = static_cast<int>(supply.size());
  const Packing input = packing_input(logical, supply, sinks);
  const Digraph& graph = input.graph;
  const Demand& asked = input.asked;
  Ints position(nodes, -1);
  for (std::size_t i = 0; i < sinks.size(); ++i) position[sinks[i]] = static_cast<int>(i);
  Elements maps;
  for (const Ints& image : elements) {
    require(static_cast<int>(image.size()) == nodes, "an element needs one entry a node");
    require_nodes(image, nodes);
    Ints& map = maps.emplace_back();
    for (int v : sinks) {
      map.push_back(position[image[v]]);
      require(map.back() >= 0, "an element maps a sink to a node that is none");
    }
    Ints sorted(map);
    std::sort(sorted.begin(), sorted.end());
    require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
            "an element maps two sinks to one");
  }
  nb::gil_scoped_release release;
  auto batches = blaming_thin_links(
      graph, asked, [&] { return pack_lowest(graph, asked.supply, maps, below); });
  if (!batches) return std::nullopt;
  const int most = height(*batches);
  return std::tuple{most, over_paths(std::move(*batches), logical, sinks, nodes)};
}

// Times up to here add up over any way in 64 bits: a way has fewer than 2^31 arcs and hops.
constexpr Amount kMostTime = Amount{1} << 31;

// Trees as Python holds them: paths are shared between trees, so each is read only once.
struct PyTrees {
  std::vector<PathInfo> paths;
  std::vector<Ints> trees;  // per tree, its paths

  PyTrees(const nb::sequence& edges, const TreeScan& scan, int nodes) {
    std::unordered_map<const PyObject*, int> number;
    Ints hops;
    for (nb::handle tree : edges) {
      Ints& list = trees.emplace_back();
      list.reserve(nb::len(tree));
      for (nb::handle path : nb::borrow<nb::sequence>(tree)) {
        const auto [it, fresh] = number.try_emplace(path.ptr(), static_cast<int>(paths.size()));
        if (fresh) {
          keep_.push_back(nb::borrow(path));  // no other path may come to lie at its address
          hops.clear();
          for (nb::handle node : nb::borrow<nb::sequence>(path)) {
            hops.push_back(nb::cast<int>(node));
            require(0 <= hops.back() && hops.back() < nodes, "a path names an unknown node");
          }
          paths.push_back(scan.read(hops));
        }
        list.push_back(it->second);
      }
    }
  }

 private:
  std::vector<nb::object> keep_;
};

Amounts longest_ways_py(int nodes, const Ints& tail, const Ints& head, const Ints& ranks,
                        const Amounts& times, Amount hop, const Ints& roots,
                        const std::vector<bool>& reduce, const nb::sequence& edges) {
  const Digraph graph = digraph(nodes, tail, head, Amounts(tail.size(), 0));
  require_nodes(ranks, nodes);
  require_nodes(roots, nodes);
  require(times.size() == tail.size(), "times need one entry an arc");
  Amount most = hop;
  for (Amount time : times) most = std::max(most, time);
  for (Amount time : times) require(time >= 0, "a time is negative");
  require(hop >= 0 && most < kMostTime, "a time is negative or too large");
  std::vector<char> rank(nodes, 0);
  for (int v : ranks) rank[v] = 1;
  TreeScan scan(graph, rank, std::vector<char>(nodes, 0), std::vector<char>(nodes, 0));
  scan.set_times(times, hop);
  const PyTrees given(edges, scan, nodes);
  require(given.trees.size() == roots.size() && roots.size() == reduce.size(),
          "trees, roots and phases differ in length");
  nb::gil_scoped_release release;
  Amounts longest;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const bool sound = scan.add(roots[i], reduce[i], 1, given.trees[i], given.paths);
    longest.push_back(sound && scan.counted() ? scan.longest() : -1);
  }
  return longest;
}

std::tuple<int, int, std::optional<Amounts>> scan_trees_py(
    int nodes, const Ints& tail, const Ints& head, const Ints& ranks,
    const std::vector<bool>& copies, const std::vector<bool>& adds, const Ints& roots,
    const std::vector<bool>& reduce, const Amounts& weights, const nb::sequence& edges) {
  const Digraph graph = digraph(nodes, tail, head, Amounts(tail.size(), 0));
  require_nodes(ranks, nodes);
  for (int root : roots) require(0 <= root && root < nodes, "an unknown root is named");
  require(static_cast<int>(copies.size()) == nodes && static_cast<int>(adds.size()) == nodes,
          "copies and adds need one entry a node");
  std::vector<char> rank(nodes, 0);
  for (int v : ranks) rank[v] = 1;
  TreeScan scan(graph, rank, {copies.begin(), copies.end()}, {adds.begin(), adds.end()});
  const PyTrees given(edges, scan, nodes);
  require(given.trees.size() == roots.size() && roots.size() == reduce.size() &&
              roots.size() == weights.size(),
          "trees, roots, phases and weights differ in length");
  nb::gil_scoped_release release;
  int wrong = -1;
  for (std::size_t i = 0; i < roots.size(); ++i)
    if (!scan.add(roots[i], reduce[i], weights[i], given.trees[i], given.paths) && wrong < 0)
      wrong = static_cast<int>(i);
  std::optional<Amounts> loads;
  if (scan.counted()) loads = scan.loads();
  return {wrong, scan.height(), std::move(loads)};
}
}  // namespace

void bind_scheduling(nb::module_& m);  // list_scheduling.cpp

}  // namespace forestcoll

NB_MODULE(_kernel, m) {
  using namespace forestcoll;
  m.doc() = "Max-flow loops of the solver.";
  nb::class_<Logical>(m, "Logical", "Links between ranks and the paths that their units run over.")
      .def_ro("tail", &Logical::tail)
      .def_ro("head", &Logical::head)
      .def_ro("paths", &Logical::paths)
      .def_prop_ro("units", [](const Logical& logical) {
        std::vector<std::vector<std::tuple<int, Amount>>> units;
        for (const auto& link : logical.units) {
          auto& list = units.emplace_back();
          for (const PathUnits& unit : link) list.emplace_back(unit.path, unit.count);
        }
        return units;
      });
  m.def("best_ratio", &best_ratio_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a, "ranks"_a,
        "(leaving, ranks inside, nodes inside) of the cut with the least leaving / ranks.");
  m.def("best_ratio_alike", &best_ratio_alike_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a,
        "ranks"_a, "sinks"_a, "As best_ratio, where every rank is alike to one of the sinks.");
  m.def("refine_colours", &refine_colours_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a,
        "colour"_a, "Colours by which nodes differ, as far as their surroundings tell.");
  m.def("components", &components_py, "nodes"_a, "tail"_a, "head"_a, "outside"_a,
        "Component of each node when those outside are gone; -1 for those.");
  m.def("maximum_flow", &maximum_flow_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a, "source"_a,
        "sink"_a, "Flow on each arc of a maximum flow.");
  m.def("least_flow", &least_flow_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a, "source"_a,
        "sinks"_a, "(flow, nodes inside): the least max-flow from source to a sink, and its cut.");
  m.def("violated", &violated_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a, "supply"_a,
        "sinks"_a, "(sink, nodes inside) of a cut that keeps the sink from the supply, or None.");
  m.def("trim", &trim_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a, "supply"_a, "sinks"_a,
        "Lower capacities, balanced at every relay, that still meet the demand; None if not found.");
  m.def("remove_relays", &remove_relays_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a,
        "supply"_a, "sinks"_a, "group"_a, "detours"_a,
        "Logical links instead of every node that is no sink.");
  m.def("pack", &pack_py, "logical"_a, "supply"_a, "sinks"_a, "exact"_a,
        "(height, [(root, weight, paths)]): spanning trees, supply[r] of them at every r, in growth "
        "order. Without `exact` only the lowest trees will do, else None.");
  m.def("pack_nested", &pack_nested_py, "logical"_a, "supply"_a, "sinks"_a, "group"_a,
        "As pack, but box by box: `group` names each node's box or is -1. None where no box can be made "
        "to take in every tree exactly once.");
  m.def("pack_lowest", &pack_lowest_py, "logical"_a, "supply"_a, "sinks"_a, "elements"_a, "below"_a,
        "As pack, but lower than `below` or None: a search. `elements`: a group of maps of the nodes "
        "under which the trees are alike, where the links are.");
  m.def("longest_ways", &longest_ways_py, "nodes"_a, "tail"_a, "head"_a, "ranks"_a, "times"_a,
        "hop"_a, "roots"_a, "reduce"_a, "edges"_a,
        "Per tree the longest way between its root and a rank, where a path takes `hop` and the "
        "`times` of its arcs; -1 where the tree does not span or a path needs an arc not there.");
  bind_scheduling(m);
  m.def("scan_trees", &scan_trees_py, "nodes"_a, "tail"_a, "head"_a, "ranks"_a, "copies"_a,
        "adds"_a, "roots"_a, "reduce"_a, "weights"_a, "edges"_a,
        "(first tree that does not span or -1, height of those that do, units over each arc): the "
        "units None where they leave 64 bits or a path needs an arc that is not there.");
  bind_rehanging(m);
}
