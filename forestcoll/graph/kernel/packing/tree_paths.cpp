#include "packing/packing.hpp"

namespace forestcoll {
namespace {

// The tree's nodes without its root, parents before children, level by level.
Ints growth_order(const Batch& batch) {
  Ints first(batch.parent.size(), -1), next(batch.parent.size());
  for (std::size_t v = batch.parent.size(); v-- > 0;)
    if (batch.parent[v] >= 0) next[v] = std::exchange(first[batch.parent[v]], static_cast<int>(v));
  Ints order{batch.root};
  order.reserve(batch.parent.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    for (int child = first[order[i]]; child >= 0; child = next[child]) order.push_back(child);
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

// Equal trees become one, where the first of them stood.
void merge(std::vector<PathTree>& trees) {
  std::map<std::pair<int, Ints>, std::size_t> place;
  Ints count;
  for (const PathTree& tree : trees) {
    count.resize(std::max(count.size(), static_cast<std::size_t>(tree.root) + 1));
    ++count[tree.root];
  }
  std::size_t kept = 0;
  for (PathTree& tree : trees) {
    if (count[tree.root] > 1) {
      // a tree's growth order follows from its links: equal trees name their paths in equal order
      const auto [it, fresh] = place.try_emplace({tree.root, tree.paths}, kept);
      if (!fresh) {
        trees[it->second].weight += tree.weight;
        continue;
      }
    }
    if (&trees[kept] != &tree) trees[kept] = std::move(tree);
    ++kept;
  }
  trees.resize(kept);
}

}  // namespace

std::vector<PathTree> expand(Batches batches, Logical logical) {
  ArcIndex link;
  for (int a : range(logical.tail))
    link.insert(logical.tail[a], logical.head[a]) = a;
  std::ranges::stable_sort(batches, std::greater(), &Batch::weight);
  std::vector<PathTree> trees;
  std::vector<PathUnits*> chosen;
  for (const Batch& batch : batches) {
    const Ints order = growth_order(batch);
    for (Amount left = batch.weight; left > 0;) {
      PathTree tree{batch.root, left, {}};
      chosen.clear();
      tree.paths.reserve(order.size());
      for (int v : order) {
        const int found = link.find(batch.parent[v], v);
        PathUnits* kind = found < 0 ? nullptr : choose(logical.units[found], left);
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
  merge(trees);
  return trees;
}

}  // namespace forestcoll
