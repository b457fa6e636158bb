// The clock: events in the order of time until nobody can go on; who is left then waits for ever.
#include "engine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <span>

namespace forestcoll::simulate {

namespace {

constexpr double kSameTime = 1e-7;  // microseconds; what is nearer happens at once

enum class What : std::int32_t { link_is_free, sets_off, arrives, paced, posts, wakes };

// A number for an item: a free one, or one more.
template <class Item>
std::int32_t take(std::vector<Item>& items, std::vector<std::int32_t>& free) {
  if (free.empty()) {
    items.emplace_back();
    return verify::count_of(items) - 1;
  }
  const std::int32_t number = free.back();
  free.pop_back();
  return number;
}

struct Event {
  std::uint64_t number;  // of two at one time the smaller goes first
  What what;
  std::int32_t object;
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

  void push(double time, std::uint64_t number, What what, std::int32_t object) {
    const std::int32_t event = take(events_, free_events_);
    events_[event] = {number, what, object, -1};
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
  std::int16_t open;    // links and flows that are not done with it
  std::int16_t queued;  // links whose queue it waits in
};

struct Waiting {  // in a link's queue
  double bytes;
  std::int32_t transfer, stage, next;
};

struct Line {
  std::int32_t first = -1, last = -1;  // who waits
  std::int32_t transfer = -1, stage = -1;
};

struct Counter {
  std::int64_t posted, taken = 0;
  std::int32_t first = -1, last = -1;  // threads that sleep until more is posted
};

struct alignas(64) State {  // of a thread
  const Thread* code;
  const Operation *at = nullptr, *end = nullptr;  // the next, and the end of its segment
  std::int32_t segment = -1, round = 0, rounds = 0;
  std::int32_t under_way = 0;  // transfers that it has started
  std::int32_t next = -1;      // sleeps after it
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
  Engine(const Network& network, const Threads& threads, bool cut_through, std::uint64_t seed,
         bool timeline)
      : network_(network),
        code_(threads),
        cut_through_(cut_through),
        seed_(seed),
        timeline_(timeline),
        sharing_(network.capacity),
        bundles_(network.stages.size()),
        lines_(network.capacity.size()) {
    outcome_.bytes.resize(network.capacity.size());
    for (const std::int64_t value : threads.counters) counters_.push_back({value});
    for (const Thread& thread : threads.threads) threads_.push_back({&thread});
    for (const Route& route : network.routes) stages_ = std::max(stages_, route.end - route.first);
  }

  Outcome run(double until, void (*poll)()) {
    for (std::int32_t t = 0; t < verify::count_of(threads_); ++t)
      if (threads_[t].code->count()) wake(t);
    std::uint64_t seen = 0;
    while (true) {
      while (next_ < ready_.size()) advance(next_ready());
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
        outcome_.stuck.push_back({t, number_of(thread)});
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
      std::swap(ready_[next_], ready_[next_ + (seed_ * 2685821657736338717ull >> 33) % (ready_.size() - next_)]);
    }
    const std::int32_t t = ready_[next_++];
    if (next_ == ready_.size()) ready_.clear(), next_ = 0;
    threads_[t].ready = false;
    return t;
  }

  void wake(std::int32_t t) {
    if (!threads_[t].ready) ready_.push_back(t);
    threads_[t].ready = true;
    __builtin_prefetch(threads_[t].at);
  }

  void at(double time, What what, std::int32_t object) { events_.push(time, number_++, what, object); }

  // Lets a thread do what it can.
  void advance(std::int32_t t) {
    State& thread = threads_[t];
    do {
      for (; thread.at != thread.end; ++thread.at)
        if (!execute(t, thread)) return;
    } while (repeats(thread));
    outcome_.time = std::max(outcome_.time, now_);
  }

  // Whether there is a next round, or segment: the thread begins it.
  static bool repeats(State& thread) {
    const Thread& code = *thread.code;
    if (++thread.round >= thread.rounds) {
      thread.round = 0;
      do {
        if (++thread.segment == verify::count_of(code.segments)) return false;
        thread.rounds = code.segments[thread.segment].second;
      } while (!thread.rounds);
    }
    thread.at = code.operations.data() + code.segments[thread.segment].first;
    thread.end = code.operations.data() + code.end(thread.segment);
    return true;
  }

  static std::int32_t number_of(const State& thread) {
    return static_cast<std::int32_t>(thread.at - thread.code->operations.data());
  }

  // Does a thread's operation; false while that has to wait.
  bool execute(std::int32_t t, State& thread) {
    const Operation& o = *thread.at;
    const double size = thread.round + 1 < thread.rounds ? o.full : o.last;
    switch (o.kind) {
      case Kind::take:
        if (Counter& counter = counters_[o.object]; counter.posted - counter.taken < o.amount)
          return sleep(t, counter);
        else
          counter.taken += o.amount;
        return true;
      case Kind::reach:
        if (Counter& counter = counters_[o.object];
            counter.posted < o.amount + static_cast<std::int64_t>(o.stride) * thread.round)
          return sleep(t, counter);
        return true;
      case Kind::post:
        if (o.full > 0)
          at(now_ + o.full, What::posts, o.object);
        else
          post(o.object);
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
      case Kind::mark:
        return mark(t, thread, o);
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

  bool mark(std::int32_t t, const State& thread, const Operation& o) {
    const Place& place = code_.places[o.object];
    const double low = place.low + thread.round * place.stride;
    const double high = thread.round + 1 < thread.rounds ? low + place.stride : place.high;
    double from = 0, when = 0;
    for (const auto& [to, time] : code_.produced) {
      if (place.reads && !place.buffer && from < high - .5 && low < to - .5) when = std::max(when, time);
      from = to;
    }
    if (when > now_ + kSameTime) {
      at(when, What::wakes, t);
      return false;
    }
    outcome_.marks.push_back({place.rank, place.buffer, place.reads, thread.round, low, high, now_ + o.full});
    return true;
  }

  bool sleep(std::int32_t t, Counter& counter) {
    (counter.first < 0 ? counter.first : threads_[counter.last].next) = t;
    counter.last = t;
    threads_[t].next = -1;
    return false;
  }

  void post(std::int32_t number) {
    Counter& counter = counters_[number];
    ++counter.posted;
    for (std::int32_t t = counter.first; t >= 0; t = threads_[t].next) wake(t);
    counter.first = -1;
  }

  std::int32_t note(std::int32_t t, const State& thread, double end) {
    if (!timeline_) return -1;
    outcome_.spans.push_back({t, number_of(thread), thread.round, now_, end});
    return static_cast<std::int32_t>(outcome_.spans.size()) - 1;
  }

  Progress& progress(std::int32_t number, std::int32_t stage) { return progress_[number * stages_ + stage]; }

  // --- transfers ---------------------------------------------------------------------------------

  void start(std::int32_t t, const State& thread, const Operation& o, double bytes) {
    const std::int32_t number = take(transfers_, free_);
    progress_.resize(transfers_.size() * stages_);
    ++outcome_.transfers;
    const Route& route = network_.routes[o.object];
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
    if (route.first < route.end)
      for (int link : links(network_.stages[route.first].first, network_.stages[route.end - 1].end))
        outcome_.bytes[link] += bytes;
    if (route.lead > 0)
      at(now_ + route.lead, What::sets_off, number);
    else
      set_off(number);
  }

  void set_off(std::int32_t number) {
    Transfer& transfer = transfers_[number];
    const Route& route = network_.routes[transfer.route];
    const double bytes = transfer.bytes;
    transfer.paced = true;
    if (route.queues && transfer.cap < kUnlimited && bytes > 0) {
      transfer.paced = false;
      at(now_ + bytes / transfer.cap, What::paced, number);
    }
    if (bytes <= 0) {
      transfer.begun = transfer.over = route.end - route.first;
      leave(number);
      return;
    }
    begin_stage(number);
  }

  // The head of the transfer has come to its next stage.
  void begin_stage(std::int32_t number) {
    const Route& route = network_.routes[transfers_[number].route];
    while (true) {
      Transfer& transfer = transfers_[number];
      if (transfer.begun == route.end - route.first) return;
      const std::int32_t s = transfer.begun++;
      const Stage& stage = network_.stages[route.first + s];
      const auto queued = static_cast<std::int16_t>(stage.end - stage.queued);
      progress(number, s) = {static_cast<std::int16_t>(queued + (stage.first < stage.queued)), queued};
      if (stage.first < stage.queued)
        sharing_.add(bundle(route, route.first + s, transfer), transfer.bytes, number, s, now_);
      for (int link : links(stage.queued, stage.end)) {
        Line& line = lines_[link];
        const std::int32_t place = take(waiting_, free_places_);
        waiting_[place] = {transfer.bytes, number, s, -1};
        (line.first < 0 ? line.first : waiting_[line.last].next) = place;
        line.last = place;
        if (line.transfer < 0) serve(link);
      }
      // Served at once everywhere? Then the head is at the next stage.
      if (!cut_through_ || progress(number, s).queued || transfers_[number].begun != s + 1) return;
    }
  }

  std::span<const int> links(std::int32_t first, std::int32_t end) const {
    return {network_.links.data() + first, network_.links.data() + end};
  }

  // The bundle that a transfer's flow over the shared links of a stage belongs to.
  int bundle(const Route& route, std::int32_t number, const Transfer& transfer) {
    const double weight = route.weighted ? transfer.bytes : 1;
    const double cap = std::min(transfer.cap, route.narrowest);
    std::vector<int>& bundles = bundles_[number];
    for (int one : bundles)
      if (sharing_[one].weight == weight && sharing_[one].cap == cap) return one;
    const Stage& stage = network_.stages[number];
    bundles.push_back(sharing_.bundle(links(stage.first, stage.queued), weight, cap));
    return bundles.back();
  }

  // The link takes the next transfer that waits for it, if there is one.
  void serve(int link) {
    Line& line = lines_[link];
    if (line.first < 0) {
      line.transfer = -1;
      return;
    }
    const Waiting& next = waiting_[line.first];
    free_places_.push_back(line.first);
    line.first = next.next;
    line.transfer = next.transfer;
    line.stage = next.stage;
    --progress(line.transfer, line.stage).queued;
    at(now_ + next.bytes / network_.capacity[link], What::link_is_free, link);
  }

  void part_done(std::int32_t number, std::int32_t s) {
    --progress(number, s).open;
    pass(number);
  }

  // Moves on what says how far all of the transfer's bytes are.
  void pass(std::int32_t number) {
    const Route& route = network_.routes[transfers_[number].route];
    while (transfers_[number].over < transfers_[number].begun &&
           progress(number, transfers_[number].over).open == 0) {
      ++transfers_[number].over;
      if (transfers_[number].over == transfers_[number].begun) begin_stage(number);
    }
    if (transfers_[number].over == route.end - route.first && transfers_[number].paced) leave(number);
  }

  // The last byte has left the last link.
  void leave(std::int32_t number) {
    Transfer& transfer = transfers_[number];
    const double latency = network_.routes[transfer.route].latency;
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
    if (transfer.post >= 0) post(transfer.post);
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
        return post(event.object);
      case What::wakes:
        return wake(event.object);
    }
  }

  // A transfer that waited in a queue is served now: its head goes on when it is served everywhere.
  void served(std::int32_t number, std::int32_t s) {
    if (cut_through_ && !progress(number, s).queued && transfers_[number].begun == s + 1) begin_stage(number);
  }

  const Network& network_;
  const Threads& code_;
  const bool cut_through_;
  std::uint64_t seed_;
  const bool timeline_;
  Sharing sharing_;
  std::vector<std::vector<int>> bundles_;  // per stage, of each weight and cap
  std::vector<Line> lines_;
  std::vector<Waiting> waiting_;
  std::vector<Transfer> transfers_;
  std::int32_t stages_ = 0;  // of a route, at most
  std::vector<Progress> progress_;  // so many for each transfer
  std::vector<std::int32_t> free_, free_places_;
  std::vector<Counter> counters_;
  std::vector<State> threads_;
  std::vector<std::int32_t> ready_;  // from `next_` on
  std::size_t next_ = 0;
  Events events_;
  Alarms flow_ends_;
  std::uint64_t number_ = 0;
  double now_ = 0;
  Outcome outcome_;
};

}  // namespace

Outcome run(const Network& network, const Threads& threads, bool cut_through, std::uint64_t seed,
            bool timeline, double until, void (*poll)()) {
  return Engine(network, threads, cut_through, seed, timeline).run(until, poll);
}

}  // namespace forestcoll::simulate
