#include "packing/packing.hpp"

namespace forestcoll {
namespace {

constexpr Amount kMostParents = 1 << 16;  // in all trees: a search keeps each tree by itself
constexpr int kHeights = 3;               // that are tried at most
constexpr long kStepsForAParent = 16;     // of a search, for each parent that has to be found
constexpr long kEvaluations = 2'000'000;  // of single changes, in a search: about a hundredth of a second

// Arcs and roots that elements make alike, numbered by orbit.
struct Alike {
  Ints orbit;    // per arc
  Amounts room;  // per orbit: what the trees of one root an orbit may use together
  Ints roots;    // the least of each orbit that has a supply
  const Elements* elements;
};

// The orbits, or nothing where the elements do not keep graph and supply or leave a node in place.
std::optional<Alike> alike(const Digraph& graph, const Amounts& supply,
                           const Elements& elements) {
  ArcIndex number;
  for (int e : graph.arcs()) {
    int& arc = number.insert(graph.tail[e], graph.head[e]);
    if (arc >= 0) return std::nullopt;  // parallel arcs
    arc = e;
  }
  Alike found{Ints(graph.arc_count(), -1), {}, {}, &elements};
  for (int e : graph.arcs()) {
    if (found.orbit[e] >= 0) continue;
    for (const Ints& image : elements) {
      const int to = number.find(image[graph.tail[e]], image[graph.head[e]]);
      if (to < 0 || graph.capacity[to] != graph.capacity[e]) return std::nullopt;
      found.orbit[to] = number_of(found.room);
    }
    found.room.push_back(graph.capacity[e]);
  }
  for (int v : range(graph.nodes)) {
    int least = v, stay = 0;
    for (const Ints& image : elements) {
      if (supply[image[v]] != supply[v]) return std::nullopt;
      least = std::min(least, image[v]);
      stay += image[v] == v;
    }
    if (stay != 1) return std::nullopt;
    if (least == v && supply[v] > 0) found.roots.push_back(v);
  }
  return found;
}

// Spanning trees of bounded height under change. They may use more of an orbit than it has room for;
// the search ends when no orbit is overfull. A change gives one node of one tree another parent: the
// one that lowers the weight of what is overfull by most, or raises it by least, is made and not
// undone for a while (tabu search; Glover, 1989). Orbits that stay overfull gain weight, which leads
// out of places that no single change improves (breakout method; Morris, 1993).
class LocalSearch {
 public:
  LocalSearch(const Digraph& graph, const Alike& alike, const Amounts& supply, int most)
      : graph_(graph), alike_(alike), most_(most), into_(graph.arcs_by(graph.head)),
        out_(graph.arcs_by(graph.tail)), load_(alike.room.size(), 0), weight_(alike.room.size(), 1), random_(0) {
    for (int root : alike.roots)
      for (Amount i = 0; i < supply[root]; ++i) plant(root);
  }

  bool run() {
    const long parents = static_cast<long>(trees_.size()) * graph_.nodes;
    long evaluations = 0;
    for (long step = 0; step < kStepsForAParent * parents && evaluations < kEvaluations; ++step) {
      if (step % 256 == 0) poll_signals();
      if (fits()) return true;
      evaluations += change(step);
    }
    return fits();
  }

  // The trees and their images, equal ones as one.
  Batches batches() const {
    std::map<std::pair<int, Ints>, Amount> weights;
    for (const Tree& tree : trees_)
      for (const Ints& image : *alike_.elements) {
        Ints parent(graph_.nodes, -1);
        for (int v : range(graph_.nodes))
          if (tree.arc[v] >= 0) parent[image[v]] = image[graph_.tail[tree.arc[v]]];
        ++weights[{image[tree.root], std::move(parent)}];
      }
    Batches list;
    for (const auto& [tree, weight] : weights) list.push_back({tree.first, weight, tree.second});
    return list;
  }

 private:
  struct Tree {
    int root = 0;
    Ints arc, depth, below;  // per node: from its parent; hops from the root, to leaves
    std::vector<long> until;             // per arc: the step up to which it is not taken again
  };

  bool full(int orbit) const { return load_[orbit] >= alike_.room[orbit]; }
  bool overfull(int orbit) const { return load_[orbit] > alike_.room[orbit]; }

  bool fits() const {
    for (int o : range(load_))
      if (overfull(o)) return false;
    return true;
  }

  // A tree of shortest paths, over the links with most room so far.
  void plant(int root) {
    Tree& tree = trees_.emplace_back();
    tree.root = root;
    tree.arc.assign(graph_.nodes, -1);
    tree.until.assign(graph_.arc_count(), -1);
    tree.depth.assign(graph_.nodes, -1);
    tree.depth[root] = 0;
    Ints queue{root};
    for (std::size_t i = 0; i < queue.size(); ++i)
      for (int e : out_[queue[i]])
        if (tree.depth[graph_.head[e]] < 0) {
          tree.depth[graph_.head[e]] = tree.depth[queue[i]] + 1;
          queue.push_back(graph_.head[e]);
        }
    if (number_of(queue) < graph_.nodes) throw InternalError("a node is out of reach");
    for (std::size_t i = 1; i < queue.size(); ++i) {
      int best = -1;
      for (int e : into_[queue[i]])
        if (tree.depth[graph_.tail[e]] < tree.depth[queue[i]] && (best < 0 || left(e) > left(best)))
          best = e;
      tree.arc[queue[i]] = best;
      ++load_[alike_.orbit[best]];
    }
    measure(tree);
  }

  Amount left(int e) const { return alike_.room[alike_.orbit[e]] - load_[alike_.orbit[e]]; }

  void measure(Tree& tree) {
    tree.depth.assign(graph_.nodes, -1);
    tree.below.assign(graph_.nodes, 0);
    tree.depth[tree.root] = 0;
    for (int v : range(graph_.nodes)) {
      chain_.clear();
      int u = v;
      for (; tree.depth[u] < 0; u = graph_.tail[tree.arc[u]]) chain_.push_back(u);
      for (int depth = tree.depth[u]; !chain_.empty(); chain_.pop_back())
        tree.depth[chain_.back()] = ++depth;
      for (int w = v, hops = 0; w != tree.root;) {
        w = graph_.tail[tree.arc[w]];
        if (tree.below[w] >= ++hops) break;
        tree.below[w] = hops;
      }
    }
  }

  bool hangs_on(const Tree& tree, int u, int v) const {
    while (u != v && u != tree.root) u = graph_.tail[tree.arc[u]];
    return u == v;
  }

  // Makes the best change that is allowed; returns how many were weighed.
  long change(long step) {
    Amount best = 0;
    long weighed = 0;
    unsigned ties = 0;
    Tree* which = nullptr;
    int taken = -1;
    for (Tree& tree : trees_)
      for (int v : range(graph_.nodes)) {
        if (v == tree.root) continue;
        const int from = alike_.orbit[tree.arc[v]];
        const Amount gain = overfull(from) ? weight_[from] : 0;
        for (int e : into_[v]) {
          ++weighed;
          const int u = graph_.tail[e], to = alike_.orbit[e];
          if (e == tree.arc[v] || tree.until[e] >= step) continue;
          if (tree.depth[u] + 1 + tree.below[v] > most_) continue;
          const Amount cost = to == from ? 0 : (full(to) ? weight_[to] : 0) - gain;
          if ((which && cost > best) || hangs_on(tree, u, v)) continue;
          if (!which || cost < best) ties = 0;
          best = cost;
          if (random_() % ++ties != 0 && which) continue;
          which = &tree;
          taken = e;
        }
      }
    if (!which || best >= 0)
      for (int o : range(load_)) weight_[o] += overfull(o);
    if (which) take(*which, taken, step);
    return weighed;
  }

  void take(Tree& tree, int e, long step) {
    int& arc = tree.arc[graph_.head[e]];
    --load_[alike_.orbit[arc]];
    ++load_[alike_.orbit[e]];
    tree.until[arc] = step + 3 + random_() % 10;
    arc = e;
    measure(tree);
  }

  const Digraph& graph_;
  const Alike& alike_;
  int most_;  // hops
  Lists into_, out_;
  Amounts load_, weight_;  // per orbit
  std::vector<Tree> trees_;
  Ints chain_;
  Random random_;
};

}  // namespace

std::optional<Batches> pack_lowest(const Digraph& graph, const Amounts& supply,
                                              const Elements& elements, int below) {
  const Elements identity{numbers(graph.nodes)};
  std::optional<Alike> orbits = alike(graph, supply, elements);
  if (!orbits) orbits = alike(graph, supply, identity);
  if (!orbits) return std::nullopt;
  Amount room = kMostParents / graph.nodes;
  for (int root : orbits->roots)
    if ((room -= std::min(supply[root], room + 1)) < 0) return std::nullopt;
  const int least = least_height(graph, orbits->roots);
  for (int most = least; most < below && most < least + kHeights; ++most) {
    LocalSearch search(graph, *orbits, supply, most);
    if (search.run()) return search.batches();
  }
  return std::nullopt;
}

}  // namespace forestcoll
