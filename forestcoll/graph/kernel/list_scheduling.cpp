#include "list_scheduling.hpp"

#include <queue>

#include "python.hpp"

namespace forestcoll {

namespace {

using Time = Amount;
using Times = Amounts;

// Per number below `count` the lists that have it, in their order.
FlatLists transposed(const FlatLists& lists, int count) {
  FlatLists result{Ints(lists.items.size()), Ints(count)};
  Ints place(count + 1);
  for (int item : lists.items) ++place[item + 1];
  for (int i : range(count)) result.ends[i] = place[i + 1] += place[i];
  for (int i : range(lists.ends))
    for (int item : lists[i]) result.items[place[item]++] = i;
  return result;
}

// Several schedules of the same transfers, of which the shortest is kept.
//
// First the longest chain of what follows goes first; then the same backwards in time, the longest
// chain of what comes before first, which is as good for sums as the first is for broadcasts. Each
// is then packed closer: played the other way round in the order of its ends, and again forwards in
// the order of those starts.
//
// Transfers over the same links are a way; only the most urgent of a way can be the next to start.
class Search {
 public:
  Search(const Ints& lanes, const Lists& ways, const std::vector<Times>& lengths, const Ints& kinds,
         const FlatLists& needs, const Ints& ties)
      : lanes_(lanes), kinds_(kinds), ties_(ties), needs_(needs), next_(transposed(needs, number_of(kinds))),
        batches_(ways.size()) {
    std::map<Ints, int> numbers;
    for (int k : range(ways)) {
      const auto [place, fresh] = numbers.emplace(ways[k], number_of(numbers));
      way_.push_back(place->second);
      if (fresh) links_.add(ways[k]);
      std::map<Time, Ints> together;  // links that are free again at the same time
      for (int i : range(ways[k])) together[lengths[k][i]].push_back(ways[k][i]);
      if (together.empty()) together[1];
      batches_[k].assign(together.begin(), together.end());
    }
    crossing_ = transposed(links_, number_of(lanes));
    Ints left;
    for (int m : range(kinds)) {
      left.push_back(number_of(needs_[m]));
      if (!left[m]) order_.push_back(m);
    }
    for (std::size_t k = 0; k < order_.size(); ++k)
      for (int n : next_[order_[k]])
        if (!--left[n]) order_.push_back(n);
    require(order_.size() == kinds.size(), "transfers wait for each other");
    Times busy(lanes.size(), 0);
    for (int kind : kinds)
      for (const auto& [time, links] : batches_[kind])
        for (int link : links) busy[link] += time;
    for (int link : range(lanes)) {
      least_ = std::max(least_, busy[link] / lanes[link]);
      busiest_ = std::max(busiest_, static_cast<double>(busy[link]) / lanes[link]);
    }
  }

  std::pair<Times, double> run() {
    keep(play(urgencies()));
    if (!enough()) {
      turn();
      const Times mirrored = play(urgencies());
      turn();
      keep(play(turned(mirrored)));
    }
    for (int round = 0; round < kRounds && !enough(); ++round) {
      const Times ends = turned(best_);
      turn();
      const Times mirrored = play(ends);
      turn();
      if (!keep(play(turned(mirrored)))) break;
    }
    return {std::move(best_), span_ / busiest_};
  }

 private:
  static constexpr int kRounds = 4;

  // Until a transfer is there: the longest of its times; what waits for it comes later.
  Time length(int m) const { return batches_[kinds_[m]].back().first; }

  void turn() {
    std::swap(needs_, next_);
    std::ranges::reverse(order_);
  }

  // Starts as they are forwards, of those that are backwards; or ends as starts backwards.
  Times turned(Times starts) const {
    for (int m : range(starts)) starts[m] = -starts[m] - length(m);
    return starts;
  }

  // Per transfer, times -1, the time from its start to the end of the longest chain that it begins.
  Times urgencies() const {
    Times result(kinds_.size());
    for (std::size_t k = order_.size(); k-- > 0;) {
      const int m = order_[k];
      Time longest = 0;
      for (int n : next_[m]) longest = std::min(longest, result[n]);
      result[m] = longest - length(m);
    }
    return result;
  }

  // Whether the schedule is the shortest so far, and is kept.
  bool keep(Times starts) {
    Time span = 0;
    for (int m : range(starts)) span = std::max(span, starts[m] + length(m));
    if (!best_.empty() && span >= span_) return false;
    best_ = std::move(starts);
    span_ = span;
    return true;
  }

  // Whether a link is busy nearly all of the time.
  bool enough() const { return span_ - least_ <= least_ / 256; }

  template <class Item>
  using Queue = std::priority_queue<Item, std::vector<Item>, std::greater<>>;  // the least comes first

  // When each transfer starts if the least of `urgency` goes first; of equals, the least of `ties`.
  Times play(const Times& urgency) const {
    const int count = number_of(kinds_);
    std::vector<std::tuple<Time, int, int>> keys;
    for (int m : range(count)) keys.emplace_back(urgency[m], ties_[m], m);
    std::ranges::sort(keys);
    Ints by_rank(count), rank(count);
    for (int place : range(count)) rank[by_rank[place] = std::get<2>(keys[place])] = place;
    struct Event {  // links are free again, and at the last of its times a transfer is there
      Time time;
      int transfer, batch;
      bool operator>(const Event& other) const { return time > other.time; }
    };
    Queue<Event> events;
    std::vector<Queue<int>> ways(links_.ends.size());  // ranks of those that may start as soon as its links are free
    Queue<int> offers;                            // and of those that may be able to start now
    Ints free = lanes_, open(count), freed, offered(ways.size());
    Times starts(count, -1);
    const auto passable = [&](int way) {
      return !ways[way].empty() && std::ranges::all_of(links_[way], [&](int link) { return free[link] > 0; });
    };
    const auto arrive = [&](int m) {
      const int way = way_[kinds_[m]];
      ways[way].push(rank[m]);
      if (ways[way].top() == rank[m]) offers.push(rank[m]);
    };
    for (int m : range(count)) {
      open[m] = number_of(needs_[m]);
      if (!open[m]) arrive(m);
    }
    int turn = 0;
    for (Time now = 0;;) {
      while (!offers.empty()) {
        const int place = offers.top(), m = by_rank[place], way = way_[kinds_[m]];
        offers.pop();
        if (!passable(way) || ways[way].top() != place) continue;  // or another of the way was faster
        ways[way].pop();
        starts[m] = now;
        for (int link : links_[way]) --free[link];
        events.push({now + batches_[kinds_[m]].front().first, m, 0});
        if (passable(way)) offers.push(ways[way].top());
      }
      if (events.empty()) return starts;
      now = events.top().time;
      ++turn;
      freed.clear();
      while (!events.empty() && events.top().time == now) {
        const auto [time, m, batch] = events.top();
        events.pop();
        const auto& batches = batches_[kinds_[m]];
        for (int link : batches[batch].second) {
          ++free[link];
          freed.push_back(link);
        }
        if (batch + 1 < number_of(batches)) {
          events.push({starts[m] + batches[batch + 1].first, m, batch + 1});
          continue;
        }
        for (int n : next_[m])
          if (!--open[n]) arrive(n);
      }
      for (int link : freed)
        for (int way : crossing_[link])
          if (std::exchange(offered[way], turn) != turn && passable(way)) offers.push(ways[way].top());
    }
  }

  const Ints& lanes_;
  const Ints &kinds_, &ties_;
  FlatLists needs_, next_;  // transfers that each waits for, and those that wait for it
  Ints order_;              // each before those that wait for it
  Ints way_;                // per kind
  FlatLists links_, crossing_;  // per way its links, and per link the ways over it
  std::vector<std::vector<std::pair<Time, Ints>>> batches_;  // per kind, when which links are free again
  Times best_;
  Time span_ = 0, least_ = 0;
  double busiest_ = 0;
};

}  // namespace

std::pair<Times, double> schedule_on_links(const Ints& lanes, const Lists& ways, const std::vector<Times>& lengths,
                                           const Ints& kinds, const FlatLists& needs, const Ints& ties) {
  return Search(lanes, ways, lengths, kinds, needs, ties).run();
}

void bind_scheduling(nb::module_& m) {
  m.def("schedule", [](const Ints& lanes, const Lists& ways, const std::vector<Times>& lengths, const Ints& kinds,
                       const Lists& needs, const Ints& ties) {
    FlatLists flat;
    for (const Ints& own : needs) flat.add(own);
    return schedule_on_links(lanes, ways, lengths, kinds, flat, ties);
  });
}

}  // namespace forestcoll
