#include "packing.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "flow.hpp"

namespace forestcoll {
namespace {

// `weight` equal trees that span the nodes with depth[v] >= 0 so far.
struct Growing {
  int root = 0;
  Amount weight = 0;
  int spanned = 1;
  std::vector<int> parent, depth;
  std::vector<char> refused;  // per arc: no unit of this batch may ever use it
};

// A flow that proves that node y can still be entered by every batch that has not reached it: the
// source feeds each of them its weight, a batch feeds the nodes that it spans, and all of it arrives
// at y. It is kept up to date while batches take arcs into y.
class Inflow {
 public:
  Inflow(const Digraph& graph, const std::vector<Amount>& left, const std::vector<Growing>& batches,
         int y)
      : y_(y), source_(graph.nodes), net_(graph.nodes + 1) {
    for (int e = 0; e < graph.arcs(); ++e)  // what leaves y again would only go round in circles
      net_.add_arc(graph.tail[e], graph.head[e], graph.tail[e] == y ? 0 : left[e]);
    Amount total = 0;
    for (const Growing& batch : batches) {
      add(batch);
      if (batch.depth[y] >= 0) continue;
      net_.add_arc(source_, node_.back(), batch.weight);
      total += batch.weight;
    }
    if (net_.push(source_, y, total) < total)
      throw InternalError("the demand was not met when packing began");
  }

  // Takes the share of batch i away and asks how many trees could enter y from x over arc e instead,
  // at most `wanted`: every set that holds y and not x must keep enough links for the batches that
  // have not reached it. Follow with `refuse` or `accept`.
  Amount try_arc(std::size_t i, Amount weight, int x, Amount wanted) {
    taken_.clear();
    if (!net_.cancel(node_[i], y_, weight, taken_)) throw InternalError("a batch has lost its flow");
    return net_.push(x, y_, wanted);
  }

  // Only after `try_arc` gave 0: nothing but the batch's own flow has changed.
  void refuse() { net_.replay(taken_); }

  // Arc e belongs to trees of batch i now: y has been reached, so the batch has no flow any more. The
  // flow that came from x ends with e, which carries as much: the shortest way is tried first.
  void accept(Amount units, int e) {
    net_.set_left(2 * e + 1, net_.left(2 * e + 1) - units);
    if (net_.left(2 * e + 1) < 0) throw InternalError("an arc was taken without its flow");
  }

  // A batch that has come off another one.
  void admit(const Growing& batch) {
    add(batch);
    if (net_.push(node_.back(), y_, batch.weight) < batch.weight)
      throw InternalError("a batch cannot enter a node");
  }

 private:
  void add(const Growing& batch) {
    node_.push_back(net_.add_node());
    if (batch.depth[y_] >= 0) return;
    for (std::size_t v = 0; v < batch.depth.size(); ++v)
      if (batch.depth[v] >= 0) net_.add_arc(node_.back(), static_cast<int>(v), kInfinite);
  }

  int y_, source_;
  Residual net_;
  std::vector<int> node_;  // per batch
  std::vector<std::pair<int, Amount>> taken_;
};

class Packer {
 public:
  Packer(const Digraph& graph, const std::vector<Amount>& supply, unsigned seed)
      : graph_(graph), left_(graph.capacity), into_(graph.nodes), random_(seed) {
    for (int e = 0; e < graph.arcs(); ++e) into_[graph.head[e]].push_back(e);
    for (int r = 0; r < graph.nodes; ++r) {
      if (supply[r] == 0) continue;
      Growing batch;
      batch.root = r;
      batch.weight = supply[r];
      batch.parent.assign(graph.nodes, -1);
      batch.depth.assign(graph.nodes, -1);
      batch.depth[r] = 0;
      batch.refused.assign(graph.arcs(), 0);
      batches_.push_back(std::move(batch));
    }
  }

  // Level by level, all batches together: every node takes its parents at this level before any at
  // the next. A refusal is final (a tight set stays tight), so one visit a level and node is enough.
  std::vector<Batch> run() {
    std::vector<int> order(graph_.nodes);
    std::iota(order.begin(), order.end(), 0);
    for (int level = 0; level < graph_.nodes - 1 && !complete(); ++level) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
      for (int y : order) visit(y, level);
    }
    std::vector<Batch> done;
    for (Growing& batch : batches_) {
      if (batch.spanned != graph_.nodes) throw InternalError("a tree could not be completed");
      done.push_back({batch.root, batch.weight, std::move(batch.parent)});
    }
    return done;
  }

 private:
  bool complete() const {
    return std::all_of(batches_.begin(), batches_.end(),
                       [&](const Growing& batch) { return batch.spanned == graph_.nodes; });
  }

  bool open(const Growing& batch, int e, int level) const {
    return left_[e] > 0 && !batch.refused[e] && batch.depth[graph_.head[e]] < 0 &&
           batch.depth[graph_.tail[e]] == level;
  }

  bool any_open(int y, int level) const {
    for (const Growing& batch : batches_)
      for (int e : into_[y])
        if (open(batch, e, level)) return true;
    return false;
  }

  // Gives y a parent at `level` in every batch that may have one.
  void visit(int y, int level) {
    if (!any_open(y, level)) return;
    Inflow inflow(graph_, left_, batches_, y);
    std::vector<int> arcs = into_[y];
    const std::size_t count = batches_.size(), shift = random_() % count;
    for (std::size_t n = 0; n < batches_.size(); ++n) {
      const std::size_t i = n < count ? (n + shift) % count : n;
      std::stable_sort(arcs.begin(), arcs.end(), [&](int a, int b) { return left_[a] > left_[b]; });
      for (int e : arcs) {
        if (!open(batches_[i], e, level)) continue;
        const Amount weight = batches_[i].weight;
        const Amount units =
            inflow.try_arc(i, weight, graph_.tail[e], std::min(left_[e], weight));
        if (units == 0) {
          batches_[i].refused[e] = 1;
          inflow.refuse();
          continue;
        }
        attach(i, e, units, inflow);
        break;
      }
    }
  }

  void attach(std::size_t i, int e, Amount units, Inflow& inflow) {
    left_[e] -= units;
    inflow.accept(units, e);
    if (units < batches_[i].weight) {  // the rest of the batch goes its own way
      Growing rest = batches_[i];
      rest.weight -= units;
      rest.refused[e] = 1;
      batches_[i].weight = units;
      inflow.admit(rest);
      batches_.push_back(std::move(rest));
    }
    Growing& batch = batches_[i];
    const int x = graph_.tail[e], y = graph_.head[e];
    batch.parent[y] = x;
    batch.depth[y] = batch.depth[x] + 1;
    ++batch.spanned;
  }

  const Digraph& graph_;
  std::vector<Amount> left_;
  std::vector<std::vector<int>> into_;  // arcs that enter each node
  std::vector<Growing> batches_;
  std::mt19937 random_;
};

}  // namespace

std::vector<Batch> pack_exact(const Digraph& graph, const std::vector<Amount>& supply, unsigned seed) {
  return Packer(graph, supply, seed).run();
}

}  // namespace forestcoll
