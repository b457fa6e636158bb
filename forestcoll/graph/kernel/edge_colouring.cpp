// Edge colouring of a bipartite multigraph (Koenig): flows from leaf to leaf, a spine for each.

#include "python.hpp"

namespace forestcoll {

namespace {

// A node of d edges is as many copies as d edges need of `colours` each; at a copy each colour is
// had once. So no node has more than ceil(d / colours) edges of a colour, which is the least there is.
class Colouring {
 public:
  Colouring(int nodes, const Ints& left, const Ints& right, int colours)
      : colours_(colours), colour_(left.size()), copy_of_(nodes), degree_(nodes) {
    for (const Ints* ends : {&left, &right})
      for (int node : *ends) copy_[ends == &right].push_back(roomy_copy(node));
    for (int e : range(left)) find_colour(e);
  }

  Ints colour() const { return colour_; }

 private:
  // A copy of the node that has less than `colours` edges.
  int roomy_copy(int node) {
    if (degree_[node]++ % colours_ == 0) {
      copy_of_[node] = static_cast<int>(at_.size() / colours_);
      at_.resize(at_.size() + colours_, -1);
    }
    return copy_of_[node];
  }

  int& at(int copy, int colour) { return at_[static_cast<std::size_t>(copy) * colours_ + colour]; }

  void find_colour(int e) {
    const int u = copy_[0][e], v = copy_[1][e];
    for (int c : range(colours_))
      if (at(u, c) < 0 && at(v, c) < 0) return give(e, c);
    // a is free at u and b at v: along edges of a and b by turns, from v on, the two change places
    int a = 0, b = 0;
    while (at(u, a) >= 0) ++a;
    while (at(v, b) >= 0) ++b;
    turn(v, a, b);
    give(e, a);
  }

  void give(int e, int colour) {
    colour_[e] = colour;
    for (const Ints& copy : copy_) at(copy[e], colour) = e;
  }

  // Colours a and b change places on the path that begins at the right copy `v` with a.
  void turn(int v, int a, int b) {
    path_.clear();
    for (int side = 1, copy = v, c = a;; side = 1 - side, c = c == a ? b : a) {
      const int e = at(copy, c);
      if (e < 0) break;
      path_.push_back(e);
      copy = copy_[1 - side][e];
    }
    for (int e : path_)
      for (const Ints& copy : copy_) at(copy[e], colour_[e]) = -1;
    for (int e : path_) give(e, colour_[e] == a ? b : a);
  }

  int colours_;
  Ints copy_[2], colour_;
  Ints copy_of_, degree_, at_, path_;
};

Ints colour_edges(int nodes, const Ints& left, const Ints& right, int colours) {
  require(nodes >= 0 && colours >= 1, "a colouring needs a colour");
  require(left.size() == right.size(), "every edge has two ends");
  for (const Ints* ends : {&left, &right}) require_below(*ends, nodes, "an unknown node");
  Marks side(nodes, 0);
  for (int v : left) side[v] |= 1;
  for (int v : right) side[v] |= 2;
  for (char both : side) require(both != 3, "a node has edges on both sides");
  nb::gil_scoped_release release;
  return Colouring(nodes, left, right, colours).colour();
}

}  // namespace

void bind_edge_colouring(nb::module_& m) {
  m.def("colour_edges", &colour_edges);
}

}  // namespace forestcoll
