#include "nesting.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>

#include "lowering.hpp"
#include "parallel.hpp"
#include "shares.hpp"
#include "tightening.hpp"
#include "transport.hpp"

namespace forestcoll {
namespace {

// Boxes numbered from 0; every node in none is a box of its own.
struct Boxes {
  std::vector<int> of;                    // per node
  std::vector<int> place;                 // per node, its position in its box
  std::vector<std::vector<int>> members;  // per box

  int count() const { return static_cast<int>(members.size()); }
};

// The groups of two and more nodes, numbered from 0; -1 for nodes in none.
std::vector<int> real_groups(const std::vector<int>& group) {
  std::map<int, int> size, number;
  for (int g : group) ++size[g];
  std::vector<int> box;
  for (int g : group) {
    const bool real = g >= 0 && size[g] > 1;
    box.push_back(real ? number.try_emplace(g, static_cast<int>(number.size())).first->second : -1);
  }
  return box;
}

Boxes number_boxes(const std::vector<int>& box) {
  Boxes boxes;
  std::map<int, int> number;
  for (std::size_t v = 0; v < box.size(); ++v) {
    int b = boxes.count();
    if (box[v] >= 0) b = number.try_emplace(box[v], b).first->second;
    if (b == boxes.count()) boxes.members.emplace_back();
    boxes.of.push_back(b);
    boxes.place.push_back(static_cast<int>(boxes.members[b].size()));
    boxes.members[b].push_back(static_cast<int>(v));
  }
  return boxes;
}

// Hops between boxes.
std::vector<std::vector<int>> box_levels(const Digraph& graph, const Boxes& boxes) {
  std::vector<std::vector<int>> out(boxes.count());
  for (int e = 0; e < graph.arcs(); ++e)
    if (graph.capacity[e] > 0) out[boxes.of[graph.tail[e]]].push_back(boxes.of[graph.head[e]]);
  for (std::vector<int>& list : out) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  std::vector<std::vector<int>> level(boxes.count(), std::vector<int>(boxes.count(), -1));
  for (int from = 0; from < boxes.count(); ++from) {
    std::vector<int> queue{from};
    level[from][from] = 0;
    for (std::size_t i = 0; i < queue.size(); ++i)
      for (int to : out[queue[i]])
        if (level[from][to] < 0) {
          level[from][to] = level[from][queue[i]] + 1;
          queue.push_back(to);
        }
  }
  return level;
}

// Which arc each root's trees enter box b by; false where it cannot be done in layers.
bool enter(const Digraph& graph, const Boxes& boxes, const std::vector<std::vector<int>>& level,
           const std::vector<int>& into, const std::vector<int>& roots,
           const std::vector<Amount>& supply, int b, Shares& shares) {
  thread_local Transport transport;
  transport.clear();
  std::vector<std::vector<int>> from(boxes.count());  // arcs, per box where they start
  for (int i = 0; i < static_cast<int>(into.size()); ++i) {
    transport.add_column(graph.capacity[into[i]]);
    from[boxes.of[graph.tail[into[i]]]].push_back(i);
  }
  for (int root : roots) {
    const std::vector<int>& hops = level[boxes.of[root]];
    const bool outside = boxes.of[root] != b;
    if (outside) {
      int own = -1;  // an arc that starts at the root itself saves a hop
      for (int i : from[boxes.of[root]])
        if (hops[b] == 1 && graph.tail[into[i]] == root) own = i;
      if (own >= 0) {
        transport.add_option(own);
        transport.prefer_first();
      }
      for (int other = 0; other < boxes.count(); ++other)
        if (hops[other] + 1 == hops[b])
          for (int i : from[other])
            if (i != own) transport.add_option(i);
    }
    transport.end_row(outside ? supply[root] : 0);
  }
  if (!transport.solve()) return false;
  for (int row = 0; row < transport.rows(); ++row) {
    transport.read(row, [&](int i, Amount units) { shares.add(into[i], units); });
    shares.end_root();
  }
  return true;
}

// Equal trees between boxes: the arc by which they enter each box, -1 for the root's own.
struct Outline {
  int root = 0;
  Amount weight = 0;
  std::vector<int> arc;
};

std::optional<std::vector<Outline>> between(const Digraph& graph, const Boxes& boxes,
                                            const std::vector<Amount>& supply) {
  std::vector<std::vector<int>> into(boxes.count());
  for (int e = 0; e < graph.arcs(); ++e) {
    const int b = boxes.of[graph.head[e]];
    if (graph.capacity[e] > 0 && boxes.of[graph.tail[e]] != b) into[b].push_back(e);
  }
  std::vector<int> roots;
  for (int r = 0; r < graph.nodes; ++r)
    if (supply[r] > 0) roots.push_back(r);
  const std::vector<std::vector<int>> level = box_levels(graph, boxes);
  std::vector<Shares> shares(boxes.count());
  std::atomic<bool> possible{true};
  parallel_for(boxes.count(), graph.arcs() > 10'000, [&](int b) {
    poll_signals();
    if (possible && !enter(graph, boxes, level, into[b], roots, supply, b, shares[b]))
      possible = false;
  });
  if (!possible) return std::nullopt;
  std::vector<Outline> outlines;
  for (std::size_t i = 0; i < roots.size(); ++i)
    lay_out(
        supply[roots[i]], boxes.count(), [&](int b) { return shares[b].of(static_cast<int>(i)); },
        [&](Amount weight, const std::vector<int>& arc) {
          outlines.push_back({roots[i], weight, arc});
        });
  return outlines;
}

// The links inside one box and how many trees start where.
struct Inside {
  Digraph graph;
  std::vector<Amount> supply;

  auto key() const { return std::tie(graph.nodes, graph.tail, graph.head, graph.capacity, supply); }
  bool operator<(const Inside& other) const { return key() < other.key(); }
};

// Per entry node, trees that span the box.
using Fans = std::vector<std::vector<Batch>>;

Fans solve_inside(const Inside& inside) {
  constexpr long kTries = 100'000;
  auto batches = pack_layered(inside.graph, inside.supply);
  if (!batches) {
    batches = pack_exact(inside.graph, inside.supply, 0);
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
                                     const std::vector<std::vector<Amount>>& entering,
                                     std::map<Inside, Fans>& solved) {
  std::vector<Inside> inside(boxes.count());
  for (int b = 0; b < boxes.count(); ++b) {
    inside[b].graph.nodes = static_cast<int>(boxes.members[b].size());
    inside[b].supply = entering[b];
  }
  for (int e = 0; e < graph.arcs(); ++e) {
    const int b = boxes.of[graph.tail[e]];
    if (graph.capacity[e] == 0 || boxes.of[graph.head[e]] != b) continue;
    inside[b].graph.tail.push_back(boxes.place[graph.tail[e]]);
    inside[b].graph.head.push_back(boxes.place[graph.head[e]]);
    inside[b].graph.capacity.push_back(graph.capacity[e]);
  }
  std::vector<std::pair<const Inside*, Fans*>> different;
  std::vector<const Fans*> fans;
  for (Inside& box : inside) {
    const auto [it, fresh] = solved.try_emplace(std::move(box));
    if (fresh) different.emplace_back(&it->first, &it->second);
    fans.push_back(&it->second);
  }
  parallel_for(static_cast<int>(different.size()), true,
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
    const int entry = this->entry(outline, b);
    const std::vector<Batch>& fan = (*fans_[b])[boxes_.place[entry]];
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
  Batch tree(const Outline& outline, Amount weight, const std::vector<int>& fan) const {
    Batch batch{outline.root, weight, std::vector<int>(graph_.nodes, -1)};
    for (int b = 0; b < boxes_.count(); ++b) {
      const int entry = this->entry(outline, b);
      if (outline.arc[b] >= 0) batch.parent[entry] = graph_.tail[outline.arc[b]];
      const std::vector<int>& members = boxes_.members[b];
      const Batch& local = (*fans_[b])[boxes_.place[entry]][fan[b]];
      for (std::size_t i = 0; i < members.size(); ++i)
        if (members[i] != entry) batch.parent[members[i]] = members[local.parent[i]];
    }
    return batch;
  }

 private:
  int entry(const Outline& outline, int b) const {
    return outline.arc[b] >= 0 ? graph_.head[outline.arc[b]] : outline.root;
  }

  const Digraph& graph_;
  const Boxes& boxes_;
  const std::vector<const Fans*>& fans_;
  std::vector<std::pair<int, Amount>> at_;  // per node: the next fan, and how much of it is used
};

}  // namespace

std::optional<std::vector<Batch>> pack_nested(const Digraph& graph, const std::vector<Amount>& supply,
                                              const std::vector<int>& group) {
  std::vector<int> box = real_groups(group);
  auto none = [&] { return std::all_of(box.begin(), box.end(), [](int b) { return b < 0; }); };
  if (none() || std::all_of(box.begin(), box.end(), [](int b) { return b == 0; }))
    return std::nullopt;
  Demand demand{supply, std::vector<int>(graph.nodes)};
  std::iota(demand.sinks.begin(), demand.sinks.end(), 0);
  Digraph lowered = graph;
  tighten(lowered, demand, box);
  if (none()) return std::nullopt;
  const Boxes boxes = number_boxes(box);
  const auto outlines = between(lowered, boxes, supply);
  if (!outlines) return std::nullopt;

  std::vector<std::vector<Amount>> entering(boxes.count());
  for (int b = 0; b < boxes.count(); ++b) entering[b].assign(boxes.members[b].size(), 0);
  for (const Outline& outline : *outlines)
    for (int b = 0; b < boxes.count(); ++b) {
      const int entry = outline.arc[b] >= 0 ? graph.head[outline.arc[b]] : outline.root;
      entering[b][boxes.place[entry]] += outline.weight;
    }
  std::map<Inside, Fans> solved;
  const std::vector<const Fans*> fans = solve_boxes(lowered, boxes, entering, solved);
  Handout handout(graph, boxes, fans);
  std::vector<Batch> batches;
  std::vector<std::vector<Share>> shares(boxes.count());
  for (const Outline& outline : *outlines) {
    for (int b = 0; b < boxes.count(); ++b) {
      shares[b].clear();
      handout.take(outline, b, shares[b]);
    }
    lay_out(
        outline.weight, boxes.count(), [&](int b) { return std::span<const Share>(shares[b]); },
        [&](Amount weight, const std::vector<int>& fan) {
          batches.push_back(handout.tree(outline, weight, fan));
        });
  }
  return batches;
}

}  // namespace forestcoll
