// A tree over rank numbers, as lower/layout.py has it.
#pragma once

#include "python.hpp"

namespace forestcoll {

// Carries the chunks `first` ... `first + count - 1`.
struct RankTree {
  int root;
  bool down;     // a broadcast
  bool ordered;  // sums are made in the order of the children, the last of `order` first
  Amount first, count;
  Ints parent, order;  // per rank, below 0 at the root; all ranks, parents before their children
};

// Throws unless it is a tree of `n` ranks.
inline RankTree read_tree(nb::handle each, int n) {
  const auto field = [&](const char* name) { return each.attr(name); };
  RankTree tree{nb::cast<int>(field("root")), nb::cast<std::string_view>(field("phase")) == "broadcast",
                nb::cast<bool>(field("ordered")), nb::cast<Amount>(field("first")), nb::cast<Amount>(field("count")),
                nb::cast<Ints>(field("parent")), nb::cast<Ints>(field("order"))};
  constexpr Amount most = Amount{1} << 40;  // sums of as many as fit into memory do not leave 64 bits
  require(0 <= tree.first && tree.first < most && 0 < tree.count && tree.count < most, "a tree has no chunks, or too many");
  require(number_of(tree.parent) == n && number_of(tree.order) == n, "a tree spans other ranks");
  Marks reached(n);
  for (const int rank : tree.order) {
    require(0 <= rank && rank < n && !reached[rank], "a tree's order names an unknown rank, or one twice");
    const int parent = tree.parent[rank];
    require(parent < 0 ? rank == tree.root : parent < n && reached[parent], "a tree's order has a rank before its parent");
    reached[rank] = true;
  }
  return tree;
}

}  // namespace forestcoll
