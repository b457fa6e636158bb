#include "tree_scan.hpp"

namespace forestcoll {

TreeScan::TreeScan(const Digraph& graph, const Marks& rank, Marks copies,
                   Marks adds)
    : rank_(rank), arc_(graph), loads_(graph.arcs(), 0), parent_(graph.nodes),
      depth_(graph.nodes), way_(graph.nodes), seen_(graph.arcs(), 0) {
  for (char r : rank) ranks_ += r != 0;
  for (int e : range(graph.arcs())) {
    once_[0].push_back(copies[graph.head[e]]);
    once_[1].push_back(adds[graph.tail[e]]);
  }
}

PathInfo TreeScan::read(std::span<const int> nodes) const {
  PathInfo path;
  if (nodes.size() < 2) return path;
  path.first = nodes.front();
  path.last = nodes.back();
  path.sound = rank_[path.first] && rank_[path.last];
  path.linked = true;
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    if (i + 1 < nodes.size() && rank_[nodes[i]]) path.sound = false;
    const int e = arc_.find(nodes[i - 1], nodes[i]);
    if (e < 0) path.linked = false;
    else path.arcs.push_back(e);
  }
  if (!times_.empty()) {
    path.time = hop_;
    for (int e : path.arcs) path.time += times_[e];
  }
  return path;
}

bool TreeScan::add(int root, bool reduce, Amount weight, const Ints& paths,
                   const std::vector<PathInfo>& known) {
  ++tree_;
  const bool good = weight > 0 && rank_[root] && spans(root, reduce, paths, known);
  load(reduce, weight, paths, known);
  return good;
}

bool TreeScan::spans(int root, bool reduce, const Ints& paths,
                     const std::vector<PathInfo>& known) {
  if (number_of(paths) != ranks_ - 1) return false;
  std::ranges::fill(parent_, -1);
  std::ranges::fill(depth_, -1);
  depth_[root] = 0;
  way_[root] = longest_ = 0;
  for (int p : paths) {
    const PathInfo& path = known[p];
    const int above = reduce ? path.last : path.first, below = reduce ? path.first : path.last;
    if (!path.sound || below == root || parent_[below] >= 0) return false;
    parent_[below] = above;
    way_[below] = path.time;
  }
  // Every rank but the root has one parent now: the tree spans if following them ends at the root.
  for (int p : paths) {
    chain_.clear();
    int v = reduce ? known[p].first : known[p].last;
    for (; depth_[v] < 0; v = parent_[v]) {
      if (number_of(chain_) >= ranks_) return false;
      chain_.push_back(v);
    }
    int depth = depth_[v];
    Amount way = way_[v];
    for (std::size_t i = chain_.size(); i-- > 0;) {
      depth_[chain_[i]] = ++depth;
      way = way_[chain_[i]] += way;
    }
    height_ = std::max(height_, depth);
    longest_ = std::max(longest_, way);
  }
  return true;
}

void TreeScan::load(bool reduce, Amount weight, const Ints& paths,
                    const std::vector<PathInfo>& known) {
  for (int p : paths) {
    counted_ &= known[p].linked;
    for (int e : known[p].arcs) {
      if (once_[reduce][e]) {
        if (seen_[e] == tree_) continue;
        seen_[e] = tree_;
      }
      if (__builtin_add_overflow(loads_[e], weight, &loads_[e])) counted_ = false;
    }
  }
}

}  // namespace forestcoll
