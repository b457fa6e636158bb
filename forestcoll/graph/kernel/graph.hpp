// Plain values that the kernel's files exchange, the words in which they say them, and the standard
// headers that nearly all of them need. Nothing here knows of GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace forestcoll {

using Amount = std::int64_t;  // capacities, flows, weights
__extension__ using Wide = __int128;  // products of two of them

using Ints = std::vector<int>;  // nodes, arcs, ranks; or a number for each of them
using Lists = std::vector<Ints>;
using Amounts = std::vector<Amount>;
using Pairs = std::vector<std::pair<int, int>>;
using Marks = std::vector<char>;  // whether, for each

// How many; the kernel numbers all things by ints.
template <class Items>
int number_of(const Items& items) {
  return static_cast<int>(items.size());
}

// The numbers from 0 up to a count, which does not change meanwhile; or those of a list's items.
inline auto range(int count) { return std::views::iota(0, count); }
template <class Items>
auto range(const Items& items) {
  return range(number_of(items));
}

// The place of an item in a sorted list that has it: how many are less.
template <class Items, class Item>
int place_in(const Items& items, const Item& item) {
  return static_cast<int>(std::ranges::lower_bound(items, item) - items.begin());
}

template <class Items, class More>
void append(Items& items, const More& more) {
  items.insert(items.end(), more.begin(), more.end());
}

// 0, 1, ... as a list.
inline Ints numbers(int count) {
  Ints list(count);
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// As a set: ascending, each once.
template <class Item>
std::vector<Item> distinct(std::vector<Item> items) {
  std::ranges::sort(items);
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

// Takes `amount` from what each of these has, as evenly as that goes; returns what they did not have.
inline Amount take_evenly(std::vector<Amount*> from, Amount amount) {
  std::ranges::stable_sort(from, {}, [](const Amount* units) { return *units; });
  Amount sharers = number_of(from);
  for (Amount* units : from) {  // small ones first: what they cannot give falls to the larger ones
    const Amount part = std::min(*units, (amount + sharers - 1) / sharers);
    --sharers;
    *units -= part;
    amount -= part;
  }
  return amount;
}

// A directed graph with capacities; arc e goes from tail[e] to head[e].
struct Digraph {
  int nodes = 0;
  Ints tail, head;
  Amounts capacity;

  int arc_count() const { return number_of(tail); }
  auto arcs() const { return range(tail); }

  void add(int u, int v, Amount units) {
    tail.push_back(u);
    head.push_back(v);
    capacity.push_back(units);
  }

  // Per node the arcs whose end it is (`tail` or `head`), those that have capacity.
  Lists arcs_by(const Ints& end) const {
    Lists list(nodes);
    for (int e : arcs())
      if (capacity[e] > 0) list[end[e]].push_back(e);
    return list;
  }
};

// What is asked of a digraph: a source feeds supply[v] into every node v with supply[v] > 0, and
// every sink must be able to receive all of it, sum(supply), at once.
struct Demand {
  Amounts supply;  // per node
  Ints sinks;

  Amount total() const {
    Amount sum = 0;
    for (Amount s : supply) sum += s;
    return sum;
  }
};

// A state that theory excludes: a bug in this kernel, never the user's fault.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

// Lets Python's signal handlers run now and then (Ctrl-C); defined in module.cpp.
void poll_signals();

// std::mt19937 over words of 32 bits: where uint_fast32_t has 64, the standard's own gives the same
// numbers at half the speed, and what is computed with them is of 64 bits as well.
using Random = std::mersenne_twister_engine<std::uint32_t, 32, 624, 397, 31, 0x9908b0dfu, 11,
                                            0xffffffffu, 7, 0x9d2c5680u, 15, 0xefc60000u, 18,
                                            1812433253u>;

// Finds the arc between two nodes: a flat table, several times as fast as std::unordered_map.
class ArcIndex {
 public:
  ArcIndex() : slots_(16, Slot{kFree, -1}) {}

  // All arcs of a graph; of parallel ones the last.
  explicit ArcIndex(const Digraph& graph) : ArcIndex() {
    for (int e : graph.arcs()) insert(graph.tail[e], graph.head[e]) = e;
  }

  // The arc's number, -1 where there is none.
  int find(int u, int v) const { return slots_[place(key(u, v))].arc; }

  // Where the arc's number is kept; -1 until it is set. Good until the next insertion.
  int& insert(int u, int v) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    const std::uint64_t k = key(u, v);
    Slot& slot = slots_[place(k)];
    used_ += slot.key != k;
    slot.key = k;
    return slot.arc;
  }

 private:
  struct Slot {
    std::uint64_t key;
    int arc;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};

  static std::uint64_t key(int u, int v) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(u)) << 32 |
           static_cast<std::uint32_t>(v);
  }

  // Where the key is, or belongs.
  std::size_t place(std::uint64_t k) const {
    const std::uint64_t mixed = k * 0x9E3779B97F4A7C15u;  // Fibonacci hashing
    std::size_t i = mixed ^ mixed >> 32;
    while (slots_[i &= slots_.size() - 1].key != k && slots_[i].key != kFree) ++i;
    return i;
  }

  void grow() {
    std::vector<Slot> before(2 * slots_.size(), Slot{kFree, -1});
    before.swap(slots_);
    for (const Slot& slot : before)
      if (slot.key != kFree) slots_[place(slot.key)] = slot;
  }

  std::vector<Slot> slots_;  // a power of two of them
  std::size_t used_ = 0;
};

}  // namespace forestcoll
