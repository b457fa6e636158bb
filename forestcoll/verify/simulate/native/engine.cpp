// The clock: events in the order of time until nobody can go on; who is left then waits for ever.
#include "engine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <functional>
#include <tuple>

namespace forestcoll::simulate {

namespace {

constexpr double kSameTime = 1e-7;  // microseconds; what is nearer happens at once

enum class What : std::int32_t { link_is_free, sets_off, arrives, paced, posts, wakes };

struct Event {
  std::uint64_t number;  // of two at one time the smaller goes first
  What what;
  std::int32_t object;
  std::int64_t detail;
  std::int32_t next;  // at its time
};

// Events, the earliest first. GPUs that do the same make many at one time, so those of a time are a
// list in the order in which they came, and only lists are in the heap.
class Events {
 public:
  Events() { recent_.fill({0, -1}); }

  bool empty() const { return heap_.empty(); }
  double time() const { return heap_.front().time; }
  const Event& first() const { return events_[lists_[heap_.front().list].first]; }

  void push(double time, std::uint64_t number, What what, std::int32_t object, std::int64_t detail) {
    const std::int32_t event = take(events_, free_events_);
    events_[event] = {number, what, object, detail, -1};
    Recent& recent = recent_at(time);
    if (recent.list >= 0 && recent.time == time) {
      std::int32_t& last = lists_[recent.list].last;
      events_[last].next = event;
      last = event;
      return;
    }
    const std::int32_t list = take(lists_, free_lists_);
    lists_[list] = {event, event};
    recent = {time, list};  // a list that it stood for gets no more: what comes later is later
    heap_.push_back({time, number, list});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  Event pop() {  // there has to be one
    const auto [time, _, list] = heap_.front();
    const std::int32_t number = lists_[list].first;
    free_events_.push_back(number);
    lists_[list].first = events_[number].next;
    if (lists_[list].first < 0) {
      if (Recent& recent = recent_at(time); recent.list == list) recent.list = -1;
      free_lists_.push_back(list);
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      heap_.pop_back();
    }
    return events_[number];
  }

 private:
  struct List {
    std::int32_t first, last;
  };
  struct Entry {
    double time;
    std::uint64_t number;
    std::int32_t list;
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  struct Recent {  // the last list of a time, by its bits
    double time;
    std::int32_t list;
  };

  template <class Item>
  static std::int32_t take(std::vector<Item>& items, std::vector<std::int32_t>& free) {
    if (free.empty()) {
      items.emplace_back();
      return verify::count_of(items) - 1;
    }
    const std::int32_t number = free.back();
    free.pop_back();
    return number;
  }

  Recent& recent_at(double time) {
    return recent_[std::bit_cast<std::uint64_t>(time) * 0x9e3779b97f4a7c15ull >> 56];
  }

  std::vector<Event> events_;
  std::vector<List> lists_;
  std::vector<std::int32_t> free_events_, free_lists_;
  std::vector<Entry> heap_;
  std::array<Recent, 256> recent_;
};

struct Transfer {
  std::int32_t route, thread, post, span;
  double bytes, cap;
  bool waits, here;  // the thread waits for it; until it is here, not only until it has left
  std::int32_t begun;  // stages that have begun
  std::int32_t over;  // stages, from the first, that all bytes have passed
  bool paced;  // nothing but the thread's own speed held it up
};

struct Progress {  // of a transfer at a stage
  std::int32_t open;    // links and flows that are not done with it
  std::int32_t queued;  // links whose queue it waits in
};

struct Line {
  std::deque<std::pair<std::int32_t, std::int32_t>> waiting;  // transfer, stage
  std::int32_t transfer = -1, stage = -1;
};

struct State {  // of a thread
  const Thread* code;
  std::int32_t segment = 0, operation = 0, round = 0;
  std::int32_t under_way = 0;  // transfers that it has started
  bool waits = false, joins = false, ready = false;
};

// When the next flow of each bundle ends, the earliest first; that changes with the rates.
class Alarms {
 public:
  struct Alarm {
    double time;
    std::uint64_t number;  // of two at one time the smaller goes first
    std::int32_t bundle;
    bool operator<(const Alarm& other) const {
      return time != other.time ? time < other.time : number < other.number;
    }
  };

  bool empty() const { return heap_.empty(); }
  const Alarm& first() const { return heap_.front(); }

  void set(double time, std::uint64_t number, std::int32_t bundle) {
    if (static_cast<std::size_t>(bundle) >= place_.size()) place_.resize(bundle + 1, -1);
    if (place_[bundle] < 0) {
      place_[bundle] = verify::count_of(heap_);
      heap_.emplace_back();
    }
    put({time, number, bundle}, place_[bundle]);
  }

  void pop() {  // there has to be one
    place_[heap_.front().bundle] = -1;
    const Alarm last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) put(last, 0);
  }

 private:
  // Puts an alarm in the heap, in place of the one that stands there.
  void put(const Alarm& alarm, std::int32_t at) {
    const std::int32_t count = verify::count_of(heap_);
    for (std::int32_t above; at > 0 && alarm < heap_[above = (at - 1) / 2]; at = above) move(above, at);
    for (std::int32_t below; (below = 2 * at + 1) < count; at = below) {
      if (below + 1 < count && heap_[below + 1] < heap_[below]) ++below;
      if (!(heap_[below] < alarm)) break;
      move(below, at);
    }
    heap_[at] = alarm;
    place_[alarm.bundle] = at;
  }

  void move(std::int32_t from, std::int32_t to) {
    heap_[to] = heap_[from];
    place_[heap_[to].bundle] = to;
  }

  std::vector<Alarm> heap_;
  std::vector<std::int32_t> place_;  // of each bundle, -1: none
};

class Engine {
 public:
  Engine(const Network& network, const std::vector<Route>& routes, const Threads& threads,
         bool cut_through, std::uint64_t seed, bool timeline)
      : network_(network),
        routes_(routes),
        cut_through_(cut_through),
        seed_(seed),
        timeline_(timeline),
        sharing_(network.capacity),
        lines_(network.capacity.size()),
        posted_(threads.counters),
        taken_(threads.counters.size()),
        sleepers_(threads.counters.size()) {
    outcome_.bytes.resize(network.capacity.size());
    for (const Thread& thread : threads.threads) threads_.push_back({&thread});
    for (const Route& route : routes) stages_ = std::max(stages_, route.stages.size());
  }

  Outcome run(double until, void (*poll)()) {
    for (std::int32_t t = 0; t < verify::count_of(threads_); ++t)
      if (threads_[t].code->count()) wake(t);
    std::uint64_t seen = 0;
    while (true) {
      while (!ready_.empty()) advance(next_ready());
      for (int bundle : sharing_.settle(now_)) set_alarm(bundle);
      if (events_.empty() && flow_ends_.empty()) break;
      now_ = std::max(now_, flow_is_next() ? flow_ends_.first().time : events_.time());
      if (now_ > until) {
        outcome_.time = kUnlimited;
        return std::move(outcome_);
      }
      while (handle_next())
        if (!(++seen & 0xffff)) poll();
    }
    for (std::int32_t t = 0; t < verify::count_of(threads_); ++t) {
      const State& thread = threads_[t];
      if (thread.code->count() && thread.segment < verify::count_of(thread.code->segments))
        outcome_.stuck.push_back({t, thread.operation});
    }
    return std::move(outcome_);
  }

 private:
  void set_alarm(int bundle) {
    const double end = sharing_.next_end(bundle);
    if (end < kUnlimited) flow_ends_.set(end, number_++, bundle);
  }

  // Whether the end of a flow comes before all other events; there has to be one or the other.
  bool flow_is_next() const {
    if (events_.empty() || flow_ends_.empty()) return events_.empty();
    const Alarms::Alarm& end = flow_ends_.first();
    const double time = events_.time();
    return end.time != time ? end.time < time : end.number < events_.first().number;
  }

  // Handles the next event if it is due now.
  bool handle_next() {
    if (events_.empty() && flow_ends_.empty()) return false;
    if (flow_is_next()) {
      const Alarms::Alarm end = flow_ends_.first();
      if (end.time > now_ + kSameTime) return false;
      flow_ends_.pop();
      const Flow flow = sharing_.end(end.bundle, now_);
      set_alarm(end.bundle);
      part_done(flow.transfer, flow.stage);
      return true;
    }
    if (events_.time() > now_ + kSameTime) return false;
    handle(events_.pop());
    return true;
  }

  std::int32_t next_ready() {
    if (seed_) {  // xorshift64*
      seed_ ^= seed_ >> 12, seed_ ^= seed_ << 25, seed_ ^= seed_ >> 27;
      std::swap(ready_.front(), ready_[(seed_ * 2685821657736338717ull >> 33) % ready_.size()]);
    }
    const std::int32_t t = ready_.front();
    ready_.pop_front();
    threads_[t].ready = false;
    return t;
  }

  void wake(std::int32_t t) {
    if (!threads_[t].ready) ready_.push_back(t);
    threads_[t].ready = true;
  }

  void at(double time, What what, std::int32_t object, std::int64_t detail = 0) {
    events_.push(time, number_++, what, object, detail);
  }

  // Lets a thread do what it can.
  void advance(std::int32_t t) {
    State& thread = threads_[t];
    const auto& segments = thread.code->segments;
    while (thread.segment < verify::count_of(segments)) {
      const auto [first, rounds] = segments[thread.segment];
      const std::int32_t end = thread.code->end(thread.segment);
      for (; rounds && thread.operation < end; ++thread.operation)
        if (!execute(t, thread, rounds)) return;
      if (++thread.round < rounds) {
        thread.operation = first;
      } else {
        thread.round = 0;
        thread.operation = end;
        ++thread.segment;
      }
    }
    outcome_.time = std::max(outcome_.time, now_);
  }

  // Does a thread's operation; false while that has to wait.
  bool execute(std::int32_t t, State& thread, std::int32_t rounds) {
    const Operation& o = thread.code->operations[thread.operation];
    const double size = thread.round + 1 < rounds ? o.full : o.last;
    switch (o.kind) {
      case Kind::take:
        if (posted_[o.object] - taken_[o.object] < o.amount) return sleep(t, o.object);
        taken_[o.object] += o.amount;
        return true;
      case Kind::reach:
        if (posted_[o.object] < o.amount + static_cast<std::int64_t>(o.stride) * thread.round)
          return sleep(t, o.object);
        return true;
      case Kind::post:
        if (o.full > 0)
          at(now_ + o.full, What::posts, o.object, o.amount);
        else
          post(o.object, o.amount);
        return true;
      case Kind::join:
        thread.joins = thread.under_way > 0;
        return !thread.joins;
      case Kind::delay:
        if (thread.waits) {
          thread.waits = false;
          return true;
        }
        if (size <= 0) return true;
        thread.waits = true;
        note(t, thread, now_ + size);
        at(now_ + size, What::wakes, t);
        return false;
      default:
        break;
    }
    if (o.kind == Kind::start) {
      ++thread.under_way;
      start(t, thread, o, size);
      return true;
    }
    if (thread.waits) {  // the transfer that it waited for is over
      thread.waits = false;
      return true;
    }
    thread.waits = true;
    start(t, thread, o, size);
    return false;
  }

  bool sleep(std::int32_t t, std::int32_t counter) {
    sleepers_[counter].push_back(t);
    return false;
  }

  void post(std::int32_t counter, std::int64_t amount) {
    posted_[counter] += amount;
    if (sleepers_[counter].empty()) return;
    for (std::int32_t t : sleepers_[counter]) wake(t);
    sleepers_[counter].clear();
  }

  std::int32_t note(std::int32_t t, const State& thread, double end) {
    if (!timeline_) return -1;
    outcome_.spans.push_back({t, thread.operation, thread.round, now_, end});
    return static_cast<std::int32_t>(outcome_.spans.size()) - 1;
  }

  Progress& progress(std::int32_t number, std::int32_t stage) { return progress_[number * stages_ + stage]; }

  // --- transfers ---------------------------------------------------------------------------------

  void start(std::int32_t t, const State& thread, const Operation& o, double bytes) {
    std::int32_t number;
    if (free_.empty()) {
      number = static_cast<std::int32_t>(transfers_.size());
      transfers_.emplace_back();
      progress_.resize(progress_.size() + stages_);
    } else {
      number = free_.back();
      free_.pop_back();
    }
    ++outcome_.transfers;
    const Route& route = routes_[o.object];
    Transfer& transfer = transfers_[number];
    transfer.route = o.object;
    transfer.thread = t;
    transfer.post = o.post;
    transfer.span = note(t, thread, now_);
    transfer.bytes = bytes;
    transfer.cap = o.cap > 0 ? o.cap : kUnlimited;
    transfer.waits = o.kind != Kind::start;
    transfer.here = o.kind == Kind::fetch;
    transfer.begun = transfer.over = 0;
    for (const Stage& stage : route.stages) {
      for (int link : stage.shared) outcome_.bytes[link] += bytes;
      for (int link : stage.queued) outcome_.bytes[link] += bytes;
    }
    if (route.lead > 0)
      at(now_ + route.lead, What::sets_off, number);
    else
      set_off(number);
  }

  void set_off(std::int32_t number) {
    Transfer& transfer = transfers_[number];
    const Route& route = routes_[transfer.route];
    const double bytes = transfer.bytes;
    transfer.paced = true;
    const bool waits_in_queues = std::any_of(route.stages.begin(), route.stages.end(),
                                             [](const Stage& s) { return !s.queued.empty(); });
    if (waits_in_queues && transfer.cap < kUnlimited && bytes > 0) {
      transfer.paced = false;
      at(now_ + bytes / transfer.cap, What::paced, number);
    }
    if (bytes <= 0) {
      transfer.begun = transfer.over = static_cast<std::int32_t>(route.stages.size());
      leave(number);
      return;
    }
    begin_stage(number);
  }

  // The head of the transfer has come to its next stage.
  void begin_stage(std::int32_t number) {
    const Route& route = routes_[transfers_[number].route];
    while (true) {
      Transfer& transfer = transfers_[number];
      if (transfer.begun == static_cast<std::int32_t>(route.stages.size())) return;
      const std::int32_t s = transfer.begun++;
      const Stage& stage = route.stages[s];
      const auto queued = static_cast<std::int32_t>(stage.queued.size());
      progress(number, s) = {queued + !stage.shared.empty(), queued};
      if (!stage.shared.empty()) {
        const double weight = route.weighted ? transfer.bytes : 1;
        const double cap = std::min(transfer.cap, route.narrowest);
        sharing_.add(stage.shared, transfer.bytes, weight, cap, number, s, now_);
      }
      for (int link : stage.queued) {
        lines_[link].waiting.emplace_back(number, s);
        if (lines_[link].transfer < 0) serve(link);
      }
      // Served at once everywhere? Then the head is at the next stage.
      if (!cut_through_ || progress(number, s).queued || transfers_[number].begun != s + 1) return;
    }
  }

  // The link takes the next transfer that waits for it, if there is one.
  void serve(int link) {
    Line& line = lines_[link];
    if (line.waiting.empty()) {
      line.transfer = -1;
      return;
    }
    std::tie(line.transfer, line.stage) = line.waiting.front();
    line.waiting.pop_front();
    --progress(line.transfer, line.stage).queued;
    at(now_ + transfers_[line.transfer].bytes / network_.capacity[link], What::link_is_free, link);
  }

  void part_done(std::int32_t number, std::int32_t s) {
    --progress(number, s).open;
    pass(number);
  }

  // Moves on what says how far all of the transfer's bytes are.
  void pass(std::int32_t number) {
    const auto stages = static_cast<std::int32_t>(routes_[transfers_[number].route].stages.size());
    while (transfers_[number].over < transfers_[number].begun &&
           progress(number, transfers_[number].over).open == 0) {
      ++transfers_[number].over;
      if (transfers_[number].over == transfers_[number].begun) begin_stage(number);
    }
    if (transfers_[number].over == stages && transfers_[number].paced) leave(number);
  }

  // The last byte has left the last link.
  void leave(std::int32_t number) {
    Transfer& transfer = transfers_[number];
    const double latency = routes_[transfer.route].latency;
    if (transfer.span >= 0) outcome_.spans[transfer.span].end = now_;
    if (transfer.waits && !transfer.here) wake(transfer.thread);
    if (latency > 0)
      at(now_ + latency, What::arrives, number);
    else
      arrive(number);
  }

  void arrive(std::int32_t number) {
    const Transfer& transfer = transfers_[number];
    State& thread = threads_[transfer.thread];
    if (transfer.waits && transfer.here) wake(transfer.thread);
    if (!transfer.waits && --thread.under_way == 0 && thread.joins) {
      thread.joins = false;
      wake(transfer.thread);
    }
    outcome_.time = std::max(outcome_.time, now_);
    if (transfer.post >= 0) post(transfer.post, 1);
    free_.push_back(number);
  }

  void handle(const Event& event) {
    switch (event.what) {
      case What::link_is_free: {
        const std::int32_t number = lines_[event.object].transfer;
        const std::int32_t stage = lines_[event.object].stage;
        serve(event.object);
        const std::int32_t next = lines_[event.object].transfer;
        if (next >= 0) served(next, lines_[event.object].stage);
        part_done(number, stage);
        return;
      }
      case What::sets_off:
        return set_off(event.object);
      case What::arrives:
        return arrive(event.object);
      case What::paced:
        transfers_[event.object].paced = true;
        return pass(event.object);
      case What::posts:
        return post(event.object, event.detail);
      case What::wakes:
        return wake(event.object);
    }
  }

  // A transfer that waited in a queue is served now: its head goes on when it is served everywhere.
  void served(std::int32_t number, std::int32_t s) {
    if (cut_through_ && !progress(number, s).queued && transfers_[number].begun == s + 1) begin_stage(number);
  }

  const Network& network_;
  const std::vector<Route>& routes_;
  const bool cut_through_;
  std::uint64_t seed_;
  const bool timeline_;
  Sharing sharing_;
  std::vector<Line> lines_;
  std::vector<Transfer> transfers_;
  std::size_t stages_ = 0;  // of a route, at most
  std::vector<Progress> progress_;  // so many for each transfer
  std::vector<std::int32_t> free_;
  std::vector<std::int64_t> posted_, taken_;
  std::vector<std::vector<std::int32_t>> sleepers_;
  std::vector<State> threads_;
  std::deque<std::int32_t> ready_;
  Events events_;
  Alarms flow_ends_;
  std::uint64_t number_ = 0;
  double now_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome run(const Network& network, const std::vector<Route>& routes, const Threads& threads,
            bool cut_through, std::uint64_t seed, bool timeline, double until, void (*poll)()) {
  return Engine(network, routes, threads, cut_through, seed, timeline).run(until, poll);
}

}  // namespace forestcoll::simulate
