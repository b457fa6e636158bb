// Whether trees over paths span, how high they are and what they load: the check's inner loops.
#pragma once

#include <span>

#include "graph.hpp"

namespace forestcoll {

// A path of nodes once read: its ends and the arcs it runs over.
struct PathInfo {
  int first = -1, last = -1;
  bool sound = false;   // two ends or more, ranks only at the ends
  bool linked = false;  // every hop is an arc of the graph
  Ints arcs;
  Amount time = 0;  // of all its arcs, where they have times
};

// Looks at trees one by one. Arcs into a node that copies (broadcast) or out of one that adds
// (reduce) are loaded once a tree, however many of its paths cross them.
class TreeScan {
 public:
  TreeScan(const Digraph& graph, const Marks& rank, Marks copies,
                   Marks adds) : rank_(rank), arc_(graph), loads_(graph.arc_count(), 0), parent_(graph.nodes),
        depth_(graph.nodes), way_(graph.nodes), seen_(graph.arc_count(), 0) {
    for (char r : rank) ranks_ += r != 0;
    for (int e : graph.arcs()) {
      once_[0].push_back(copies[graph.head[e]]);
      once_[1].push_back(adds[graph.tail[e]]);
    }
  }

  // Every path that is read from here on takes the sum over its arcs, and `hop`.
  void set_times(Amounts arcs, Amount hop) { times_ = std::move(arcs), hop_ = hop; }

  PathInfo read(std::span<const int> nodes) const {
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

  // Notes one tree; `paths` are indexes into `known`. Returns whether it reaches every rank once.
  bool add(int root, bool reduce, Amount weight, const Ints& paths,
                   const std::vector<PathInfo>& known) {
    ++tree_;
    const bool good = weight > 0 && rank_[root] && spans(root, reduce, paths, known);
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
    return good;
  }

  int height() const { return height_; }  // of the sound trees
  Amount longest() const { return longest_; }  // way of the last tree, if sound: root to rank
  bool counted() const { return counted_; }  // no overflow, no hop without an arc
  const Amounts& loads() const { return loads_; }

 private:
  bool spans(int root, bool reduce, const Ints& paths,
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

  int ranks_ = 0, height_ = 0;
  Amount hop_ = 0, longest_ = 0;
  Amounts times_;  // per arc, or empty
  bool counted_ = true;
  const Marks& rank_;
  ArcIndex arc_;
  Marks once_[2];  // per phase and arc
  Amounts loads_;
  Ints parent_, depth_, chain_;
  Amounts way_;  // from the root; that of the last path before it is known
  std::vector<long> seen_;  // per arc, the last tree that loaded it
  long tree_ = 0;
};

}  // namespace forestcoll
