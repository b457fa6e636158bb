#include "boxes/boxes.hpp"

#include "cuts.hpp"

namespace forestcoll {
namespace {

class Tightening {
 public:
  Tightening(Digraph& graph, const Demand& demand, const Ints& box)
      : graph_(graph), demand_(demand), box_(box), check_(graph, demand), blocked_(graph.arc_count(), 0),
        taken_(graph.arc_count(), 0) {
    for (int b : box) boxes_ = std::max(boxes_, b + 1);
    into_.resize(boxes_);
    rooted_.resize(boxes_ + graph.nodes);
    for (int v : range(graph.nodes)) rooted_[origin(v)] += demand.supply[v];
    for (int e : graph.arcs()) {
      const int b = box[graph.head[e]];
      if (b >= 0 && box[graph.tail[e]] != b) into_[b].push_back(e);
    }
  }

  // Per box whether it is tight now.
  Marks run() {
    Amounts surplus = surpluses();
    for (bool progress = true; progress;) {
      for (int b : range(boxes_)) propose(b, surplus[b]);
      if (std::ranges::none_of(taken_, [](Amount units) { return units > 0; })) break;
      progress = apply();
      surplus = surpluses();
    }
    Marks tight;
    for (Amount units : surplus) tight.push_back(units == 0);
    return tight;
  }

 private:
  // What enters each box beyond one arrival of every tree rooted outside.
  Amounts surpluses() const {
    Amounts surplus(boxes_, -demand_.total());
    for (int b : range(boxes_))
      for (int e : into_[b]) surplus[b] += graph_.capacity[e];
    for (int v : range(graph_.nodes))
      if (box_[v] >= 0) surplus[box_[v]] += demand_.supply[v];
    return surplus;
  }

  // Marks what to take off box b's links, evenly: first what any box sends beyond the trees rooted in
  // it, for those can then still come straight from there; then from all of them.
  void propose(int b, Amount surplus) {
    std::map<int, Source> from;
    Ints all;
    for (int e : into_[b]) {
      Source& source = from[origin(graph_.tail[e])];
      source.beyond += graph_.capacity[e];
      if (blocked_[e]) continue;
      source.links.push_back(e);
      all.push_back(e);
    }
    std::vector<std::pair<Amount, const Source*>> room;
    for (auto& [start, source] : from) {
      source.beyond -= rooted_[start];
      if (source.beyond > 0) room.emplace_back(source.beyond, &source);
    }
    const Amount wanted = surplus;
    divide(room, wanted, [&](const Source* source, Amount units) {
      surplus -= take(source->links, units);
    });
    take(all, surplus);
  }

  // Takes `units` off these links, or all they have: first what they hold beyond the trees rooted at
  // their start. Returns how many it took.
  Amount take(const Ints& links, Amount units) {
    const Amount wanted = units;
    for (const bool beyond : {true, false}) {
      std::vector<std::pair<Amount, int>> room;
      for (int e : links) {
        const Amount keep = beyond ? demand_.supply[graph_.tail[e]] : 0;
        const Amount most = graph_.capacity[e] - taken_[e] - keep;
        if (most > 0) room.emplace_back(most, e);
      }
      divide(room, units, [&](int e, Amount part) {
        taken_[e] += part;
        units -= part;
      });
    }
    return wanted - units;
  }

  // Calls use(whose, part) with parts of `amount`, as even as the rooms allow.
  template <typename Whose, typename Use>
  static void divide(std::vector<std::pair<Amount, Whose>>& room, Amount amount, const Use& use) {
    std::ranges::stable_sort(room, {}, &std::pair<Amount, Whose>::first);
    auto sharers = static_cast<Amount>(room.size());
    for (const auto& [most, whose] : room) {  // small ones first: the larger ones make up for them
      const Amount part = std::min(most, amount / sharers--);
      amount -= part;
      use(whose, part);
    }
  }

  // The box where a link starts, or else a number for its node alone.
  int origin(int v) const { return box_[v] >= 0 ? box_[v] : boxes_ + v; }

  // Takes off what the demand survives. Links that leave a cut that objects stay as they are.
  bool apply() {
    int from = 0;
    for (;;) {
      Amounts capacity = graph_.capacity;
      for (int e : graph_.arcs()) capacity[e] -= taken_[e];
      const auto violation = check_.violated(capacity, from);
      if (!violation) break;
      from = violation->sink;
      give_back(violation->inside, violation->short_by);
    }
    bool any = false;
    for (int e : graph_.arcs()) {
      any |= taken_[e] > 0;
      graph_.capacity[e] -= taken_[e];
      taken_[e] = 0;
    }
    return any;
  }

  void give_back(const Marks& inside, Amount amount) {
    std::vector<Amount*> hit;
    for (int e : graph_.arcs()) {
      if (!inside[graph_.tail[e]] || inside[graph_.head[e]]) continue;
      blocked_[e] = 1;
      if (taken_[e] > 0) hit.push_back(&taken_[e]);
    }
    if (take_evenly(hit, amount) > 0) throw InternalError("a cut is violated that no lowered link crosses");
  }

  struct Source {
    Amount beyond = 0;  // what comes from there over what is rooted there
    Ints links;
  };

  Digraph& graph_;
  const Demand& demand_;
  const Ints& box_;
  DemandCheck check_;
  int boxes_ = 0;
  Lists into_;  // per box
  Amounts rooted_;          // per origin
  Marks blocked_;           // per arc
  Amounts taken_;           // per arc
};

}  // namespace

void tighten(Digraph& graph, const Demand& demand, Ints& box) {
  const Marks tight = Tightening(graph, demand, box).run();
  for (int& b : box)
    if (b >= 0 && !tight[b]) b = -1;
}

}  // namespace forestcoll
