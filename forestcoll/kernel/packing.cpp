#include "packing.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "flow.hpp"

namespace forestcoll {
namespace {

// `weight` equal trees that span `depth[v] >= 0` so far.
struct Growing {
  int root = 0;
  Amount weight = 0;
  int spanned = 1;
  std::vector<int> parent, depth;
  std::vector<char> refused;  // per arc: no unit of this batch may ever use it
  int node = 0;               // its node in the network
  int feed = 0;               // its arc from the source
};

class Packer {
 public:
  Packer(const Digraph& graph, const std::vector<Amount>& supply, unsigned seed)
      : graph_(graph), left_(graph.capacity), order_(graph.nodes), net_(graph.nodes + 1) {
    for (int e = 0; e < graph.arcs(); ++e) net_.add_arc(graph.tail[e], graph.head[e], left_[e]);
    for (int v = 0; v < graph.nodes; ++v) start_.push_back(net_.add_arc(source(), v, 0));
    std::mt19937 random(seed);
    std::vector<int> arcs(graph.arcs());
    std::iota(arcs.begin(), arcs.end(), 0);
    if (seed != 0) std::shuffle(arcs.begin(), arcs.end(), random);
    for (int e : arcs) order_[graph.tail[e]].push_back(e);
    for (int r = 0; r < graph.nodes; ++r) {
      if (supply[r] == 0) continue;
      Growing batch;
      batch.root = r;
      batch.weight = supply[r];
      batch.parent.assign(graph.nodes, -1);
      batch.depth.assign(graph.nodes, -1);
      batch.depth[r] = 0;
      batch.refused.assign(graph.arcs(), 0);
      admit(std::move(batch));
      total_ += supply[r];
    }
  }

  // Level by level, one new node a batch in turn. A refusal is final (a tight set stays tight), so
  // one visit of each level is enough.
  std::vector<Batch> run() {
    for (int level = 0; level < graph_.nodes; ++level)
      for (bool grown = true; grown;) {
        grown = false;
        for (std::size_t i = 0; i < batches_.size(); ++i) grown |= grow(i, level);
      }
    std::vector<Batch> done;
    for (Growing& batch : batches_) {
      if (batch.spanned != graph_.nodes) throw InternalError("a tree could not be completed");
      done.push_back({batch.root, batch.weight, std::move(batch.parent)});
    }
    return done;
  }

 private:
  int source() const { return graph_.nodes; }

  void admit(Growing batch) {
    batch.node = net_.add_node();
    batch.feed = net_.add_arc(source(), batch.node, batch.weight);
    for (int v = 0; v < graph_.nodes; ++v)
      if (batch.depth[v] >= 0) net_.add_arc(batch.node, v, kInfinite);
    batches_.push_back(std::move(batch));
  }

  // One node more for batch i from a parent at `level`; false where none is possible.
  bool grow(std::size_t i, int level) {
    if (batches_[i].spanned == graph_.nodes) return false;
    for (int x = 0; x < graph_.nodes; ++x) {
      if (batches_[i].depth[x] != level) continue;
      for (int e : order_[x]) {
        Growing& batch = batches_[i];
        const int y = graph_.head[e];
        if (left_[e] == 0 || batch.depth[y] >= 0 || batch.refused[e]) continue;
        const Amount units = room(batch, e);
        if (units == 0) {
          batch.refused[e] = 1;
          continue;
        }
        attach(i, e, units);
        return true;
      }
    }
    return false;
  }

  // How many trees of the batch may take arc e = (x, y): every set that y is in and x is not must
  // keep enough links for the batches that have not reached it.
  Amount room(const Growing& batch, int e) {
    const Amount wanted = std::min(left_[e], batch.weight);
    const Amount others = total_ - batch.weight;
    net_.set_capacity(batch.feed, 0);
    net_.set_capacity(start_[graph_.tail[e]], kInfinite);
    net_.reset();
    const Amount flow = net_.push(source(), graph_.head[e], others + wanted);
    net_.set_capacity(batch.feed, batch.weight);
    net_.set_capacity(start_[graph_.tail[e]], 0);
    if (flow < others) throw InternalError("the demand was not met when packing began");
    return flow - others;
  }

  void attach(std::size_t i, int e, Amount units) {
    if (units < batches_[i].weight) {  // the rest of the batch goes its own way
      Growing rest = batches_[i];
      rest.weight -= units;
      rest.refused[e] = 1;
      net_.set_capacity(batches_[i].feed, units);
      batches_[i].weight = units;
      admit(std::move(rest));
    }
    Growing& batch = batches_[i];
    const int y = graph_.head[e];
    batch.parent[y] = graph_.tail[e];
    batch.depth[y] = batch.depth[graph_.tail[e]] + 1;
    net_.add_arc(batch.node, y, kInfinite);
    left_[e] -= units;
    net_.set_capacity(2 * e, left_[e]);
    if (++batch.spanned == graph_.nodes) {
      net_.set_capacity(batch.feed, 0);
      total_ -= batch.weight;
    }
  }

  const Digraph& graph_;
  std::vector<Amount> left_;
  std::vector<std::vector<int>> order_;  // arcs that leave each node
  Residual net_;
  std::vector<int> start_;  // arcs from the source to the nodes, closed but for the node tried
  std::vector<Growing> batches_;
  Amount total_ = 0;  // weight of the unfinished batches
};

}  // namespace

std::vector<Batch> pack_exact(const Digraph& graph, const std::vector<Amount>& supply, unsigned seed) {
  return Packer(graph, supply, seed).run();
}

}  // namespace forestcoll
