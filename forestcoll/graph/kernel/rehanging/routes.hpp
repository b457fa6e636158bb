// Loads, prices and cheapest routes between boxes, for the search that re-hangs trees.
#pragma once

#include <limits>

#include "graph.hpp"

namespace forestcoll {

constexpr double kFar = std::numeric_limits<double>::infinity();
constexpr double kFirstPrice = 0.3, kMostPenalty = 60, kGrowth = 1.1;
constexpr double kRisen = 0.1;  // by so much costs may have risen since a way was found

// What the search works on. Ranks stand in boxes inside which data spreads by other means; the arcs
// of `graph` are those between boxes.
struct BoxedGraph {
  Digraph graph;               // capacities: how many trees an arc may carry
  Ints box;        // per node its box; -1: a switch between boxes
  Marks rank;      // per node
  Amounts entries;  // per rank: how many trees may enter its box there; -1: any number
  Ints twin;       // per arc the one with which it shares its capacity, or -1
  int boxes = 0;
  Ints spread;     // per box: hops at most from where a tree enters to all of its ranks
};

// What hangs as one: a rank that is the root, and how many equal trees it stands for.
using Unit = std::pair<int, Amount>;

// How full every resource is and what it costs to use it once more. Resources are the arcs and,
// behind them, the nodes: a tree that enters a box at a rank takes one of that rank's entries.
// Arcs that share their capacity are one resource, known by the lesser number.
// The total overload is 0 exactly where no resource carries more than it may.
class Ledger {
 public:
  explicit Ledger(const BoxedGraph& boxed) : capacity_(boxed.graph.capacity) {
    for (Amount most : boxed.entries)
      capacity_.push_back(most < 0 ? std::numeric_limits<Amount>::max() : most);
    load_.assign(capacity_.size(), 0);
    cost_.resize(capacity_.size());
    price_.assign(capacity_.size(), 0);
    twin_ = boxed.twin;
    twin_.resize(capacity_.size(), -1);
    place_.assign(capacity_.size(), -1);
    for (int r : range(resources()))
      if (of(r) == r) reprice(r);
  }

  int of(int resource) const {
    return twin_[resource] < 0 ? resource : std::min(resource, twin_[resource]);
  }
  void add(int resource, Amount trees) {  // takes away those below 0
    resource = of(resource);
    const Amount before = excess(resource);
    load_[resource] += trees;
    const Amount after = excess(resource);
    overload_ += after - before;
    if (!before != !after) before ? unlist(resource) : list(resource);
    reprice(resource);
  }
  bool over(int resource) const { return place_[of(resource)] >= 0; }
  double cost(int resource) const { return cost_[resource]; }
  Amount overload() const { return overload_; }
  const Ints& overfull() const { return overfull_; }  // resources, in no order
  int resources() const { return number_of(load_); }

  // Of what is over its capacity.
  void raise_prices() {
    for (int r : overfull_) {
      const double capacity = static_cast<double>(std::max<Amount>(capacity_[r], 1));
      price_[r] += 0.3 + 3 * static_cast<double>(load_[r] - capacity_[r]) / capacity;
      reprice(r);
    }
    if (penalty_ == kMostPenalty) return;
    penalty_ = std::min(kMostPenalty, penalty_ * kGrowth);
    for (int r : range(resources()))
      if (of(r) == r && load_[r] >= capacity_[r]) reprice(r);
  }

 private:
  Amount excess(int r) const { return std::max<Amount>(0, load_[r] - capacity_[r]); }
  void reprice(int r) {
    if (capacity_[r] == std::numeric_limits<Amount>::max()) {
      cost_[r] = 0;
      return;
    }
    const double capacity = static_cast<double>(std::max<Amount>(capacity_[r], 1));
    const double filled = static_cast<double>(load_[r]) / capacity;
    double toll = kFirstPrice + price_[r];
    if (load_[r] >= capacity_[r]) {
      const double over = static_cast<double>(load_[r] + 1 - capacity_[r]);
      toll *= 1 + penalty_ * (1 + 4 * over / capacity);
    }
    cost_[r] = toll + 0.7 + 0.3 * filled * filled * filled * filled;
    if (twin_[r] >= 0) cost_[twin_[r]] = cost_[r];
  }
  void list(int r) {
    place_[r] = number_of(overfull_);
    overfull_.push_back(r);
  }
  void unlist(int r) {
    place_[overfull_.back()] = place_[r];
    overfull_[place_[r]] = overfull_.back();
    overfull_.pop_back();
    place_[r] = -1;
  }

  Amounts capacity_, load_;
  std::vector<double> price_, cost_;  // what it costs stands at both arcs of a pair
  Ints twin_;
  Ints overfull_, place_;  // place_: per resource where it stands in overfull_, or -1
  double penalty_ = 1;
  Amount overload_ = 0;
};

// A link between a rank and a switch, seen from its box.
struct SwitchPort {
  int arc, rank, relay;
};

// Cheapest routes over switches. A switch inside a box serves that box alone.
class Router {
 public:
  Router(const BoxedGraph& boxed, const Ledger& ledger) : boxed_(boxed), ledger_(ledger), out_at_(boxed.graph.nodes), in_(boxed.boxes), out_of_rank_(boxed.graph.nodes),
        leaving_(boxed.graph.nodes), entering_(boxed.graph.nodes), exits_(boxed.graph.nodes),
        pendant_(boxed.graph.nodes, 0),
        distance_(boxed.graph.nodes, kFar), via_(boxed.graph.nodes, -1) {
    const Digraph& graph = boxed.graph;
    for (int e : graph.arcs()) {
      const int u = graph.tail[e], v = graph.head[e];
      if (boxed.rank[u]) out_at_[v].push_back({e, u, v}), out_of_rank_[u].push_back({e, u, v});
      else if (boxed.rank[v]) in_[boxed.box[v]].push_back({e, v, u}), exits_[u].push_back(e);
      else leaving_[u].push_back(e), entering_[v].push_back(e);
    }
    for (int v : range(graph.nodes)) {
      if (boxed.rank[v] || boxed.box[v] < 0) continue;
      const auto inner = [&](int e) {
        return boxed.box[graph.tail[e]] == boxed.box[graph.head[e]];
      };
      pendant_[v] = std::ranges::none_of(leaving_[v], inner) &&
                    std::ranges::none_of(entering_[v], inner);
    }
  }

  const std::vector<SwitchPort>& out_at(int relay) const { return out_at_[relay]; }
  const std::vector<SwitchPort>& in(int box) const { return in_[box]; }

  // Distances of all switches from a rank's ports; or to the cheapest entry into a box, nearest
  // first: `near` is told every switch, and says up to what distance others matter.
  void search_from(int rank) {
    start();
    forward_ = true;
    leave_from(rank, 0);
    run(boxed_.box[rank], [](int) { return kFar; });
  }
  template <class Near>
  void search_to(int box, const Near& near) {
    start();
    forward_ = false;
    for (const SwitchPort& port : in_[box]) offer(entry_cost(port), port.relay, port.arc);
    run(box, near);
  }
  double distance(int relay) const { return distance_[relay]; }
  // The arcs from a switch to the box of search_to, or from the rank of search_from to a switch.
  void append_way(int relay, Ints& arcs) const {
    const Digraph& graph = boxed_.graph;
    const std::size_t first = arcs.size();
    for (int v = relay; !boxed_.rank[v];) {
      arcs.push_back(via_[v]);
      v = forward_ ? graph.tail[via_[v]] : graph.head[via_[v]];
    }
    if (forward_) std::reverse(arcs.begin() + first, arcs.end());
  }

  double entry_cost(const SwitchPort& port) const {
    return ledger_.cost(port.arc) + ledger_.cost(boxed_.graph.arc_count() + port.rank);
  }

  // Growth: ranks are entered nearest first, and become places to leave from when they are told.
  void start_growth() {
    start();
    forward_ = true;
  }
  void leave_from(int rank, double extra) {
    for (const SwitchPort& port : out_of_rank_[rank])
      offer(ledger_.cost(port.arc) + extra, port.relay, port.arc);
  }
  // The arc into the next rank that `wanted` takes, or -1. Costs that have risen are minded.
  // Items of the heap are switches and, behind the nodes, arcs into ranks.
  template <class Wanted>
  int next_entry(const Wanted& wanted) {
    const Digraph& graph = boxed_.graph;
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, std::greater<>());
      const auto [distance, item] = heap_.back();
      heap_.pop_back();
      if (item >= graph.nodes) {
        const int arc = item - graph.nodes, rank = graph.head[arc];
        if (!wanted(rank)) continue;
        const double cost = way_cost(graph.tail[arc]) + entry_cost({arc, rank, graph.tail[arc]});
        if (cost <= distance + kRisen) return arc;
        push(cost, item);
      } else if (distance <= distance_[item]) {
        for (int e : leaving_[item]) offer(distance + ledger_.cost(e), graph.head[e], e);
        for (int e : exits_[item]) {
          const SwitchPort port{e, graph.head[e], item};
          if (wanted(port.rank)) push(distance + entry_cost(port), graph.nodes + e);
        }
      }
    }
    return -1;
  }

 private:
  using Entry = std::pair<double, int>;
  void start() {
    for (int v : touched_) distance_[v] = kFar;
    touched_.clear();
    heap_.clear();
  }
  void offer(double distance, int relay, int arc) {
    if (distance >= distance_[relay]) return;
    if (distance_[relay] == kFar) touched_.push_back(relay);
    distance_[relay] = distance;
    via_[relay] = arc;
    if (pendant_[relay] && boxed_.rank[forward_ ? boxed_.graph.tail[arc] : boxed_.graph.head[arc]] == 0)
      return;  // no way leads on from there
    push(distance, relay);
  }
  template <class Near>
  void run(int home, const Near& near) {
    const Ints& box = boxed_.box;
    const auto& arcs = forward_ ? leaving_ : entering_;
    const Ints& end = forward_ ? boxed_.graph.head : boxed_.graph.tail;
    double limit = kFar;
    while (!heap_.empty()) {
      std::ranges::pop_heap(heap_, std::greater<>());
      const auto [distance, v] = heap_.back();
      heap_.pop_back();
      if (distance > distance_[v]) continue;
      if (distance > limit) return;
      limit = near(v);
      const bool open = box[v] < 0 || box[v] == home;
      for (int e : arcs[v]) {
        const int w = end[e];
        if (box[w] != box[v] && (!open || box[w] == home)) continue;
        const double far = distance + ledger_.cost(e);
        if (far >= std::min(limit, distance_[w])) continue;
        offer(far, w, e);
        if (pendant_[w]) limit = near(w);
      }
    }
  }
  void push(double distance, int item) {
    heap_.emplace_back(distance, item);
    std::ranges::push_heap(heap_, std::greater<>());
  }
  double way_cost(int relay) const {
    double cost = 0;
    for (int v = relay; !boxed_.rank[v]; v = boxed_.graph.tail[via_[v]])
      cost += ledger_.cost(via_[v]);
    return cost;
  }

  const BoxedGraph& boxed_;
  const Ledger& ledger_;
  std::vector<std::vector<SwitchPort>> out_at_, in_, out_of_rank_;
  Lists leaving_, entering_;  // per switch: arcs to and from other switches
  Lists exits_;  // per switch: arcs to ranks
  Marks pendant_;  // per switch: nothing but other boxes' business behind it
  std::vector<double> distance_;
  Ints via_, touched_;
  std::vector<Entry> heap_;
  bool forward_ = false;
};

}  // namespace forestcoll
