#include "packing/packing.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "flow.hpp"
#include "graph.hpp"
#include "packing/transport.hpp"

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

// `units` of batch number `batch` may take arc `arc`.
struct Entry {
  std::size_t batch = 0;
  int arc = 0;
  Amount units = 0;
};

// Which batches can enter node y at once, by arcs that start at nodes they span (depth up to `level`).
// One flow answers for all: every batch that has not reached y sends its weight there, straight over
// such an arc where it can. What arrives straight may be taken, for the rest of the flow still shows
// how all others can enter y later.
class Entrance {
 public:
  Entrance(const Digraph& graph, const std::vector<Amount>& left, const std::vector<int>& into,
           const std::vector<Growing>& batches, int y, int level)
      : into_(into), net_(graph.nodes + 1) {
    const int source = graph.nodes;
    for (int e = 0; e < graph.arcs(); ++e)
      net_.add_arc(graph.tail[e], graph.head[e], graph.tail[e] == y ? 0 : left[e]);
    for (int e : into) transport_.add_column(left[e]);
    Amount total = 0;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const Growing& batch = batches[i];
      if (batch.depth[y] >= 0) continue;
      total += batch.weight;
      Row& row = rows_.emplace_back();
      row.batch = i;
      const int node = net_.add_node();
      row.feed = net_.add_arc(source, node, batch.weight);
      for (int v = 0; v < graph.nodes; ++v)
        if (batch.depth[v] >= 0) row.arcs.push_back({v, net_.add_arc(node, v, kInfinite)});
      for (int c = 0; c < static_cast<int>(into.size()); ++c) {
        const int depth = batch.depth[graph.tail[into[c]]];
        if (depth >= 0 && depth <= level && left[into[c]] > 0) {
          transport_.add_option(c);
          row.open.push_back({c, row.arc(graph.tail[into[c]])});
        }
      }
      transport_.end_row(batch.weight);
    }
    transport_.solve(false);
    for (std::size_t r = 0; r < rows_.size(); ++r)
      transport_.read(static_cast<int>(r), [&](int c, Amount units) {
        for (const auto& [column, arc] : rows_[r].open)
          if (column == c) carry(rows_[r], c, arc, units);
        total -= units;
      });
    if (net_.push(source, y, total) < total)
      throw InternalError("the demand was not met when packing began");
  }

  std::vector<Entry> entries() const {
    std::vector<Amount> room;
    for (int e : into_) room.push_back(net_.left(2 * e + 1));
    std::vector<Entry> list;
    for (const Row& row : rows_) {
      std::vector<std::pair<Amount, int>> straight;
      for (const auto& [column, arc] : row.open)
        if (const Amount units = std::min(net_.left(arc ^ 1), room[column]); units > 0)
          straight.emplace_back(units, column);
      for (const auto& [units, column] : straight) {
        room[column] -= units;
        list.push_back({row.batch, into_[column], units});
      }
    }
    return list;
  }

 private:
  struct Row {
    std::size_t batch = 0;
    int feed = 0;
    std::vector<std::pair<int, int>> arcs;  // (node spanned, arc to it)
    std::vector<std::pair<int, int>> open;  // (column, arc to its start)

    int arc(int v) const {
      return std::lower_bound(arcs.begin(), arcs.end(), std::pair{v, 0})->second;
    }
  };

  void carry(const Row& row, int column, int arc, Amount units) {
    for (int a : {row.feed, arc, 2 * into_[column]}) {
      net_.set_left(a, net_.left(a) - units);
      net_.set_left(a ^ 1, net_.left(a ^ 1) + units);
    }
  }

  const std::vector<int>& into_;
  Residual net_;
  Transport transport_;
  std::vector<Row> rows_;
};

class Packer {
 public:
  Packer(const Digraph& graph, const std::vector<Amount>& supply)
      : graph_(graph), left_(graph.capacity), into_(graph.nodes), random_(0) {
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
  // the next.
  std::vector<Batch> run() {
    std::vector<int> order(graph_.nodes);
    std::iota(order.begin(), order.end(), 0);
    for (int level = 0; !complete(); ++level) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
      bool progress = false;
      for (int y : order) progress |= enter(y, level);
      // where whole crowds get stuck, one batch and one arc at a time still find a way
      if (!progress)
        for (int y : order) progress |= visit(y, level);
      if (!progress && level >= graph_.nodes) throw InternalError("a tree could not be completed");
    }
    std::vector<Batch> done;
    for (Growing& batch : batches_) done.push_back({batch.root, batch.weight, std::move(batch.parent)});
    return done;
  }

 private:
  bool complete() const {
    return std::all_of(batches_.begin(), batches_.end(),
                       [&](const Growing& batch) { return batch.spanned == graph_.nodes; });
  }

  bool open(const Growing& batch, int e, int level) const {
    return left_[e] > 0 && !batch.refused[e] && batch.depth[graph_.head[e]] < 0 &&
           batch.depth[graph_.tail[e]] >= 0 && batch.depth[graph_.tail[e]] <= level;
  }

  bool any_open(int y, int level) const {
    for (const Growing& batch : batches_)
      for (int e : into_[y])
        if (open(batch, e, level)) return true;
    return false;
  }

  // Gives y parents in many batches at once; whether it found any.
  bool enter(int y, int level) {
    if (!any_open(y, level)) return false;
    const std::vector<Entry> entries =
        Entrance(graph_, left_, into_[y], batches_, y, level).entries();
    std::size_t of = batches_.size(), part = 0;  // what is left of batch `of` is batch `part`
    for (const Entry& entry : entries) {
      if (entry.batch != of) part = of = entry.batch;
      part = take(part, entry.arc, entry.units);
    }
    return !entries.empty();
  }

  // Gives y a parent in every batch that may have one. A refusal is final: a tight set stays tight.
  bool visit(int y, int level) {
    if (!any_open(y, level)) return false;
    Inflow inflow(graph_, left_, batches_, y);
    std::vector<int> arcs = into_[y];
    const std::size_t count = batches_.size(), shift = random_() % count;
    bool progress = false;
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
        inflow.accept(units, e);
        const std::size_t rest = take(i, e, units);
        if (rest != i) {  // what is left of the batch goes its own way
          batches_[rest].refused[e] = 1;
          inflow.admit(batches_[rest]);
        }
        progress = true;
        break;
      }
    }
    return progress;
  }

  // Lets `units` of batch i take arc e; returns the batch that the others are now, i if there are none.
  std::size_t take(std::size_t i, int e, Amount units) {
    left_[e] -= units;
    std::size_t rest = i;
    if (units < batches_[i].weight) {
      rest = batches_.size();
      batches_.push_back(batches_[i]);
      batches_[rest].weight -= units;
      batches_[i].weight = units;
    }
    Growing& batch = batches_[i];
    const int x = graph_.tail[e], y = graph_.head[e];
    batch.parent[y] = x;
    batch.depth[y] = batch.depth[x] + 1;
    ++batch.spanned;
    return rest;
  }

  const Digraph& graph_;
  std::vector<Amount> left_;
  std::vector<std::vector<int>> into_;  // arcs that enter each node
  std::vector<Growing> batches_;
  Random random_;
};

}  // namespace

std::vector<Batch> pack_exact(const Digraph& graph, const std::vector<Amount>& supply) {
  return Packer(graph, supply).run();
}

}  // namespace forestcoll
