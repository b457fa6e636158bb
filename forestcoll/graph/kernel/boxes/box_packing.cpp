#include "boxes/boxes.hpp"

#include "packing/packing.hpp"
#include "parallel.hpp"
#include "packing/shares.hpp"

namespace forestcoll {
namespace {

// The groups of two and more nodes, numbered from 0; -1 for nodes in none.
Ints real_groups(const Ints& group) {
  std::map<int, int> size, number;
  for (int g : group) ++size[g];
  Ints box;
  for (int g : group) {
    const bool real = g >= 0 && size[g] > 1;
    box.push_back(real ? number.try_emplace(g, number_of(number)).first->second : -1);
  }
  return box;
}

// The links inside one box and how many trees start where.
struct Inside {
  Digraph graph;
  Amounts supply;

  auto key() const { return std::tie(graph.nodes, graph.tail, graph.head, graph.capacity, supply); }
  bool operator<(const Inside& other) const { return key() < other.key(); }
};

// Per entry node, trees that span the box.
using Fans = std::vector<Batches>;

Fans solve_inside(const Inside& inside) {
  constexpr long kTries = 100'000;
  auto batches = pack_layered(inside.graph, inside.supply);
  if (!batches) {
    batches = pack_exact(inside.graph, inside.supply);
    lower_trees(inside.graph, *batches, kTries);
  }
  Fans fans(inside.graph.nodes);
  for (Batch& batch : *batches) {
    const int root = batch.root;
    fans[root].push_back(std::move(batch));
  }
  return fans;
}

// Solves every box; boxes alike share their solution.
std::vector<const Fans*> solve_boxes(const Digraph& graph, const Boxes& boxes,
                                     const std::vector<Amounts>& entering,
                                     std::map<Inside, Fans>& solved) {
  std::vector<Inside> inside(boxes.count());
  for (int b : range(boxes.count())) {
    inside[b].graph.nodes = number_of(boxes.members[b]);
    inside[b].supply = entering[b];
  }
  for (int e : graph.arcs()) {
    const int b = boxes.of[graph.tail[e]];
    if (graph.capacity[e] == 0 || boxes.of[graph.head[e]] != b) continue;
    inside[b].graph.add(boxes.place[graph.tail[e]], boxes.place[graph.head[e]], graph.capacity[e]);
  }
  std::vector<std::pair<const Inside*, Fans*>> different;
  std::vector<const Fans*> fans;
  for (Inside& box : inside) {
    const auto [it, fresh] = solved.try_emplace(std::move(box));
    if (fresh) different.emplace_back(&it->first, &it->second);
    fans.push_back(&it->second);
  }
  parallel_for(number_of(different), true,
               [&](int i) { *different[i].second = solve_inside(*different[i].first); });
  return fans;
}

// Hands the trees that enter a node of a box out to the outlines that enter there, in order: boxes
// alike hand the same tree to the same outline.
class Handout {
 public:
  Handout(const Digraph& graph, const Boxes& boxes, const std::vector<const Fans*>& fans)
      : graph_(graph), boxes_(boxes), fans_(fans), at_(graph.nodes, {0, 0}) {}

  // The trees that `outline` is given in box b: shares of fan numbers at its entry.
  void take(const Outline& outline, int b, std::vector<Share>& shares) {
    const int entry = outline.entry(graph_, b);
    const Batches& fan = (*fans_[b])[boxes_.place[entry]];
    auto& [next, used] = at_[entry];
    for (Amount left = outline.weight; left > 0;) {
      const Amount units = std::min(left, fan[next].weight - used);
      shares.push_back({next, units});
      left -= units;
      used += units;
      if (used == fan[next].weight) {
        ++next;
        used = 0;
      }
    }
  }

  // The whole tree of an outline that was given tree number fan[b] in every box b.
  Batch tree(const Outline& outline, Amount weight, const Ints& fan) const {
    Batch batch{outline.root, weight, Ints(graph_.nodes, -1)};
    for (int b : range(boxes_.count())) {
      const int entry = outline.entry(graph_, b);
      if (outline.arc[b] >= 0) batch.parent[entry] = graph_.tail[outline.arc[b]];
      const Ints& members = boxes_.members[b];
      const Batch& local = (*fans_[b])[boxes_.place[entry]][fan[b]];
      for (int i : range(members))
        if (members[i] != entry) batch.parent[members[i]] = members[local.parent[i]];
    }
    return batch;
  }

 private:
  const Digraph& graph_;
  const Boxes& boxes_;
  const std::vector<const Fans*>& fans_;
  std::vector<std::pair<int, Amount>> at_;  // per node: the next fan, and how much of it is used
};

}  // namespace

std::optional<Batches> pack_nested(const Digraph& graph, const Amounts& supply,
                                              const Ints& group) {
  Ints box = real_groups(group);
  auto none = [&] { return std::ranges::all_of(box, [](int b) { return b < 0; }); };
  if (none() || std::ranges::all_of(box, [](int b) { return b == 0; }))
    return std::nullopt;
  const Demand demand{supply, numbers(graph.nodes)};
  Digraph lowered = graph;
  tighten(lowered, demand, box);
  if (none()) return std::nullopt;
  const Boxes boxes = number_boxes(box);
  const Outlines outlines = outline(lowered, boxes, supply);

  std::vector<Amounts> entering(boxes.count());
  for (int b : range(boxes.count())) entering[b].assign(boxes.members[b].size(), 0);
  for (const Outline& outline : outlines)
    for (int b : range(boxes.count())) entering[b][boxes.place[outline.entry(graph, b)]] += outline.weight;
  std::map<Inside, Fans> solved;
  const std::vector<const Fans*> fans = solve_boxes(lowered, boxes, entering, solved);
  Handout handout(graph, boxes, fans);
  Batches batches;
  std::vector<std::vector<Share>> shares(boxes.count());
  for (const Outline& outline : outlines) {
    for (int b : range(boxes.count())) {
      shares[b].clear();
      handout.take(outline, b, shares[b]);
    }
    lay_out(
        outline.weight, boxes.count(), [&](int b) { return std::span<const Share>(shares[b]); },
        [&](Amount weight, const Ints& fan) {
          batches.push_back(handout.tree(outline, weight, fan));
        });
  }
  return batches;
}

}  // namespace forestcoll
