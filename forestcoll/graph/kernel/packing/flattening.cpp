#include "packing/packing.hpp"


namespace forestcoll {
namespace {

// A batch with what a change of parent must know: depths, and subtrees as intervals of a preorder.
struct Shape : Batch {
  explicit Shape(const Batch& batch)
      : Batch(batch), first(parent.size()), next(parent.size()), depth(parent.size()),
        begin(parent.size()), end(parent.size()) {
    update();
  }

  bool below(int u, int v) const { return begin[v] <= begin[u] && begin[u] < end[v]; }

  // How many hops beyond `limit` the nodes under v (itself included) are, if v were `shift` deeper.
  long excess(int v, int shift, int limit) const {
    long sum = 0;
    for (int i = begin[v]; i < end[v]; ++i) sum += std::max(0, depth[order[i]] + shift - limit);
    return sum;
  }
  long excess(int limit) const { return excess(root, 0, limit); }

  // By how much the excess changes if v hangs from `up`.
  long change(int v, int up, int limit) const {
    return excess(v, depth[up] + 1 - depth[v], limit) - excess(v, 0, limit);
  }

  void move(int v, int up) {
    parent[v] = up;
    update();
  }

  void update() {
    std::ranges::fill(first, -1);
    for (int v : range(parent))
      if (v != root) {
        next[v] = first[parent[v]];
        first[parent[v]] = v;
      }
    order.clear();
    depth[root] = 0;
    int v = root;
    begin[v] = 0;
    order.push_back(v);
    for (int child = first[v];;) {
      if (child >= 0) {
        depth[child] = depth[v] + 1;
        begin[child] = number_of(order);
        order.push_back(child);
        v = child;
        child = first[v];
        continue;
      }
      end[v] = number_of(order);
      if (v == root) break;
      child = next[v];
      v = parent[v];
    }
  }

  Ints first, next, depth, begin, end, order;
};

class Lowering {
 public:
  // At most `most` batches may arise.
  Lowering(const Digraph& graph, const Batches& batches, std::size_t most)
      : into_(graph.arcs_by(graph.head)), room_(graph.capacity), most_(most), random_(1) {
    tail_ = graph.tail;
    users_.resize(graph.arc_count());
    for (int i : range(batches)) {
      shapes_.emplace_back(batches[i]);
      for (int v : range(graph.nodes)) {
        if (v == batches[i].root) continue;
        const int e = arc(batches[i].parent[v], v);
        room_[e] -= batches[i].weight;
        users_[e].push_back(i);
      }
    }
  }

  // Whether no node is deeper than `limit` now, after at most `tries` candidates, and at most
  // `patience` in a row that brought nothing new.
  bool reach(int limit, long& tries, long patience) {
    excess_.clear();
    high_.clear();
    Amount total = 0;
    for (int i : range(shapes_)) {
      add_excess(shapes_[i].excess(limit));
      total += excess_[i] * shapes_[i].weight;
    }
    Amount least = total;
    for (long since = 0; total > 0 && tries > 0 && since < patience; --tries, ++since) {
      total += step(limit);
      if (total < least) {
        least = total;
        since = 0;
      }
      if ((tries & 1023) == 0) poll_signals();
    }
    return total == 0;
  }

  Batches batches() const { return {shapes_.begin(), shapes_.end()}; }

 private:
  int arc(int u, int v) const {
    for (int e : into_[v])
      if (tail_[e] == u) return e;
    throw InternalError("a tree uses an arc that is not there");
  }

  int below(int count) { return static_cast<int>(random_() % static_cast<std::uint32_t>(count)); }

  // The same for nodes, without a division: the fraction x / count, of which the remainder is the rest
  // (Lemire, Kaser, Kurz, "Faster remainder by direct computation", 2019: exact for 32 bits).
  int any_node() {
    const std::uint64_t rest = nodes_part_ * random_();
    return static_cast<int>(static_cast<Wide>(rest) * into_.size() >> 64);
  }

  // Tries one change of parent; returns by how much the weighted excess changed (never up). Half of
  // the candidates are above a node that is too deep, half anywhere: what does not hurt now may open
  // a way later.
  Amount step(int limit) {
    const bool anywhere = random_() % 2 == 0;
    const int a = anywhere ? below(number_of(shapes_)) : too_high();
    Shape& shape = shapes_[a];
    const int v = anywhere ? any_node() : above_deep(shape, limit);
    if (v == shape.root) return 0;
    const int e = arc(shape.parent[v], v);
    const int f = into_[v][below(number_of(into_[v]))];
    if (f == e || shape.below(tail_[f], v)) return 0;
    const long change = shape.change(v, tail_[f], limit);
    if (room_[f] >= shapes_[a].weight) {
      if (change > 0) return 0;
      take(a, v, e, f, change);
      return change * shapes_[a].weight;
    }
    if (users_[f].empty()) return 0;
    const int b = users_[f][below(number_of(users_[f]))];
    if (shapes_[b].below(tail_[e], v)) return 0;
    return exchange(a, b, v, e, f, change, shapes_[b].change(v, tail_[e], limit));
  }

  // Batches a and b trade their arcs e and f into v, if that gains or costs nothing. Where their
  // weights differ and the arcs have no room for it, the heavier one is divided, for a gain only.
  Amount exchange(int a, int b, int v, int e, int f, long change_a, long change_b) {
    const Amount first = shapes_[a].weight, second = shapes_[b].weight;
    const bool fits = room_[f] + second >= first && room_[e] + first >= second;
    if (!fits) {
      if (change_a + change_b >= 0 || shapes_.size() >= most_) return 0;
      if (first > second) divide(a, second);
      if (second > first) divide(b, first);
    }
    const Amount change = change_a * shapes_[a].weight + change_b * shapes_[b].weight;
    if (change > 0) return 0;
    take(a, v, e, f, change_a);
    take(b, v, f, e, change_b);
    return change;
  }

  // Leaves `keep` of the batch's weight and makes the rest a batch of its own.
  void divide(int i, Amount keep) {
    const int rest = number_of(shapes_);
    shapes_.push_back(Shape(shapes_[i]));
    add_excess(excess_[i]);
    shapes_[rest].weight -= keep;
    Shape& kept = shapes_[i];
    kept.weight = keep;
    for (int v : range(kept.parent))
      if (v != kept.root) users_[arc(kept.parent[v], v)].push_back(rest);
  }

  void add_excess(long excess) {
    if (excess > 0) high_.push_back(number_of(excess_));
    excess_.push_back(excess);
  }

  // A batch that is too high. The list may name some that no longer are; they go when met.
  int too_high() {
    for (;;) {
      const int n = below(number_of(high_));
      if (excess_[high_[n]] > 0) return high_[n];
      std::swap(high_[n], high_.back());
      high_.pop_back();
    }
  }

  // A node that is too deep, or one above it.
  int above_deep(const Shape& shape, int limit) {
    int v;
    do v = any_node();
    while (shape.depth[v] <= limit);
    for (int up = below(shape.depth[v]); up > 0; --up) v = shape.parent[v];
    return v;
  }

  void take(int i, int v, int from, int to, long change) {
    shapes_[i].move(v, tail_[to]);
    if (excess_[i] == 0 && change > 0) high_.push_back(i);
    excess_[i] += change;
    room_[from] += shapes_[i].weight;
    room_[to] -= shapes_[i].weight;
    std::erase(users_[from], i);
    users_[to].push_back(i);
  }

  __extension__ using Wide = unsigned __int128;

  Lists into_;
  std::uint64_t nodes_part_ = ~std::uint64_t{0} / into_.size() + 1;  // 2^64 / nodes, rounded up
  Ints tail_;
  Amounts room_;
  Lists users_;  // per arc: batches whose trees use it
  std::vector<Shape> shapes_;
  std::vector<long> excess_;  // per batch, for the limit at hand
  Ints high_;     // batches with excess
  std::size_t most_;          // batches
  Random random_;
};

}  // namespace

Lists neighbours(const Digraph& graph) {
  Lists out(graph.nodes);
  for (int e : graph.arcs())
    if (graph.capacity[e] > 0) out[graph.tail[e]].push_back(graph.head[e]);
  return out;
}

Ints hops_from(const Lists& out, int root, int nowhere) {
  Ints hops(out.size(), nowhere), queue{root};
  hops[root] = 0;
  // in dense graphs most arcs lead back: none need be followed once all nodes are found
  for (std::size_t i = 0; i < queue.size() && queue.size() < out.size(); ++i)
    for (int v : out[queue[i]])
      if (hops[v] == nowhere) {
        hops[v] = hops[queue[i]] + 1;
        queue.push_back(v);
      }
  return hops;
}

int least_height(const Digraph& graph, const Ints& roots) {
  const Lists out = neighbours(graph);
  int least = 0;
  for (int root : distinct(roots)) {
    const Ints hops = hops_from(out, root, -1);
    least = std::max(least, *std::ranges::max_element(hops));
  }
  return least;
}

int height(const Batches& batches) {
  int most = 0;
  for (const Batch& batch : batches) most = std::max(most, std::ranges::max(Shape(batch).depth));
  return most;
}

void lower_trees(const Digraph& graph, Batches& batches, long tries) {
  Ints roots;
  for (const Batch& batch : batches) roots.push_back(batch.root);
  const int least = least_height(graph, roots);
  const long patience = tries / 3;  // what takes longer than that has hardly ever come
  Lowering lowering(graph, batches, batches.size() + batches.size() / 2);
  for (int limit = height(batches) - 1; limit >= least; --limit) {
    if (!lowering.reach(limit, tries, patience)) break;
    batches = lowering.batches();
  }
}

}  // namespace forestcoll
