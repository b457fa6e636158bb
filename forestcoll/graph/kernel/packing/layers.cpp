#include <atomic>
#include <span>

#include "packing/packing.hpp"
#include "parallel.hpp"
#include "packing/shares.hpp"
#include "packing/transport.hpp"

namespace forestcoll {
namespace {

// Hops from each root to each node along arcs that have capacity; kNowhere where there is no way.
class Levels {
 public:
  static constexpr std::uint16_t kNowhere = 0xffff;

  Levels(const Digraph& graph, const Ints& roots)
      : roots_(roots.size()), level_(roots.size() * graph.nodes, kNowhere) {
    const Lists out = neighbours(graph);
    parallel_for(number_of(roots), level_.size() > 10'000, [&](int i) {
      const Ints hops = hops_from(out, roots[i], kNowhere);
      for (int v : range(graph.nodes))
        level_[v * roots_ + i] = static_cast<std::uint16_t>(hops[v]);
    });
  }

  // The levels of one node, seen from each root.
  std::span<const std::uint16_t> at(int v) const { return {level_.data() + v * roots_, roots_}; }

 private:
  std::size_t roots_;
  std::vector<std::uint16_t> level_;  // by node, then root
};

constexpr std::size_t kBlock = 64;  // roots that are looked at together: few have use for an arc

// Whether some level is the next one there. Without a way out of the loop: several at a time.
bool any_next(std::span<const std::uint16_t> there, std::span<const std::uint16_t> here) {
  std::uint16_t found = 0;
  for (int i : range(there))
    found |= static_cast<std::uint16_t>(there[i] + 1) == here[i] && here[i] != 0;
  return found != 0;
}

// Divides the arcs into node v among the roots: their parents of v; false where it cannot be done.
bool divide(const Digraph& graph, const Ints& into, const Levels& levels,
            const Ints& roots, const Amounts& supply, int v,
            Shares& shares) {
  thread_local Transport transport;
  thread_local Lists options;  // per root, arcs
  transport.clear();
  options.resize(std::max(options.size(), roots.size()));
  const auto here = levels.at(v);
  for (int e : range(into)) {
    transport.add_column(graph.capacity[into[e]]);
    const auto there = levels.at(graph.tail[into[e]]);
    for (std::size_t from = 0; from < roots.size(); from += kBlock) {
      const std::size_t to = std::min(from + kBlock, roots.size());
      if (!any_next(there.subspan(from, to - from), here.subspan(from, to - from))) continue;
      for (std::size_t i = from; i < to; ++i)
        if (there[i] + 1 == here[i]) options[i].push_back(e);
    }
  }
  for (int i : range(roots)) {
    for (int e : options[i]) transport.add_option(e);
    options[i].clear();
    transport.end_row(roots[i] == v ? 0 : supply[roots[i]]);
  }
  if (!transport.solve()) return false;
  for (int i : range(roots)) {
    transport.read(i,
                   [&](int e, Amount units) { shares.add(graph.tail[into[e]], units); });
    shares.end_root();
  }
  return true;
}

}  // namespace

std::optional<Batches> pack_layered(const Digraph& graph,
                                               const Amounts& supply) {
  const Lists into = graph.arcs_by(graph.head);
  Ints roots;
  for (int r : range(graph.nodes))
    if (supply[r] > 0) roots.push_back(r);
  const int count = number_of(roots);
  const bool heavy = static_cast<long>(count) * graph.nodes > 10'000;
  const Levels levels(graph, roots);
  std::vector<Shares> shares(graph.nodes);
  std::atomic<bool> possible{true};
  parallel_for(graph.nodes, heavy, [&](int v) {
    if (v % 16 == 0) poll_signals();
    if (possible && !divide(graph, into[v], levels, roots, supply, v, shares[v])) possible = false;
  });
  if (!possible) return std::nullopt;
  std::vector<Batches> packed(count);
  parallel_for(count, heavy, [&](int i) {
    auto add = [&](Amount weight, const Ints& parent) {
      packed[i].push_back({roots[i], weight, parent});
    };
    lay_out(supply[roots[i]], graph.nodes, [&](int v) { return shares[v].of(i); }, add);
  });
  Batches batches;
  for (Batches& list : packed)
    for (Batch& batch : list) batches.push_back(std::move(batch));
  return batches;
}

}  // namespace forestcoll
