#include "list_scheduling.hpp"

#include <bit>
#include <limits>
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
// the order of those starts. Or the least ties go first, whatever follows: parts of trees one after the
// other, as rounds of a call do, so that the sums of the first are handed on while the next add up.
//
// Transfers over the same links are a way; only the most urgent of a way can be the next to start.
class Search {
 public:
  Search(const Ints& lanes, const Lists& ways, const std::vector<Times>& lengths, const Ints& kinds,
         const FlatLists& needs, const Ints& ties, bool by_ties)
      : lanes_(lanes), kinds_(kinds), lengths_(lengths), needs_(needs), next_(transposed(needs, number_of(kinds))),
        by_ties_(numbers(number_of(kinds))) {
    std::ranges::stable_sort(by_ties_, {}, [&](int m) { return ties[m]; });
    if (by_ties) first_.assign(ties.begin(), ties.end());
    std::map<Ints, int> known;
    for (int k : range(ways)) {
      const auto [place, fresh] = known.emplace(ways[k], number_of(known));
      way_.push_back(place->second);
      if (fresh) links_.add(ways[k]);
      length_.push_back(lengths[k].empty() ? 1 : std::ranges::max(lengths[k]));
    }
    crossing_ = transposed(links_, number_of(lanes));
    begins_.resize(links_.ends.size() + 1);
    for (int kind : kinds) ++begins_[way_[kind] + 1];
    for (int way : range(links_.ends)) begins_[way + 1] = begins_[way] + begins_[way + 1] / kWord + 1;
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
      for (int i : range(ways[kind])) busy[ways[kind][i]] += lengths[kind][i];
    for (int link : range(lanes)) {
      least_ = std::max(least_, busy[link] / lanes[link]);
      busiest_ = std::max(busiest_, static_cast<double>(busy[link]) / lanes[link]);
    }
  }

  std::pair<Times, double> run() {
    for (Time& one : first_) one -= std::numeric_limits<int>::max();
    keep(play(first_.empty() ? urgencies() : first_));
    if (first_.empty() && !enough()) {
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
  static constexpr int kRounds = 4, kWord = 64, kDigit = 12;

  // Until a transfer is there: the longest of its times; what waits for it comes later.
  Time length(int m) const { return length_[kinds_[m]]; }

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

  // When each transfer starts if the least of `urgency`, all below 0, goes first; of equals, the least of the ties.
  //
  // Those of a way have places in a row, in their order. A bit of each tells whether it may start as soon as
  // the links are free; behind them is one more that always may, so that the next is found word by word.
  Times play(const Times& urgency) {
    const int count = number_of(kinds_);
    Ints by_rank = by_ties_, digits(count), ends = numbers(count + 1);
    ends.erase(ends.begin());
    const Time least = count ? std::ranges::min(urgency) : 0;
    for (int shift = 0; -least >> shift; shift += kDigit) {  // stable, digit by digit
      for (int rank : range(count)) digits[rank] = (urgency[by_rank[rank]] - least) >> shift & ((1 << kDigit) - 1);
      const Ints before = by_rank, places = transposed({digits, ends}, 1 << kDigit).items;
      for (int rank : range(count)) by_rank[rank] = before[places[rank]];
    }
    Ints place_of(count), rank_at(kWord * begins_.back(), count), next, free = lanes_, open(count);
    std::vector<std::uint64_t> ready(begins_.back());
    for (int begin : begins_) next.push_back(begin * kWord);
    for (int rank : range(count)) {
      const int place = place_of[by_rank[rank]] = next[way_[kinds_[by_rank[rank]]]]++;
      rank_at[place] = rank;
    }
    Ints first(links_.ends.size(), count), full(first.size());  // per way the rank of the next, and links without room
    for (int way : range(first)) ready[next[way] / kWord] |= 1ul << next[way] % kWord;
    std::map<Time, Ints> events;  // at each time the links that are free again, and ~ the transfers that are there
    std::priority_queue<int, Ints, std::greater<>> offers;  // ranks of those that may be able to start now
    Times starts(count, -1);
    const auto passable = [&](int way) { return !full[way] && first[way] < count; };
    const auto arrive = [&](int m) {
      const int place = place_of[m], way = way_[kinds_[m]];
      ready[place / kWord] |= 1ul << place % kWord;
      if (place >= next[way]) return;
      next[way] = place;
      first[way] = rank_at[place];
      if (passable(way)) offers.push(first[way]);
    };
    for (int m : range(count)) {
      open[m] = number_of(needs_[m]);
      if (!open[m]) arrive(m);
    }
    for (Time now = 0;;) {
      while (!offers.empty()) {
        const int rank = offers.top(), m = by_rank[rank], kind = kinds_[m], way = way_[kind];
        offers.pop();
        if (first[way] != rank || full[way]) continue;  // or another of the way was faster
        starts[m] = now;
        int word = next[way] / kWord;
        ready[word] ^= 1ul << next[way] % kWord;
        while (!ready[word]) ++word;
        next[way] = word * kWord + std::countr_zero(ready[word]);
        first[way] = rank_at[next[way]];
        const auto links = links_[way];
        for (std::size_t i = 0; i < links.size(); ++i) {
          if (!--free[links[i]])
            for (int other : crossing_[links[i]]) ++full[other];
          events[now + lengths_[kind][i]].push_back(links[i]);
        }
        events[now + length(m)].push_back(~m);
        if (passable(way)) offers.push(first[way]);
      }
      if (events.empty()) return starts;
      now = events.begin()->first;
      const Ints over = std::move(events.begin()->second);
      events.erase(events.begin());
      for (int what : over) {
        if (what < 0) {
          for (int n : next_[~what])
            if (!--open[n]) arrive(n);
        } else if (!free[what]++) {
          for (int way : crossing_[what])
            if (!--full[way] && passable(way)) offers.push(first[way]);
        }
      }
    }
  }

  const Ints &lanes_, &kinds_;
  const std::vector<Times>& lengths_;
  FlatLists needs_, next_;  // transfers that each waits for, and those that wait for it
  Ints by_ties_, order_;    // all transfers: by ties; each before those that wait for it
  Ints way_;                // per kind
  Times length_;            // per kind
  FlatLists links_, crossing_;  // per way its links, and per link the ways over it
  Ints begins_;                 // per way the first word of its places
  Times first_, best_;  // what goes first, if not the longest chains; starts
  Time span_ = 0, least_ = 0;
  double busiest_ = 0;
};

}  // namespace

std::pair<Times, double> schedule_on_links(const Ints& lanes, const Lists& ways, const std::vector<Times>& lengths,
                                           const Ints& kinds, const FlatLists& needs, const Ints& ties,
                                           bool by_ties) {
  return Search(lanes, ways, lengths, kinds, needs, ties, by_ties).run();
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
