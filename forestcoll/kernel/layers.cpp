#include <algorithm>
#include <set>

#include "flow.hpp"
#include "packing.hpp"

namespace forestcoll {
namespace {

// `units` of a root's trees enter a node from `parent`.
struct Share {
  int parent = 0;
  Amount units = 0;
};

// Hops from `root` along arcs that have capacity; -1 where there is no way.
std::vector<int> hops(const Digraph& graph, const std::vector<std::vector<int>>& out, int root) {
  std::vector<int> level(graph.nodes, -1), queue{root};
  level[root] = 0;
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (int e : out[queue[i]])
      if (const int v = graph.head[e]; level[v] < 0) {
        level[v] = level[queue[i]] + 1;
        queue.push_back(v);
      }
  return level;
}

// Divides the arcs into node v among the roots; per root its shares, or nothing if it cannot be done.
std::optional<std::vector<std::vector<Share>>> divide(const Digraph& graph,
                                                      const std::vector<int>& into,
                                                      const std::vector<std::vector<int>>& level,
                                                      const std::vector<int>& roots,
                                                      const std::vector<Amount>& supply, int v) {
  const int rows = static_cast<int>(roots.size()), columns = static_cast<int>(into.size());
  Residual net(rows + columns + 2);
  const int source = rows + columns, sink = source + 1;
  Amount wanted = 0;
  for (int e = 0; e < columns; ++e) net.add_arc(rows + e, sink, graph.capacity[into[e]]);
  std::vector<std::pair<int, int>> options;  // (row, column) of the arcs that follow, in order
  for (int i = 0; i < rows; ++i)
    for (int e = 0; e < columns; ++e)
      if (level[i][graph.tail[into[e]]] == level[i][v] - 1 && roots[i] != v) {
        net.add_arc(i, rows + e, supply[roots[i]]);
        options.emplace_back(i, e);
      }
  for (int i = 0; i < rows; ++i)
    if (roots[i] != v) {
      net.add_arc(source, i, supply[roots[i]]);
      wanted += supply[roots[i]];
    }
  if (net.push(source, sink, wanted) < wanted) return std::nullopt;
  std::vector<std::vector<Share>> shares(rows);
  for (std::size_t n = 0; n < options.size(); ++n)
    if (const Amount units = net.left(2 * (columns + static_cast<int>(n)) + 1); units > 0)
      shares[options[n].first].push_back({graph.tail[into[options[n].second]], units});
  return shares;
}

// One root's trees: every node's shares are laid along the line 0 .. supply, largest first; a tree
// holds from one border to the next.
void assemble(int root, Amount supply, std::vector<std::vector<Share>>& shares,
              std::vector<Batch>& batches) {
  std::set<Amount> borders{supply};
  for (std::vector<Share>& list : shares) {
    std::stable_sort(list.begin(), list.end(),
                     [](const Share& a, const Share& b) { return a.units > b.units; });
    Amount at = 0;
    for (const Share& share : list) borders.insert(at += share.units);
  }
  const int nodes = static_cast<int>(shares.size());
  std::vector<std::size_t> current(nodes, 0);
  std::vector<Amount> until(nodes, 0);
  Amount from = 0;
  for (const Amount border : borders) {
    Batch batch{root, border - from, std::vector<int>(nodes, -1)};
    for (int v = 0; v < nodes; ++v) {
      if (v == root) continue;
      while (until[v] <= from) until[v] += shares[v][current[v]++].units;
      batch.parent[v] = shares[v][current[v] - 1].parent;
    }
    batches.push_back(std::move(batch));
    from = border;
  }
}

}  // namespace

std::optional<std::vector<Batch>> pack_layered(const Digraph& graph,
                                               const std::vector<Amount>& supply) {
  std::vector<std::vector<int>> out(graph.nodes), into(graph.nodes), level;
  for (int e = 0; e < graph.arcs(); ++e) {
    if (graph.capacity[e] == 0) continue;
    out[graph.tail[e]].push_back(e);
    into[graph.head[e]].push_back(e);
  }
  std::vector<int> roots;
  for (int r = 0; r < graph.nodes; ++r)
    if (supply[r] > 0) {
      roots.push_back(r);
      level.push_back(hops(graph, out, r));
    }
  std::vector<std::vector<std::vector<Share>>> shares(  // root, node
      roots.size(), std::vector<std::vector<Share>>(graph.nodes));
  for (int v = 0; v < graph.nodes; ++v) {
    auto divided = divide(graph, into[v], level, roots, supply, v);
    if (!divided) return std::nullopt;
    for (std::size_t i = 0; i < roots.size(); ++i) shares[i][v] = std::move((*divided)[i]);
  }
  std::vector<Batch> batches;
  for (std::size_t i = 0; i < roots.size(); ++i)
    assemble(roots[i], supply[roots[i]], shares[i], batches);
  return batches;
}

}  // namespace forestcoll
