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
  double rate = 0, next = 0;  // of each flow; `next`: by the last filling
  std::int32_t first, end;    // its links: in `seats_`
  std::int32_t count = 0;     // flows
  std::int32_t limit = -1;    // the link that is full at its rate; -1: its cap
  std::uint32_t frozen = 0;   // the filling that froze it last
  std::uint32_t opened = 0;   // the settling that opened it last
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
  // weight (Bertsekas and Gallager, Data Networks, section 6.5.2): the link that limits it. New are
  // therefore at first the rates of the bundles that changed and of those that a changed link limits.
  // Progressive filling gives them what the others leave; whoever then has more than a link is full at,
  // or could have more, is filled again with them, until all rates stand. Where a bundle has as many
  // flows as before, as when a thread block moves slice after slice, nothing has changed.
  void settle(double now);

 private:
  struct Seat {  // of a bundle on a link
    std::int32_t link, place;  // `place`: in the link's list
  };
  struct Member {
    std::int32_t bundle, seat;
    std::int32_t other;  // its other link; -1 where there is none, -2 where there are several
  };
  struct alignas(64) Link {
    double capacity;
    double left = 0, weight = 0;  // what bundles that are not open leave; the weight of the open ones
    double most = 0;              // by weight, of all that are not open, or more
    double room = 0, rising = 0;  // of `left` and `weight`, what those that are not frozen yet have
    double level = 0;             // at which it is full; kUnlimited: it never is
    std::int32_t opened = 0, open = 0;  // bundles that are open, and of those not frozen yet
    std::int32_t limited = 0;           // that it limits and that are not open
    std::uint32_t seen = 0;             // the settling that visited it last
    std::vector<Member> members{};
    std::vector<std::int32_t> bundles{};  // whose first it is
  };
  struct Settled {
    std::int32_t count = 0;  // flows that the rates of today are for
    bool touched = false;    // since
  };
  std::span<Seat> seats(const Bundle& bundle) { return {&seats_[bundle.first], &seats_[bundle.end]}; }
  void touch(int bundle);
  void join(int bundle);
  void leave(int bundle);
  void visit(int link);
  void open(int bundle);
  void fill();
  bool widen();
  void freeze(const Member& member, double rate, int limit);
  void set_end(int bundle);

  std::vector<Bundle> bundles_;
  std::vector<std::vector<Flow>> flows_;  // of each bundle: a heap, what ends first on top
  std::vector<Settled> settled_;          // of each bundle
  std::vector<double> ends_, soonest_;    // when the first flow of each bundle ends, and of each block of bundles
  std::vector<Seat> seats_;
  std::vector<Link> links_;
  std::vector<int> near_links_, open_, touched_;
  std::uint32_t settles_ = 0, fillings_ = 0;
  std::size_t unfrozen_ = 0;  // open bundles that the filling has not frozen yet
  bool capped_ = false;  // some bundle is
  struct Level {  // bytes a microsecond and weight at which a link is full, or ~bundle at its cap
    double level;
    std::int32_t which;
  };
  void sink(std::size_t place);
  std::vector<Level> levels_;  // a heap, the lowest on top
};

}  // namespace forestcoll::simulate
