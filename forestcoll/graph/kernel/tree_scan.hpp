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
           Marks adds);

  // Every path that is read from here on takes the sum over its arcs, and `hop`.
  void set_times(Amounts arcs, Amount hop) { times_ = std::move(arcs), hop_ = hop; }

  PathInfo read(std::span<const int> nodes) const;

  // Notes one tree; `paths` are indexes into `known`. Returns whether it reaches every rank once.
  bool add(int root, bool reduce, Amount weight, const Ints& paths,
           const std::vector<PathInfo>& known);

  int height() const { return height_; }  // of the sound trees
  Amount longest() const { return longest_; }  // way of the last tree, if sound: root to rank
  bool counted() const { return counted_; }  // no overflow, no hop without an arc
  const Amounts& loads() const { return loads_; }

 private:
  bool spans(int root, bool reduce, const Ints& paths,
             const std::vector<PathInfo>& known);
  void load(bool reduce, Amount weight, const Ints& paths,
            const std::vector<PathInfo>& known);

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
