#include "sharing.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace forestcoll::simulate {

namespace {

constexpr double kSame = 1e-12;  // rates that differ by less, relatively, differ by rounding

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
  const auto first = static_cast<std::int32_t>(seats_.size());
  for (int link : links) seats_.push_back({link, 0});
  bundles_.push_back({.weight = weight, .cap = cap, .first = first, .end = static_cast<std::int32_t>(seats_.size())});
  flows_.emplace_back();
  return static_cast<int>(bundles_.size()) - 1;
}

void Sharing::touch(int number) {
  if (!bundles_[number].touched) touched_.push_back(number);
  bundles_[number].touched = true;
}

void Sharing::add(int number, double bytes, std::int32_t transfer, std::int32_t stage, double now) {
  touch(number);
  Bundle& bundle = bundles_[number];
  if (!bundle.count++) {
    bundle.served = 0;
    bundle.since = now;
  }
  advance(bundle, now);
  std::vector<Flow>& flows = flows_[number];
  flows.push_back({bundle.served + bytes, number_++, transfer, stage});
  std::push_heap(flows.begin(), flows.end(), std::greater<>());
}

Flow Sharing::end(int number, double now) {
  touch(number);
  Bundle& bundle = bundles_[number];
  advance(bundle, now);
  --bundle.count;
  std::vector<Flow>& flows = flows_[number];
  std::pop_heap(flows.begin(), flows.end(), std::greater<>());
  const Flow flow = flows.back();
  flows.pop_back();
  return flow;
}

double Sharing::next_end(int number) const {
  const Bundle& bundle = bundles_[number];
  if (!bundle.count) return kUnlimited;
  return bundle.since + std::max(0.0, flows_[number].front().served - bundle.served) / bundle.rate;
}

// Enters the bundle in the lists of its links.
void Sharing::join(int number) {
  const Bundle& bundle = bundles_[number];
  for (std::int32_t seat = bundle.first; seat < bundle.end; ++seat) {
    std::vector<Member>& list = links_[seats_[seat].link].members;
    seats_[seat].place = static_cast<std::int32_t>(list.size());
    list.push_back({number, seat});
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

// All links and bundles that hang together with the links that changed.
void Sharing::gather() {
  near_links_.swap(changed_links_);
  changed_links_.clear();
  near_.clear();
  const auto visit = [this](int number) {
    Link& link = links_[number];
    link.room = link.capacity;
    link.weight = 0;
    link.open = static_cast<std::int32_t>(link.members.size());
    link.seen = true;
  };
  for (int link : near_links_) visit(link);
  for (std::size_t k = 0; k < near_links_.size(); ++k) {
    for (const Member& member : links_[near_links_[k]].members) {
      Bundle& bundle = bundles_[member.bundle];
      if (bundle.seen) continue;
      bundle.seen = true;
      bundle.frozen = false;
      near_.push_back(member.bundle);
      const double weight = bundle.weight * bundle.count;
      for (const Seat& seat : seats(bundle)) {
        Link& link = links_[seat.link];
        if (!link.seen) {
          visit(seat.link);
          near_links_.push_back(seat.link);
        }
        link.weight += weight;
      }
    }
  }
  for (int link : near_links_) links_[link].seen = links_[link].dirty = false;
  for (int number : near_) bundles_[number].seen = false;
}

void Sharing::freeze(int number, double rate, double now) {
  Bundle& bundle = bundles_[number];
  bundle.frozen = true;
  const double all = rate * bundle.count, weight = bundle.weight * bundle.count;
  for (const Seat& seat : seats(bundle)) {
    Link& link = links_[seat.link];
    link.room = std::max(0.0, link.room - all);
    link.weight -= weight;
    --link.open;
  }
  if (std::abs(rate - bundle.rate) <= kSame * rate) return;
  advance(bundle, now);
  bundle.rate = rate;
  if (!bundle.touched) changed_.push_back(number);  // what is touched is named anyway
}

const std::vector<int>& Sharing::settle(double now) {
  changed_.clear();
  for (int number : touched_) {
    Bundle& bundle = bundles_[number];
    if (bundle.count == bundle.settled) continue;
    if (bundle.settled == 0) join(number);
    if (bundle.count == 0) leave(number);
    bundle.settled = bundle.count;
    for (const Seat& seat : seats(bundle)) {
      if (!links_[seat.link].dirty) changed_links_.push_back(seat.link);
      links_[seat.link].dirty = true;
    }
  }
  if (!changed_links_.empty()) {
    gather();
    fill(now);
  }
  for (int number : touched_) bundles_[number].touched = false;
  changed_.insert(changed_.end(), touched_.begin(), touched_.end());
  touched_.clear();
  return changed_;
}

// Rates for the bundles that were found, from `now` on.
void Sharing::fill(double now) {
  levels_.clear();  // bytes a microsecond and weight; link, or ~bundle with a cap
  for (int number : near_links_)
    if (const Link& link = links_[number]; link.open) levels_.emplace_back(link.room / link.weight, number);
  for (int number : near_) {
    const Bundle& bundle = bundles_[number];
    if (bundle.cap < kUnlimited) levels_.emplace_back(bundle.cap / bundle.weight, ~number);
  }
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>());
  std::size_t left = near_.size();
  while (left && !levels_.empty()) {
    std::pop_heap(levels_.begin(), levels_.end(), std::greater<>());
    const auto [level, which] = levels_.back();
    levels_.pop_back();
    if (which < 0) {
      if (bundles_[~which].frozen) continue;
      freeze(~which, bundles_[~which].cap, now);
      --left;
      continue;
    }
    const Link& link = links_[which];
    if (!link.open) continue;
    const double current = link.room / link.weight;
    if (current > level * (1 + kSame)) {  // levels only rise: look again when its turn has come
      levels_.emplace_back(current, which);
      std::push_heap(levels_.begin(), levels_.end(), std::greater<>());
      continue;
    }
    for (const Member& member : link.members) {
      const Bundle& bundle = bundles_[member.bundle];
      if (bundle.frozen) continue;
      freeze(member.bundle, std::min(bundle.cap, level * bundle.weight), now);
      --left;
    }
  }
}

}  // namespace forestcoll::simulate
