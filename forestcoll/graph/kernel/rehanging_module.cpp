// The Python face of the search for low trees.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

#include "arguments.hpp"
#include "rehanging.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace forestcoll {

namespace {

BoxedGraph boxed_graph(Digraph graph, const Ints& box, const Ints& ranks, const Amounts& entries,
                       const Ints& twin) {
  const int nodes = graph.nodes;
  require(static_cast<int>(box.size()) == nodes, "box needs one entry a node");
  require(static_cast<int>(entries.size()) == nodes, "entries need one entry a node");
  require_nodes(ranks, nodes);
  require(twin.empty() || static_cast<int>(twin.size()) == graph.arcs(),
          "twins need one entry an arc, or none");
  for (int e = 0; e < static_cast<int>(twin.size()); ++e)
    require(twin[e] == -1 || (0 <= twin[e] && twin[e] < graph.arcs() && twin[e] != e &&
                              twin[twin[e]] == e && graph.capacity[twin[e]] == graph.capacity[e]),
            "arcs that share a capacity must be of one, and name each other");
  BoxedGraph boxed{std::move(graph), box, std::vector<char>(nodes, 0), entries, twin, 0};
  for (int v : ranks) boxed.rank[v] = 1;
  for (int v = 0; v < nodes; ++v) {
    require(-1 <= box[v] && box[v] < nodes, "an unknown box is named");
    require(box[v] >= 0 || !boxed.rank[v], "a rank is in no box");
    boxed.boxes = std::max(boxed.boxes, box[v] + 1);
  }
  for (int e = 0; e < boxed.graph.arcs(); ++e)
    require(!boxed.rank[boxed.graph.tail[e]] || !boxed.rank[boxed.graph.head[e]],
            "an arc joins two ranks");
  return boxed;
}

// Paths as tuples of nodes, each node's number one object.
nb::list path_tuples(const Digraph& graph, const std::vector<Ints>& ways) {
  std::vector<nb::object> number;
  for (int v = 0; v < graph.nodes; ++v) number.push_back(nb::cast(v));
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

std::tuple<Amount, long, nb::list, std::vector<Ints>> rehang_py(
    int nodes, const Ints& tail, const Ints& head, const Amounts& capacity, const Ints& box,
    const Ints& ranks, const Amounts& entries, const Ints& roots, int height, bool grow, long moves,
    unsigned seed, const Ints& twin) {
  const BoxedGraph boxed =
      boxed_graph(digraph(nodes, tail, head, capacity), box, ranks, entries, twin);
  require_nodes(roots, nodes);
  for (int root : roots) require(boxed.rank[root], "a root is no rank");
  Rehung found;
  {
    nb::gil_scoped_release release;
    found = rehang(boxed, roots, {height, grow, moves, seed});
  }
  return {found.overload, found.moves, path_tuples(boxed.graph, found.ways),
          std::move(found.trees)};
}

}  // namespace

void bind_rehanging(nb::module_& m) {
  m.def("rehang", &rehang_py, "nodes"_a, "tail"_a, "head"_a, "capacity"_a, "box"_a, "ranks"_a,
        "entries"_a, "roots"_a, "height"_a, "grow"_a, "moves"_a, "seed"_a,
        "twin"_a = Ints{},
        "(overload, moves, paths, trees): where the overload is 0, no arc carries too much, and the "
        "tree of each unit of `roots` is a list of depth, path, depth, path ... by which its boxes "
        "hang, from the root outwards. Below 0 some box is out of reach within the height. `twin`: "
        "per arc the one with which it shares its capacity, or -1.");
}

}  // namespace forestcoll
