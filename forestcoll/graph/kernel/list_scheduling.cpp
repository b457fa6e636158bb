// Greedy list scheduling of messages on links: who crosses when, if nobody is interrupted.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace forestcoll {

namespace {

using Time = std::int64_t;
using Ints = std::vector<int>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

struct Message {
  Ints links;
  std::vector<Time> lengths;  // how long it takes each link
  Ints needs, next;           // messages that it waits for, and those that wait for it
  Time length = 0;            // until it is there: the longest of them
};

// The messages, each before those that wait for it.
Ints sorted(const std::vector<Message>& messages) {
  Ints order, left(messages.size());
  for (std::size_t m = 0; m < messages.size(); ++m) {
    left[m] = static_cast<int>(messages[m].needs.size());
    if (!left[m]) order.push_back(static_cast<int>(m));
  }
  for (std::size_t k = 0; k < order.size(); ++k)
    for (int n : messages[order[k]].next)
      if (!--left[n]) order.push_back(n);
  require(order.size() == messages.size(), "messages wait for each other");
  return order;
}

// Per message, times -1, the time from its start to the end of the longest chain that it begins.
std::vector<Time> urgencies(const std::vector<Message>& messages) {
  const Ints order = sorted(messages);
  std::vector<Time> found(messages.size());
  for (std::size_t k = order.size(); k-- > 0;) {
    const Message& m = messages[order[k]];
    Time longest = 0;
    for (int n : m.next) longest = std::min(longest, found[n]);
    found[order[k]] = longest - m.length;
  }
  return found;
}

// Messages over the same links are a way; only the most urgent of a way can be the next to start.
class Scheduler {
 public:
  Scheduler(const Ints& lanes, const std::vector<Message>& messages, const Ints& ties,
            const std::vector<Time>& urgency)
      : messages_(messages), ties_(ties), urgency_(urgency), free_(lanes), crossing_(lanes.size()) {
    std::map<Ints, int> numbers;
    for (const Message& m : messages_) {
      const auto [place, fresh] = numbers.emplace(m.links, static_cast<int>(ways_.size()));
      way_.push_back(place->second);
      if (!fresh) continue;
      for (int link : m.links) crossing_[link].push_back(place->second);
      ways_.emplace_back();
    }
  }

  std::vector<Time> run() {
    starts_.assign(messages_.size(), -1);
    for (std::size_t m = 0; m < messages_.size(); ++m) {
      open_.push_back(static_cast<int>(messages_[m].needs.size()));
      if (!open_[m]) arrive(static_cast<int>(m));
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
        for (int n : messages_[event.message].next)
          if (!--open_[n]) arrive(n);
      }
      for (int link : freed)
        for (int way : crossing_[link])
          if (!ways_[way].empty()) offers_.push(ways_[way].top());
    }
  }

 private:
  using Key = std::tuple<Time, int, int>;  // less: more urgent; tie; message
  using Keys = std::priority_queue<Key, std::vector<Key>, std::greater<>>;
  struct Event {
    Time time;
    int link, message;  // one of them, the other is -1
    bool operator>(const Event& other) const { return time > other.time; }
  };

  // The message may start as soon as its links are free.
  void arrive(int m) {
    const Key key{urgency_[m], ties_[m], m};
    Keys& way = ways_[way_[m]];
    way.push(key);
    if (way.top() == key) offers_.push(key);
  }

  // Starts the most urgent of the messages that may, if all its links are free.
  void offer() {
    const int m = std::get<2>(offers_.top());
    offers_.pop();
    if (starts_[m] >= 0) return;
    const Message& message = messages_[m];
    for (int link : message.links)
      if (!free_[link]) return;
    Keys& way = ways_[way_[m]];
    if (std::get<2>(way.top()) != m) return;  // another of the way was faster
    way.pop();
    starts_[m] = now_;
    events_.push({now_ + message.length, -1, m});
    for (std::size_t i = 0; i < message.links.size(); ++i) {
      --free_[message.links[i]];
      events_.push({now_ + message.lengths[i], message.links[i], -1});
    }
    if (!way.empty()) offers_.push(way.top());
  }

  const std::vector<Message>& messages_;
  const Ints& ties_;
  const std::vector<Time>& urgency_;
  Ints free_, open_, way_;         // per link lanes; per message what it still waits for, its way
  std::vector<Ints> crossing_;     // per link the ways over it
  std::vector<Keys> ways_;         // per way messages that may start as soon as its links are free
  Keys offers_;                    // messages that may be able to start now
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Time> starts_;
  Time now_ = 0;
};

// Several schedules of the same messages, of which the shortest is kept.
//
// First the longest chain of what follows goes first; then the same backwards in time, the longest
// chain of what comes before first, which is as good for sums as the first is for broadcasts. Each
// is then packed closer: played the other way round in the order of its ends, and again forwards in
// the order of those starts.
class Search {
 public:
  Search(const Ints& lanes, std::vector<Message> messages, const Ints& ties)
      : lanes_(lanes), messages_(std::move(messages)), ties_(ties) {
    least_ = 0;
    std::vector<Time> busy(lanes.size(), 0);
    for (const Message& m : messages_)
      for (std::size_t i = 0; i < m.links.size(); ++i) busy[m.links[i]] += m.lengths[i];
    for (std::size_t link = 0; link < lanes.size(); ++link)
      least_ = std::max(least_, busy[link] / lanes[link]);
  }

  std::vector<Time> run() {
    keep(forwards(urgencies(messages_)));
    if (enough()) return best_;
    turn();
    std::vector<Time> mirrored = urgencies(messages_);
    turn();
    keep(forwards(turned(backwards(mirrored))));
    for (int round = 0; round < kRounds && !enough(); ++round) {
      std::vector<Time> ends(best_.size());
      for (std::size_t m = 0; m < ends.size(); ++m) ends[m] = -best_[m] - messages_[m].length;
      if (!keep(forwards(turned(backwards(ends))))) break;
    }
    return best_;
  }

 private:
  static constexpr int kRounds = 4;

  std::vector<Time> forwards(const std::vector<Time>& urgency) const {
    return Scheduler(lanes_, messages_, ties_, urgency).run();
  }

  std::vector<Time> backwards(const std::vector<Time>& urgency) {
    turn();
    std::vector<Time> starts = forwards(urgency);
    turn();
    return starts;
  }

  void turn() {
    for (Message& m : messages_) std::swap(m.needs, m.next);
  }

  // Starts as they are forwards, of those that are backwards.
  std::vector<Time> turned(std::vector<Time> starts) const {
    for (std::size_t m = 0; m < starts.size(); ++m) starts[m] = -starts[m] - messages_[m].length;
    return starts;
  }

  // Whether the schedule is the shortest so far, and is kept.
  bool keep(std::vector<Time> starts) {
    Time span = 0;
    for (std::size_t m = 0; m < starts.size(); ++m)
      span = std::max(span, starts[m] + messages_[m].length);
    if (!best_.empty() && span >= span_) return false;
    best_ = std::move(starts);
    span_ = span;
    return true;
  }

  // Whether a link is busy nearly all of the time.
  bool enough() const { return span_ - least_ <= least_ / 256; }

  const Ints& lanes_;
  std::vector<Message> messages_;
  const Ints& ties_;
  std::vector<Time> best_;
  Time span_ = 0, least_ = 0;
};

std::vector<Time> schedule(const Ints& lanes, const std::vector<Ints>& ways,
                           const std::vector<std::vector<Time>>& lengths,
                           const std::vector<Ints>& needs, const Ints& ties) {
  const std::size_t count = ways.size();
  require(lengths.size() == count && needs.size() == count && ties.size() == count,
          "ways, lengths, needs and ties differ in length");
  for (int lane : lanes) require(lane > 0, "a link without lanes");
  const int links = static_cast<int>(lanes.size());
  std::vector<Message> messages(count);
  for (std::size_t m = 0; m < count; ++m) {
    Message& message = messages[m];
    require(ways[m].size() == lengths[m].size(), "a length for every link of a way");
    message.links = ways[m];
    message.lengths = lengths[m];
    message.length = 1;  // who waits for it comes after it, whatever the links
    for (int link : ways[m]) require(0 <= link && link < links, "a way names an unknown link");
    for (Time length : lengths[m]) {
      require(length > 0, "a message takes a link for some time");
      message.length = std::max(message.length, length);
    }
    message.needs = needs[m];
    for (int n : needs[m]) {
      require(0 <= n && n < static_cast<int>(count), "a message needs an unknown one");
      messages[n].next.push_back(static_cast<int>(m));
    }
  }
  nb::gil_scoped_release free;
  return Search(lanes, std::move(messages), ties).run();
}

}  // namespace

void bind_scheduling(nb::module_& m) {
  m.def("schedule", &schedule, "lanes"_a, "ways"_a, "lengths"_a, "needs"_a, "ties"_a,
        "Per message when it starts: it takes a lane of each link of its way at once, for its length, "
        "when all that it needs is there. Of several greedy schedules the shortest; among equally "
        "urgent messages the least of `ties` goes first.");
}

}  // namespace forestcoll
