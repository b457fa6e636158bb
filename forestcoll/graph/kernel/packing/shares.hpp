// How a root's trees divide between choices: at every place some units take one, the rest others.
#pragma once

#include <span>

#include "graph.hpp"

namespace forestcoll {

// `units` of a root's trees make `choice` (a parent, an arc, a tree) at some place.
struct Share {
  int choice = 0;
  Amount units = 0;
};

// The shares of every root at one place, one after the other.
class Shares {
 public:
  void add(int choice, Amount units) { list_.push_back({choice, units}); }
  void end_root() { start_.push_back(number_of(list_)); }

  std::span<const Share> of(int root) const {
    return {list_.data() + start_[root], list_.data() + start_[root + 1]};
  }

 private:
  Ints start_{0};
  std::vector<Share> list_;
};

// Calls use(weight, choices) for groups of equal trees that together hold `supply`: the shares at each
// of `places` are laid along the line 0 .. supply, largest first, and a group holds from one border to
// the next. at(place) gives the shares there, empty where there is nothing to choose (-1 then).
template <typename At, typename Use>
void lay_out(Amount supply, int places, const At& at, const Use& use) {
  Ints choices(places, -1);
  std::vector<std::pair<int, std::vector<Share>>> divided;  // places with more than one share
  Amounts borders{supply};
  for (int place : range(places)) {
    const std::span<const Share> list = at(place);
    if (!list.empty()) choices[place] = list[0].choice;
    if (list.size() < 2) continue;
    std::vector<Share>& shares = divided.emplace_back(place, std::vector<Share>()).second;
    shares.assign(list.begin(), list.end());
    std::ranges::stable_sort(shares, std::greater(), &Share::units);
    Amount end = 0;
    for (const Share& share : shares) borders.push_back(end += share.units);
  }
  std::vector<std::size_t> current(divided.size(), 0);
  Amounts until(divided.size(), 0);
  Amount from = 0;
  for (const Amount border : distinct(std::move(borders))) {
    for (int d : range(divided)) {
      const auto& [place, shares] = divided[d];
      while (until[d] <= from) until[d] += shares[current[d]++].units;
      choices[place] = shares[current[d] - 1].choice;
    }
    use(border - from, std::as_const(choices));
    from = border;
  }
}

}  // namespace forestcoll
