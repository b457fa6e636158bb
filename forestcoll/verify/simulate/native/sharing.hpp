// Max-min fair rates of flows over links, kept up to date as flows come and go.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace forestcoll::simulate {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// A transfer's way over the links of one of its stages.
struct Flow {
  double served;  // bytes that each flow of its bundle will have had when this one ends
  std::int32_t transfer;
  bool operator>(const Flow& other) const { return served > other.served; }
};

// The flows over the same links with the same weight and cap (bytes a microsecond): all have the same
// rate at all times, so one rate stands for all, and they end in the order of `Flow::served`.
struct alignas(64) Bundle {
  double weight, cap;
  double rate = 0;          // of each flow
  std::int32_t first, end;  // its links: in `seats_`
  std::int32_t count = 0;   // flows
  double served = 0, since = 0;  // bytes of each flow that were served until `since`
  double first_ends = 0;  // what is served when the first flow ends
};

class Sharing {
 public:
  explicit Sharing(const std::vector<double>& capacity);

  // The bundle of flows over these links.
  int bundle(std::span<const int> links, double weight, double cap);
  const Bundle& operator[](int bundle) const { return bundles_[bundle]; }

  // A new flow of a bundle; it has no rate of its own until `settle`.
  void add(int bundle, double bytes, std::int32_t transfer, double now);

  // When the first flow of all ends at today's rates.
  double next_end() const;

  // Takes out all flows that end by then.
  void end(double now, double time, std::vector<Flow>& ended);

  // Gives every flow that it concerns its rate from `now` on.
  //
  // Rates are max-min fair if each flow has its cap, or crosses a full link on which none has more by
  // weight (Bertsekas and Gallager, Data Networks, section 6.5.2): the link that limits it. A link's level
  // is what it would let each have that no other link, nor its cap, holds below it; a flow has the lowest
  // level on its way. So levels follow from each other, and each from lower ones alone: those that
  // may change are solved anew, the lowest first, until none changes. Where a bundle has as many flows as
  // before, as when a thread block moves slice after slice, nothing has changed.
  void settle(double now);

 private:
  struct Seat {  // of a bundle on a link
    std::int32_t link, place;  // `place`: in the link's list
  };
  struct Member {
    std::int32_t bundle, seat;
  };
  struct Link {
    double capacity, room;      // up to `room` it is not full, whatever the rounding
    double level = kUnlimited;  // at which it is full; kUnlimited: it never is
    double load = 0;            // what its bundles have together
    bool waits = false;         // in `due_`
  };
  struct Share {  // of a bundle
    double level = 0, weight = 0;  // the rate by weight that its links let each flow have; of all flows
    double most = kUnlimited;      // the level of its cap
    std::int32_t limit = -1;       // the link whose level it has; -1: its cap
    std::int32_t full = 0;         // so many of its links are
    std::uint32_t changed = 0;     // the settling that changed its level last
  };
  struct Hold {  // of a bundle in a link: the level that others let it have, its weight, and whose level
    double level, weight;
    std::int32_t limit;
  };
  struct Due {
    double level;
    int link;
    bool operator>(const Due& other) const { return level > other.level; }
  };
  struct Settled {
    std::int32_t count = 0;  // flows that the rates of today are for
    bool touched = false;    // since
  };
  std::span<const Seat> seats(const Bundle& bundle) const { return {&seats_[bundle.first], &seats_[bundle.end]}; }
  void touch(int bundle);
  void join(int bundle);
  void leave(int bundle);
  void change(int bundle);
  void push(int link, double level);
  double level_beside(int link, int bundle, int& limit) const;
  double solve(int link);
  void set_level(int link, double level);
  void set_end(int bundle);

  std::vector<Bundle> bundles_;
  std::vector<std::vector<Flow>> flows_;  // of each bundle: a heap, what ends first on top
  std::vector<Settled> settled_;          // of each bundle
  std::vector<double> ends_, soonest_;    // when the first flow of each bundle ends, and of each block of bundles
  std::vector<Share> shares_;             // of each bundle
  std::vector<Seat> seats_;
  std::vector<Link> links_;
  std::vector<std::vector<Member>> members_;  // of each link
  std::vector<std::vector<std::int32_t>> first_of_;  // of each link: the bundles whose first it is
  std::vector<int> changed_, touched_;  // bundles: with another level, with other flows
  std::vector<Due> due_;                // links whose levels may change: a heap, the lowest on top
  std::vector<Hold> holds_;             // of the link that was solved last
  std::uint32_t settles_ = 0;
};

}  // namespace forestcoll::simulate
