// Greedy list scheduling of transfers on links: who crosses when, if nobody is interrupted.

#include <queue>

#include "python.hpp"

namespace forestcoll {

namespace {

using Time = Amount;
using Times = Amounts;

// What transfers of one length over the same links have in common.
struct Kind {
  Ints links;
  Times lengths;  // how long one takes each link
  Time length = 1;            // until it is there: the longest of them; what waits for it comes later
};

struct Transfer {
  const Kind* kind;
  Ints needs, next;  // transfers that it waits for, and those that wait for it
  Time length() const { return kind->length; }
};
using Transfers = std::vector<Transfer>;

// The transfers, each before those that wait for it.
Ints sorted(const Transfers& transfers) {
  Ints order, left(transfers.size());
  for (int m : range(transfers)) {
    left[m] = number_of(transfers[m].needs);
    if (!left[m]) order.push_back(m);
  }
  for (std::size_t k = 0; k < order.size(); ++k)
    for (int n : transfers[order[k]].next)
      if (!--left[n]) order.push_back(n);
  require(order.size() == transfers.size(), "transfers wait for each other");
  return order;
}

// Per transfer, times -1, the time from its start to the end of the longest chain that it begins.
Times urgencies(const Transfers& transfers) {
  const Ints order = sorted(transfers);
  Times found(transfers.size());
  for (std::size_t k = order.size(); k-- > 0;) {
    const Transfer& m = transfers[order[k]];
    Time longest = 0;
    for (int n : m.next) longest = std::min(longest, found[n]);
    found[order[k]] = longest - m.length();
  }
  return found;
}

// Transfers over the same links are a way; only the most urgent of a way can be the next to start.
class Scheduler {
 public:
  Scheduler(const Ints& lanes, const Transfers& transfers, const Ints& ties,
            const Times& urgency)
      : transfers_(transfers), ties_(ties), urgency_(urgency), free_(lanes), crossing_(lanes.size()) {
    std::map<Ints, int> numbers;
    for (const Transfer& m : transfers_) {
      const auto [place, fresh] = numbers.emplace(m.kind->links, number_of(ways_));
      way_.push_back(place->second);
      if (!fresh) continue;
      for (int link : m.kind->links) crossing_[link].push_back(place->second);
      ways_.emplace_back();
    }
  }

  Times run() {
    starts_.assign(transfers_.size(), -1);
    for (int m : range(transfers_)) {
      open_.push_back(number_of(transfers_[m].needs));
      if (!open_[m]) arrive(m);
    }
    while (true) {
      while (!offers_.empty()) offer();
      if (events_.empty()) return starts_;
      now_ = events_.top().time;
      Ints freed;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        if (event.link >= 0) {
          ++free_[event.link];
          freed.push_back(event.link);
          continue;
        }
        for (int n : transfers_[event.transfer].next)
          if (!--open_[n]) arrive(n);
      }
      for (int link : freed)
        for (int way : crossing_[link])
          if (!ways_[way].empty()) offers_.push(ways_[way].top());
    }
  }

 private:
  using Key = std::tuple<Time, int, int>;  // less: more urgent; tie; transfer
  using Keys = std::priority_queue<Key, std::vector<Key>, std::greater<>>;
  struct Event {
    Time time;
    int link, transfer;  // one of them, the other is -1
    bool operator>(const Event& other) const { return time > other.time; }
  };

  // The transfer may start as soon as its links are free.
  void arrive(int m) {
    const Key key{urgency_[m], ties_[m], m};
    Keys& way = ways_[way_[m]];
    way.push(key);
    if (way.top() == key) offers_.push(key);
  }

  // Starts the most urgent of the transfers that may, if all its links are free.
  void offer() {
    const int m = std::get<2>(offers_.top());
    offers_.pop();
    if (starts_[m] >= 0) return;
    const Kind& kind = *transfers_[m].kind;
    for (int link : kind.links)
      if (!free_[link]) return;
    Keys& way = ways_[way_[m]];
    if (std::get<2>(way.top()) != m) return;  // another of the way was faster
    way.pop();
    starts_[m] = now_;
    events_.push({now_ + kind.length, -1, m});
    for (int i : range(kind.links)) {
      --free_[kind.links[i]];
      events_.push({now_ + kind.lengths[i], kind.links[i], -1});
    }
    if (!way.empty()) offers_.push(way.top());
  }

  const Transfers& transfers_;
  const Ints& ties_;
  const Times& urgency_;
  Ints free_, open_, way_;         // per link lanes; per transfer what it still waits for, its way
  Lists crossing_;     // per link the ways over it
  std::vector<Keys> ways_;         // per way transfers that may start as soon as its links are free
  Keys offers_;                    // transfers that may be able to start now
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  Times starts_;
  Time now_ = 0;
};

// Several schedules of the same transfers, of which the shortest is kept.
//
// First the longest chain of what follows goes first; then the same backwards in time, the longest
// chain of what comes before first, which is as good for sums as the first is for broadcasts. Each
// is then packed closer: played the other way round in the order of its ends, and again forwards in
// the order of those starts.
class Search {
 public:
  Search(const Ints& lanes, Transfers transfers, const Ints& ties)
      : lanes_(lanes), transfers_(std::move(transfers)), ties_(ties) {
    least_ = 0;
    Times busy(lanes.size(), 0);
    for (const Transfer& m : transfers_)
      for (int i : range(m.kind->links))
        busy[m.kind->links[i]] += m.kind->lengths[i];
    for (int link : range(lanes)) {
      least_ = std::max(least_, busy[link] / lanes[link]);
      busiest_ = std::max(busiest_, static_cast<double>(busy[link]) / lanes[link]);
    }
  }

  Times run() {
    keep(forwards(urgencies(transfers_)));
    if (enough()) return best_;
    turn();
    Times mirrored = urgencies(transfers_);
    turn();
    keep(forwards(turned(backwards(mirrored))));
    for (int round = 0; round < kRounds && !enough(); ++round) {
      Times ends(best_.size());
      for (int m : range(ends)) ends[m] = -best_[m] - transfers_[m].length();
      if (!keep(forwards(turned(backwards(ends))))) break;
    }
    return best_;
  }

  // How many times as long as its busiest link is busy the kept schedule takes.
  double stretch() const { return span_ / busiest_; }

 private:
  static constexpr int kRounds = 4;

  Times forwards(const Times& urgency) const {
    return Scheduler(lanes_, transfers_, ties_, urgency).run();
  }

  Times backwards(const Times& urgency) {
    turn();
    Times starts = forwards(urgency);
    turn();
    return starts;
  }

  void turn() {
    for (Transfer& m : transfers_) std::swap(m.needs, m.next);
  }

  // Starts as they are forwards, of those that are backwards.
  Times turned(Times starts) const {
    for (int m : range(starts)) starts[m] = -starts[m] - transfers_[m].length();
    return starts;
  }

  // Whether the schedule is the shortest so far, and is kept.
  bool keep(Times starts) {
    Time span = 0;
    for (int m : range(starts))
      span = std::max(span, starts[m] + transfers_[m].length());
    if (!best_.empty() && span >= span_) return false;
    best_ = std::move(starts);
    span_ = span;
    return true;
  }

  // Whether a link is busy nearly all of the time.
  bool enough() const { return span_ - least_ <= least_ / 256; }

  const Ints& lanes_;
  Transfers transfers_;
  const Ints& ties_;
  Times best_;
  Time span_ = 0, least_ = 0;
  double busiest_ = 0;
};

std::pair<Times, double> schedule(const Ints& lanes, const Lists& ways,
                                              std::vector<Times> lengths,
                                              const Ints& kinds, Lists needs,
                                              const Ints& ties) {
  const std::size_t count = kinds.size();
  require(lengths.size() == ways.size() && needs.size() == count && ties.size() == count,
          "ways and lengths, or kinds, needs and ties, differ in length");
  for (int lane : lanes) require(lane > 0, "a link without lanes");
  std::vector<Kind> known(ways.size());
  for (int k : range(ways)) {
    require(ways[k].size() == lengths[k].size(), "a length for every link of a way");
    require_below(ways[k], number_of(lanes), "a way names an unknown link");
    for (Time length : lengths[k]) {
      require(length > 0, "a transfer takes a link for some time");
      known[k].length = std::max(known[k].length, length);
    }
    known[k].links = ways[k];
    known[k].lengths = std::move(lengths[k]);
  }
  require_below(kinds, number_of(ways), "an unknown kind");
  Transfers transfers(count);
  for (int m : range(kinds)) {
    transfers[m].kind = &known[kinds[m]];
    transfers[m].needs = std::move(needs[m]);
    require_below(transfers[m].needs, number_of(kinds), "a transfer needs an unknown one");
    for (int n : transfers[m].needs) transfers[n].next.push_back(m);
  }
  nb::gil_scoped_release free;
  Search search(lanes, std::move(transfers), ties);
  Times starts = search.run();
  return {std::move(starts), search.stretch()};
}

}  // namespace

void bind_scheduling(nb::module_& m) {
  m.def("schedule", &schedule);
}

}  // namespace forestcoll
