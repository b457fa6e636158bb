#include "rehanging/routes.hpp"

#include <limits>

namespace forestcoll {

namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();
constexpr double kFirstPrice = 0.3, kMostPenalty = 60, kGrowth = 1.1;
constexpr double kRisen = 0.1;  // by so much costs may have risen since a way was found

}  // namespace

Ledger::Ledger(const BoxedGraph& boxed) : capacity_(boxed.graph.capacity) {
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

void Ledger::list(int r) {
  place_[r] = number_of(overfull_);
  overfull_.push_back(r);
}

void Ledger::unlist(int r) {
  place_[overfull_.back()] = place_[r];
  overfull_[place_[r]] = overfull_.back();
  overfull_.pop_back();
}

void Ledger::reprice(int r) {
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

void Ledger::raise_prices() {
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

Router::Router(const BoxedGraph& boxed, const Ledger& ledger)
    : boxed_(boxed), ledger_(ledger), out_at_(boxed.graph.nodes), in_(boxed.boxes), out_of_rank_(boxed.graph.nodes),
      leaving_(boxed.graph.nodes), entering_(boxed.graph.nodes), exits_(boxed.graph.nodes),
      pendant_(boxed.graph.nodes, 0),
      distance_(boxed.graph.nodes, kFar), via_(boxed.graph.nodes, -1) {
  const Digraph& graph = boxed.graph;
  for (int e : range(graph.arcs())) {
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

double Router::entry_cost(const SwitchPort& port) const {
  return ledger_.cost(port.arc) + ledger_.cost(boxed_.graph.arcs() + port.rank);
}

void Router::start() {
  for (int v : touched_) distance_[v] = kFar;
  touched_.clear();
  heap_.clear();
}

void Router::offer(double distance, int relay, int arc) {
  if (distance >= distance_[relay]) return;
  if (distance_[relay] == kFar) touched_.push_back(relay);
  distance_[relay] = distance;
  via_[relay] = arc;
  if (pendant_[relay] && boxed_.rank[forward_ ? boxed_.graph.tail[arc] : boxed_.graph.head[arc]] == 0)
    return;  // no way leads on from there
  push(distance, relay);
}

void Router::push(double distance, int item) {
  heap_.emplace_back(distance, item);
  std::ranges::push_heap(heap_, std::greater<>());
}

void Router::search_to(int box, const std::function<double(int)>& near) {
  start();
  forward_ = false;
  for (const SwitchPort& port : in_[box]) offer(entry_cost(port), port.relay, port.arc);
  run(box, near);
}

void Router::search_from(int rank) {
  start();
  forward_ = true;
  leave_from(rank, 0);
  run(boxed_.box[rank], [](int) { return kFar; });
}

void Router::run(int home, const std::function<double(int)>& near) {
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

void Router::start_growth() {
  start();
  forward_ = true;
}

void Router::leave_from(int rank, double extra) {
  for (const SwitchPort& port : out_of_rank_[rank])
    offer(ledger_.cost(port.arc) + extra, port.relay, port.arc);
}

// Items of the heap are switches and, behind the nodes, arcs into ranks.
int Router::next_entry(const std::function<bool(int)>& wanted) {
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

double Router::way_cost(int relay) const {
  double cost = 0;
  for (int v = relay; !boxed_.rank[v]; v = boxed_.graph.tail[via_[v]])
    cost += ledger_.cost(via_[v]);
  return cost;
}

void Router::append_way(int relay, Ints& arcs) const {
  const Digraph& graph = boxed_.graph;
  const std::size_t first = arcs.size();
  for (int v = relay; !boxed_.rank[v];) {
    arcs.push_back(via_[v]);
    v = forward_ ? graph.tail[via_[v]] : graph.head[via_[v]];
  }
  if (forward_) std::reverse(arcs.begin() + static_cast<std::ptrdiff_t>(first), arcs.end());
}

}  // namespace forestcoll
