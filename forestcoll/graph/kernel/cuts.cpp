#include "cuts.hpp"

namespace forestcoll {
namespace {

Amount leaving(const Digraph& graph, const Marks& inside) {
  Amount sum = 0;
  for (int e : graph.arcs())
    if (inside[graph.tail[e]] && !inside[graph.head[e]]) sum += graph.capacity[e];
  return sum;
}

// Per node what may enter it from others.
Amounts entering(const Digraph& graph) {
  Amounts into(graph.nodes, 0);
  for (int e : graph.arcs())
    if (graph.tail[e] != graph.head[e]) into[graph.head[e]] += graph.capacity[e];
  return into;
}

// Mixes bits (the finaliser of splitmix64, Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Replaces every look by its place among the distinct ones; returns how many there are.
int number(const std::vector<std::uint64_t>& look, Ints& colour) {
  const std::vector<std::uint64_t> known = distinct(look);
  for (int v : range(look)) colour[v] = place_in(known, look[v]);
  return number_of(known);
}

}  // namespace

Ints list(const Marks& inside) {
  Ints out;
  for (int v : range(inside))
    if (inside[v]) out.push_back(v);
  return out;
}

// Discrete Newton: as long as some sink cannot receive everything at the rate x, its minimum cut has a
// smaller ratio, the next x. A sink that could receive all of it at a larger x needs no second look.
CutRatio best_ratio(const Digraph& graph, const Demand& demand) {
  const Amount total = demand.total();
  const Amounts into = entering(graph);
  CutRatio best;
  int start = -1;  // the descent begins with the cut around all nodes but this one
  for (int v : demand.sinks) {
    const Amount held = total - demand.supply[v];
    if (held == 0) continue;
    if (start >= 0 && static_cast<Wide>(into[v]) * best.held >= static_cast<Wide>(best.leaving) * held)
      continue;
    start = v;
    best = {into[v], held, {}};
  }
  Marks inside(graph.nodes, 1);
  inside[start] = 0;
  best.inside = list(inside);
  DemandCheck check(graph, demand);
  for (int from = 0; best.leaving > 0;) {
    const Amount g = std::gcd(best.leaving, best.held), q = best.held / g;
    Amounts capacity = graph.capacity;
    for (Amount& units : capacity) units *= q;
    const auto violation = check.violated(capacity, from, best.leaving / g);
    if (!violation) break;
    best = {leaving(graph, violation->inside), 0, list(violation->inside)};
    for (int v : best.inside) best.held += demand.supply[v];
    from = violation->sink;
  }
  return best;
}

CutRatio least_flow(const Digraph& graph, int source, const Ints& sinks) {
  Residual net(graph);
  Marks inside(graph.nodes, 0);
  inside[source] = 1;
  CutRatio best{leaving(graph, inside), 1, {source}};
  for (int sink : sinks) {
    if (sink == source) continue;
    net.reset();
    const Amount flow = net.push(source, sink, best.leaving);
    if (flow < best.leaving) best = {flow, 1, list(net.reached(source))};
  }
  return best;
}

DemandCheck::DemandCheck(const Digraph& graph, const Demand& demand)
    : demand_(demand), total_(demand.total()), source_(graph.nodes), net_(graph, 1) {
  for (int v : range(graph.nodes))
    if (demand.supply[v] > 0) feeds_.emplace_back(net_.add_arc(source_, v, 0), demand.supply[v]);
}

// All flow goes to the first sink; from there it is sent on to the second, and so on: a flow of the
// whole supply from sink to sink exists in the residual exactly if the next sink can have it all.
std::optional<Violation> DemandCheck::violated(const Amounts& capacity, int from,
                                               Amount times) {
  for (int e : range(capacity)) net_.set_capacity(2 * e, capacity[e]);
  for (const auto& [arc, supply] : feeds_) net_.set_capacity(arc, supply * times);
  net_.reset();
  int at = source_;
  for (std::size_t i = from; i < demand_.sinks.size(); ++i) {
    const int sink = demand_.sinks[i];
    const Amount missing = times * total_ - net_.push(at, sink, times * total_);
    if (missing > 0) {
      Marks inside = net_.reached(at);
      inside.resize(source_);
      return Violation{static_cast<int>(i), missing, std::move(inside)};
    }
    at = sink;
  }
  return std::nullopt;
}

Ints refine_colours(const Digraph& graph, Ints colour) {
  std::vector<std::uint64_t> look(graph.nodes);
  int count = 0;
  for (int round = 0; round <= graph.nodes; ++round) {
    for (int v : range(graph.nodes)) look[v] = mixed(static_cast<std::uint64_t>(colour[v]));
    for (int e : graph.arcs()) {
      const int u = graph.tail[e], v = graph.head[e];
      const std::uint64_t width = mixed(static_cast<std::uint64_t>(graph.capacity[e]));
      look[u] += mixed(width ^ mixed(2 * static_cast<std::uint64_t>(colour[v])));
      look[v] += mixed(width ^ mixed(2 * static_cast<std::uint64_t>(colour[u]) + 1));
    }
    const int found = number(look, colour);
    if (found == count) break;
    count = found;
    if (round % 16 == 15) poll_signals();
  }
  return colour;
}

Ints components(const Digraph& graph, const Marks& outside) {
  Ints parent = numbers(graph.nodes), label(graph.nodes, -1);
  const auto find = [&](int v) {
    while (parent[v] != v) v = parent[v] = parent[parent[v]];
    return v;
  };
  for (int e : graph.arcs())
    if (!outside[graph.tail[e]] && !outside[graph.head[e]]) {
      const int a = find(graph.tail[e]), b = find(graph.head[e]);
      parent[std::max(a, b)] = std::min(a, b);
    }
  int count = 0;
  for (int v : range(graph.nodes))
    if (!outside[v]) label[v] = parent[v] == v ? count++ : label[find(v)];
  return label;
}

Amounts maximum_flow(const Digraph& graph, int source, int sink) {
  Residual net(graph);
  net.push(source, sink, kInfinite);
  Amounts flow(graph.arc_count());
  for (int e : graph.arcs()) flow[e] = net.left(2 * e + 1);
  return flow;
}

}  // namespace forestcoll
