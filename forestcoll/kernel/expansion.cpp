#include "expansion.hpp"

#include <algorithm>
#include <unordered_map>

namespace forestcoll {
namespace {

// The tree's nodes without its root, parents before children, level by level.
std::vector<int> growth_order(const Batch& batch) {
  std::vector<std::vector<int>> children(batch.parent.size());
  for (std::size_t v = 0; v < batch.parent.size(); ++v)
    if (batch.parent[v] >= 0) children[batch.parent[v]].push_back(static_cast<int>(v));
  std::vector<int> order{batch.root};
  for (std::size_t i = 0; i < order.size(); ++i)
    for (int child : children[order[i]]) order.push_back(child);
  order.erase(order.begin());
  return order;
}

// The thinnest kind that holds `weight`, else the thickest.
PathUnits* choose(std::vector<PathUnits>& kinds, Amount weight) {
  PathUnits* best = nullptr;
  for (PathUnits& kind : kinds) {
    if (kind.count == 0) continue;
    const bool fits = kind.count >= weight;
    if (!best) best = &kind;
    else if (fits != (best->count >= weight) ? fits : fits == (kind.count < best->count)) best = &kind;
  }
  return best;
}

}  // namespace

std::vector<PathTree> expand(std::vector<Batch> batches, Logical logical, int nodes) {
  std::unordered_map<std::int64_t, int> link;
  for (std::size_t a = 0; a < logical.tail.size(); ++a)
    link[std::int64_t{logical.tail[a]} * nodes + logical.head[a]] = static_cast<int>(a);
  std::stable_sort(batches.begin(), batches.end(),
                   [](const Batch& a, const Batch& b) { return a.weight > b.weight; });
  std::vector<PathTree> trees;
  std::vector<PathUnits*> chosen;
  for (const Batch& batch : batches) {
    const std::vector<int> order = growth_order(batch);
    for (Amount left = batch.weight; left > 0;) {
      PathTree tree{batch.root, left, {}};
      chosen.clear();
      for (int v : order) {
        const auto found = link.find(std::int64_t{batch.parent[v]} * nodes + v);
        PathUnits* kind = found == link.end() ? nullptr : choose(logical.units[found->second], left);
        if (!kind) throw InternalError("trees use more of a link than it holds");
        tree.weight = std::min(tree.weight, kind->count);
        tree.paths.push_back(kind->path);
        chosen.push_back(kind);
      }
      for (PathUnits* kind : chosen) kind->count -= tree.weight;
      left -= tree.weight;
      trees.push_back(std::move(tree));
    }
  }
  return trees;
}

}  // namespace forestcoll
