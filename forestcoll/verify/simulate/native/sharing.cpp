#include "sharing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace forestcoll::simulate {

namespace {

constexpr double kSame = 1e-12;  // rates that differ by less, relatively, differ by rounding
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
  capped_ |= cap < kUnlimited;
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

// Enters the bundle in the lists of its links.
void Sharing::join(int number) {
  const Bundle& bundle = bundles_[number];
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
  bundle.limit = -1;
}

// A link that may be filled anew.
void Sharing::visit(int number) {
  Link& link = links_[number];
  if (link.seen == settles_) return;
  near_links_.push_back(number);
  link.seen = settles_;
  link.left = link.capacity;
  link.most = link.weight = 0;
  link.opened = link.limited = 0;
  for (const Member& member : link.members) {
    const Bundle& bundle = bundles_[member.bundle];
    link.left -= bundle.rate * bundle.count;
    link.most = std::max(link.most, bundle.rate / bundle.weight);
    link.limited += bundle.limit == number;
  }
}

// A bundle that gets a new rate.
void Sharing::open(int number) {
  Bundle& bundle = bundles_[number];
  if (bundle.opened == settles_) return;
  bundle.opened = settles_;
  open_.push_back(number);
  for (const Seat& seat : seats(bundle)) {
    visit(seat.link);
    Link& link = links_[seat.link];
    link.left += bundle.rate * bundle.count;
    link.weight += bundle.weight * bundle.count;
    link.limited -= bundle.limit == seat.link;
    ++link.opened;
  }
}

void Sharing::freeze(const Member& member, double rate, int limit) {
  Bundle& bundle = bundles_[member.bundle];
  --unfrozen_;
  bundle.frozen = fillings_;
  bundle.next = rate;
  bundle.limit = limit;
  const double all = rate * bundle.count, weight = bundle.weight * bundle.count;
  const auto take = [&](int number) {
    Link& link = links_[number];
    link.room -= all;
    link.rising -= weight;
    --link.open;
  };
  if (member.other >= 0)
    take(member.other);
  else if (member.other == -2)
    for (const Seat& seat : seats(bundle)) take(seat.link);
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
    if (bundle.count)
      open(number);
    else
      for (const Seat& seat : seats(bundle)) visit(seat.link);
  }
  for (std::size_t k = 0, changed = near_links_.size(); k < changed; ++k)
    for (const Member& member : links_[near_links_[k]].members)
      if (bundles_[member.bundle].limit == near_links_[k]) open(member.bundle);
  if (!open_.empty())
    do fill();
    while (widen());
  for (int number : open_) {
    Bundle& bundle = bundles_[number];
    if (std::abs(bundle.next - bundle.rate) <= kSame * bundle.next) continue;
    advance(bundle, now);
    bundle.rate = bundle.next;
    set_end(number);
  }
  open_.clear();
  near_links_.clear();
  for (int number : touched_) {
    settled_[number].touched = false;
    set_end(number);
  }
  touched_.clear();
}

// Puts a level down to where none below it is lower.
void Sharing::sink(std::size_t place) {
  const Level level = levels_[place];
  for (std::size_t below; (below = 2 * place + 1) < levels_.size(); place = below) {
    if (below + 1 < levels_.size()) below += levels_[below + 1].level < levels_[below].level;
    if (level.level <= levels_[below].level) break;
    levels_[place] = levels_[below];
  }
  levels_[place] = level;
}

// Rates for the bundles that are open, beside what the others have.
void Sharing::fill() {
  ++fillings_;
  levels_.clear();
  for (int number : near_links_) {
    Link& link = links_[number];
    link.room = link.left;
    link.rising = link.weight;
    link.open = link.opened;
    link.level = kUnlimited;
    if (link.open) levels_.push_back({link.room / link.rising, number});
  }
  for (std::size_t k = 0; capped_ && k < open_.size(); ++k) {
    const Bundle& bundle = bundles_[open_[k]];
    if (bundle.cap < kUnlimited) levels_.push_back({bundle.cap / bundle.weight, ~open_[k]});
  }
  for (std::size_t place = levels_.size() / 2; place--;) sink(place);
  unfrozen_ = open_.size();
  while (unfrozen_) {
    const auto [level, which] = levels_.front();
    if (which >= 0 && links_[which].open) {
      Link& link = links_[which];
      const double current = std::max(0.0, link.room) / link.rising;
      if (current > level * (1 + kSame)) {  // levels only rise: look again when its turn has come
        levels_.front().level = current;
        sink(0);
        continue;
      }
      link.level = level;
      for (const Member& member : link.members) {
        const Bundle& bundle = bundles_[member.bundle];
        if (bundle.opened == settles_ && bundle.frozen != fillings_)
          freeze(member, std::min(bundle.cap, level * bundle.weight), which);
      }
      link.open = 0;
    } else if (which < 0 && bundles_[~which].frozen != fillings_) {
      freeze({~which, 0, -2}, bundles_[~which].cap, -1);
    }
    levels_.front() = levels_.back();
    levels_.pop_back();
    if (unfrozen_) sink(0);
  }
}

// Opens those whose rates are not fair beside those of `fill`: who has more than a link is full at, or
// may have more, for the link that limits them is not full or others have more of it. Whether it did.
bool Sharing::widen() {
  const std::size_t before = open_.size();
  for (std::size_t k = 0, all = near_links_.size(); k < all; ++k) {
    const int number = near_links_[k];
    const Link& link = links_[number];
    const double most = link.level * (1 + kSame);
    if (!link.limited && link.most <= most) continue;
    double least = link.level;
    if (link.limited && least == kUnlimited && link.room <= kSame * link.capacity) {
      least = 0;
      for (const Member& member : link.members) {
        const Bundle& bundle = bundles_[member.bundle];
        if (bundle.opened == settles_) least = std::max(least, bundle.next / bundle.weight);
      }
    }
    least *= 1 - kSame;
    for (const Member& member : link.members) {
      const Bundle& bundle = bundles_[member.bundle];
      const double level = bundle.rate / bundle.weight;
      if (level > most || (bundle.limit == number && level < least)) open(member.bundle);
    }
  }
  return open_.size() > before;
}

}  // namespace forestcoll::simulate
