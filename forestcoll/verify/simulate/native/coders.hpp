// What the coders of programs ask of the fabric, and what times depend on besides.

#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "../../native/columns.hpp"
#include "code.hpp"

namespace forestcoll::simulate {

struct Rates {  // bytes a microsecond are 1000 times these; 0: no limit
  double block = 0, sum = 0;
  bool adds_slowly = false;  // whether adding up has a rate of its own
  double cap(int sharers = 1) const { return block > 0 ? block * 1000 / sharers : 0; }
  double copy_time(double bytes) const { return block > 0 ? bytes / block / 1000 : 0; }
  double sum_time(double bytes) const { return sum > 0 ? bytes / sum / 1000 : 0; }
};

using Ways = std::vector<std::pair<int, std::int64_t>>;  // routes, each with its weight

// Python's fabric, asked once for each pair of ranks.
struct Asked {
  std::function<Ways(int, int, bool, double)> ways;  // source, target, whether it reads, after so long
  std::function<double(int, int)> latency, round_trip;
  std::function<double(std::int64_t, std::int64_t)> bytes;  // of so many chunks, cut in so many parts
  std::function<std::tuple<int, double, double>(std::int64_t, std::int64_t)> loop;  // rounds, bytes: full, last
  std::function<std::vector<int>(int, bool, std::vector<int>)> in_switch;  // routes through it
};

// The answers of the fabric, kept; ways between two ranks are dealt out by their weights.
class Fabric {
 public:
  explicit Fabric(Asked asked) : asked_(std::move(asked)) {}
  int between(int source, int target, Size size, bool reads = false, double after = 0);
  double latency(int source, int target) { return kept(latencies_, source, target, asked_.latency); }
  double round_trip(int source, int target) { return kept(round_trips_, source, target, asked_.round_trip); }
  Size bytes(std::int64_t chunks, std::int64_t parts);
  std::tuple<int, double, double> loop(const verify::Loop& loop) const { return asked_.loop(loop.chunks, loop.unit_bytes); }
  std::vector<int> in_switch(int rank, bool adds, std::vector<int> group) const {
    return asked_.in_switch(rank, adds, std::move(group));
  }

 private:
  using Pair = std::pair<int, int>;
  static double kept(std::map<Pair, double>& table, int source, int target, const std::function<double(int, int)>& ask) {
    const auto it = table.find({source, target});
    return it != table.end() ? it->second : table[{source, target}] = ask(source, target);
  }

  Asked asked_;
  std::map<std::tuple<int, int, bool, double>, Ways> ways_;
  std::map<Pair, std::vector<double>> dealt_;
  std::map<Pair, double> latencies_, round_trips_;
  std::map<std::pair<std::int64_t, std::int64_t>, double> bytes_;
};

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

}  // namespace forestcoll::simulate
