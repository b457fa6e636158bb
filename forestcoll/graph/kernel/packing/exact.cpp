// Packing of spanning trees, exactly (after Berczi and Frank): always as many as there can be; asked
// for where layers of equal trees do not work, and beside packing by boxes on small graphs.
#include "packing/packing.hpp"

#include "flow.hpp"
#include "packing/transport.hpp"

namespace forestcoll {
namespace {

// Equal trees that span the nodes with depth[v] >= 0 so far.
struct Growing : Batch {
  int spanned = 1;
  Ints depth;
};

// `units` of batch number `batch` may take arc `arc`.
struct Entry {
  int batch = 0;
  int arc = 0;
  Amount units = 0;
};

// How batches can enter node y: a source feeds each that has not reached y its weight, a batch feeds the
// nodes that it spans, and all of it has to arrive at y. A flow like that proves that every set that
// holds y keeps enough links.
class Entrance {
 public:
  // `without`: number of a batch that is left out, if any.
  Entrance(const Digraph& graph, const Amounts& left, const std::vector<Growing>& batches,
           int y, int without = -1)
      : graph_(graph), left_(left), batches_(batches), y_(y), source_(graph.nodes),
        net_(graph.nodes + 1) {
    for (int e : graph.arcs())  // what leaves y again would only go round in circles
      net_.add_arc(graph.tail[e], graph.head[e], graph.tail[e] == y ? 0 : left[e]);
    for (int i : range(batches)) {
      if (batches[i].depth[y] >= 0 || i == without) continue;
      missing_ += batches[i].weight;
      const int node = net_.add_node();
      Row& row = rows_.emplace_back(Row{i, net_.add_arc(source_, node, batches[i].weight)});
      for (int v : range(graph.nodes))
        if (batches[i].depth[v] >= 0) row.arcs.push_back({v, net_.add_arc(node, v, kInfinite)});
    }
  }

  // Which batches can enter y at once, by arcs `into` y that start at nodes they span (depth up to
  // `level`). One flow answers for all: every batch goes straight over such an arc where it can. What
  // arrives straight may be taken, for the rest of the flow still shows how all others can enter later.
  std::vector<Entry> entries(const Ints& into, int level) {
    Transport transport;
    for (int e : into) transport.add_column(left_[e]);
    for (Row& row : rows_) {
      const Growing& batch = batches_[row.batch];
      for (int c : range(into)) {
        const int depth = batch.depth[graph_.tail[into[c]]];
        if (depth < 0 || depth > level || left_[into[c]] == 0) continue;
        transport.add_option(c);
        row.open.push_back({c, row.arc(graph_.tail[into[c]])});
      }
      transport.end_row(batch.weight);
    }
    transport.solve(false);
    for (int r : range(rows_))
      transport.read(r, [&](int c, Amount units) {
        for (const auto& [column, arc] : rows_[r].open)
          if (column == c)
            for (int a : {rows_[r].feed, arc, 2 * into[c]}) net_.carry(a, units);
        missing_ -= units;
      });
    fill();
    Amounts room;
    for (int e : into) room.push_back(net_.left(2 * e + 1));
    std::vector<Entry> list;
    for (const Row& row : rows_) {
      const std::size_t first = list.size();
      for (const auto& [column, arc] : row.open)
        if (const Amount units = std::min(net_.left(arc ^ 1), room[column]); units > 0)
          list.push_back({row.batch, column, units});
      for (std::size_t i = first; i < list.size(); ++i) {
        room[list[i].arc] -= list[i].units;
        list[i].arc = into[list[i].arc];
      }
    }
    return list;
  }

  // How many trees, at most `wanted`, can enter y from x beside all batches that are not left out.
  Amount units_from(int x, Amount wanted) {
    fill();
    return net_.push(x, y_, wanted);
  }

 private:
  struct Row {
    int batch = 0;
    int feed = 0;
    Pairs arcs;  // (node spanned, arc to it)
    Pairs open;  // (column, arc to its start)

    int arc(int v) const {
      return std::ranges::lower_bound(arcs, std::pair{v, 0})->second;
    }
  };

  void fill() {
    if (net_.push(source_, y_, missing_) < missing_)
      throw InternalError("the demand was not met when packing began");
  }

  const Digraph& graph_;
  const Amounts& left_;
  const std::vector<Growing>& batches_;
  int y_, source_;
  Amount missing_ = 0;  // units that have no flow yet
  Residual net_;
  std::vector<Row> rows_;
};

class Packer {
 public:
  Packer(const Digraph& graph, const Amounts& supply)
      : graph_(graph), left_(graph.capacity), into_(graph.arcs_by(graph.head)), random_(0) {
    for (int r : range(graph.nodes)) {
      if (supply[r] == 0) continue;
      const Ints none(graph.nodes, -1);
      batches_.push_back({{r, supply[r], none}, 1, none});
      batches_.back().depth[r] = 0;
    }
  }

  // Level by level, all batches together: every node takes its parents at this level before any at
  // the next.
  Batches run() {
    Ints order = numbers(graph_.nodes);
    for (int level = 0; !complete(); ++level) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
      bool progress = false;
      for (int y : order) progress |= enter(y, level);
      // where whole crowds get stuck, one batch and one arc at a time still find a way
      if (!progress)
        for (int y : order) progress |= visit(y, level);
      if (!progress && level >= graph_.nodes) throw InternalError("a tree could not be completed");
    }
    return {batches_.begin(), batches_.end()};
  }

 private:
  bool complete() const {
    return std::ranges::all_of(batches_,
                       [&](const Growing& batch) { return batch.spanned == graph_.nodes; });
  }

  bool open(const Growing& batch, int e, int level) const {
    return left_[e] > 0 && batch.depth[graph_.head[e]] < 0 &&
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
        Entrance(graph_, left_, batches_, y).entries(into_[y], level);
    int of = -1, part = 0;  // what is left of batch `of` is batch `part`
    for (const Entry& entry : entries) {
      if (entry.batch != of) part = of = entry.batch;
      part = take(part, entry.arc, entry.units);
    }
    return !entries.empty();
  }

  // Gives y a parent in every batch that may have one: every set that holds y and not the arc's start
  // must keep enough links for the batches that have not reached it.
  bool visit(int y, int level) {
    if (!any_open(y, level)) return false;
    Ints arcs = into_[y];
    const int count = number_of(batches_), shift = static_cast<int>(random_() % count);
    bool progress = false;
    for (int n = 0; n < number_of(batches_); ++n) {
      const int i = n < count ? (n + shift) % count : n;
      std::ranges::stable_sort(arcs, std::greater(), [&](int e) { return left_[e]; });
      for (int e : arcs) {
        if (!open(batches_[i], e, level)) continue;
        Entrance entrance(graph_, left_, batches_, y, i);
        const Amount units =
            entrance.units_from(graph_.tail[e], std::min(left_[e], batches_[i].weight));
        if (units == 0)
          continue;  // no set that holds y can spare it
        take(i, e, units);  // what is left of the batch goes its own way
        progress = true;
        break;
      }
    }
    return progress;
  }

  // Lets `units` of batch i take arc e; returns the batch that the others are now, i if there are none.
  int take(int i, int e, Amount units) {
    left_[e] -= units;
    int rest = i;
    if (units < batches_[i].weight) {
      rest = number_of(batches_);
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
  Amounts left_;
  Lists into_;  // arcs that enter each node
  std::vector<Growing> batches_;
  Random random_;
};

}  // namespace

Batches pack_exact(const Digraph& graph, const Amounts& supply) {
  return Packer(graph, supply).run();
}

}  // namespace forestcoll
