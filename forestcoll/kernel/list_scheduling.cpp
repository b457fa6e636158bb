// Greedy list scheduling of messages on links: who crosses when, if nobody is interrupted.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <set>
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
  Ints next;                  // messages that wait for it
  Time length = 0;            // until it is there: the longest of them
  Time rest = 0;              // from its start to the end of the longest chain that it begins
  int open = 0;               // messages that it still waits for
};

// The time from each message's start to the end of all that it begins.
void find_rests(std::vector<Message>& messages) {
  Ints order, left(messages.size(), 0);
  for (const Message& m : messages)
    for (int n : m.next) ++left[n];
  for (std::size_t m = 0; m < messages.size(); ++m)
    if (!left[m]) order.push_back(static_cast<int>(m));
  for (std::size_t k = 0; k < order.size(); ++k)
    for (int n : messages[order[k]].next)
      if (!--left[n]) order.push_back(n);
  require(order.size() == messages.size(), "messages wait for each other");
  for (std::size_t k = order.size(); k-- > 0;) {
    Message& m = messages[order[k]];
    m.rest = 0;
    for (int n : m.next) m.rest = std::max(m.rest, messages[n].rest);
    m.rest += m.length;
  }
}

class Scheduler {
 public:
  Scheduler(const Ints& lanes, std::vector<Message> messages, const Ints& ties)
      : messages_(std::move(messages)), ties_(ties), free_(lanes), waiting_(lanes.size()) {
    find_rests(messages_);
  }

  std::vector<Time> run() {
    starts_.assign(messages_.size(), -1);
    std::set<Key> fresh;
    for (std::size_t m = 0; m < messages_.size(); ++m)
      if (!messages_[m].open) fresh.insert(key(static_cast<int>(m)));
    while (true) {
      for (const Key& k : fresh)
        for (int link : messages_[std::get<2>(k)].links) waiting_[link].insert(k);
      for (const Key& k : fresh) offer(std::get<2>(k));
      fresh.clear();
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
          if (!--messages_[n].open) fresh.insert(key(n));
      }
      // Those that wait for a link that is free now, and those that are new, the most urgent first.
      for (int link : freed)
        for (const Key& k : waiting_[link]) fresh.insert(k);
    }
  }

 private:
  using Key = std::tuple<Time, int, int>;  // less: more urgent; tie; message
  struct Event {
    Time time;
    int link, message;  // one of them, the other is -1
    bool operator>(const Event& other) const { return time > other.time; }
  };

  Key key(int m) const { return {-messages_[m].rest, ties_[m], m}; }

  // Starts the message if all its links are free.
  void offer(int m) {
    const Message& message = messages_[m];
    for (int link : message.links)
      if (!free_[link]) return;
    starts_[m] = now_;
    events_.push({now_ + message.length, -1, m});
    for (std::size_t i = 0; i < message.links.size(); ++i) {
      const int link = message.links[i];
      --free_[link];
      waiting_[link].erase(key(m));
      events_.push({now_ + message.lengths[i], link, -1});
    }
  }

  std::vector<Message> messages_;
  const Ints& ties_;
  Ints free_;  // per link: lanes
  std::vector<std::set<Key>> waiting_;  // per link messages that may start as soon as it is free
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Time> starts_;
  Time now_ = 0;
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
    message.open = static_cast<int>(needs[m].size());
    for (int n : needs[m]) {
      require(0 <= n && n < static_cast<int>(count), "a message needs an unknown one");
      messages[n].next.push_back(static_cast<int>(m));
    }
  }
  nb::gil_scoped_release free;
  return Scheduler(lanes, std::move(messages), ties).run();
}

}  // namespace

void bind_scheduling(nb::module_& m) {
  m.def("schedule", &schedule, "lanes"_a, "ways"_a, "lengths"_a, "needs"_a, "ties"_a,
        "Per message when it starts: it takes a lane of each link of its way at once, for its length, "
        "when all that it needs is there; the longest chain first, then the least of `ties`.");
}

}  // namespace forestcoll
