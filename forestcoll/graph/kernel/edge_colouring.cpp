// Edge colouring of a bipartite multigraph (Koenig): flows from leaf to leaf, a spine for each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace forestcoll {

namespace {

using Ints = std::vector<int>;

// A node of d edges is as many copies as d edges need of `colours` each; at a copy each colour is
// had once. So no node has more than ceil(d / colours) edges of a colour, which is the least there is.
class Colouring {
 public:
  Colouring(int nodes, Ints left, Ints right, int colours, Ints colour, std::vector<char> barred)
      : colours_(colours),
        ends_{std::move(left), std::move(right)},
        colour_(std::move(colour)),
        barred_(std::move(barred)),
        copies_(nodes) {
    const int edges = static_cast<int>(colour_.size());
    copy_[0].assign(edges, -1);
    copy_[1].assign(edges, -1);
    for (int e = 0; e < edges; ++e)
      if (colour_[e] >= 0)
        for (int side : {0, 1}) put(e, side, free_copy(ends_[side][e], colour_[e]), colour_[e]);
    for (int side : {0, 1})
      for (int e = 0; e < edges; ++e)
        if (colour_[e] < 0) copy_[side][e] = roomy_copy(ends_[side][e]);
    for (int e = 0; e < edges; ++e)
      if (colour_[e] < 0) find_colour(e);
  }

  Ints colour() const { return colour_; }

 private:
  int new_copy(int node) {
    const int copy = static_cast<int>(used_.size());
    copies_[node].push_back(copy);
    used_.push_back(0);
    at_.resize(at_.size() + colours_, -1);
    return copy;
  }

  // A copy of the node where no edge has that colour.
  int free_copy(int node, int colour) {
    for (int copy : copies_[node])
      if (at(copy, colour) < 0) return ++used_[copy], copy;
    const int copy = new_copy(node);
    return ++used_[copy], copy;
  }

  int roomy_copy(int node) {
    for (auto copy = copies_[node].rbegin(); copy != copies_[node].rend(); ++copy)
      if (used_[*copy] < colours_) return ++used_[*copy], *copy;
    const int copy = new_copy(node);
    return ++used_[copy], copy;
  }

  int& at(int copy, int colour) { return at_[static_cast<std::size_t>(copy) * colours_ + colour]; }

  void put(int e, int side, int copy, int colour) {
    copy_[side][e] = copy;
    at(copy, colour) = e;
  }

  bool barred(int node, int colour) const {
    return !barred_.empty() && barred_[static_cast<std::size_t>(node) * colours_ + colour];
  }

  bool may_have(int e, int colour) const {
    return !barred(ends_[0][e], colour) && !barred(ends_[1][e], colour);
  }

  void find_colour(int e) {
    const int u = copy_[0][e], v = copy_[1][e];
    for (int c = 0; c < colours_; ++c)
      if (at(u, c) < 0 && at(v, c) < 0 && may_have(e, c)) return give(e, c);
    // a is free at u and b at v: along edges of a and b by turns, from v on, the two change places
    for (int a = 0; a < colours_; ++a) {
      if (at(u, a) >= 0 || !may_have(e, a)) continue;
      for (int b = 0; b < colours_; ++b)
        if (at(v, b) < 0 && turn(v, a, b)) return give(e, a);
    }
  }

  void give(int e, int colour) {
    colour_[e] = colour;
    for (int side : {0, 1}) put(e, side, copy_[side][e], colour);
  }

  // Whether a and b changed places on the path that begins at the right copy `v` with a.
  bool turn(int v, int a, int b) {
    path_.clear();
    for (int side = 1, copy = v, c = a;; side = 1 - side, c = c == a ? b : a) {
      const int e = at(copy, c);
      if (e < 0) break;
      if (!may_have(e, c == a ? b : a)) return false;
      path_.push_back(e);
      copy = copy_[1 - side][e];
    }
    for (int e : path_)
      for (int side : {0, 1}) at(copy_[side][e], colour_[e]) = -1;
    for (int e : path_) give(e, colour_[e] == a ? b : a);
    return true;
  }

  int colours_;
  Ints ends_[2], copy_[2], colour_;
  std::vector<char> barred_;
  std::vector<Ints> copies_;
  Ints used_, at_, path_;
};

Ints colour_edges(int nodes, Ints left, Ints right, int colours, Ints colour,
                  const std::vector<Ints>& barred) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
  };
  require(nodes >= 0 && colours >= 1, "a colouring needs a colour");
  require(left.size() == right.size(), "every edge has two ends");
  if (colour.empty()) colour.assign(left.size(), -1);
  require(colour.size() == left.size(), "colour needs one entry an edge");
  for (std::size_t e = 0; e < left.size(); ++e) {
    require(0 <= left[e] && left[e] < nodes && 0 <= right[e] && right[e] < nodes, "an unknown node");
    require(colour[e] < colours, "an unknown colour");
  }
  std::vector<char> side(nodes, 0);
  for (int v : left) side[v] |= 1;
  for (int v : right) side[v] |= 2;
  for (char both : side) require(both != 3, "a node has edges on both sides");
  std::vector<char> closed;
  if (!barred.empty()) closed.assign(static_cast<std::size_t>(nodes) * colours, 0);
  for (const Ints& pair : barred) {
    require(pair.size() == 2 && 0 <= pair[0] && pair[0] < nodes && 0 <= pair[1] && pair[1] < colours,
            "what is barred is a node and a colour");
    closed[static_cast<std::size_t>(pair[0]) * colours + pair[1]] = 1;
  }
  nb::gil_scoped_release release;
  return Colouring(nodes, std::move(left), std::move(right), colours, std::move(colour),
                   std::move(closed))
      .colour();
}

}  // namespace

void bind_edge_colouring(nb::module_& m) {
  m.def("colour_edges", &colour_edges, "nodes"_a, "left"_a, "right"_a, "colours"_a,
        "colour"_a = Ints(), "barred"_a = std::vector<Ints>(),
        "Per edge, from a left node to a right one, a colour: no node has more than ceil(degree / "
        "colours) edges of one. Edges go into that in their order: of alike ones that follow each "
        "other every colour gets one. `colour`: what edges have already (-1: none); `barred`: node and "
        "colour that do not go together. What then has no colour is -1.");
}

}  // namespace forestcoll
