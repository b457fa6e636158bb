// The clock: events in the order of time until nobody can go on; who is left then waits for ever.
//
// A queue serves one transfer after the other, so when it will be done with all that have come is known:
// there is an event where the head of a transfer goes on, and where the last byte leaves, but none
// where a link is only free again. What is posted later stands in its counter with its time: there is an
// event only if somebody sleeps until then.
//
// Times are multiples of `kGrid`, so that what happens at once by the plan does so by its numbers too. Of
// two events at one time that goes first whose cause did: an end of service counts from its beginning.
#include "engine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <span>

namespace forestcoll::simulate {

namespace {

constexpr double kGrid = 0x1p-28;  // microseconds: 3.7 femtoseconds

// The nearest time of the grid: the sum has no bits for less.
double on_grid(double time) {
  constexpr double shift = kGrid * 0x1.8p52;
  return (time + shift) - shift;
}

enum class What : std::int32_t { wakes, comes, leaves, posts };

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
  std::uint64_t number;  // of two at one time the smaller goes first; its last two bits are its What
  std::int32_t link;     // whose service ends then: the number is that of its beginning; -1: none
  std::int32_t object;
};

std::uint64_t numbered(std::uint64_t number, What what) { return number << 2 | static_cast<std::uint64_t>(what); }

// Events, the earliest first. GPUs that do the same make many at one time, so those of a time are a
// list, and only lists are in the heap.
class Events {
 public:
  Events() { recent_.fill({0, -1}); }

  double time() const { return heap_.empty() ? kUnlimited : heap_.front().time; }

  void push(double time, const Event& event) {
    Recent& recent = recent_at(time);
    if (recent.list < 0 || recent.time != time) {
      recent = {time, take(lists_, free_)};
      heap_.push_back(recent);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    lists_[recent.list].push_back(event);
  }

  // Takes out the first list, the last event first; there has to be one.
  void pop(std::vector<Event>& popped) {
    const auto [time, number] = heap_.front();
    std::vector<Event>& list = lists_[number];
    popped.insert(popped.end(), list.rbegin(), list.rend());
    list.clear();
    if (Recent& recent = recent_at(time); recent.list == number) recent.list = -1;
    free_.push_back(number);
    // As std::pop_heap does it, but with no jumps on which of two is earlier.
    const Recent last = heap_.back();
    heap_.pop_back();
    std::size_t hole = 0, below;
    while ((below = 2 * hole + 2) < heap_.size()) {
      below -= heap_[below] > heap_[below - 1];
      heap_[hole] = heap_[below];
      hole = below;
    }
    if (below == heap_.size()) {
      heap_[hole] = heap_[below - 1];
      hole = below - 1;
    }
    if (heap_.empty()) return;
    heap_[hole] = last;
    std::push_heap(heap_.begin(), heap_.begin() + hole + 1, std::greater<>());
  }

 private:
  struct Recent {  // the last list of a time, by its bits
    double time;
    std::int32_t list;
    bool operator>(const Recent& other) const { return time > other.time; }
  };

  Recent& recent_at(double time) {
    return recent_[std::bit_cast<std::uint64_t>(time) * 0x9e3779b97f4a7c15ull >> 56];
  }

  std::vector<std::vector<Event>> lists_;
  std::vector<std::int32_t> free_;
  std::vector<Recent> heap_;
  std::array<Recent, 256> recent_;
};

struct alignas(64) Transfer {
  std::int32_t route, thread, post, span;
  double bytes, cap;
  double paced;        // when the thread's own speed lets it end
  double end;          // when the queues that it has come to are done with it,
  std::int32_t last;   // and which of them is the last
  std::int32_t begun;  // stages
  std::int16_t open;   // flows of its that are under way
  bool waits, here;    // the thread waits for it; until it is here, not only until it has left
};

struct Line {  // the queue at a link
  double free = 0;          // when it is done with all that have come
  std::uint64_t begun = 0;  // the number of the service that it began last
};

struct Counter {
  std::int64_t posted, taken = 0;
  std::int32_t first = -1, last = -1;  // thread that sleeps until more is posted
  std::int32_t later = -1;  // what is posted at a later time, while nobody sleeps
};

struct Later {
  double time;
  std::uint64_t number;
  std::int32_t next;
};

struct alignas(64) State {  // of a thread
  const Thread* code;
  const Operation *begin = nullptr, *at = nullptr, *end = nullptr;  // its segment, and in that the next
  double here = 0;  // when the last of the transfers that have left is here
  std::int32_t segment = -1, round = 0, rounds = 0;
  std::int32_t under_way = 0;  // transfers that it has started
  std::int32_t next = -1;      // sleeps too
  bool waits = false, joins = false, ready = false;
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
  }

  Outcome run(double until, void (*poll)()) {
    for (std::int32_t t = 0; t < verify::count_of(threads_); ++t)
      if (threads_[t].code->count()) wake(t);
    for (std::uint64_t turn = 1;; ++turn) {
      if (!(turn & 0xfff)) poll();
      go_on();
      sharing_.settle(now_);
      const double flow = on_grid(sharing_.next_end()), time = std::min(flow, events_.time());
      if (time == kUnlimited) break;
      now_ = std::max(now_, time);
      if (now_ > until) break;
      if (flow <= now_) {
        sharing_.end(now_, now_ + kGrid / 2, ended_);
        for (const Flow& one : ended_) flow_ends(one.transfer);
        ended_.clear();
      }
      while (events_.time() <= now_) handle_all();
    }
    if (outcome_.transfers) outcome_.time = std::max(outcome_.time, kGrid);  // none takes no time
    if (std::max(now_, outcome_.time) > until) outcome_.time = kUnlimited;
    for (std::int32_t t = 0; t < verify::count_of(threads_); ++t) {
      const State& thread = threads_[t];
      if (now_ <= until && thread.code->count() && thread.segment < verify::count_of(thread.code->segments))
        outcome_.stuck.push_back({t, number_of(thread)});
    }
    return std::move(outcome_);
  }

 private:
  // --- events ------------------------------------------------------------------------------------

  void at(double time, What what, std::int32_t object, std::int32_t link = -1) {
    events_.push(time, {numbered(link < 0 ? ++number_ : 0, what), link, object});
  }

  // Handles those that are due now.
  void handle_all() {
    while (events_.time() <= now_) events_.pop(due_);
    for (Event& event : due_)
      if (event.link >= 0) event.number |= lines_[event.link].begun << 2;
    if (std::ranges::adjacent_find(due_, std::less_equal<>(), &Event::number) == due_.end())
      std::ranges::reverse(due_);
    else
      std::ranges::sort(due_, {}, &Event::number);
    for (const Event& event : due_) handle(event);
    due_.clear();
  }

  void handle(const Event& event) {
    if (event.link >= 0) lines_[event.link].begun = ++number_;
    switch (static_cast<What>(event.number & 3)) {
      case What::wakes:
        return wake(event.object);
      case What::comes:
        return come(event.object);
      case What::leaves:
        return leave(event.object);
      case What::posts:
        return post(event.object);
    }
  }

  // --- threads -----------------------------------------------------------------------------------

  // Lets all that are ready go on, and those that they wake.
  void go_on() {
    for (std::size_t next = 0; next < ready_.size(); ++next) {
      if (seed_) {  // xorshift64*
        seed_ ^= seed_ >> 12, seed_ ^= seed_ << 25, seed_ ^= seed_ >> 27;
        std::swap(ready_[next], ready_[next + (seed_ * 2685821657736338717ull >> 33) % (ready_.size() - next)]);
      }
      threads_[ready_[next]].ready = false;
      advance(ready_[next]);
    }
    ready_.clear();
  }

  void wake(std::int32_t t) {
    if (!threads_[t].ready) ready_.push_back(t);
    threads_[t].ready = true;
    __builtin_prefetch(threads_[t].at);
  }

  void wake_at(double time, std::int32_t t) {
    if (time > now_)
      at(time, What::wakes, t);
    else
      wake(t);
  }

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
    if (++thread.round >= thread.rounds) {
      const Thread& code = *thread.code;
      thread.round = 0;
      do {
        if (++thread.segment == verify::count_of(code.segments)) return false;
        thread.rounds = code.segments[thread.segment].second;
      } while (!thread.rounds);
      thread.begin = code.operations.data() + code.segments[thread.segment].first;
      thread.end = code.operations.data() + code.end(thread.segment);
    }
    thread.at = thread.begin;
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
      case Kind::take: {
        Counter& counter = counters_[o.object];
        if (!has(counter, counter.taken + o.amount)) return sleep(t, o.object);
        counter.taken += o.amount;
        return true;
      }
      case Kind::reach:
        return has(counters_[o.object], o.amount + static_cast<std::int64_t>(o.stride) * thread.round) ||
               sleep(t, o.object);
      case Kind::post:
        post_at(on_grid(now_ + o.full), o.object);
        return true;
      case Kind::join:
        thread.joins = thread.under_way > 0;
        if (!thread.joins && thread.here <= now_) return true;
        if (!thread.joins) wake_at(thread.here, t);
        return false;
      case Kind::delay:
        if (!thread.waits && size <= 0) return true;
        thread.waits = !thread.waits;
        if (!thread.waits) return true;
        note(t, thread, on_grid(now_ + size));
        wake_at(on_grid(now_ + size), t);
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
    thread.waits = !thread.waits;  // else the transfer that it waited for is over
    if (thread.waits) start(t, thread, o, size);
    return !thread.waits;
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
    when = on_grid(when + kGrid / 2);  // not before
    if (when > now_) {
      at(when, What::wakes, t);
      return false;
    }
    outcome_.marks.push_back({place.rank, place.buffer, place.reads, thread.round, low, high, on_grid(now_ + o.full)});
    return true;
  }

  // Whether so many have been posted by now.
  bool has(Counter& counter, std::int64_t count) {
    if (counter.posted < count)
      for (std::int32_t* link = &counter.later; *link >= 0;) {
        const std::int32_t number = *link;
        if (laters_[number].time <= now_) {
          ++counter.posted;
          *link = laters_[number].next;
          free_laters_.push_back(number);
        } else {
          link = &laters_[number].next;
        }
      }
    return counter.posted >= count;
  }

  bool sleep(std::int32_t t, std::int32_t number) {
    Counter& counter = counters_[number];
    (counter.first < 0 ? counter.first : threads_[counter.last].next) = t;
    counter.last = t;
    threads_[t].next = -1;
    for (; counter.later >= 0; counter.later = laters_[counter.later].next) {
      events_.push(laters_[counter.later].time, {numbered(laters_[counter.later].number, What::posts), -1, number});
      free_laters_.push_back(counter.later);
    }
    return false;
  }

  void post(std::int32_t number) {
    Counter& counter = counters_[number];
    ++counter.posted;
    for (std::int32_t t = counter.first; t >= 0; t = threads_[t].next) wake(t);
    counter.first = -1;
  }

  void post_at(double time, std::int32_t number) {
    Counter& counter = counters_[number];
    if (time <= now_) return post(number);
    if (counter.first >= 0) return at(time, What::posts, number);
    const std::int32_t later = take(laters_, free_laters_);
    laters_[later] = {time, ++number_, counter.later};
    counter.later = later;
  }

  std::int32_t note(std::int32_t t, const State& thread, double end) {
    if (!timeline_) return -1;
    outcome_.spans.push_back({t, number_of(thread), thread.round, now_, end});
    return static_cast<std::int32_t>(outcome_.spans.size()) - 1;
  }

  // --- transfers ---------------------------------------------------------------------------------

  void start(std::int32_t t, const State& thread, const Operation& o, double bytes) {
    const std::int32_t number = take(transfers_, free_);
    ++outcome_.transfers;
    const Route& route = network_.routes[o.object];
    if (route.first < route.end)
      for (int link : links(network_.stages[route.first].first, network_.stages[route.end - 1].end))
        outcome_.bytes[link] += bytes;
    const double off = on_grid(now_ + route.lead);  // when it sets off
    const double cap = o.stride && code_.rate ? code_.rate / o.stride : kUnlimited;
    const double paced = route.queues && cap < kUnlimited ? on_grid(off + bytes / cap) : off;
    const std::int32_t begun = bytes > 0 ? 0 : route.end - route.first;
    transfers_[number] = {o.object, t, o.amount, note(t, thread, now_), bytes, cap, paced, off, -1, begun, 0,
                          o.kind != Kind::start, o.kind == Kind::fetch};
    if (off > now_)
      at(off, What::comes, number);
    else
      come(number);
  }

  // The head of a transfer has come to its next stage, or has passed them all.
  void come(std::int32_t number) {
    const Route& route = network_.routes[transfers_[number].route];
    const std::int32_t stages = route.end - route.first;
    while (true) {
      Transfer& transfer = transfers_[number];
      if (transfer.begun == stages) {
        if (transfer.open) return;
        const double left = std::max(transfer.end, transfer.paced);  // when the last byte leaves the last link
        __builtin_prefetch(threads_[transfer.thread].at + 1);
        if (left > now_) return at(left, What::leaves, number, transfer.last);
        return leave(number);
      }
      const std::int32_t s = route.first + transfer.begun++;
      const Stage& stage = network_.stages[s];
      double next = now_;
      std::int32_t waits = -1;
      for (int link : links(stage.queued, stage.end)) {
        Line& line = lines_[link];
        if (line.free > next)
          next = line.free, waits = link;
        else if (line.free <= now_)
          line.begun = ++number_;
        line.free = on_grid(std::max(now_, line.free) + transfer.bytes / network_.capacity[link]);
        if (line.free >= transfer.end) transfer.end = line.free, transfer.last = link;
      }
      if (stage.first < stage.queued) {
        ++transfer.open;
        sharing_.add(bundle(route, s, transfer), transfer.bytes, number, now_);
      }
      if (transfer.begun == stages) continue;
      if (!cut_through_) {
        if (transfer.open) return;
        next = transfer.end, waits = transfer.last;
      }
      if (next > now_) return at(next, What::comes, number, waits);
    }
  }

  void flow_ends(std::int32_t number) {
    Transfer& transfer = transfers_[number];
    const Route& route = network_.routes[transfer.route];
    --transfer.open;
    if (transfer.begun == route.end - route.first) return come(number);
    if (!cut_through_) at(std::max(now_, transfer.end), What::comes, number);
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

  void leave(std::int32_t number) {
    const Transfer& transfer = transfers_[number];
    State& thread = threads_[transfer.thread];
    const double here = on_grid(now_ + network_.routes[transfer.route].latency);
    if (transfer.span >= 0) outcome_.spans[transfer.span].end = now_;
    outcome_.time = std::max(outcome_.time, here);
    if (transfer.post >= 0) post_at(here, transfer.post);
    free_.push_back(number);
    if (transfer.waits) return wake_at(transfer.here ? here : now_, transfer.thread);
    thread.here = std::max(thread.here, here);
    if (--thread.under_way == 0 && thread.joins) {
      thread.joins = false;
      wake_at(thread.here, transfer.thread);
    }
  }

  const Network& network_;
  const Threads& code_;
  const bool cut_through_;
  std::uint64_t seed_;
  const bool timeline_;
  Sharing sharing_;
  std::vector<std::vector<int>> bundles_;  // per stage, of each weight and cap
  std::vector<Line> lines_;
  std::vector<Transfer> transfers_;
  std::vector<std::int32_t> free_, free_laters_;
  std::vector<Counter> counters_;
  std::vector<Later> laters_;
  std::vector<State> threads_;
  std::vector<std::int32_t> ready_;
  std::vector<Event> due_;
  std::vector<Flow> ended_;
  Events events_;
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
