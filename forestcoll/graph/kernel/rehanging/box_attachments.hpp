// Which box hangs on which in every tree, at what depth, over which arcs; moves and their undoing.
#pragma once

#include <cmath>
#include <span>

#include "rehanging/routes.hpp"

namespace forestcoll {

constexpr double kDeeper = 0.02;  // what a hop of depth costs: ties go to low trees
constexpr double kNoise = 0.05;
constexpr double kLeastCost = 0.99;  // no link costs less
constexpr int kAny = -1, kNone = -2;  // in the place of a rank that may send
constexpr double kShallow = 0.3;  // what a hop of depth costs as trees grow: low ones may send on

// Where a box hangs in a tree. Its depth counts hops between ranks up to where the tree enters.
struct Hook {
  int up = -1;    // the box above; -1: hangs nowhere (or is the root's)
  int way = -1;   // place of its arcs in the store
  int rank = -1;  // where the tree enters
  short depth = 0, hanging = 0;  // `hanging`: boxes that hang on this one
};

class BoxAttachments {
 public:
  BoxAttachments(const BoxedGraph& boxed, const std::vector<Unit>& given, int height, unsigned seed) : boxed_(boxed), units_(given), height_(height), ledger_(boxed), router_(boxed, ledger_),
        random_(seed), hooks_(given.size() * boxed.boxes), below_(boxed.boxes, 0), noise_(boxed.boxes), sender_(boxed.boxes) {
    for (int u : range(units())) {
      hooks_[slot(u, boxed.box[root(u)])].rank = root(u);
      trees_ += given[u].second;
    }
  }

  int units() const { return number_of(units_); }
  int boxes() const { return boxed_.boxes; }
  Amount edges() const { return trees_ * boxes(); }
  const Hook& hook(int unit, int box) const { return hooks_[slot(unit, box)]; }
  bool hangs(int unit, int box) const { return hook(unit, box).way >= 0; }
  std::span<const int> way(int unit, int box) const {
    const auto used = uses(hook(unit, box));
    return used.first(used.size() - 1);
  }
  // Whether its way crosses what carries too much
  bool crowded(int unit, int box) const {
    const Hook& hook = this->hook(unit, box);
    return hook.way >= 0 && std::ranges::any_of(uses(hook), [&](int r) { return ledger_.over(r); });
  }

  Amount overload() const { return ledger_.overload(); }
  Ledger& ledger() { return ledger_; }
  Random& random() { return random_; }

  // A box whose way crosses what carries too much: one of all, drawn at random. Notes who crosses
  // what, from the first call on.
  std::pair<int, int> draw_crowded() {
    if (users_.empty()) {
      users_.resize(ledger_.resources());
      for (int u : range(units()))
        for (int b : range(boxes()))
          if (hangs(u, b))
            for (int resource : uses(hook(u, b))) users_[ledger_.of(resource)].emplace_back(u, b);
    }
    const Ints& overfull = ledger_.overfull();
    const int resource = overfull[random_() % overfull.size()];
    auto& users = users_[resource];
    while (true) {  // at least one of them is there: the resource carries something
      const std::size_t at = random_() % users.size();
      const auto [unit, box] = users[at];
      if (crosses(unit, box, resource)) return {unit, box};
      users[at] = users.back();
      users.pop_back();
    }
  }

  // Every box straight on the root, or nearest first on what hangs already. False where a box
  // cannot be reached within the height.
  bool start_star(int unit) {
    const int root = this->root(unit), home = boxed_.box[root];
    router_.search_from(root);
    Ints left;
    for (int b : range(boxes())) {
      if (b == home) continue;
      double least = kFar;
      const SwitchPort* chosen = nullptr;
      for (const SwitchPort& port : router_.in(b)) {
        const double cost = router_.distance(port.relay) + router_.entry_cost(port);
        if (cost < least) least = cost, chosen = &port;
      }
      if (!chosen || !fits(1, b)) {
        left.push_back(b);
        continue;
      }
      arcs_.clear();
      router_.append_way(chosen->relay, arcs_);
      arcs_.push_back(chosen->arc);
      attach(unit, b, home);
    }
    // Boxes that the root does not reach hang on its mates, or on any box that does.
    for (bool progress = true; progress && !left.empty();) {
      progress = false;
      Ints still;
      for (int b : left) {
        if (hang_cheapest(unit, b, spread(b))) progress = true;
        else still.push_back(b);
      }
      left.swap(still);
    }
    return left.empty();
  }
  // Where every rank is a box of its own.
  bool start_grown(int unit) {
    const Ints& box = boxed_.box;
    const auto place = [&](int rank, int depth) {
      if (depth < height_) router_.leave_from(rank, kShallow * depth);
    };
    const auto wanted = [&](int rank) {
      return !hangs(unit, box[rank]) && box[rank] != box[root(unit)];
    };
    router_.start_growth();
    place(root(unit), 0);
    for (int left = boxes() - 1; left > 0; --left) {
      const int arc = router_.next_entry(wanted);
      if (arc < 0) {  // what could send there hangs too low: begin anew
        for (int b : range(boxes()))
          if (hangs(unit, b)) detach(unit, b);
        return start_star(unit);
      }
      arcs_.clear();
      router_.append_way(boxed_.graph.tail[arc], arcs_);
      arcs_.push_back(arc);
      const int rank = boxed_.graph.head[arc];
      attach(unit, box[rank], box[boxed_.graph.tail[arcs_.front()]]);
      place(rank, hook(unit, box[rank]).depth);
    }
    return true;
  }

  // Hangs one box elsewhere with all that hangs on it, or that box and everything on it one by one.
  // `bold`: how much more overload is accepted, as the temperature of an annealing.
  void rehang(int unit, int box, double bold) {
    const Amount before = overload();
    collect(unit, box);
    detach(unit, box);
    const bool good = hang_cheapest(unit, box, reach()) && settle_depths(unit);
    finish(unit, before, good, bold);
  }
  void replant(int unit, int box, double bold) {
    const Amount before = overload();
    collect(unit, box);
    for (std::size_t i = moved_.size(); i-- > 0;) detach(unit, moved_[i].box);
    bool good = true;
    for (std::size_t i = 0; good && i < moved_.size(); ++i) {
      const int b = moved_[i].box;
      good = hang_cheapest(unit, b, spread(b));
      below_[b] = 0;
    }
    finish(unit, before, good, bold);
  }

 private:
  struct Saved {
    int box;
    Hook hook;
  };
  std::size_t slot(int unit, int box) const {
    return static_cast<std::size_t>(unit) * boxed_.boxes + box;
  }
  int tail_rank(const Hook& hook) const { return boxed_.graph.tail[store_[hook.way + 1]]; }
  int step(int unit, int above, int sender) const {
    return hook(unit, above).depth + 1 + (hook(unit, above).rank == sender ? 0 : spread(above));
  }
  int root(int unit) const { return units_[unit].first; }
  int spread(int box) const { return boxed_.spread[box]; }
  bool fits(int depth, int box) const { return depth + spread(box) <= height_; }

  // What a box takes where it hangs: arcs, and the entry of its rank.
  std::span<const int> uses(const Hook& hook) const {
    return {store_.data() + hook.way + 1, static_cast<std::size_t>(store_[hook.way])};
  }
  void load(int unit, int box) {
    for (int resource : uses(hook(unit, box))) {
      ledger_.add(resource, units_[unit].second);
      if (!users_.empty()) users_[ledger_.of(resource)].emplace_back(unit, box);
    }
  }
  // `arcs_` lead from a rank of `above` to one of `box`.
  void attach(int unit, int box, int above) {
    Hook& hook = hooks_[slot(unit, box)];
    hook.up = above;
    hook.way = number_of(store_);
    hook.rank = boxed_.graph.head[arcs_.back()];
    hook.depth = static_cast<short>(step(unit, above, boxed_.graph.tail[arcs_.front()]));
    store_.push_back(number_of(arcs_) + 1);
    append(store_, arcs_);
    store_.push_back(boxed_.graph.arc_count() + hook.rank);
    live_ += arcs_.size() + 2;
    ++hooks_[slot(unit, above)].hanging;
    load(unit, box);
  }
  void detach(int unit, int box) {
    Hook& hook = hooks_[slot(unit, box)];
    for (int resource : uses(hook)) ledger_.add(resource, -units_[unit].second);
    --hooks_[slot(unit, hook.up)].hanging;
    live_ -= uses(hook).size() + 1;
    hook.up = hook.way = -1;
  }
  // Hangs a box on the cheapest port of all boxes that hang already, are not `below_`, and from which
  // it and the `below` hops under it stay within the height.
  bool hang_cheapest(int unit, int box, int below) {
    const int home = boxed_.box[root(unit)];
    const std::span hooks(&hooks_[slot(unit, 0)], boxed_.boxes);
    for (int b : range(hooks)) {
      const Hook& hook = hooks[b];
      const int room = height_ - hook.depth - below;
      sender_[b] = kNone;
      if (room < 1 || below_[b] || b == box || (hook.way < 0 && b != home)) continue;
      noise_[b] = kNoise * (random_() >> 8) / (1 << 24) + kDeeper * hook.depth;
      sender_[b] = room >= 1 + spread(b) ? kAny : hook.rank;
    }
    std::tuple<double, int, int, int> best{kFar, -1, -1, -1};  // of equally cheap ones the first
    router_.search_to(box, [&](int relay) {
      for (const auto& [arc, rank, _] : router_.out_at(relay)) {
        const int b = boxed_.box[rank];
        if (sender_[b] != kAny && sender_[b] != rank) continue;
        const double cost = ledger_.cost(arc) + router_.distance(relay) + noise_[b] +
                            (rank != hooks[b].rank ? kDeeper : 0);
        best = std::min(best, {cost, b, rank, arc});
      }
      return std::get<0>(best) - kLeastCost;
    });
    const auto [cost, above, rank, arc] = best;
    if (above < 0) return false;
    arcs_.assign(1, arc);
    router_.append_way(boxed_.graph.head[arc], arcs_);
    attach(unit, box, above);
    return true;
  }
  // Depths of what hangs on the moved box, from the top; whether all stay within the height.
  bool settle_depths(int unit) {
    if (!fits(hook(unit, moved_.front().box).depth, moved_.front().box)) return false;
    for (std::size_t i = 1; i < moved_.size(); ++i) {
      Hook& hook = hooks_[slot(unit, moved_[i].box)];
      hook.depth = static_cast<short>(step(unit, hook.up, tail_rank(hook)));
      if (!fits(hook.depth, moved_[i].box)) return false;
    }
    return true;
  }
  // The moved box and all below it, from the top, into moved_ and below_.
  void collect(int unit, int box) {
    moved_.assign(1, {box, hook(unit, box)});
    for (std::size_t i = 0; i < moved_.size(); ++i) {
      below_[moved_[i].box] = 1;
      if (moved_[i].hook.hanging == 0) continue;
      for (int b : range(boxes()))
        if (hook(unit, b).up == moved_[i].box) moved_.push_back({b, hook(unit, b)});
    }
  }
  // Keeps a move, or takes it back.
  void finish(int unit, Amount before, bool good, double bold) {
    const double more = static_cast<double>(overload() - before);
    const double drawn = (random_() >> 8) / static_cast<double>(1 << 24);
    if (!good || (more > 0 && drawn >= std::exp(-more / bold))) {
      for (std::size_t i = moved_.size(); i-- > 0;) {
        const auto& [box, old] = moved_[i];
        Hook& hook = hooks_[slot(unit, box)];
        if (hook.way >= 0 && hook.way != old.way) detach(unit, box);
      }
      for (const auto& [box, old] : moved_) {
        Hook& hook = hooks_[slot(unit, box)];
        if (hook.way < 0) {
          hook.up = old.up, hook.way = old.way, hook.rank = old.rank;
          ++hooks_[slot(unit, hook.up)].hanging;
          live_ += uses(hook).size() + 1;
          load(unit, box);
        }
        hook.depth = old.depth;
      }
    }
    for (const Saved& saved : moved_) below_[saved.box] = 0;
    if (store_.size() > 2 * live_ + 1'000'000) compact_store();
  }
  // Hops below the moved box. A box that hangs on a mate may come to hang on the entering rank.
  int reach() const {
    const Saved& top = moved_.front();
    int deepest = top.hook.depth;
    for (const Saved& saved : moved_)
      deepest = std::max(deepest, saved.hook.depth + spread(saved.box));
    const int least = spread(top.box), hops = deepest - top.hook.depth;
    return std::max(least, moved_.size() > 1 ? hops - least : hops);
  }
  // Drops the ways that nothing hangs by any more.
  void compact_store() {
    Ints kept;
    kept.reserve(live_);
    for (Hook& hook : hooks_) {
      if (hook.way < 0) continue;
      const auto first = store_.begin() + hook.way;
      hook.way = number_of(kept);
      kept.insert(kept.end(), first, first + *first + 1);
    }
    store_.swap(kept);
  }
  bool crosses(int unit, int box, int resource) const {
    const Hook& hook = this->hook(unit, box);
    return hook.way >= 0 &&
           std::ranges::any_of(uses(hook), [&](int r) { return ledger_.of(r) == resource; });
  }

  const BoxedGraph& boxed_;
  const std::vector<Unit>& units_;
  Amount trees_ = 0;  // of all units
  int height_;
  Ledger ledger_;
  Router router_;
  Random random_;
  std::vector<Hook> hooks_;   // units x boxes
  Ints store_;    // ways: how many numbers, the arcs, the resource of the entry
  std::size_t live_ = 0;      // numbers in the store that are in use
  Marks below_;   // per box, during a move: it hangs on the moved box, or is that box
  std::vector<double> noise_;  // per box, while one is hung: what it costs to hang there, for depth
  Ints sender_;    // and the rank that may send there, any or none
  std::vector<Saved> moved_;  // the moved box and all below it, from the top, as they were
  Ints arcs_;
  std::vector<Pairs> users_;  // per resource (unit, box), some outdated
};

}  // namespace forestcoll
