// Max-min fair rates of flows over links, kept up to date as flows come and go.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
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
struct alignas(64) Bundle {
  double weight, cap;
  double rate = 0, served = 0, since = 0;  // of each flow: rate, and bytes served until `since`
  std::int32_t first, end;  // its links: in `seats_`
  std::int32_t count = 0, settled = 0;  // flows; those that the rates of today are for
  bool touched = false, seen = false, frozen = false;
};

class Sharing {
 public:
  explicit Sharing(const std::vector<double>& capacity);

  // A bundle without flows over these links.
  int bundle(std::span<const int> links, double weight, double cap);
  const Bundle& operator[](int bundle) const { return bundles_[bundle]; }

  // A new flow of a bundle; it has no rate of its own until `settle`.
  void add(int bundle, double bytes, std::int32_t transfer, std::int32_t stage, double now);

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
  struct Seat {  // of a bundle on a link
    std::int32_t link, place;  // `place`: in the link's list
  };
  struct Member {
    std::int32_t bundle, seat;
  };
  struct alignas(64) Link {
    double capacity, room = 0, weight = 0;  // what is left for the flows that are not frozen yet,
    std::int32_t open = 0;                  // their weight, and how many bundles they are
    bool dirty = false, seen = false;
    std::vector<Member> members{};
  };
  std::span<Seat> seats(const Bundle& bundle) { return {&seats_[bundle.first], &seats_[bundle.end]}; }
  void touch(int bundle);
  void join(int bundle);
  void leave(int bundle);
  void gather();
  void fill(double now);
  void freeze(int bundle, double rate, double now);

  std::vector<Bundle> bundles_;
  std::vector<std::vector<Flow>> flows_;  // of each bundle: a heap, what ends first on top
  std::vector<Seat> seats_;
  std::vector<Link> links_;
  std::vector<int> changed_links_, near_links_, near_, touched_, changed_;
  std::vector<std::pair<double, int>> levels_;
  std::uint64_t number_ = 0;
};

}  // namespace forestcoll::simulate
