#include "boxes/boxes.hpp"

#include "packing/packing.hpp"
#include "parallel.hpp"
#include "packing/shares.hpp"
#include "packing/transport.hpp"

namespace forestcoll {
namespace {

constexpr int kRounds = 12;           // of raising levels
constexpr long kLoweringTries = 200'000;  // of lowering what exact packing made: a tenth of a second

// Whether trees may take a way into a box: one that they would take if there were room for all, one
// that is only good where there is not, or none.
enum class Way { kNone, kShort, kLong };

// Hops between boxes, from each to each; as many as there are boxes where there is no way.
Lists box_hops(const Digraph& graph, const Boxes& boxes) {
  Lists out(boxes.count());
  for (int e : graph.arcs())
    if (graph.capacity[e] > 0) out[boxes.of[graph.tail[e]]].push_back(boxes.of[graph.head[e]]);
  for (Ints& list : out) list = distinct(std::move(list));
  Lists hops;
  for (int from : range(boxes.count()))
    hops.push_back(hops_from(out, from, boxes.count()));
  return hops;
}

// Trees of one root and one class.
struct Stream {
  int root = 0;
  Amount weight = 0;
  int kind = 0;
};
using Streams = std::vector<Stream>;

// What trees of one class lack at a box.
struct Lack {
  int kind = 0, box = 0;
  Amount units = 0;
};
using Lacks = std::vector<Lack>;

// All trees, in classes. A class has a level for each box: its trees enter a box from one of a smaller
// level, so that no circle can close. At first those that start in one box are a class, and levels
// are hops. Where some of a class cannot enter a box like that, that many go round, over a box more.
class Classes {
 public:
  Classes(const Digraph& graph, const Boxes& boxes, const Amounts& supply)
      : hops_(box_hops(graph, boxes)), level_(hops_) {
    for (int b : range(boxes.count())) {
      home_.push_back(b);
      for (int r : boxes.members[b])
        if (supply[r] > 0) streams_.push_back({r, supply[r], b});
    }
  }

  const Streams& streams() const { return streams_; }

  Way way(int stream, int other, int box) const {
    const int kind = streams_[stream].kind;
    if (level_[kind][other] >= level_[kind][box]) return Way::kNone;
    return hops_[home_[kind]][other] < hops_[home_[kind]][box] ? Way::kShort : Way::kLong;
  }

  // Raises the level of the boxes where something is lacking, for no more of each class than is: in as
  // many parts as there can be, each of which goes round to some of the boxes and straight to others.
  // False where that leads too far.
  bool refine(const Lacks& lacks) {
    std::map<int, Lacks> of;
    for (const Lack& lack : lacks) of[lack.kind].push_back(lack);
    for (const auto& [kind, list] : of) {
      Amount most = 0, weight = 0;
      for (const Lack& lack : list) most = std::max(most, lack.units);
      for (const Stream& stream : streams_)
        if (stream.kind == kind) weight += stream.weight;
      const auto parts = static_cast<int>(
          std::min({weight / most, static_cast<Amount>(list.size()), static_cast<Amount>(kParts)}));
      const Ints kinds = divide(kind, weight, std::max(1, parts));
      for (int i : range(list)) ++level_[kinds[i % kinds.size()]][list[i].box];
    }
    return streams_.size() < kStreams * hops_.size() + 1'000;
  }

 private:
  static constexpr int kParts = 64;
  static constexpr std::size_t kStreams = 64;  // a box, on the average

  // Makes `parts` classes of one, of nearly equal weight; returns them.
  Ints divide(int kind, Amount weight, int parts) {
    Ints kinds{kind};
    for (int p = 1; p < parts; ++p) {
      kinds.push_back(number_of(level_));
      level_.push_back(Ints(level_[kind]));
      home_.push_back(home_[kind]);
    }
    Streams after;
    Amount from = 0;
    int at = 0;
    auto end = [&](int part) { return weight / parts * (part + 1) + weight % parts * (part + 1) / parts; };
    for (const Stream& stream : streams_) {
      if (stream.kind != kind) {
        after.push_back(stream);
        continue;
      }
      for (Amount left = stream.weight; left > 0;) {  // up to where the next part begins
        while (at + 1 < parts && from >= end(at)) ++at;
        const Amount units = at + 1 < parts ? std::min(left, end(at) - from) : left;
        after.push_back({stream.root, units, kinds[at]});
        from += units;
        left -= units;
      }
    }
    streams_ = std::move(after);
    return kinds;
  }

  Lists hops_;   // per box and box
  Lists level_;  // per class and box
  Ints home_;                // per class
  Streams streams_;
};

class Outliner {
 public:
  Outliner(const Digraph& graph, const Boxes& boxes, const Amounts& supply)
      : graph_(graph), boxes_(boxes), supply_(supply), into_(boxes.count()) {
    for (int e : graph.arcs()) {
      const int b = boxes.of[graph.head[e]];
      if (graph.capacity[e] > 0 && boxes.of[graph.tail[e]] != b) into_[b].push_back(e);
    }
  }

  // Layer by layer; nothing where classes do not come to rest.
  std::optional<Outlines> layered() {
    Classes classes(graph_, boxes_, supply_);
    for (int round = 0; round < kRounds; ++round) {
      const Lacks lacks =
          enter_all(classes.streams(),
                    [&](int stream, int other, int b) { return classes.way(stream, other, b); });
      if (lacks.empty()) return laid_out(classes.streams());
      if (!classes.refine(lacks)) break;
    }
    return std::nullopt;
  }

  // Tree by tree of boxes, which are nodes now.
  Outlines exact() {
    const Batches batches = packed_boxes();
    Streams streams;
    std::vector<const Ints*> parents;
    Amounts left = supply_;
    std::vector<std::size_t> next(boxes_.count(), 0);
    for (const Batch& batch : batches)
      for (Amount weight = batch.weight; weight > 0;) {
        const Ints& members = boxes_.members[batch.root];
        const int root = members[next[batch.root]];
        const Amount units = std::min(weight, left[root]);
        if (units > 0) {
          streams.push_back({root, units, 0});
          parents.push_back(&batch.parent);
        }
        weight -= units;
        if ((left[root] -= units) == 0) ++next[batch.root];
      }
    auto may = [&](int stream, int other, int b) {
      return (*parents[stream])[b] == other ? Way::kShort : Way::kNone;
    };
    if (!enter_all(streams, may).empty())
      throw InternalError("trees between boxes use more than there is");
    return laid_out(streams);
  }

 private:
  Batches packed_boxes() const {
    Digraph graph;
    graph.nodes = boxes_.count();
    Amounts supply(boxes_.count(), 0);
    for (int v : range(graph_.nodes)) supply[boxes_.of[v]] += supply_[v];
    for (int b : range(boxes_.count())) {
      std::map<int, Amount> from;
      for (int e : into_[b]) from[boxes_.of[graph_.tail[e]]] += graph_.capacity[e];
      for (const auto& [other, units] : from) graph.add(other, b, units);
    }
    Batches batches = pack_exact(graph, supply);
    lower_trees(graph, batches, kLoweringTries);
    return batches;
  }

  // Gives every stream its arcs into every box, from boxes that it `may` come from. Returns what could
  // not be given.
  template <typename May>
  Lacks enter_all(const Streams& streams, const May& may) {
    shares_.assign(boxes_.count(), {});
    std::vector<Lacks> lacking(boxes_.count());
    parallel_for(boxes_.count(), graph_.arc_count() > 10'000, [&](int b) {
      poll_signals();
      lacking[b] = enter(streams, may, b);
    });
    Lacks all;
    for (const Lacks& list : lacking) append(all, list);
    return all;
  }

  template <typename May>
  Lacks enter(const Streams& streams, const May& may, int b) {
    thread_local Transport transport;
    transport.clear();
    const Ints& into = into_[b];
    std::map<int, Ints> from;  // arcs, per box where they start
    for (int i : range(into)) {
      transport.add_column(graph_.capacity[into[i]]);
      from[boxes_.of[graph_.tail[into[i]]]].push_back(i);
    }
    for (int s : range(streams)) {
      const int root = streams[s].root;
      const bool outside = boxes_.of[root] != b;
      if (outside) offer(transport, b, from, root, [&](int other) { return may(s, other, b); });
      transport.end_row(outside ? streams[s].weight : 0);
    }
    transport.solve(false);
    std::map<int, Amount> lacking;
    for (int row : range(transport.rows())) {
      if (transport.missing(row) > 0) lacking[streams[row].kind] += transport.missing(row);
      transport.read(row, [&](int i, Amount units) { shares_[b].add(into[i], units); });
      shares_[b].end_root();
    }
    Lacks list;
    for (const auto& [kind, units] : lacking) list.push_back({kind, b, units});
    return list;
  }

  // The options of a root's row. An arc that starts at the root itself saves a hop.
  template <typename May>
  void offer(Transport& transport, int b, const std::map<int, Ints>& from, int root,
             const May& may) const {
    int own = -1;
    bool far = false;
    for (const auto& [other, arcs] : from) {
      const Way way = may(other);
      far |= way == Way::kLong;
      if (way != Way::kShort || other != boxes_.of[root]) continue;
      for (int i : arcs)
        if (graph_.tail[into_[b][i]] == root) own = i;
    }
    if (own >= 0) {
      transport.add_option(own);
      transport.prefer();
    }
    for (const Way wanted : {Way::kShort, Way::kLong}) {
      if (wanted == Way::kLong && far) transport.prefer();
      for (const auto& [other, arcs] : from)
        if (may(other) == wanted)
          for (int i : arcs)
            if (i != own) transport.add_option(i);
      if (!far) break;
    }
  }

  Outlines laid_out(const Streams& streams) const {
    Outlines outlines;
    for (int s : range(streams))
      lay_out(
          streams[s].weight, boxes_.count(),
          [&](int b) { return shares_[b].of(s); },
          [&](Amount weight, const Ints& arc) {
            outlines.push_back({streams[s].root, weight, arc});
          });
    return outlines;
  }

  const Digraph& graph_;
  const Boxes& boxes_;
  const Amounts& supply_;
  Lists into_;  // per box, arcs from other boxes
  std::vector<Shares> shares_;          // per box
};

}  // namespace

Boxes number_boxes(const Ints& box) {
  Boxes boxes;
  std::map<int, int> number;
  for (int v : range(box)) {
    int b = boxes.count();
    if (box[v] >= 0) b = number.try_emplace(box[v], b).first->second;
    if (b == boxes.count()) boxes.members.emplace_back();
    boxes.of.push_back(b);
    boxes.place.push_back(number_of(boxes.members[b]));
    boxes.members[b].push_back(v);
  }
  return boxes;
}

Outlines outline(const Digraph& graph, const Boxes& boxes,
                             const Amounts& supply) {
  Outliner outliner(graph, boxes, supply);
  auto layered = outliner.layered();
  return layered ? std::move(*layered) : outliner.exact();
}

}  // namespace forestcoll
