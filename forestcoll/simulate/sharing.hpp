// Max-min fair rates of flows over links, kept up to date as flows come and go.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace forestcoll::simulate {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// A flow over `links` with at most `cap` bytes a microsecond. What is left of it counts from `since`.
struct Flow {
  const std::vector<int>* links = nullptr;
  double weight = 1, cap = kUnlimited, left = 0, rate = 0, since = 0;
  std::int32_t transfer = -1, stage = -1;
  std::uint32_t version = 0;  // of its rate; grows when the flow ends, too
  std::vector<std::int32_t> place;  // in the lists of its links
  bool active = false, seen = false, frozen = false;
};

class Sharing {
 public:
  explicit Sharing(std::vector<double> capacity);

  // A new flow; it has no rate until `settle`.
  int add(const std::vector<int>& links, double bytes, double weight, double cap, double now);
  void remove(int flow);

  // Gives every flow that it may concern its rate from `now` on, and names those whose rate changed.
  //
  // Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates grow alike,
  // weight by weight, and a flow stops where its cap is reached or a link of it is full. Flows that
  // share no link with what changed, directly or through others, keep theirs.
  const std::vector<int>& settle(double now);

  std::vector<Flow> flows;

 private:
  struct Member {
    std::int32_t flow, slot;  // `slot`: which of the flow's links this is
  };
  void gather();
  void freeze(int flow, double rate, double now);

  std::vector<double> capacity_;
  std::vector<double> room_, weight_;  // per link: what is left for the flows that are not frozen yet,
  std::vector<int> open_;  // their weight, and how many they are
  std::vector<std::vector<Member>> members_;
  std::vector<char> dirty_, seen_;
  std::vector<int> changed_links_, links_, flows_, free_, changed_;
};

}  // namespace forestcoll::simulate
