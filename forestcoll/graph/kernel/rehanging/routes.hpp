// Loads, prices and cheapest routes between boxes, for the search that re-hangs trees.
#pragma once

#include "graph.hpp"

namespace forestcoll {

// What the search works on. Ranks stand in boxes inside which data spreads by other means; the arcs
// of `graph` are those between boxes.
struct BoxedGraph {
  Digraph graph;               // capacities: how many trees an arc may carry
  Ints box;        // per node its box; -1: a switch between boxes
  Marks rank;      // per node
  Amounts entries;  // per rank: how many trees may enter its box there; -1: any number
  Ints twin;       // per arc the one with which it shares its capacity, or -1
  int boxes = 0;
  Ints spread;     // per box: hops at most from where a tree enters to all of its ranks
};

// What hangs as one: a rank that is the root, and how many equal trees it stands for.
using Unit = std::pair<int, Amount>;

// How full every resource is and what it costs to use it once more. Resources are the arcs and,
// behind them, the nodes: a tree that enters a box at a rank takes one of that rank's entries.
// Arcs that share their capacity are one resource, known by the lesser number.
// The total overload is 0 exactly where no resource carries more than it may.
class Ledger {
 public:
  explicit Ledger(const BoxedGraph& boxed);

  int of(int resource) const {
    return twin_[resource] < 0 ? resource : std::min(resource, twin_[resource]);
  }
  void add(int resource, Amount trees) {  // takes away those below 0
    resource = of(resource);
    const Amount before = excess(resource);
    load_[resource] += trees;
    const Amount after = excess(resource);
    overload_ += after - before;
    if (!before != !after) before ? unlist(resource) : list(resource);
    reprice(resource);
  }
  bool over(int resource) const { return excess(of(resource)); }
  double cost(int resource) const { return cost_[resource]; }
  Amount overload() const { return overload_; }
  const Ints& overfull() const { return overfull_; }  // resources, in no order
  int resources() const { return number_of(load_); }

  void raise_prices();  // of what is over its capacity

 private:
  Amount excess(int r) const { return std::max<Amount>(0, load_[r] - capacity_[r]); }
  void reprice(int resource);
  void list(int resource);
  void unlist(int resource);

  Amounts capacity_, load_;
  std::vector<double> price_, cost_;  // what it costs stands at both arcs of a pair
  Ints twin_;
  Ints overfull_, place_;  // place_: per resource where it stands in overfull_
  double penalty_ = 1;
  Amount overload_ = 0;
};

// A link between a rank and a switch, seen from its box.
struct SwitchPort {
  int arc, rank, relay;
};

// Cheapest routes over switches. A switch inside a box serves that box alone.
class Router {
 public:
  Router(const BoxedGraph& boxed, const Ledger& ledger);

  const std::vector<SwitchPort>& out_at(int relay) const { return out_at_[relay]; }
  const std::vector<SwitchPort>& in(int box) const { return in_[box]; }

  // Distances of all switches from a rank's ports; or to the cheapest entry into a box, nearest
  // first: `near` is told every switch, and says up to what distance others matter.
  void search_from(int rank);
  void search_to(int box, const std::function<double(int)>& near);
  double distance(int relay) const { return distance_[relay]; }
  // The arcs from a switch to the box of search_to, or from the rank of search_from to a switch.
  void append_way(int relay, Ints& arcs) const;

  double entry_cost(const SwitchPort& port) const;

  // Growth: ranks are entered nearest first, and become places to leave from when they are told.
  void start_growth();
  void leave_from(int rank, double extra);
  // The arc into the next rank that `wanted` takes, or -1. Costs that have risen are minded.
  int next_entry(const std::function<bool(int)>& wanted);

 private:
  using Entry = std::pair<double, int>;
  void start();
  void offer(double distance, int relay, int arc);
  void run(int home, const std::function<double(int)>& near);
  void push(double distance, int item);
  double way_cost(int relay) const;

  const BoxedGraph& boxed_;
  const Ledger& ledger_;
  std::vector<std::vector<SwitchPort>> out_at_, in_, out_of_rank_;
  Lists leaving_, entering_;  // per switch: arcs to and from other switches
  Lists exits_;  // per switch: arcs to ranks
  Marks pendant_;  // per switch: nothing but other boxes' business behind it
  std::vector<double> distance_;
  Ints via_, touched_;
  std::vector<Entry> heap_;
  bool forward_ = false;
};

}  // namespace forestcoll
