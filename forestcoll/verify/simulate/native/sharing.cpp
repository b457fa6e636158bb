#include "sharing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace forestcoll::simulate {

namespace {

constexpr double kSame = 1e-12;  // levels that differ by less, relatively, differ by rounding
constexpr double kRoom = 1 - 1e-9;  // share of a link up to which it is not full, whatever the rounding
constexpr std::size_t kBlock = 16;  // bundles whose soonest end is kept

// What each flow of the bundle has been served until `now`.
void advance(Bundle& bundle, double now) {
  bundle.served += bundle.rate * (now - bundle.since);
  bundle.since = now;
}

}  // namespace

Sharing::Sharing(const std::vector<double>& capacity) {
  for (const double bandwidth : capacity) links_.push_back({bandwidth});
}

int Sharing::bundle(std::span<const int> links, double weight, double cap) {
  for (const std::int32_t number : links_[links[0]].bundles) {
    const Bundle& bundle = bundles_[number];
    if (bundle.weight == weight && bundle.cap == cap && std::ranges::equal(seats(bundle), links, {}, &Seat::link))
      return number;
  }
  const auto first = static_cast<std::int32_t>(seats_.size()), number = static_cast<std::int32_t>(bundles_.size());
  for (int link : links) seats_.push_back({link, 0});
  const auto end = static_cast<std::int32_t>(seats_.size());
  bundles_.push_back({.weight = weight, .cap = cap, .first = first, .end = end});
  links_[links[0]].bundles.push_back(number);
  flows_.emplace_back();
  settled_.emplace_back();
  ends_.push_back(kUnlimited);
  if (soonest_.size() * kBlock < ends_.size()) soonest_.push_back(kUnlimited);
  return number;
}

void Sharing::touch(int number) {
  if (!settled_[number].touched) touched_.push_back(number);
  settled_[number].touched = true;
}

void Sharing::add(int number, double bytes, std::int32_t transfer, double now) {
  touch(number);
  Bundle& bundle = bundles_[number];
  if (!bundle.count++) {
    bundle.served = 0;
    bundle.since = now;
  }
  advance(bundle, now);
  std::vector<Flow>& flows = flows_[number];
  flows.push_back({bundle.served + bytes, transfer});
  std::push_heap(flows.begin(), flows.end(), std::greater<>());
  bundle.first_ends = flows.front().served;
}

double Sharing::next_end() const {
  double first = kUnlimited;
  for (const double end : soonest_) first = end < first ? end : first;
  return first;
}

void Sharing::set_end(int number) {
  const Bundle& bundle = bundles_[number];
  const double left = std::max(0.0, bundle.first_ends - bundle.served);
  const double end = bundle.count ? bundle.since + left / bundle.rate : kUnlimited;
  const double old = std::exchange(ends_[number], end);
  double& soonest = soonest_[number / kBlock];
  if (end <= soonest) {
    soonest = end;
  } else if (old == soonest) {
    const std::size_t first = number / kBlock * kBlock;
    soonest = *std::min_element(&ends_[first], &ends_[std::min(first + kBlock, ends_.size())]);
  }
}

void Sharing::end(double now, double time, std::vector<Flow>& ended) {
  for (std::size_t block = 0; block < soonest_.size(); ++block) {
    if (soonest_[block] > time) continue;
    for (std::size_t number = block * kBlock; number < std::min((block + 1) * kBlock, ends_.size()); ++number) {
      if (ends_[number] > time) continue;
      touch(static_cast<int>(number));
      Bundle& bundle = bundles_[number];
      advance(bundle, now);
      std::vector<Flow>& flows = flows_[number];
      const double served = bundle.served + bundle.rate * (time - now);
      do {
        std::pop_heap(flows.begin(), flows.end(), std::greater<>());
        ended.push_back(flows.back());
        flows.pop_back();
      } while (--bundle.count && flows.front().served <= served);
      if (bundle.count) bundle.first_ends = flows.front().served;
    }
  }
}

// Enters the bundle in the lists of its links; as yet its cap alone holds it.
void Sharing::join(int number) {
  Bundle& bundle = bundles_[number];
  bundle.level = bundle.cap / bundle.weight;
  bundle.limit = -1;
  change(number);
  for (std::int32_t seat = bundle.first; seat < bundle.end; ++seat) {
    std::vector<Member>& list = links_[seats_[seat].link].members;
    seats_[seat].place = static_cast<std::int32_t>(list.size());
    const std::int32_t others = bundle.end - bundle.first - 1;
    const std::int32_t other = others == 1 ? seats_[2 * bundle.first + 1 - seat].link : others ? -2 : -1;
    list.push_back({number, seat, other});
  }
}

void Sharing::leave(int number) {
  Bundle& bundle = bundles_[number];
  for (const auto [link, place] : seats(bundle)) {
    std::vector<Member>& list = links_[link].members;
    list[place] = list.back();
    seats_[list[place].seat].place = place;
    list.pop_back();
  }
  bundle.rate = 0;
}

// Its level is not what it was before this settling.
void Sharing::change(int number) {
  if (std::exchange(bundles_[number].changed, settles_) != settles_) changed_.push_back(number);
}

// A bundle of the link changed: unless the link has room all the same, its level is due when lower ones stand.
void Sharing::visit(int number) {
  const Link& link = links_[number];
  if (link.waits || (link.level == kUnlimited && link.load <= kRoom * link.capacity)) return;
  push(number, link.level < kUnlimited ? link.level : 0);
}

void Sharing::push(int number, double level) {
  links_[number].waits = true;
  due_.push_back({level, number});
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
}

// The level at which a bundle's other links, or its cap, hold it; `limit`: which of them.
double Sharing::level_beside(int number, const Member& member, int& limit) const {
  const Bundle& bundle = bundles_[member.bundle];
  double level = bundle.cap / bundle.weight;
  limit = -1;
  const auto look = [&](int other) {
    if (other == number || links_[other].level >= level) return;
    level = links_[other].level;
    limit = other;
  };
  if (member.other >= 0)
    look(member.other);
  else if (member.other == -2)
    for (std::int32_t seat = bundle.first; seat < bundle.end; ++seat) look(seats_[seat].link);
  return level;
}

// The level at which a link is full, as far as those of all others let its bundles.
double Sharing::solve(int number) {
  const Link& link = links_[number];
  shares_.clear();
  for (const Member& member : link.members) {
    const Bundle& bundle = bundles_[member.bundle];
    shares_.push_back({bundle.level, bundle.weight * bundle.count, bundle.limit});
    Share& share = shares_.back();
    if (share.limit == number) share.level = level_beside(number, member, share.limit);
  }
  double level = 0;
  for (std::ptrdiff_t held = -1; true;) {
    double room = link.capacity, rising = 0;
    std::ptrdiff_t holds = 0;
    for (const Share& share : shares_) {
      const bool is = share.level < level;
      room -= is ? share.level * share.weight : 0;
      rising += is ? 0 : share.weight;
      holds += is;
    }
    if (holds <= held) return level;
    held = holds;
    level = holds < std::ssize(shares_) ? room / rising : kUnlimited;
  }
}

// Gives a link the level that was solved for last, and its bundles what follows.
void Sharing::set_level(int number, double level) {
  Link& link = links_[number];
  link.level = level;
  link.load = 0;
  for (std::size_t k = 0; k < shares_.size(); ++k) {
    const Share& share = shares_[k];
    const Member& member = link.members[k];
    Bundle& bundle = bundles_[member.bundle];
    const double own = std::min(share.level, level), before = bundle.level;
    link.load += own * share.weight;
    bundle.limit = share.level < level ? share.limit : number;
    if (std::abs(own - before) <= kSame * own) continue;
    bundle.level = own;
    change(member.bundle);
    const double more = (before < kUnlimited ? own - before : own) * share.weight;
    for (const Seat& seat : seats(bundle)) {
      if (seat.link == number) continue;
      links_[seat.link].load += more;
      visit(seat.link);
    }
  }
}

void Sharing::settle(double now) {
  ++settles_;
  for (int number : touched_) {
    Bundle& bundle = bundles_[number];
    const std::int32_t more = bundle.count - settled_[number].count;
    if (!more) continue;
    if (bundle.count == more) join(number);
    if (bundle.count == 0) leave(number);
    settled_[number].count = bundle.count;
    for (const Seat& seat : seats(bundle))
      if (!links_[seat.link].waits) push(seat.link, 0);
  }
  while (!due_.empty()) {
    const int number = due_.front().link;
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
    const Link& link = links_[number];
    const double level = solve(number), least = std::min(level, link.level);
    if (!due_.empty() && least > due_.front().level && std::abs(level - link.level) > kSame * level) {
      push(number, least);
    } else {
      links_[number].waits = false;
      set_level(number, level);
    }
  }
  for (int number : changed_) {
    Bundle& bundle = bundles_[number];
    const double rate = bundle.limit < 0 ? bundle.cap : bundle.level * bundle.weight;
    if (std::abs(rate - bundle.rate) <= kSame * rate) continue;
    advance(bundle, now);
    bundle.rate = rate;
    set_end(number);
  }
  changed_.clear();
  for (int number : touched_) {
    settled_[number].touched = false;
    set_end(number);
  }
  touched_.clear();
}

}  // namespace forestcoll::simulate
