// What ranks repeat, slice by slice, for trees (MSCCL++): pipelines.cpp says how.
#pragma once

#include <array>

#include "graph.hpp"

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

// `lanes`: in place of channels until the thread blocks are known.
struct Instruction {
  Op op;
  std::vector<Place> src, dst;
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

  void join(const Work& other);
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
struct Tree {
  int root;
  bool down;     // a broadcast
  bool ordered;  // sums are made in the order of the children, the last of `order` first
  Chunks first, count;
  Ints parent, order;
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

void cut(Tree& tree, const Problem& problem, Apart apart);

// One operation on each `peers` of these lanes, or channels; first on those that are near.
template <class Near>
Instructions sync(Op op, const Ints& numbers, Near near, int peers) {
  Instructions steps;
  for (const bool inside : {true, false}) {
    Ints batch;
    for (const int number : numbers) {
      if (near(number) != inside) continue;
      batch.push_back(number);
      if (number_of(batch) == peers) steps.push_back({op, {}, {}, std::exchange(batch, {}), {}});
    }
    if (!batch.empty()) steps.push_back({op, {}, {}, batch, {}});
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
  Pipelines(const Problem& problem, int halves);

  std::vector<Pipe> pipes;
  Amounts scratch;  // chunks that each rank has needed so far, ...
  Ints semaphores;              // ... and semaphores

  // Lets the root of the reduce tree `up` begin the broadcast tree `down`, which carries the same chunks;
  // false if it cannot.
  bool fuse(int up, int down);
  void part_ways(int up);  // takes `fuse` back
  void hand_over(int up, int down);
  void queue(const Ints& trees);
  Unit unit(const std::vector<std::pair<int, int>>& members);  // (tree, group) of each

 private:
  // Of a tree. Per rank with children where its sum lies; per child in another box where that puts its part
  // at the parent; per rank the child whose slot has the sum, and the first semaphore of its groups, or -1.
  struct State {
    std::vector<Place> totals, slots;
    Ints lent, gates;
    int fused = -1;      // of a reduce tree: the broadcast tree that its root begins
    bool begun = false;  // of that broadcast tree
    Ints handed;         // of a reduce tree: semaphores of the root, every slice
    int taken = -1;      // of a broadcast tree: the root's semaphore, every slice
    Ints released, acquired;  // the same, after the last slice and before the first
  };

  void place_sums(const Tree& tree, State& state);
  Place keep(int rank, Chunks count);
  int half(int number, int rank) const;
  int lane(int number, int peer) const { return 2 * peer + half(number, peer); }
  bool silent(int number, int child) const;
  std::array<bool, 4> shakes(int number, int child) const;
  void meet(Draft& draft, int number, int rank, const Ints& children, bool main) const;
  void broadcast(Draft& draft, int number, int place, int rank, const Ints& children) const;
  void hand_down(Draft& draft, int number, int rank, const Ints& children) const;
  void reduce(Draft& draft, int number, int place, int rank, const Ints& children) const;
  void begin(Draft& draft, int down, int rank) const;
  Place partial(int number, int rank) const;
  Instructions sum(const Place& total, Place base, const std::vector<Place>& parts) const;
  Instructions body(Draft& draft, int rank) const;
  Instructions on_semaphores(Op op, const Ints& semaphores) const;
  Place input_of(int rank, const Tree& tree) const { return {input, tree.first - problem_.inputs[rank], tree.count}; }
  Place output_of(int rank, const Tree& tree) const { return {output, tree.first - problem_.outputs[rank], tree.count}; }

  const Problem& problem_;
  const int last_;  // half of broadcasts
  std::vector<State> states_;
};

}  // namespace forestcoll::onesided
