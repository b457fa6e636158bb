// The Python face of the kernel: flat arrays of integers in, flat arrays out, the GIL released.

#include <chrono>

#include "boxes/boxes.hpp"
#include "contract.hpp"
#include "cuts.hpp"
#include "packing/packing.hpp"
#include "parallel.hpp"
#include "rehanging/rehanging.hpp"
#include "relays/edge_splitting.hpp"
#include "tree_scan.hpp"

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

// Binds a function of a graph, whose arrays come first and are checked before it has them, without the
// GIL. Arguments have their names, and functions what they do, in _kernel.pyi.
template <typename Result, typename... More>
void define(nb::module_& m, const char* name, Result (*body)(const Digraph&, More...)) {
  m.def(name, [body](int nodes, const Ints& tail, const Ints& head, const Amounts& capacity,
                     More... more) {
    nb::gil_scoped_release release;
    return body(digraph(nodes, tail, head, capacity), more...);
  });
}

// The same where the capacities of its arcs do not matter, with the GIL.
template <typename Result, typename... More>
void define_uncapacitated(nb::module_& m, const char* name, Result (*body)(const Digraph&, More...)) {
  m.def(name, [body](int nodes, const Ints& tail, const Ints& head, More... more) {
    return body(digraph(nodes, tail, head, Amounts(tail.size(), 0)), more...);
  });
}

// ------------------------------------------------------------------------------ cuts and flows

std::tuple<Amount, Amount, Ints> find_best_ratio(const Digraph& graph, const Ints& ranks,
                                                 const Amounts& parts, const Ints& sinks) {
  require_nodes(ranks, graph.nodes);
  require(ranks.size() >= 2, "a cut needs two ranks");
  require(parts.size() == ranks.size(), "parts need one entry a rank");
  require_amounts(parts, 1, "a part is negative", "parts add up to 2^62 or more");
  require_amounts(graph.capacity, std::max<Amount>(1, std::accumulate(parts.begin(), parts.end(), Amount{0})),
                  "a capacity is negative",
                  "capacities, times the number of ranks, add up to 2^62 or more");
  Demand asked{Amounts(graph.nodes, 0), sinks};
  for (int i : range(ranks)) asked.supply[ranks[i]] = parts[i];
  require(asked.total() > 0, "no rank has a part");
  const Marks rank = marked(ranks, graph.nodes);
  require_below(sinks, graph.nodes, "a sink is no rank");
  for (int v : sinks) require(rank[v], "a sink is no rank");
  CutRatio best = best_ratio(graph, asked);
  return {best.leaving, best.held, std::move(best.inside)};
}

std::tuple<Amount, Ints> find_least_flow(const Digraph& graph, int source, const Ints& sinks) {
  require_nodes({source}, graph.nodes);
  require_nodes(sinks, graph.nodes);
  CutRatio best = least_flow(graph, source, sinks);
  return {best.leaving, std::move(best.inside)};
}

Amounts find_maximum_flow(const Digraph& graph, int source, int sink) {
  require_nodes({source, sink}, graph.nodes);
  require(source != sink, "a flow needs two ends");
  return maximum_flow(graph, source, sink);
}

std::optional<std::tuple<int, Ints>> find_violation(const Digraph& graph, const Amounts& supply,
                                                    const Ints& sinks) {
  const Demand asked = demand(graph.nodes, supply, sinks, false);
  const auto violation = DemandCheck(graph, asked).violated(graph.capacity);
  if (!violation) return std::nullopt;
  return std::tuple{asked.sinks[violation->sink], list(violation->inside)};
}

Ints find_colours(const Digraph& graph, const Ints& colour) {
  require(number_of(colour) == graph.nodes, "colour needs one entry a node");
  return refine_colours(graph, colour);
}

Ints find_components(const Digraph& graph, const Ints& outside) {
  Marks gone(graph.nodes, 0);
  require_below(outside, graph.nodes, "an unknown node is named");
  for (int v : outside) gone[v] = 1;
  return components(graph, gone);
}

// ------------------------------------------------------------------- switches removed, trees packed

std::optional<Amounts> find_trimmed(const Digraph& graph, const Amounts& supply, const Ints& sinks) {
  const Demand asked = demand(graph.nodes, supply, sinks, true);
  Digraph trimmed = graph;
  const bool done = blaming_thin_links(
      graph, asked, [&] { return trim(trimmed, asked, relays(graph.nodes, sinks)); });
  if (!done) return std::nullopt;
  return std::move(trimmed.capacity);
}

Logical find_logical(const Digraph& graph, const Amounts& supply, const Ints& sinks,
                     const Ints& group, bool detours) {
  const Demand asked = demand(graph.nodes, supply, sinks, true);
  require(number_of(group) == graph.nodes, "group needs one entry a node");
  const Marks relay = relays(graph.nodes, sinks);
  require_balance(graph, relay);
  return blaming_thin_links(
      graph, asked, [&] { return remove_relays(graph, asked, relay, group, detours); });
}

// Per node its place in a list, or -1.
Ints places(const Ints& list, int nodes) {
  Ints place(nodes, -1);
  for (int i : range(list)) place[list[i]] = i;
  return place;
}

// The logical links with the sinks numbered 0, 1, ...
Digraph compact(const Logical& logical, const Ints& sinks, int nodes) {
  const Ints position = places(sinks, nodes);
  Digraph graph;
  graph.nodes = number_of(sinks);
  for (int a : range(logical.tail)) {
    require(logical.tail[a] < nodes && logical.head[a] < nodes, "a logical link ends at no sink");
    Amount sum = 0;
    for (const PathUnits& unit : logical.units[a]) sum += unit.count;
    graph.add(position[logical.tail[a]], position[logical.head[a]], sum);
    require(graph.tail.back() >= 0 && graph.head.back() >= 0, "a logical link ends at no sink");
  }
  return graph;
}

using TreeTuple = std::tuple<int, Amount, Ints>;

std::vector<TreeTuple> over_paths(Batches batches, const Logical& logical,
                                  const Ints& sinks, int nodes) {
  for (Batch& batch : batches) {
    Ints parent(nodes, -1);
    for (int v : range(sinks))
      if (batch.parent[v] >= 0) parent[sinks[v]] = sinks[batch.parent[v]];
    batch.parent = std::move(parent);
    batch.root = sinks[batch.root];
  }
  std::vector<TreeTuple> result;
  for (PathTree& tree : expand(std::move(batches), logical))
    result.emplace_back(tree.root, tree.weight, std::move(tree.paths));
  return result;
}

using Packed = std::optional<std::tuple<int, std::vector<TreeTuple>>>;

// (height, trees over paths) of what a packer makes of the logical links and the supply of the sinks
// alone, which are numbered 0, 1, ...; `prepare` checks what else the packer takes, and returns it.
template <typename Prepare>
Packed pack_logical(const Logical& logical, const Amounts& supply, const Ints& sinks,
                    const Prepare& prepare) {
  const int nodes = number_of(supply);
  demand(nodes, supply, sinks, true);
  Demand asked;
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    asked.supply.push_back(supply[sinks[i]]);
    asked.sinks.push_back(static_cast<int>(i));
  }
  const Digraph graph = compact(logical, sinks, nodes);
  const auto packer = prepare(nodes);
  nb::gil_scoped_release release;
  std::optional<Batches> batches =
      blaming_thin_links(graph, asked, [&] { return packer(graph, asked.supply); });
  if (!batches) return std::nullopt;
  const int most = height(*batches);
  return std::tuple{most, over_paths(std::move(*batches), logical, sinks, nodes)};
}

// Trees in layers (the lowest there are) or, with `exact`, always trees, lowered afterwards.
Packed pack_whole(const Logical& logical, const Amounts& supply, const Ints& sinks, bool exact) {
  return pack_logical(logical, supply, sinks, [&](int) {
    return [=](const Digraph& graph, const Amounts& units) -> std::optional<Batches> {
      if (!exact) return pack_layered(graph, units);
      Batches trees = pack_exact(graph, units);
      const long edges = static_cast<long>(trees.size()) * graph.nodes;
      lower_trees(graph, trees, std::min(1'000'000L, 1'700 * edges));  // half a second at most
      return trees;
    };
  });
}

Packed pack_by_boxes(const Logical& logical, const Amounts& supply, const Ints& sinks,
                     const Ints& group) {
  return pack_logical(logical, supply, sinks, [&](int nodes) {
    require(number_of(group) == nodes, "group needs one entry a node");
    Ints boxes;
    for (int v : sinks) boxes.push_back(group[v]);
    return [=](const Digraph& graph, const Amounts& units) {
      return pack_nested(graph, units, boxes);
    };
  });
}

Packed pack_lower(const Logical& logical, const Amounts& supply, const Ints& sinks,
                  const Elements& elements, int below) {
  return pack_logical(logical, supply, sinks, [&](int nodes) {
    const Ints position = places(sinks, nodes);
    Elements maps;
    for (const Ints& image : elements) {
      require(number_of(image) == nodes, "an element needs one entry a node");
      require_nodes(image, nodes);
      Ints& map = maps.emplace_back();
      Marks taken(sinks.size(), 0);
      for (int v : sinks) {
        map.push_back(position[image[v]]);
        require(map.back() >= 0, "an element maps a sink to a node that is none");
        require(!std::exchange(taken[map.back()], 1), "an element maps two sinks to one");
      }
    }
    return [=](const Digraph& graph, const Amounts& units) {
      return pack_lowest(graph, units, maps, below);
    };
  });
}

// --------------------------------------------------------------------------------- trees scanned

// Times up to here add up over any way in 64 bits: a way has fewer than 2^31 arcs and hops.
constexpr Amount kMostTime = Amount{1} << 31;

// Trees as Python holds them: paths are shared between trees, so each is read only once.
struct PyTrees {
  std::vector<PathInfo> paths;
  Lists trees;  // per tree, its paths

  PyTrees(const nb::sequence& edges, const TreeScan& scan, int nodes) {
    ArcIndex number;  // by both halves of an address
    Ints hops;
    for (nb::handle tree : edges) {
      Ints& list = trees.emplace_back();
      list.reserve(nb::len(tree));
      for (nb::handle path : nb::borrow<nb::sequence>(tree)) {
        const auto address = reinterpret_cast<std::uintptr_t>(path.ptr());
        int& at = number.insert(static_cast<int>(address >> 32), static_cast<int>(address));
        if (at < 0) {
          at = number_of(paths);
          keep_.push_back(nb::borrow(path));  // no other path may come to lie at its address
          hops.clear();
          for (nb::handle node : nb::borrow<nb::sequence>(path)) {
            hops.push_back(nb::cast<int>(node));
            require(0 <= hops.back() && hops.back() < nodes, "a path names an unknown node");
          }
          paths.push_back(scan.read(hops));
        }
        list.push_back(at);
      }
    }
  }

 private:
  Objects keep_;
};

Amounts find_longest_ways(const Digraph& graph, const Ints& ranks, const Amounts& times, Amount hop,
                          const Ints& roots, const std::vector<bool>& reduce,
                          const nb::sequence& edges) {
  require_nodes(roots, graph.nodes);
  require(times.size() == graph.tail.size(), "times need one entry an arc");
  Amount most = hop, least = hop;
  for (Amount time : times) most = std::max(most, time), least = std::min(least, time);
  require(least >= 0 && most < kMostTime, "a time is negative or too large");
  const Marks none(graph.nodes, 0), rank = marked(ranks, graph.nodes);
  TreeScan scan(graph, rank, none, none);
  scan.set_times(times, hop);
  const PyTrees given(edges, scan, graph.nodes);
  require(given.trees.size() == roots.size() && roots.size() == reduce.size(),
          "trees, roots and phases differ in length");
  nb::gil_scoped_release release;
  Amounts longest;
  for (int i : range(roots)) {
    const bool sound = scan.add(roots[i], reduce[i], 1, given.trees[i], given.paths);
    longest.push_back(sound && scan.counted() ? scan.longest() : -1);
  }
  return longest;
}

std::tuple<int, int, std::optional<Amounts>> scan_trees(
    const Digraph& graph, const Ints& ranks, const std::vector<bool>& copies,
    const std::vector<bool>& adds, const Ints& roots, const std::vector<bool>& reduce,
    const Amounts& weights, const nb::sequence& edges) {
  const auto nodes = static_cast<std::size_t>(graph.nodes);
  require_below(roots, graph.nodes, "an unknown root is named");
  require(copies.size() == nodes && adds.size() == nodes,
          "copies and adds need one entry a node");
  const Marks rank = marked(ranks, graph.nodes);
  TreeScan scan(graph, rank, {copies.begin(), copies.end()}, {adds.begin(), adds.end()});
  const PyTrees given(edges, scan, graph.nodes);
  require(given.trees.size() == roots.size() && roots.size() == reduce.size() &&
              roots.size() == weights.size(),
          "trees, roots, phases and weights differ in length");
  nb::gil_scoped_release release;
  int wrong = -1;
  for (int i : range(roots))
    if (!scan.add(roots[i], reduce[i], weights[i], given.trees[i], given.paths) && wrong < 0)
      wrong = i;
  std::optional<Amounts> loads;
  if (scan.counted()) loads = scan.loads();
  return {wrong, scan.height(), std::move(loads)};
}

// ------------------------------------------------------------------------------ low trees searched

BoxedGraph boxed_graph(const Digraph& graph, const Ints& box, const Ints& spread, const Ints& ranks,
                       const Amounts& entries, const Ints& twin) {
  const int nodes = graph.nodes;
  require(number_of(box) == nodes, "box needs one entry a node");
  require(number_of(entries) == nodes, "entries need one entry a node");
  require(twin.empty() || number_of(twin) == graph.arc_count(),
          "twins need one entry an arc, or none");
  for (int e : range(twin))
    require(twin[e] == -1 || (0 <= twin[e] && twin[e] < graph.arc_count() && twin[e] != e &&
                              twin[twin[e]] == e && graph.capacity[twin[e]] == graph.capacity[e]),
            "arcs that share a capacity must be of one, and name each other");
  BoxedGraph boxed{graph, box, marked(ranks, nodes), entries, twin, 0, spread};
  for (int v : range(nodes)) {
    require(-1 <= box[v] && box[v] < nodes, "an unknown box is named");
    require(box[v] >= 0 || !boxed.rank[v], "a rank is in no box");
    boxed.boxes = std::max(boxed.boxes, box[v] + 1);
  }
  require(number_of(spread) == boxed.boxes, "spread needs one entry a box");
  for (int hops : spread) require(0 <= hops && hops <= nodes, "a box is spread in no such number of hops");
  for (int e : boxed.graph.arcs())
    require(!boxed.rank[boxed.graph.tail[e]] || !boxed.rank[boxed.graph.head[e]],
            "an arc joins two ranks");
  return boxed;
}

// Paths as tuples of nodes, each node's number one object.
nb::list path_tuples(const Digraph& graph, const Lists& ways) {
  Objects number;
  for (int v : range(graph.nodes)) number.push_back(nb::cast(v));
  nb::list paths;
  for (const Ints& way : ways) {
    PyObject* path = PyTuple_New(static_cast<Py_ssize_t>(way.size()) + 1);
    if (!path) throw nb::python_error();
    Py_ssize_t at = 0;
    PyTuple_SET_ITEM(path, at++, nb::object(number[graph.tail[way.front()]]).release().ptr());
    for (int e : way) PyTuple_SET_ITEM(path, at++, nb::object(number[graph.head[e]]).release().ptr());
    paths.append(nb::steal<nb::object>(path));
  }
  return paths;
}

std::tuple<Amount, long, nb::list, Lists> find_low_trees(
    const Digraph& graph, const Ints& box, const Ints& spread, const Ints& ranks,
    const Amounts& entries, const std::vector<Unit>& units, int height, bool grow, long moves,
    unsigned seed, const Ints& twin) {
  const BoxedGraph boxed = boxed_graph(graph, box, spread, ranks, entries, twin);
  for (const auto& [root, trees] : units)
    require(0 <= root && root < graph.nodes && boxed.rank[root] && trees > 0,
            "a root is no rank, or has no trees");
  Rehung found = rehang(boxed, units, {height, grow, moves, seed});
  nb::gil_scoped_acquire hold;
  return {found.overload, found.moves, path_tuples(boxed.graph, found.ways),
          std::move(found.trees)};
}

}  // namespace

void bind_scheduling(nb::module_& m);  // list_scheduling.cpp
void bind_edge_colouring(nb::module_& m);  // edge_colouring.cpp
void bind_transfers(nb::module_& m);  // lowering/transfers.cpp
void bind_fifo_blocks(nb::module_& m);  // lowering/fifo_blocks.cpp
void bind_onesided_blocks(nb::module_& m);  // lowering/onesided_blocks.cpp

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
  define(m, "best_ratio", find_best_ratio);
  define(m, "refine_colours", find_colours);
  define_uncapacitated(m, "components", find_components);
  define(m, "maximum_flow", find_maximum_flow);
  define(m, "least_flow", find_least_flow);
  define(m, "violated", find_violation);
  define(m, "trim", find_trimmed);
  define(m, "remove_relays", find_logical);
  m.def("pack", &pack_whole);
  m.def("pack_nested", &pack_by_boxes);
  m.def("pack_lowest", &pack_lower);
  define_uncapacitated(m, "longest_ways", find_longest_ways);
  define_uncapacitated(m, "scan_trees", scan_trees);
  define(m, "rehang", find_low_trees);
  bind_scheduling(m);
  bind_edge_colouring(m);
  bind_transfers(m);
  bind_fifo_blocks(m);
  bind_onesided_blocks(m);
}
