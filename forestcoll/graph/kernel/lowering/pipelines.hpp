// What a rank repeats, slice by slice, for a tree (MSCCL++).
//
//   broadcast   wait for the parent; put to the children; signal those that put it further
//   reduce      wait for the children; add their partial sums to the own contribution; tell the parent,
//               who reads it there, or put it to a parent in another box
//
// Barriers (nop) stand between waiting, reading what arrived, writing, and signalling.
//
// A leaf has nothing to do for its box: its parent reads its input, or writes its output, and says so at
// the end of the launch. Handshakes are there where no flow of data orders what happens:
//
//   reduce      a leaf's input is read when its launch has begun, and before it is over; so is a partial
//               sum that lies where another box writes it, who does so again when the owner's next launch
//               has begun; one in own scratch is changed when the reader's has; a port's source when its
//               receiver is done
//   broadcast   an output is written when its rank's launch has begun; a leaf must be told that all is
//               there; a port's source may change when its receiver is done
//   allreduce   every result has contributions of all ranks and reaches all: so whoever has the whole
//               result knows that all launches have begun and that all sums are over
//
// Groups. Every transfer of a tree is in a group, and a group's transfers share thread blocks. A rank's
// main group has the transfer from or to its parent (the root's is group 0). Where a rank has too many
// children for its main group, further groups take them; semaphores join the groups at that rank. Their
// numbers grow from the root outwards. A sum goes through them in turn, the main one last.
//
// Reduce and broadcast of an allreduce overlap slice by slice. A root whose two trees carry the same
// chunks adds up and hands down in one operation (`rres`, `res`), in the thread block of the sums. Where
// it has too many children for that, semaphores of the root join two thread blocks inside both pipelines.
// Where cuts of the trees do not coincide, the semaphores stand outside: a broadcast then begins when all
// its sums are over.
//
// Partial sums: a peer in the same box reads one where it lies; only what comes from another box through a
// port needs a place at its receiver. A rank keeps its own partial sum
//
//   at the root                      in the output: it is the result
//   of an allreduce                  in the output: the result goes there later, and in place the own
//                                    contribution is used up in the very step that writes it
//   of a reduce or reduce-scatter    in scratch: the output is too small, or nobody's but the root's
//   without children                 nowhere: it is the input itself
#pragma once

#include <array>

#include "rank_tree.hpp"

namespace forestcoll::onesided {

using Chunks = Amount;

enum Buffer : int { input, output, scratch };
enum class Op {
  nop, copy, reduce_to, put, put_signal, read_reduce, read_reduce_put, reduce_put, signal, wait,
  relaxed_signal, relaxed_wait, acquire, release
};

// Chunks of a buffer of `rank`, -1: of the own one.
struct Place {
  int buffer = input;
  Chunks offset = 0, count = 0;
  int rank = -1;
  auto operator<=>(const Place&) const = default;
};
using Places = std::vector<Place>;

inline void unite(Ints& set, const Ints& more) {
  if (set.empty()) {
    set = more;
    return;
  }
  for (const int item : more) {  // few
    const auto place = std::ranges::lower_bound(set, item);
    if (place == set.end() || *place != item) set.insert(place, item);
  }
}

// Ranks in the order in which `rank` serves them: the next one first, then round. Were all to begin with
// rank 0, the links to it would be full while the others idle.
inline void turn(Ints& ranks, int rank) {
  std::ranges::sort(ranks);
  std::rotate(ranks.begin(), std::ranges::upper_bound(ranks, rank), ranks.end());
}

// The same place at another rank.
inline Place at(Place place, int rank) {
  place.rank = rank;
  return place;
}

// The items in groups of at most `size`.
template <class Items>
std::vector<Items> batches(const Items& items, std::size_t size) {
  std::vector<Items> batches;
  for (std::size_t low = 0; low < items.size(); low += size)
    batches.emplace_back(items.begin() + low, items.begin() + std::min(items.size(), low + size));
  return batches;
}

// `lanes`: in place of channels until the thread blocks are known.
struct Instruction {
  Op op;
  Places src, dst;
  Ints lanes, semaphores;
};
using Instructions = std::vector<Instruction>;

// A pipeline of a rank. Those of a thread block are done in the order of their keys, in which data flows:
// broadcast after reduce; first chunk; group (a sum's: backwards).
struct Pipe {
  std::tuple<bool, Chunks, int> key;
  Instructions before, body, after;
  Chunks chunks;
};

// Handshakes, each a set of lanes or of channels. Two stand around a launch, on the lanes that need it:
//
//   ready   at the beginning, relaxed: my launch has begun; what my caller owns may be used now
//   done    at the end: what I read of you, wrote to you, or got from you through a proxy is finished
//
// In this order: who is told that the launch has begun; whose launch is waited for; the same of its end.
using Shakes = std::array<Ints, 4>;
enum Shake : int { ready_to, ready_from, done_to, done_from };

// What a rank does for trees of a class, and what that takes of a thread block's limits.
//
// Without pipelines it is handshakes only: others read or write the rank's memory. `steps`: operations of
// the pipelines. Sets are ascending: lanes, and remote buffers (3 * peer + buffer). `block`: the thread
// block of its rank that does it.
struct Work {
  Ints pipes;
  Chunks steps = 0;
  Ints remote, lanes;
  Shakes shakes;
  int block = -1;

  void join(const Work& other) {
    append(pipes, other.pipes);
    steps += other.steps;
    unite(remote, other.remote);
    unite(lanes, other.lanes);
    for (int kind : range(shakes)) unite(shakes[kind], other.shakes[kind]);
  }
};

// Groups that must share a class. `works`: what ranks do, by `2 * rank + half`. `weight`: the chunks of
// their trees.
struct Unit {
  int root;
  Chunks weight;
  std::vector<std::pair<int, Work>> works;
};

struct Limits {
  int thread_blocks, steps, channels, peers, remote_buffers, semaphores;
};

enum class Apart { no, inner, all };  // ranks of which every child is in a group of its own

// A tree, and its groups. Per rank: `children` from the next one on; `groups`: those in its main group, and
// in each further one; `main`: the number of the main group, and of the further ones, `further + 1` on.
struct Tree : RankTree {
  Lists children;
  std::vector<Lists> groups;
  Ints main, further;
  int group_count = 1;

  // The place of a group among those of the rank, or -1.
  int place(int rank, int group) const {
    if (main[rank] == group) return 0;
    const int place = group - further[rank];
    return 0 < place && place < number_of(groups[rank]) ? place : -1;
  }
  int further_groups(int rank) const { return groups[rank].empty() ? 0 : number_of(groups[rank]) - 1; }
};

// What trees are lowered to: `boxes`, and the first chunk of the whole that inputs and outputs have, per
// rank; whether sums go through the trees, and whether broadcasts do as well (an allreduce).
struct Problem {
  std::vector<Tree> trees;
  Ints boxes;
  Amounts inputs, outputs;
  bool reduces, both;
  Limits limits;

  int ranks() const { return number_of(boxes); }
  bool near(int rank, int peer) const { return boxes[rank] == boxes[peer]; }
};

// One group, unless a rank has more neighbours of one kind than a thread block has channels.
//
// Such a rank keeps as many children as one operation serves in its main group, and as many in each
// further one: the thread blocks then have room for other trees as well. `apart`: whose children are in a
// group each.
inline void cut(Tree& tree, const Problem& problem, Apart apart) {
  const Limits& limits = problem.limits;
  const int n = problem.ranks(), most = std::max(1, std::min(limits.peers, limits.channels / 2));
  tree.children.assign(n, {});
  tree.groups.assign(n, {});
  tree.main.assign(n, 0);
  tree.further.assign(n, 0);
  for (int place : range(n)) {
    const int child = tree.ordered ? tree.order[n - 1 - place] : place;
    if (tree.parent[child] >= 0) tree.children[tree.parent[child]].push_back(child);
  }
  for (const int rank : tree.order) {
    Ints& children = tree.children[rank];
    if (!tree.ordered) turn(children, rank);
    std::array<Ints, 2> kinds;  // of another box, of the own
    for (const int child : children) kinds[problem.near(rank, child)].push_back(child);
    std::array<int, 2> peers = {number_of(kinds[0]), number_of(kinds[1])};
    if (rank != tree.root) ++peers[problem.near(rank, tree.parent[rank])];
    const bool wide = *std::ranges::max_element(peers) > limits.channels;
    Lists& groups = tree.groups[rank];
    if (apart == Apart::all || (apart == Apart::inner && rank != tree.root)) {
      groups = batches(children, 1);
    } else if (tree.ordered) {
      groups = batches(children, wide ? most : n);
      std::ranges::reverse(groups);  // the last group adds first
    } else {
      for (const int kind : {1, 0}) {
        const Lists parts = batches(kinds[kind], wide ? most : n);
        groups.resize(std::max(groups.size(), parts.size()));
        for (int place : range(parts)) append(groups[place], parts[place]);
      }
      for (Ints& group : groups) turn(group, rank);
    }
    tree.further[rank] = tree.group_count - 1;
    for (int place : range(groups))
      for (const int child : groups[place])
        tree.main[child] = place ? tree.further[rank] + place : tree.main[rank];
    tree.group_count += tree.further_groups(rank);
  }
}

// One operation on each `peers` of these lanes, or channels; first on those that are near.
template <class Near>
Instructions sync(Op op, const Ints& numbers, Near near, int peers) {
  Instructions steps;
  for (const bool inside : {true, false}) {
    Ints some;
    for (const int number : numbers)
      if (near(number) == inside) some.push_back(number);
    for (const Ints& batch : batches(some, peers)) steps.push_back({op, {}, {}, batch});
  }
  return steps;
}

// A pipeline in the making, in the order of its operations.
//
// `waits`: lanes of those that data come from; `acquired`, `released`: semaphores that join the rank's
// groups; `sums`: operations; `puts`: where each lane's peer gets `source`; `told`: lanes of those that are
// told that it is there.
struct Draft {
  Ints waits, acquired;
  Instructions sums;
  Ints released;
  Place source;
  std::vector<std::pair<int, Place>> puts;
  Ints told;
  Instructions copy;
  Shakes shakes;
};

// Writes pipelines. `halves`: 2 where broadcasts of an allreduce have thread blocks of their own, else 1.
class Pipelines {
 public:
  Pipelines(const Problem& problem, int halves) : scratch(problem.ranks()), semaphores(problem.ranks()), problem_(problem),
        last_(problem.both ? halves - 1 : 0), states_(problem.trees.size()) {
    for (int number : range(problem.trees)) {
      const Tree& tree = problem.trees[number];
      State& state = states_[number];
      state.lent.assign(problem.ranks(), -1);
      state.gates.assign(problem.ranks(), -1);
      if (!tree.down) place_sums(tree, state);
      for (const int rank : tree.order) {
        // a root that sends its input finds it there all the time
        if (rank == tree.root && !problem.reduces) continue;
        state.gates[rank] = semaphores[rank];
        semaphores[rank] += tree.further_groups(rank);
      }
    }
  }

  std::vector<Pipe> pipes;
  Amounts scratch;  // chunks that each rank has needed so far, ...
  Ints semaphores;              // ... and semaphores

  // Lets the root of the reduce tree `up` begin the broadcast tree `down`, which carries the same chunks;
  // false if it cannot.
  // Not where halves share thread blocks: the root's children would wait for it later than it tells them,
  // and take what it tells them of another tree for that.
  bool fuse(int up, int down) {
    const Tree &reduce = problem_.trees[up], &broadcast = problem_.trees[down];
    const int root = reduce.root;
    const Ints& children = broadcast.children[root];
    const auto near = std::ranges::count_if(children, [&](int c) { return problem_.near(root, c); });
    if (!last_ || reduce.further_groups(root) || broadcast.further_groups(root) || near > problem_.limits.peers)
      return false;
    states_[up].fused = down;
    return states_[down].begun = true;
  }
  // Takes `fuse` back.
  void part_ways(int up) { states_[std::exchange(states_[up].fused, -1)].begun = false; }
  // Semaphores of the root between both pipelines: `down` carries the same chunks as `up`.
  void hand_over(int up, int down) {
    const int root = problem_.trees[up].root;
    Ints& handed = states_[up].handed = {states_[down].taken = semaphores[root]++};
    for (int k : range(problem_.trees[down].further_groups(root))) handed.push_back(states_[down].gates[root] + k);
  }
  // Keeps the root's broadcasts behind all sums of the same chunks.
  void queue(const Ints& trees) {
    for (const int up : trees)
      for (const int down : trees) {
        const Tree &reduce = problem_.trees[up], &broadcast = problem_.trees[down];
        if (reduce.down || !broadcast.down || reduce.first >= broadcast.first + broadcast.count ||
            broadcast.first >= reduce.first + reduce.count)
          continue;
        states_[up].released.push_back(semaphores[reduce.root]);
        states_[down].acquired.push_back(semaphores[reduce.root]++);
      }
  }
  // The work of these groups, each (tree, group).
  Unit unit(const Pairs& members) {
    Unit unit{problem_.trees[members.front().first].root, 0, {}};
    Ints places(2 * problem_.ranks(), -1);
    for (const auto& [number, group] : members) {
      const Tree& tree = problem_.trees[number];
      const State& state = states_[number];
      unit.weight += tree.count;
      for (int rank : range(problem_.ranks())) {
        const int place = tree.place(rank, group);
        // what its root begins is done by the thread block of the sums
        if (place < 0 || (state.begun && rank == tree.root)) continue;
        static const Ints nobody;
        const Ints& children = tree.groups[rank].empty() ? nobody : tree.groups[rank][place];
        Draft draft;
        (this->*(tree.down ? &Pipelines::broadcast : &Pipelines::reduce))(draft, number, place, rank, children);
        const bool joins = rank == tree.root && place == 0;
        Work work;
        for (int kind : range(4)) {
          work.shakes[kind] = distinct(draft.shakes[kind]);
          unite(work.lanes, work.shakes[kind]);
        }
        Pipe pipe{{tree.down, tree.first, tree.down ? group : -group}, {}, body(draft, rank), {}, tree.count};
        Ints remote;
        for (const Instruction& i : pipe.body) {
          unite(work.lanes, distinct(i.lanes));
          for (const auto* refs : {&i.src, &i.dst})
            for (const Place& ref : *refs)
              if (ref.rank >= 0) remote.push_back(3 * ref.rank + ref.buffer);
        }
        work.remote = distinct(remote);
        if (!pipe.body.empty()) {
          if (joins && !state.acquired.empty()) {
            pipe.before = on_semaphores(Op::acquire, state.acquired);
            pipe.before.push_back({Op::nop});
          }
          if (joins && !state.released.empty()) {
            pipe.after = on_semaphores(Op::release, state.released);
            pipe.after.insert(pipe.after.begin(), {Op::nop});
          }
          work.steps = static_cast<Chunks>(pipe.before.size() + 1 + pipe.body.size() + pipe.after.size());
          work.pipes = {number_of(pipes)};
          pipes.push_back(std::move(pipe));
        }
        int& entry = places[lane(number, rank)];
        if (entry >= 0) {
          unit.works[entry].second.join(work);
        } else {
          entry = number_of(unit.works);
          unit.works.emplace_back(lane(number, rank), std::move(work));
        }
      }
    }
    return unit;
  }

 private:
  // Of a tree. Per rank with children where its sum lies; per child in another box where that puts its part
  // at the parent; per rank the child whose slot has the sum, and the first semaphore of its groups, or -1.
  struct State {
    Places totals, slots;
    Ints lent, gates;
    int fused = -1;      // of a reduce tree: the broadcast tree that its root begins
    bool begun = false;  // of that broadcast tree
    Ints handed;         // of a reduce tree: semaphores of the root, every slice
    int taken = -1;      // of a broadcast tree: the root's semaphore, every slice
    Ints released, acquired;  // the same, after the last slice and before the first
  };

  void place_sums(const Tree& tree, State& state) {
    state.totals.resize(problem_.ranks());
    state.slots.resize(problem_.ranks());
    for (const int rank : tree.order) {
      for (const int child : tree.children[rank])
        if (!problem_.near(rank, child)) state.slots[child] = keep(rank, tree.count);
      Place& total = state.totals[rank] = input_of(rank, tree);
      if (tree.children[rank].empty()) continue;
      if (rank == tree.root || problem_.both) {
        total = output_of(rank, tree);
        continue;
      }
      // what is added up first may be overwritten by the sum
      const Ints& first = tree.groups[rank].back();
      const auto last = tree.ordered ? first.begin() + 1 : first.end();
      auto lender = std::find_if(first.begin(), last, [&](int c) { return !problem_.near(rank, c); });
      if (lender == last) lender = first.end();
      if (lender != first.end()) state.lent[rank] = *lender;
      total = lender == first.end() ? keep(rank, tree.count) : state.slots[*lender];
    }
  }
  Place keep(int rank, Chunks count) {
    scratch[rank] += count;
    return {onesided::scratch, scratch[rank] - count, count};
  }
  // The half of its class in which `rank` does its part of tree `number`.
  int half(int number, int rank) const {
    const Tree& tree = problem_.trees[number];
    if (!tree.down) return 0;
    if (!states_[number].begun) return last_;
    return rank == tree.root || (tree.parent[rank] == tree.root && silent(number, rank)) ? 0 : last_;
  }
  int lane(int number, int peer) const { return 2 * peer + half(number, peer); }
  // Whether a leaf and its parent, of one box, need no signals but their handshakes.
  bool silent(int number, int child) const {
    const Tree& tree = problem_.trees[number];
    return tree.children[child].empty() && problem_.near(child, tree.parent[child]);
  }
  // Handshakes of a child with its parent, by `Shake`.
  std::array<bool, 4> shakes(int number, int child) const {
    const Tree& tree = problem_.trees[number];
    const State& state = states_[number];
    const int parent = tree.parent[child];
    const bool near = problem_.near(child, parent), silent = this->silent(number, child);
    if (tree.down) return {!problem_.both, false, !near, silent};
    if (problem_.both) return {silent, false, false, false};
    // in groups, the thread block that writes first is not the one that its reader talks to
    const bool own = state.lent[child] < 0 && tree.further_groups(child) == 0;
    if (near && !silent && own) return {false, true, false, false};
    return {silent, state.lent[parent] == child, false, true};
  }
  // Shakes hands with the children, and in the main group with the parent.
  void meet(Draft& draft, int number, int rank, const Ints& children, bool main) const {
    const auto shake = [&](int peer, const std::array<bool, 4>& flags) {
      for (int kind : range(4))
        if (flags[kind]) draft.shakes[kind].push_back(lane(number, peer));
    };
    for (const int child : children) {
      const auto [to, into, done, said] = shakes(number, child);
      shake(child, {into, to, said, done});
    }
    const int parent = problem_.trees[number].parent[rank];
    if (main && parent >= 0) shake(parent, shakes(number, rank));
  }
  void broadcast(Draft& draft, int number, int place, int rank, const Ints& children) const {
    const Tree& tree = problem_.trees[number];
    const State& state = states_[number];
    meet(draft, number, rank, children, place == 0);
    const int first = state.gates[rank];
    Ints gates(first < 0 ? 0 : tree.further_groups(rank));
    std::iota(gates.begin(), gates.end(), first);
    if (place) {
      if (first >= 0) draft.acquired = {first + place - 1};
    } else if (rank != tree.root) {
      if (silent(number, rank)) return;
      draft.waits = {lane(number, tree.parent[rank])};
      draft.released = gates;
    } else if (state.taken >= 0) {
      draft.acquired = {state.taken};
    } else if (problem_.both) {
      draft.released = gates;
    }
    hand_down(draft, number, rank, children);
    // in place this changes nothing; out of place nobody reads it but the caller
    if (place == 0 && rank == tree.root && !problem_.both)
      draft.copy = {{Op::copy, {draft.source}, {output_of(rank, tree)}}};
  }
  void hand_down(Draft& draft, int number, int rank, const Ints& children) const {
    const Tree& tree = problem_.trees[number];
    draft.source = rank == tree.root && !problem_.both ? input_of(rank, tree) : output_of(rank, tree);
    for (const int child : children) {
      const int lane = this->lane(number, child);
      draft.puts.emplace_back(lane, at(output_of(child, tree), child));
      if (problem_.near(rank, child) && !silent(number, child)) draft.told.push_back(lane);
    }
  }
  void reduce(Draft& draft, int number, int place, int rank, const Ints& children) const {
    const Tree& tree = problem_.trees[number];
    const State& state = states_[number];
    const int parent = tree.parent[rank], first = state.gates[rank];
    meet(draft, number, rank, children, place == 0);
    if (!tree.children[rank].empty()) {
      const bool begins = place == tree.further_groups(rank);  // the last group adds first
      if (!begins) draft.acquired = {first + place};
      // a place without a rank is the own one
      Places parts;
      for (const int child : children) {
        if (!silent(number, child)) draft.waits.push_back(lane(number, child));
        parts.push_back(problem_.near(rank, child) ? at(state.totals[child], child) : state.slots[child]);
      }
      if (!tree.ordered) std::ranges::stable_partition(parts, [](const Place& part) { return part.rank < 0; });
      const Place& total = state.totals[rank];
      draft.sums = sum(total, begins ? input_of(rank, tree) : total, parts);
    }
    if (place) {
      draft.released = {first + place - 1};
    } else if (rank == tree.root) {
      draft.released = state.handed;
      if (state.fused >= 0) begin(draft, state.fused, rank);
    } else if (!problem_.near(rank, parent)) {
      draft.source = state.totals[rank];
      draft.puts = {{lane(number, parent), at(state.slots[rank], parent)}};
    } else if (!silent(number, rank)) {
      draft.told = {lane(number, parent)};
    }
  }
  // The root's sum is put to near children by the operation that ends it.
  void begin(Draft& draft, int down, int rank) const {
    const Ints& children = problem_.trees[down].children[rank];
    meet(draft, down, rank, children, false);
    hand_down(draft, down, rank, children);
    Instruction& last = draft.sums.back();
    std::vector<std::pair<int, Place>> far;
    for (const auto& put : draft.puts) {
      if (problem_.near(rank, put.second.rank))
        last.dst.push_back(put.second);
      else
        far.push_back(put);
    }
    if (last.dst.size() > 1) last.op = last.op == Op::read_reduce ? Op::read_reduce_put : Op::reduce_put;
    draft.puts = far;
  }
  // total = base + parts, in this order; those of a rank are read there.
  //
  // The kernel takes one local operand beside the remote ones, so each operation has parts of one kind. It
  // takes two operands more than it may have peers.
  Instructions sum(const Place& total, Place base, const Places& parts) const {
    Instructions steps;
    for (auto part = parts.begin(); part != parts.end();) {
      const bool local = part->rank < 0;
      const auto most = std::min<std::ptrdiff_t>(parts.end() - part, problem_.limits.peers + local);
      const auto end = std::find_if(part, part + most, [&](const Place& other) { return (other.rank < 0) != local; });
      if (!steps.empty()) steps.push_back({Op::nop});
      Places some{base};
      some.insert(some.end(), part, end);
      steps.push_back({local ? Op::reduce_to : Op::read_reduce, some, {total}});
      base = total;
      part = end;
    }
    return steps;
  }
  // Waiting, adding up, and handing on, with a barrier between each. Proxies keep order, so need none before
  // their signal.
  Instructions body(Draft& draft, int rank) const {
    const int peers = problem_.limits.peers;
    const auto near = [&](int lane) { return problem_.near(rank, lane >> 1); };
    const auto append = [](Instructions& to, Instructions&& more) { std::ranges::move(more, std::back_inserter(to)); };
    std::array<Instructions, 3> stages;
    stages[0] = sync(Op::wait, distinct(draft.waits), near, peers);
    append(stages[0], on_semaphores(Op::acquire, draft.acquired));
    stages[1] = std::move(draft.sums);
    stages[2] = on_semaphores(Op::release, draft.released);
    bool ends_in_put = false;
    for (const bool inside : {false, true}) {
      std::vector<std::pair<int, Place>> some;
      for (const auto& put : draft.puts)
        if (near(put.first) == inside) some.push_back(put);
      for (const auto& batch : batches(some, peers)) {
        Instruction& put = stages[2].emplace_back(Instruction{inside ? Op::put : Op::put_signal, {draft.source}});
        for (const auto& [lane, place] : batch) {
          put.lanes.push_back(lane);
          put.dst.push_back(place);
        }
        ends_in_put = inside;
      }
    }
    if (!draft.told.empty() && ends_in_put) stages[2].push_back({Op::nop});
    append(stages[2], sync(Op::signal, distinct(draft.told), near, peers));
    Instructions body;
    for (Instructions& stage : stages) {
      if (!body.empty() && !stage.empty()) body.push_back({Op::nop});
      append(body, std::move(stage));
    }
    append(body, std::move(draft.copy));
    return body;
  }
  Instructions on_semaphores(Op op, const Ints& semaphores) const {
    Instructions steps;
    for (Ints& batch : batches(semaphores, problem_.limits.semaphores)) steps.push_back({op, {}, {}, {}, batch});
    return steps;
  }
  Place input_of(int rank, const Tree& tree) const { return {input, tree.first - problem_.inputs[rank], tree.count}; }
  Place output_of(int rank, const Tree& tree) const { return {output, tree.first - problem_.outputs[rank], tree.count}; }

  const Problem& problem_;
  const int last_;  // half of broadcasts
  std::vector<State> states_;
};

}  // namespace forestcoll::onesided
