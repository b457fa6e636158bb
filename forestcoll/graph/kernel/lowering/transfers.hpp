// Transfers, and their order: level by level, or in a schedule on the links, for much data (fifo programs).
//
// A transfer is what one rank hands another in one step, the one product of trees and of routes. Every
// edge of a tree carries the tree's chunks, every hop of a route those of its blocks. A transfer knows
// those that it needs; they come before it in every list. The level of a transfer is the number of steps
// that have to be done before it; transfers of one connection and level that are neighbours may become one
// (`join`).
//
// The list of a thread block is repeated for slice after slice, so its order is that of a steady flow.
// Where trees are done level by level, or root by root, links wait for the one tree that they are for;
// here each transfer has the place at which a greedy schedule of all of them on the links starts it
// (list_scheduling.cpp: nobody is interrupted; the longest chain goes first, of what follows, or of what
// comes before where the schedule is made from the end: whichever takes less time).
//
// * Equally urgent transfers take turns: the first parts of all trees, then the second ones, for
//   connections of their own are at work at once; then by the distance of receiver and sender, so that
//   not everybody sends to the same rank.
// * A transfer carries one unit of share (a chunk), or as few as the target's limits allow: whoever hands
//   it on waits for no other.
// * The first part of a sum in that order opens it.
// * The block that sends a sum on adds it up: who receives can take the next transfer meanwhile.
// * The two phases of an allreduce have channels of their own, and so have the trees of one root.
// * A connection has as many thread blocks as its rate takes.
#pragma once

#include "list_scheduling.hpp"
#include "python.hpp"

namespace forestcoll {

using Connection = std::tuple<int, int, int, int>;  // sender, receiver, group, parity of the channels

enum Buffer : int { none = -1, input, output, scratch };

// final: received in place, at the total. open: the first part of a sum: received at the total, the own
// input is added to it. add: received in a slot of its own, added to the total.
enum class Land { add, final, open };

struct Place {  // chunks of a buffer
  int buffer = none, offset = 0, count = 0;
};

// `source` at rank `src` goes to rank `dst`, and into `total` there. `chunk`: the first of the chunks of
// the whole. `tree`: which tree's, or what else orders equals. Transfers of one connection share channels.
struct Transfer {
  int src, dst;
  Place source, total;
  int chunk, tree, level, connection;
  Land land;
};

struct Transfers {
  // Source: rank, buffer, offset; total: the same; count, chunk, tree, level, group; where it lands.
  using Row = std::tuple<int, int, int, int, int, int, int, int, int, int, int, int>;

  std::vector<Transfer> items;
  std::vector<Connection> connections;
  FlatLists needs;  // of transfers of trees, until they are put in an order
  Ints scratch_chunks;  // of it that every rank needs for partial sums
  Ints turns;       // per part of a tree its place among equally urgent ones

  Transfers() = default;
  explicit Transfers(const std::vector<Row>& rows);
  std::vector<Row> rows() const;

  // The number of a connection.
  int connect(const Connection& connection);

  // Per connection chunks and transfers.
  Pairs loads() const;

  // Makes transfers that are neighbours at both ends one, and orders all by levels. Only those of one
  // connection and level: all that they wait for still comes before all that waits for them. None gets
  // more than `most` chunks.
  void join(int most);

  // Puts them in as few levels as can be, and joins those.
  void join_levels(int most);

  // Puts them in the order of a schedule: `ways`: the links of each connection, and how many channels it
  // has; `capacity`: of all links. Per transfer how many have started when it is there; and how many times
  // as long as its busiest link is busy all take.
  // `exchange`: ranks are as far from each other as the bits in which they differ, not (receiver - sender)
  // mod n; of equally urgent transfers the one to the nearest rank goes first, or to the farthest (`back`).
  // `turns`: the first parts of all trees are the most urgent, then the second ones.
  std::pair<Ints, double> schedule(const Lists& ways, const Amounts& capacity, const Ints& channels,
                                   bool exchange, bool back, bool turns);

 private:
  FlatLists take_needs();
  void open_sums();
  void join_neighbours(int most);

  std::map<Connection, int> numbers_;
};

// Transfers of all trees. `trees`: of lower/layout.py, each in one of `groups`; those of more than `most`
// chunks are cut into nearly equal parts. Per rank, whether it sends its own data from the output
// (`early`), and the first chunk of the whole that its input and its output have. Sums of more than one
// part have none yet that opens them.
Transfers transfers_of(nb::sequence trees, const Ints& groups, int most, const std::vector<bool>& early,
                       const Ints& inputs, const Ints& outputs);

}  // namespace forestcoll
