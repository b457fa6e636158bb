// Greedy list scheduling of transfers on links: who crosses when, if nobody is interrupted.
#pragma once

#include <span>

#include "graph.hpp"

namespace forestcoll {

// Lists one after the other: list i ends before ends[i].
struct FlatLists {
  Ints items, ends;

  std::span<const int> operator[](int i) const {
    const int first = i ? ends[i - 1] : 0;
    return {items.data() + first, items.data() + ends[i]};
  }

  void add(std::span<const int> list) {
    append(items, list);
    ends.push_back(number_of(items));
  }
};

// Of several greedy schedules of transfers the shortest: their starts, and how many times as long as its
// busiest link is busy it takes. `lanes`: how many transfers a link serves at once; `ways`, `lengths`: of
// each kind the links, and how long a transfer takes each; `kinds`, `needs`: of each transfer its kind, and
// those that it waits for; among equally urgent ones the least of `ties` goes first, or of all (`by_ties`).
std::pair<Amounts, double> schedule_on_links(const Ints& lanes, const Lists& ways,
                                             const std::vector<Amounts>& lengths, const Ints& kinds,
                                             const FlatLists& needs, const Ints& ties, bool by_ties = false);

}  // namespace forestcoll
