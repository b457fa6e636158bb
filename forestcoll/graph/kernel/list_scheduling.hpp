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
    items.insert(items.end(), list.begin(), list.end());
    ends.push_back(number_of(items));
  }
};

// What transfers of one length over the same links have in common.
struct Kind {
  Ints links;
  Amounts lengths;    // how long one takes each link
  Amount length = 1;  // until it is there: the longest of them; what waits for it comes later

  Kind() = default;
  Kind(Ints over, Amounts times) : links(std::move(over)), lengths(std::move(times)) {
    for (Amount time : lengths) length = std::max(length, time);
  }
};

struct Timetable {
  Amounts starts;
  double stretch;  // how many times as long as its busiest link is busy it takes
};

// Of several greedy schedules of transfers the shortest. `lanes`: how many transfers a link serves at
// once; `kinds`, `needs`: of each transfer its kind, and those that it waits for; among equally urgent
// ones the least of `ties` goes first.
Timetable schedule_on_links(const Ints& lanes, const std::vector<Kind>& known, const Ints& kinds,
                            const FlatLists& needs, const Ints& ties);

}  // namespace forestcoll
