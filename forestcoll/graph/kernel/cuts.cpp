#include "cuts.hpp"

#include <numeric>

namespace forestcoll {
namespace {

std::vector<int> list(const std::vector<char>& inside, int nodes) {
  std::vector<int> out;
  for (int v = 0; v < nodes; ++v)
    if (inside[v]) out.push_back(v);
  return out;
}

Amount leaving(const Digraph& graph, const std::vector<char>& inside) {
  Amount sum = 0;
  for (int e = 0; e < graph.arcs(); ++e)
    if (inside[graph.tail[e]] && !inside[graph.head[e]]) sum += graph.capacity[e];
  return sum;
}

// The cut around everything but `node`, the start of the descent.
CutRatio all_but(const Digraph& graph, const std::vector<int>& ranks, int node) {
  std::vector<char> inside(graph.nodes, 1);
  inside[node] = 0;
  return {leaving(graph, inside), static_cast<Amount>(ranks.size()) - 1,
          list(inside, graph.nodes)};
}

}  // namespace

// Discrete Newton: as long as some rank cannot receive N x, its minimum cut has a smaller ratio.
// A rank that could receive N x at a larger x needs no second look.
CutRatio best_ratio(const Digraph& graph, const std::vector<int>& ranks) {
  const auto count = static_cast<Amount>(ranks.size());
  CutRatio best = all_but(graph, ranks, ranks[0]);
  for (int v : ranks) {
    CutRatio other = all_but(graph, ranks, v);
    if (other.leaving < best.leaving) best = std::move(other);
  }
  Residual net(graph.nodes + 1);
  const int source = graph.nodes;
  std::vector<int> arc(graph.arcs()), feed(ranks.size());
  for (int e = 0; e < graph.arcs(); ++e) arc[e] = net.add_arc(graph.tail[e], graph.head[e], 0);
  for (std::size_t i = 0; i < ranks.size(); ++i) feed[i] = net.add_arc(source, ranks[i], 0);

  bool cold = true;
  Amount p = 0, q = 1;
  for (std::size_t i = 0; i < ranks.size() && best.leaving > 0;) {
    if (cold) {
      const Amount g = std::gcd(best.leaving, best.ranks);
      p = best.leaving / g;
      q = best.ranks / g;
      for (int e = 0; e < graph.arcs(); ++e) net.set_capacity(arc[e], graph.capacity[e] * q);
      for (int e : feed) net.set_capacity(e, p);
      net.reset();
    }
    const int from = cold || i == 0 ? source : ranks[i - 1];
    if (net.push(from, ranks[i], count * p) == count * p) {
      cold = false;
      ++i;
      continue;
    }
    std::vector<char> inside = net.reached(from);
    best.leaving = leaving(graph, inside);
    best.ranks = 0;
    for (int v : ranks) best.ranks += inside[v];
    best.inside = list(inside, graph.nodes);
    cold = true;
  }
  return best;
}

CutRatio least_flow(const Digraph& graph, int source, const std::vector<int>& sinks) {
  Residual net(graph.nodes);
  for (int e = 0; e < graph.arcs(); ++e) net.add_arc(graph.tail[e], graph.head[e], graph.capacity[e]);
  std::vector<char> inside(graph.nodes, 0);
  inside[source] = 1;
  CutRatio best{leaving(graph, inside), 1, {source}};
  for (int sink : sinks) {
    if (sink == source) continue;
    net.reset();
    const Amount flow = net.push(source, sink, best.leaving);
    if (flow < best.leaving) best = {flow, 1, list(net.reached(source), graph.nodes)};
  }
  return best;
}

DemandCheck::DemandCheck(const Digraph& graph, const Demand& demand)
    : demand_(demand), total_(demand.total()), source_(graph.nodes), net_(graph.nodes + 1) {
  for (int e = 0; e < graph.arcs(); ++e) net_.add_arc(graph.tail[e], graph.head[e], 0);
  for (int v = 0; v < graph.nodes; ++v)
    if (demand.supply[v] > 0) net_.add_arc(source_, v, demand.supply[v]);
}

// All flow goes to the first sink; from there it is sent on to the second, and so on: a flow of the
// whole supply from sink to sink exists in the residual exactly if the next sink can have it all.
std::optional<Violation> DemandCheck::violated(const std::vector<Amount>& capacity, int from) {
  for (std::size_t e = 0; e < capacity.size(); ++e) net_.set_capacity(2 * static_cast<int>(e), capacity[e]);
  net_.reset();
  int at = source_;
  for (std::size_t i = from; i < demand_.sinks.size(); ++i) {
    const int sink = demand_.sinks[i];
    const Amount flow = net_.push(at, sink, total_);
    if (flow < total_) {
      std::vector<char> inside = net_.reached(at);
      inside.resize(source_);
      return Violation{static_cast<int>(i), total_ - flow, std::move(inside)};
    }
    at = sink;
  }
  return std::nullopt;
}

}  // namespace forestcoll
