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
  for (const double bandwidth : capacity) links_.push_back({bandwidth, kRoom * bandwidth});
  members_.resize(capacity.size());
  first_of_.resize(capacity.size());
}

int Sharing::bundle(std::span<const int> links, double weight, double cap) {
  for (const std::int32_t number : first_of_[links[0]]) {
    const Bundle& bundle = bundles_[number];
    if (bundle.weight == weight && bundle.cap == cap && std::ranges::equal(seats(bundle), links, {}, &Seat::link))
      return number;
  }
  const auto first = static_cast<std::int32_t>(seats_.size()), number = static_cast<std::int32_t>(bundles_.size());
  for (int link : links) seats_.push_back({link, 0});
  const auto end = static_cast<std::int32_t>(seats_.size());
  bundles_.push_back({.weight = weight, .cap = cap, .first = first, .end = end});
  first_of_[links[0]].push_back(number);
  shares_.push_back({.most = cap / weight});
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
  const Bundle& bundle = bundles_[number];
  shares_[number].level = shares_[number].most;
  shares_[number].limit = -1;
  shares_[number].full = 0;
  change(number);
  for (std::int32_t seat = bundle.first; seat < bundle.end; ++seat) {
    std::vector<Member>& list = members_[seats_[seat].link];
    seats_[seat].place = static_cast<std::int32_t>(list.size());
    list.push_back({number, seat});
    shares_[number].full += links_[seats_[seat].link].level < kUnlimited;
  }
}

void Sharing::leave(int number) {
  Bundle& bundle = bundles_[number];
  for (const auto [link, place] : seats(bundle)) {
    std::vector<Member>& list = members_[link];
    list[place] = list.back();
    seats_[list[place].seat].place = place;
    list.pop_back();
  }
  bundle.rate = 0;
}

// Its level is not what it was before this settling.
void Sharing::change(int number) {
  if (std::exchange(shares_[number].changed, settles_) != settles_) changed_.push_back(number);
}

void Sharing::push(int number, double level) {
  links_[number].waits = true;
  due_.push_back({level, number});
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
}

// The level at which a bundle's other links, or its cap, hold it; `limit`: which of them.
double Sharing::level_beside(int number, int held, int& limit) const {
  double level = shares_[held].most;
  limit = -1;
  if (shares_[held].full == 1) return level;  // this one alone
  for (const Seat& seat : seats(bundles_[held])) {
    if (seat.link == number || links_[seat.link].level >= level) continue;
    level = links_[seat.link].level;
    limit = seat.link;
  }
  return level;
}

// The level at which a link is full, as far as those of all others let its bundles.
double Sharing::solve(int number) {
  holds_.clear();
  for (const Member& member : members_[number]) {
    const Share& share = shares_[member.bundle];
    holds_.push_back({share.level, share.weight, share.limit});
    if (Hold& hold = holds_.back(); hold.limit == number) hold.level = level_beside(number, member.bundle, hold.limit);
  }
  if (holds_.empty()) return kUnlimited;
  // Newton's method on what they have together, a concave function of the level: wherever it begins, its first
  // step leads to the root or to the left of it, and from there it goes right.
  double level = links_[number].level < kUnlimited ? links_[number].level : 0;
  std::ptrdiff_t held = -1;
  for (int step = 0; true; ++step) {
    double room = links_[number].capacity, rising = 0;
    std::ptrdiff_t lower = 0;
    for (const Hold& hold : holds_) {
      const bool is = hold.level < level;
      room -= is ? hold.level * hold.weight : 0;
      rising += is ? 0 : hold.weight;
      lower += is;
    }
    if (lower == held || (step > 1 && lower < held)) return level;
    held = lower;
    level = held < std::ssize(holds_) ? room / rising : step ? kUnlimited : 0;
  }
}

// Gives a link the level that was solved for last, and its bundles what follows.
void Sharing::set_level(int number, double level) {
  Link& link = links_[number];
  const std::int32_t more_full = (level < kUnlimited) - (link.level < kUnlimited);
  link.level = level;
  double load = 0;
  const Member* member = members_[number].data();
  for (const Hold& hold : holds_) {
    const int held = member++->bundle;
    Share& share = shares_[held];
    share.full += more_full;
    const double own = std::min(hold.level, level), before = share.level;
    load += own * hold.weight;
    share.limit = hold.level < level ? hold.limit : number;
    if (std::abs(own - before) <= kSame * own) continue;
    share.level = own;
    change(held);
    const double more = (before < kUnlimited ? own - before : own) * hold.weight;
    for (const Seat& seat : seats(bundles_[held])) {
      Link& other = links_[seat.link];
      other.load += more;
      if (other.waits) continue;
      if (other.level < kUnlimited)
        push(seat.link, other.level);
      else if (other.load > other.room)
        push(seat.link, 0);
    }
  }
  link.load = load;
  link.waits = false;
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
    shares_[number].weight = bundle.weight * bundle.count;
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
      set_level(number, level);
    }
  }
  for (int number : changed_) {
    Bundle& bundle = bundles_[number];
    const Share& share = shares_[number];
    const double rate = share.limit < 0 ? bundle.cap : share.level * bundle.weight;
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
