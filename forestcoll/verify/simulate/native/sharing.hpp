// Max-min fair rates of flows over links, kept up to date as flows come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace forestcoll::simulate {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// A transfer's way over the links of one of its stages.
struct Flow {
  double served;  // bytes that each flow of its bundle will have had when this one ends
  std::uint64_t number;  // of two that end at once the first to come goes first
  std::int32_t transfer, stage;
  bool operator>(const Flow& other) const {
    return served != other.served ? served > other.served : number > other.number;
  }
};

// The flows over the same links with the same weight and cap (bytes a microsecond): all have the same
// rate at all times, so one rate stands for all, and they end in the order of `Flow::served`.
struct Bundle {
  const std::vector<int>* links = nullptr;
  double weight = 1, cap = kUnlimited;
  double rate = 0, served = 0, since = 0;  // of each flow: rate, and bytes served until `since`
  std::vector<Flow> flows;  // a heap, what ends first on top
  std::size_t settled = 0;  // flows that the rates of today are for
  std::vector<std::int32_t> place;  // in the lists of its links
  bool touched = false, seen = false, frozen = false;
};

class Sharing {
 public:
  explicit Sharing(std::vector<double> capacity);

  // A new flow; it has no rate of its own until `settle`.
  void add(const std::vector<int>& links, double bytes, double weight, double cap,
           std::int32_t transfer, std::int32_t stage, double now);

  // Takes the flow that ends first out of its bundle.
  Flow end(int bundle, double now);

  // When the first flow of the bundle ends at today's rates; infinite where it has none.
  double next_end(int bundle) const;

  // Gives every flow that it may concern its rate from `now` on, and names the bundles whose rates
  // changed or that have new flows.
  //
  // Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2): all rates grow alike,
  // weight by weight, and a flow stops where its cap is reached or a link of it is full. Flows that
  // share no link with what changed, directly or through others, keep theirs. Where a bundle has as
  // many flows as before, as when a thread block moves slice after slice, nothing has changed.
  const std::vector<int>& settle(double now);

 private:
  struct Member {
    std::int32_t bundle, slot;  // `slot`: which of the bundle's links this is
  };
  struct Key {
    const void* links;
    double weight, cap;
    bool operator==(const Key& other) const {
      return links == other.links && weight == other.weight && cap == other.cap;
    }
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      const std::hash<double> number;
      return std::hash<const void*>()(key.links) * 31 + number(key.weight) * 17 + number(key.cap);
    }
  };
  int bundle_of(const std::vector<int>& links, double weight, double cap);
  void touch(int bundle);
  void join(int bundle);
  void leave(int bundle);
  void gather();
  void fill(double now);
  void freeze(int bundle, double rate, double now);

  std::vector<Bundle> bundles_;
  std::unordered_map<Key, int, Hash> numbers_;
  std::vector<double> capacity_;
  std::vector<double> room_, weight_;  // per link: what is left for the flows that are not frozen yet,
  std::vector<int> open_;  // their weight, and how many bundles they are
  std::vector<std::vector<Member>> members_;
  std::vector<char> dirty_, seen_;
  std::vector<int> changed_links_, links_, found_, touched_, changed_;
  std::vector<std::pair<double, int>> levels_;
  std::uint64_t number_ = 0;
};

}  // namespace forestcoll::simulate
