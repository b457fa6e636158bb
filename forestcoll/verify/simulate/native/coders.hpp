// What the coders of programs ask of the fabric, and what times depend on besides.

#pragma once

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string_view>
#include <tuple>

#include "../../native/columns.hpp"
#include "code.hpp"

namespace forestcoll::simulate {

struct Rates {  // bytes a microsecond are 1000 times these; 0: no limit
  double block = 0, sum = 0;
  bool adds_slowly = false;  // whether adding up has a rate of its own
  double copy_time(double bytes) const { return block > 0 ? bytes / block / 1000 : 0; }
  double sum_time(double bytes) const { return sum > 0 ? bytes / sum / 1000 : 0; }
};

using Ways = std::vector<std::pair<int, std::int64_t>>;  // routes, each with its weight

// What Python's Coder says of the fabric, kept; ways between two ranks are dealt out by their weights.
class Fabric {
 public:
  explicit Fabric(nanobind::object coder) : coder_(std::move(coder)) {}
  int between(int source, int target, Size size, bool reads = false, double after = 0);
  double latency(int source, int target) { return kept("latency", source, target); }
  double round_trip(int source, int target) { return kept("round_trip", source, target); }
  // Of so many chunks, cut in so many parts.
  Size bytes(std::int64_t chunks, std::int64_t parts) {
    const double bytes = kept("bytes", chunks, parts);
    return {bytes, bytes};
  }
  // Rounds; bytes of all but the last, and of the last.
  std::tuple<int, double, double> loop(const verify::Loop& loop) {
    const auto [it, fresh] = loops_.try_emplace({loop.chunks, loop.unit_bytes});
    if (fresh) it->second = ask<std::tuple<int, double, double>>("loop", loop.chunks, loop.unit_bytes);
    return it->second;
  }
  // Routes through a switch.
  std::vector<int> in_switch(int rank, bool adds, const std::vector<int>& group) const {
    return ask<std::vector<int>>("switch", rank, adds, group);
  }

 private:
  template <class Answer, class... Of>
  Answer ask(const char* what, const Of&... of) const {
    return nanobind::cast<Answer>(coder_.attr(what)(of...));
  }
  double kept(const char* what, std::int64_t x, std::int64_t y) {
    const auto [it, fresh] = kept_.try_emplace({what, x, y});
    if (fresh) it->second = ask<double>(what, x, y);
    return it->second;
  }

  nanobind::object coder_;
  std::map<std::tuple<int, int, bool, double>, Ways> ways_;
  decltype(ways_)::iterator last_ = ways_.end();  // that was asked for last: a thread block asks for one often
  std::map<std::pair<int, int>, std::vector<double>> dealt_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::tuple<int, double, double>> loops_;
  std::map<std::tuple<std::string_view, std::int64_t, std::int64_t>, double> kept_;
};

// Notes that bytes of an input or output are read, or `later` written: `count` chunks from `offset` on, of which
// `parts` are one; loops go over `stride` bytes a round.
inline void mark(Threads& threads, Thread& thread, Fabric& fabric, int rank, int buffer, bool reads,
                 std::int64_t offset, std::int64_t count, std::int64_t parts, double stride, double later = 0) {
  if (!threads.marks || buffer == verify::scratch) return;
  const double low = fabric.bytes(offset, parts).full, high = fabric.bytes(offset + count, parts).full;
  threads.places.push_back({rank, buffer, reads, low, high, stride});
  thread.mark(verify::count_of(threads.places) - 1, later);
}

// How chunks of a fifo program are cut: the rounds, a chunk's bytes in a round, chunks in a message at most.
struct Slices {
  int rounds;
  Size size;
  std::int64_t chunks;
  int parts;           // of a message, each handed over on its own
  std::int64_t slots;  // of a connection, in parts
  double wire;         // bytes on a link for a byte of data
  std::vector<int> boxes;  // of the ranks
};

void code_fifo(const verify::Columns& columns, const Slices& slices, const Rates& rates, Fabric& fabric,
               Threads& threads);
void code_onesided(const verify::Columns& columns, const Rates& rates, Fabric& fabric, Threads& threads);

// Threads of a forest alone: one for each edge of a tree, piece after piece (../trees.py).
class TreeCoder {
 public:
  static constexpr int all_trees = -2;  // the block of a thread that sends for all trees of a rank
  // From rank to rank, the route, and whether all its links serve in order.
  using Edge = std::tuple<int, int, int, bool>;
  // The counter of a sum, and how much of it each piece of a broadcast needs; none: as much as it is.
  using Gate = std::pair<int, std::vector<int>>;

  TreeCoder(Threads& threads, int ranks, int op, int pieces)
      : threads_(threads), op_(op), pieces_(pieces), posts_(ranks) {}
  // The counter of pieces that the root of a reduce tree has; `bytes` of a piece.
  int write(int number, bool reduces, int root, double bytes, const std::vector<Edge>& edges,
            const std::vector<Gate>& gates);
  // A thread for each rank: piece after piece, of all trees, the highest trees first.
  void write_posts();

 private:
  struct Post {  // what a rank sends from the start over links that serve in order
    int hops, tree, peer, route;
    double bytes;
    int arrived;
  };

  Threads& threads_;
  const int op_, pieces_;
  std::vector<std::vector<Post>> posts_;
  std::vector<int> order_;  // of the ranks, as they came
};

}  // namespace forestcoll::simulate
