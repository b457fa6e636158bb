#include "regular.hpp"

#include <algorithm>
#include <numeric>

namespace forestcoll {
namespace {

// Mixes bits (the finaliser of splitmix64, Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Replaces every look by its place among the distinct ones; returns how many there are.
int number(const std::vector<std::uint64_t>& look, std::vector<int>& colour) {
  std::vector<std::uint64_t> known = look;
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (std::size_t v = 0; v < look.size(); ++v)
    colour[v] =
        static_cast<int>(std::lower_bound(known.begin(), known.end(), look[v]) - known.begin());
  return static_cast<int>(known.size());
}

Amount leaving(const Digraph& graph, const std::vector<char>& inside) {
  Amount sum = 0;
  for (int e = 0; e < graph.arcs(); ++e)
    if (inside[graph.tail[e]] && !inside[graph.head[e]]) sum += graph.capacity[e];
  return sum;
}

CutRatio ratio(const Digraph& graph, const std::vector<int>& ranks,
               const std::vector<char>& inside) {
  CutRatio out;
  out.leaving = leaving(graph, inside);
  for (int v : ranks) out.ranks += inside[v];
  for (int v = 0; v < graph.nodes; ++v)
    if (inside[v]) out.inside.push_back(v);
  return out;
}

// The cut around all nodes but the sink that the least can enter, the start of the descent.
CutRatio all_but_one(const Digraph& graph, const std::vector<int>& ranks,
                     const std::vector<int>& sinks) {
  std::vector<Amount> into(graph.nodes, 0);
  for (int e = 0; e < graph.arcs(); ++e)
    if (graph.tail[e] != graph.head[e]) into[graph.head[e]] += graph.capacity[e];
  const int least = *std::min_element(sinks.begin(), sinks.end(),
                                      [&](int a, int b) { return into[a] < into[b]; });
  std::vector<char> inside(graph.nodes, 1);
  inside[least] = 0;
  return ratio(graph, ranks, inside);
}

}  // namespace

// Discrete Newton, as in `best_ratio`: a sink that got N x needs no second look at a smaller x.
CutRatio best_ratio_alike(const Digraph& graph, const std::vector<int>& ranks,
                          const std::vector<int>& sinks) {
  const auto count = static_cast<Amount>(ranks.size());
  CutRatio best = all_but_one(graph, ranks, sinks);
  Residual net(graph.nodes + 1);
  const int source = graph.nodes;
  for (int e = 0; e < graph.arcs(); ++e) net.add_arc(graph.tail[e], graph.head[e], 0);
  for (int v : ranks) net.add_arc(source, v, 0);
  for (std::size_t i = 0; i < sinks.size() && best.leaving > 0;) {
    const Amount g = std::gcd(best.leaving, best.ranks), p = best.leaving / g, q = best.ranks / g;
    for (int e = 0; e < graph.arcs(); ++e) net.set_capacity(2 * e, graph.capacity[e] * q);
    for (int r = 0; r < static_cast<int>(count); ++r) net.set_capacity(2 * (graph.arcs() + r), p);
    net.reset();
    if (net.push(source, sinks[i], count * p) == count * p) {
      ++i;
      continue;
    }
    std::vector<char> inside = net.reached(source);
    inside.pop_back();
    best = ratio(graph, ranks, inside);
  }
  return best;
}

std::vector<int> refine_colours(const Digraph& graph, std::vector<int> colour) {
  std::vector<std::uint64_t> look(graph.nodes);
  int count = 0;
  for (int round = 0; round <= graph.nodes; ++round) {
    for (int v = 0; v < graph.nodes; ++v) look[v] = mixed(static_cast<std::uint64_t>(colour[v]));
    for (int e = 0; e < graph.arcs(); ++e) {
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

std::vector<int> components(const Digraph& graph, const std::vector<char>& outside) {
  std::vector<int> parent(graph.nodes), label(graph.nodes, -1);
  std::iota(parent.begin(), parent.end(), 0);
  const auto find = [&](int v) {
    while (parent[v] != v) v = parent[v] = parent[parent[v]];
    return v;
  };
  for (int e = 0; e < graph.arcs(); ++e)
    if (!outside[graph.tail[e]] && !outside[graph.head[e]]) {
      const int a = find(graph.tail[e]), b = find(graph.head[e]);
      parent[std::max(a, b)] = std::min(a, b);
    }
  int count = 0;
  for (int v = 0; v < graph.nodes; ++v)
    if (!outside[v]) label[v] = parent[v] == v ? count++ : label[find(v)];
  return label;
}

std::vector<Amount> maximum_flow(const Digraph& graph, int source, int sink) {
  Residual net(graph.nodes);
  Amount most = 0;
  for (int e = 0; e < graph.arcs(); ++e) {
    net.add_arc(graph.tail[e], graph.head[e], graph.capacity[e]);
    if (graph.tail[e] == source) most += graph.capacity[e];
  }
  net.push(source, sink, most);
  std::vector<Amount> flow(graph.arcs());
  for (int e = 0; e < graph.arcs(); ++e) flow[e] = net.left(2 * e + 1);
  return flow;
}

}  // namespace forestcoll
