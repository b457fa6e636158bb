// Which box hangs on which in every tree, at what depth, over which arcs; moves and their undoing.
#pragma once

#include <span>

#include "rehanging/routes.hpp"

namespace forestcoll {

// Where a box hangs in a tree. Its depth counts hops between ranks up to where the tree enters.
struct Hook {
  int up = -1;    // the box above; -1: hangs nowhere (or is the root's)
  int way = -1;   // place of its arcs in the store
  int rank = -1;  // where the tree enters
  short depth = 0, hanging = 0;  // `hanging`: boxes that hang on this one
};

class BoxAttachments {
 public:
  BoxAttachments(const BoxedGraph& boxed, const std::vector<Unit>& given, int height, unsigned seed);

  int units() const { return number_of(units_); }
  int boxes() const { return boxed_.boxes; }
  Amount edges() const { return trees_ * boxes(); }
  const Hook& hook(int unit, int box) const { return hooks_[slot(unit, box)]; }
  bool is_root(int unit, int box) const { return boxed_.box[root(unit)] == box; }
  bool hangs(int unit, int box) const { return hook(unit, box).way >= 0; }
  Ints way(int unit, int box) const;
  bool crowded(int unit, int box) const;  // whether its way crosses what carries too much

  Amount overload() const { return ledger_.overload(); }
  Ledger& ledger() { return ledger_; }
  Random& random() { return random_; }

  // A box whose way crosses what carries too much: one of all, drawn at random. Notes who crosses
  // what, from the first call on.
  std::pair<int, int> draw_crowded();

  // Every box straight on the root, or nearest first on what hangs already. False where a box
  // cannot be reached within the height.
  bool start_star(int unit);
  bool start_grown(int unit);  // where every rank is a box of its own

  // Hangs one box elsewhere with all that hangs on it, or that box and everything on it one by one.
  // `bold`: how much more overload is accepted, as the temperature of an annealing.
  void rehang(int unit, int box, double bold);
  void replant(int unit, int box, double bold);

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
  void load(int unit, int box);
  void attach(int unit, int box, int above, const Ints& arcs);
  void detach(int unit, int box);
  bool hang_cheapest(int unit, int box, int below);
  bool settle_depths(int unit);
  void collect(int unit, int box);
  void finish(int unit, Amount before, bool good, double bold);
  int reach() const;
  void compact_store();
  bool crosses(int unit, int box, int resource) const;

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
  std::vector<std::vector<std::pair<int, int>>> users_;  // per resource (unit, box), some outdated
};

}  // namespace forestcoll
