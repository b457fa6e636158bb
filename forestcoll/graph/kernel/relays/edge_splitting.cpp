#include "relays/edge_splitting.hpp"

#include <deque>
#include <unordered_map>

#include "cuts.hpp"
#include "relays/port_matching.hpp"

namespace forestcoll {
namespace {

// A change to the capacities that costs some cuts `units` each: split units of (u, w), (w, t) off
// into (u, t), or, with relay < 0, drop units of the arc (u, t).
struct Change {
  int relay = -1, u = 0, t = 0;
  Amount units = 0;
  int grade = 0;

  bool costs(const Marks& inside) const {
    if (relay < 0) return inside[u] && !inside[t];
    return inside[u] == inside[t] && inside[relay] != inside[u];
  }
};
using Changes = std::vector<Change>;
using Cuts = std::vector<Marks>;

// The graph while relays disappear from it. Every arc knows the paths that its units stand for.
class Splitter {
 public:
  Splitter(const Digraph& graph, const Demand& demand, const Marks& relay)
      : demand_(demand), relay_(relay), out_(graph.nodes), in_(graph.nodes) {
    graph_.nodes = graph.nodes;
    for (int e : graph.arcs()) {
      if (graph.capacity[e] == 0) continue;
      const int a = arc(graph.tail[e], graph.head[e]);
      if (units_[a].empty()) {
        origin_.push_back({graph.tail[e], graph.head[e], -1, -1});
        units_[a].push_back({number_of(origin_) - 1, 0});
      }
      units_[a][0].count += graph.capacity[e];
      graph_.capacity[a] += graph.capacity[e];
    }
  }

  const Digraph& graph() const { return graph_; }

  Amount capacity(int u, int v) const {
    const int a = index_.find(u, v);
    return a < 0 ? 0 : graph_.capacity[a];
  }

  Ports ports_in(int w) const { return ports(in_[w], graph_.tail); }
  Ports ports_out(int w) const { return ports(out_[w], graph_.head); }

  // Shrinks `changes` until the demand survives them and makes them real. Returns the units made;
  // `broken` collects the cuts that stood in the way.
  Amount apply(Changes& changes, Cuts& broken) {
    for (const Change& c : changes)
      if (c.relay >= 0 && c.u != c.t) arc(c.u, c.t);
    DemandCheck check(graph_, demand_);
    int from = 0;
    while (auto violation = check.violated(after(changes), from)) {
      withdraw(changes, violation->inside, violation->short_by);
      from = violation->sink;  // earlier sinks only gain by a withdrawal
      broken.push_back(std::move(violation->inside));
    }
    Amount done = 0;
    for (const Change& c : changes) {
      if (c.units > 0) commit(c);
      done += c.units;
    }
    return done;
  }

  Logical logical() {
    Logical result;
    std::unordered_map<int, int> number;  // origin -> path
    for (int a : graph_.arcs()) {
      if (graph_.capacity[a] == 0 || relay_[graph_.tail[a]] || relay_[graph_.head[a]]) continue;
      result.tail.push_back(graph_.tail[a]);
      result.head.push_back(graph_.head[a]);
      std::vector<PathUnits>& list = result.units.emplace_back();
      for (const PathUnits& unit : units_[a]) {
        if (unit.count == 0) continue;
        const auto [it, fresh] = number.try_emplace(unit.path, number_of(result.paths));
        if (fresh) {
          result.paths.push_back({origin_[unit.path].tail});
          walk(unit.path, result.paths.back());
          cut_loops(result.paths.back());
        }
        list.push_back({it->second, unit.count});
      }
    }
    return result;
  }

 private:
  // A path: one link (left < 0) or two paths joined at a relay.
  struct Origin {
    int tail, head, left, right;
  };

  int arc(int u, int v) {
    int& a = index_.insert(u, v);
    if (a < 0) {
      a = graph_.arc_count();
      out_[u].push_back(a);
      in_[v].push_back(a);
      graph_.add(u, v, 0);
      units_.emplace_back();
    }
    return a;
  }

  Ports ports(const Ints& arcs, const Ints& end) const {
    Ports list;
    for (int a : arcs)
      if (graph_.capacity[a] > 0) list.push_back({end[a], graph_.capacity[a], 0});
    std::ranges::sort(list, {}, &Port::node);
    return list;
  }

  Amounts after(const Changes& changes) {
    Amounts capacity = graph_.capacity;
    for (const Change& c : changes) {
      if (c.relay < 0) {
        capacity[arc(c.u, c.t)] -= c.units;
        continue;
      }
      capacity[arc(c.u, c.relay)] -= c.units;
      capacity[arc(c.relay, c.t)] -= c.units;
      if (c.u != c.t) capacity[arc(c.u, c.t)] += c.units;
    }
    return capacity;
  }

  // Takes `amount` units back from the changes that cost the cut, worst grade first, then evenly.
  static void withdraw(Changes& changes, const Marks& inside, Amount amount) {
    std::map<int, std::vector<Amount*>, std::greater<>> hit;  // by grade
    for (Change& c : changes)
      if (c.units > 0 && c.costs(inside)) hit[c.grade].push_back(&c.units);
    for (const auto& [_, units] : hit) amount = take_evenly(units, amount);
    if (amount > 0) throw InternalError("a cut is violated that no change has touched");
  }

  void commit(const Change& c) {
    if (c.relay < 0) {
      take(arc(c.u, c.t), c.units);
      return;
    }
    std::deque<PathUnits> first = take(arc(c.u, c.relay), c.units);
    std::deque<PathUnits> second = take(arc(c.relay, c.t), c.units);
    if (c.u == c.t) return;  // a loop carries nothing
    const int a = arc(c.u, c.t);
    graph_.capacity[a] += c.units;
    while (!first.empty()) {
      if (second.empty()) throw InternalError("a relay sends more than it has");
      const Amount count = std::min(first.front().count, second.front().count);
      origin_.push_back({c.u, c.t, first.front().path, second.front().path});
      units_[a].push_back({number_of(origin_) - 1, count});
      if ((first.front().count -= count) == 0) first.pop_front();
      if ((second.front().count -= count) == 0) second.pop_front();
    }
  }

  // Removes `amount` units from an arc: thick kinds first, so that few kinds arise.
  std::deque<PathUnits> take(int a, Amount amount) {
    graph_.capacity[a] -= amount;
    std::vector<PathUnits>& kinds = units_[a];
    std::ranges::stable_sort(kinds, std::greater(), &PathUnits::count);
    std::deque<PathUnits> taken;
    for (PathUnits& kind : kinds) {
      if (amount == 0) break;
      const Amount count = std::min(kind.count, amount);
      taken.push_back({kind.path, count});
      kind.count -= count;
      amount -= count;
    }
    std::erase_if(kinds, [](const PathUnits& kind) { return kind.count == 0; });
    return taken;
  }

  // Appends the nodes of a path but its first.
  void walk(int path, Ints& nodes) const {
    const Origin& o = origin_[path];
    if (o.left < 0) {
      nodes.push_back(o.head);
      return;
    }
    walk(o.left, nodes);
    walk(o.right, nodes);
  }

  // A path that comes back to a relay goes on from its first visit: it only uses less.
  static void cut_loops(Ints& nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i)
      for (std::size_t j = nodes.size() - 1; j > i; --j)
        if (nodes[j] == nodes[i]) {
          nodes.erase(nodes.begin() + i, nodes.begin() + j);
          break;
        }
  }

  const Demand& demand_;
  const Marks& relay_;
  Digraph graph_;
  ArcIndex index_;
  Lists out_, in_;
  std::vector<std::vector<PathUnits>> units_;  // per arc
  std::vector<Origin> origin_;
};

// Grades of a pair of ports, best first.
enum Grade { kAligned, kAcross, kThrough, kInside, kBroken, kLoop };

// A relay's pairs of ports, graded.
class Pairing {
 public:
  Pairing(const Splitter& splitter, int relay, const Marks& is_relay,
          const Ints& group)
      : relay_(relay), in_(splitter.ports_in(relay)), out_(splitter.ports_out(relay)) {
    bool several = false;
    int seen = -1;
    for (const Port& port : in_) {
      if (group[port.node] < 0) continue;
      several |= seen >= 0 && group[port.node] != seen;
      seen = group[port.node];
    }
    number_boxes(group, several);
    const Ints row = index(in_, group), column = index(out_, group);
    for (int i : range(in_))
      for (int j : range(out_)) {
        const int u = in_[i].node, t = out_[j].node;
        const bool free = is_relay[u] || is_relay[t] || group[u] < 0 || group[t] < 0;
        Grade grade = kAcross;
        if (u == t) grade = kLoop;
        else if (several && !free && group[u] == group[t]) grade = kInside;
        else if (is_relay[u] && is_relay[t]) grade = kThrough;
        else if (!several || free || row[i] == column[j]) grade = kAligned;
        grade_.push_back(grade);
      }
  }

  // Pairs that cost one of these cuts are a last resort but for loops.
  void avoid(const Cuts& cuts) {
    for (const auto& inside : cuts)
      for (int i : range(in_))
        for (int j : range(out_)) {
          const Change pair{relay_, in_[i].node, out_[j].node, 0, 0};
          int& grade = grade_[i * out_.size() + j];
          if (grade != kLoop && pair.costs(inside)) grade = kBroken;
        }
  }

  void propose(Changes& changes) const {
    if (in_.empty() || out_.empty()) return;
    for (const Match& match : spread(in_, out_, grade_, kThrough))
      changes.push_back({relay_, in_[match.in].node, out_[match.out].node, match.units,
                         grade_[match.in * out_.size() + match.out]});
  }

 private:
  // Says which ports are of one box; a node in none is a box of its own, and so is each GPU of a box
  // that has the relay to itself.
  void number_boxes(const Ints& group, bool several) {
    std::unordered_map<int, int> number;
    for (Ports* ports : {&in_, &out_})
      for (Port& port : *ports) {
        const int box = several ? group[port.node] : -1;
        const auto fresh = number_of(number);
        port.box = number.try_emplace(box >= 0 ? box : -1 - port.node, fresh).first->second;
      }
  }

  // Each port's position among the ports of its box: GPU 3 of one box faces GPU 3 of another.
  static Ints index(const Ports& ports, const Ints& group) {
    std::unordered_map<int, int> count;
    Ints position;
    for (const Port& port : ports) position.push_back(count[group[port.node]]++);
    return position;
  }

  int relay_;
  Ports in_, out_;
  Ints grade_;
};

// What theory guarantees to finish: every pair once, as much of it as the cuts allow.
void split_pair_by_pair(Splitter& splitter, int relay) {
  for (const bool loops : {false, true})
    for (const Port& in : splitter.ports_in(relay))
      for (const Port& out : splitter.ports_out(relay)) {
        if ((in.node == out.node) != loops) continue;
        const Amount units =
            std::min(splitter.capacity(in.node, relay), splitter.capacity(relay, out.node));
        if (units == 0) continue;
        Changes one{{relay, in.node, out.node, units, 0}};
        Cuts broken;
        splitter.apply(one, broken);
      }
  if (!splitter.ports_in(relay).empty() || !splitter.ports_out(relay).empty())
    throw InternalError("a relay could not be split off");
}

// Removes relays that are not linked with each other: whole pairings are proposed and verified at
// once; the cuts that object say which pairs to try otherwise in the next round.
void split(Splitter& splitter, const Ints& relays, const Marks& is_relay,
           const Ints& group) {
  Cuts broken;
  for (bool progress = true; progress;) {
    Changes changes;
    for (int relay : relays) {
      Pairing pairing(splitter, relay, is_relay, group);
      pairing.avoid(broken);
      pairing.propose(changes);
    }
    if (changes.empty()) break;
    progress = splitter.apply(changes, broken) > 0;
  }
  for (int relay : relays) split_pair_by_pair(splitter, relay);
}

// Hops from the nearest node that is no relay: what hangs nearest to the ranks goes first.
Ints depths(const Digraph& graph, const Marks& relay) {
  Ints depth(graph.nodes);
  for (int v : range(graph.nodes)) depth[v] = relay[v] ? graph.nodes : 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (int e : graph.arcs()) {
      const int next = depth[graph.tail[e]] + 1;
      if (graph.capacity[e] > 0 && depth[graph.head[e]] > next) {
        depth[graph.head[e]] = next;
        changed = true;
      }
    }
  }
  return depth;
}

// Takes out what relays could only send back and forth between each other, as far as the cuts allow:
// else a leaf switch would send up to the spine what its own ports can exchange.
void drop_detours(Splitter& splitter, const Marks& relay) {
  Changes loops;
  const Digraph& graph = splitter.graph();
  for (int e : graph.arcs()) {
    const int u = graph.tail[e], w = graph.head[e];
    if (!relay[u] || !relay[w] || u > w) continue;
    const Amount units = std::min(splitter.capacity(u, w), splitter.capacity(w, u));
    if (units > 0) loops.push_back({w, u, u, units, 0});
  }
  Cuts broken;
  if (!loops.empty()) splitter.apply(loops, broken);
}

}  // namespace

Logical remove_relays(const Digraph& graph, const Demand& demand, const Marks& relay,
                      const Ints& group, bool detours) {
  Splitter splitter(graph, demand, relay);
  if (!detours) drop_detours(splitter, relay);
  const Ints depth = depths(graph, relay);
  Ints waiting;
  for (int v : range(graph.nodes))
    if (relay[v]) waiting.push_back(v);
  std::ranges::stable_sort(waiting, {}, [&](int v) { return depth[v]; });
  while (!waiting.empty()) {
    Ints now, later;
    for (int w : waiting) {
      const bool apart = std::ranges::none_of(now, [&](int other) {
        return splitter.capacity(w, other) > 0 || splitter.capacity(other, w) > 0;
      });
      (apart ? now : later).push_back(w);
    }
    split(splitter, now, relay, group);
    waiting = std::move(later);
  }
  return splitter.logical();
}

bool trim(Digraph& graph, const Demand& demand, const Marks& relay) {
  Splitter splitter(graph, demand, relay);
  for (bool progress = true, balanced = false; !balanced;) {
    if (!progress) return false;
    progress = false;
    balanced = true;
    for (int w : range(graph.nodes)) {
      if (!relay[w]) continue;
      const Ports in = splitter.ports_in(w), out = splitter.ports_out(w);
      Amount surplus = 0;
      for (const Port& port : in) surplus += port.units;
      for (const Port& port : out) surplus -= port.units;
      if (surplus == 0) continue;
      balanced = false;
      // Links to ranks first: a shorter link to another relay unbalances that one. Of those, links that
      // are thinner the other way: where one direction has failed, the other one is least of use.
      Ports ports = surplus > 0 ? in : out;
      auto order = [&](const Port& port) {
        const Amount back = surplus > 0 ? splitter.capacity(w, port.node)
                                        : splitter.capacity(port.node, w);
        return std::pair{relay[port.node], std::min<Amount>(0, back - port.units)};
      };
      std::ranges::stable_sort(ports, {}, order);
      for (const Port& port : ports) {
        const Amount units = std::min(port.units, surplus > 0 ? surplus : -surplus);
        if (units == 0) break;
        const int u = surplus > 0 ? port.node : w, t = surplus > 0 ? w : port.node;
        Changes one{{-1, u, t, units, 0}};
        Cuts broken;
        const Amount done = splitter.apply(one, broken);
        surplus += surplus > 0 ? -done : done;
        progress |= done > 0;
      }
    }
  }
  for (int e : graph.arcs())
    graph.capacity[e] = splitter.capacity(graph.tail[e], graph.head[e]);
  return true;
}

}  // namespace forestcoll
