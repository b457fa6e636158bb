#include "sharing.hpp"

#include <algorithm>
#include <cmath>

namespace forestcoll::simulate {

namespace {

constexpr double kSame = 1e-12;  // rates that differ by less, relatively, differ by rounding

// What each flow of the bundle has been served until `now`.
void advance(Bundle& bundle, double now) {
  bundle.served += bundle.rate * (now - bundle.since);
  bundle.since = now;
}

}  // namespace

Sharing::Sharing(std::vector<double> capacity)
    : capacity_(std::move(capacity)),
      room_(capacity_.size()),
      weight_(capacity_.size()),
      open_(capacity_.size()),
      members_(capacity_.size()),
      dirty_(capacity_.size()),
      seen_(capacity_.size()) {}

int Sharing::bundle_of(const std::vector<int>& links, double weight, double cap) {
  const auto [found, is_new] =
      numbers_.try_emplace({&links, weight, cap}, static_cast<int>(bundles_.size()));
  if (is_new) {
    Bundle& bundle = bundles_.emplace_back();
    bundle.links = &links;
    bundle.weight = weight;
    bundle.cap = cap;
    bundle.place.resize(links.size());
  }
  return found->second;
}

void Sharing::touch(int number) {
  if (!bundles_[number].touched) touched_.push_back(number);
  bundles_[number].touched = true;
}

void Sharing::add(const std::vector<int>& links, double bytes, double weight, double cap,
                  std::int32_t transfer, std::int32_t stage, double now) {
  const int number = bundle_of(links, weight, cap);
  touch(number);
  Bundle& bundle = bundles_[number];
  if (bundle.flows.empty()) {
    bundle.served = 0;
    bundle.since = now;
  }
  advance(bundle, now);
  bundle.flows.push_back({bundle.served + bytes, number_++, transfer, stage});
  std::push_heap(bundle.flows.begin(), bundle.flows.end(), std::greater<>());
}

Flow Sharing::end(int number, double now) {
  touch(number);
  Bundle& bundle = bundles_[number];
  advance(bundle, now);
  std::pop_heap(bundle.flows.begin(), bundle.flows.end(), std::greater<>());
  const Flow flow = bundle.flows.back();
  bundle.flows.pop_back();
  return flow;
}

double Sharing::next_end(int number) const {
  const Bundle& bundle = bundles_[number];
  if (bundle.flows.empty()) return kUnlimited;
  return bundle.since + std::max(0.0, bundle.flows.front().served - bundle.served) / bundle.rate;
}

// Enters the bundle in the lists of its links.
void Sharing::join(int number) {
  Bundle& bundle = bundles_[number];
  for (std::size_t slot = 0; slot < bundle.links->size(); ++slot) {
    std::vector<Member>& list = members_[(*bundle.links)[slot]];
    bundle.place[slot] = static_cast<std::int32_t>(list.size());
    list.push_back({number, static_cast<std::int32_t>(slot)});
  }
}

void Sharing::leave(int number) {
  Bundle& bundle = bundles_[number];
  for (std::size_t slot = 0; slot < bundle.links->size(); ++slot) {
    std::vector<Member>& list = members_[(*bundle.links)[slot]];
    const Member last = list.back();
    list[bundle.place[slot]] = last;
    bundles_[last.bundle].place[last.slot] = bundle.place[slot];
    list.pop_back();
  }
  bundle.rate = 0;
}

// All links and bundles that hang together with the links that changed.
void Sharing::gather() {
  links_ = changed_links_;
  found_.clear();
  for (int link : links_) seen_[link] = 1;
  for (std::size_t k = 0; k < links_.size(); ++k) {
    for (const Member& member : members_[links_[k]]) {
      Bundle& bundle = bundles_[member.bundle];
      if (bundle.seen) continue;
      bundle.seen = true;
      bundle.frozen = false;
      found_.push_back(member.bundle);
      for (int link : *bundle.links) {
        if (seen_[link]) continue;
        seen_[link] = 1;
        links_.push_back(link);
      }
    }
  }
  for (int link : links_) {
    seen_[link] = 0;
    room_[link] = capacity_[link];
    weight_[link] = 0;
    open_[link] = static_cast<int>(members_[link].size());
  }
  for (int number : found_) {
    Bundle& bundle = bundles_[number];
    bundle.seen = false;
    const double weight = bundle.weight * static_cast<double>(bundle.flows.size());
    for (int link : *bundle.links) weight_[link] += weight;
  }
}

void Sharing::freeze(int number, double rate, double now) {
  Bundle& bundle = bundles_[number];
  bundle.frozen = true;
  const auto count = static_cast<double>(bundle.flows.size());
  for (int link : *bundle.links) {
    room_[link] = std::max(0.0, room_[link] - rate * count);
    weight_[link] -= bundle.weight * count;
    --open_[link];
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
    const std::size_t count = bundle.flows.size();
    if (count == bundle.settled) continue;
    if (bundle.settled == 0) join(number);
    if (count == 0) leave(number);
    bundle.settled = count;
    for (int link : *bundle.links) {
      if (!dirty_[link]) changed_links_.push_back(link);
      dirty_[link] = 1;
    }
  }
  if (!changed_links_.empty()) {
    gather();
    for (int link : changed_links_) dirty_[link] = 0;
    changed_links_.clear();
    fill(now);
  }
  for (int number : touched_) {
    bundles_[number].touched = false;
    changed_.push_back(number);
  }
  touched_.clear();
  return changed_;
}

// Rates for the bundles that were found, from `now` on.
void Sharing::fill(double now) {
  levels_.clear();  // bytes a microsecond and weight; link, or ~bundle with a cap
  for (int link : links_)
    if (!members_[link].empty()) levels_.emplace_back(room_[link] / weight_[link], link);
  for (int number : found_) {
    const Bundle& bundle = bundles_[number];
    if (bundle.cap < kUnlimited) levels_.emplace_back(bundle.cap / bundle.weight, ~number);
  }
  std::make_heap(levels_.begin(), levels_.end(), std::greater<>());
  std::size_t left = found_.size();
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
    if (!open_[which]) continue;
    const double current = room_[which] / weight_[which];
    if (current > level * (1 + kSame)) {  // levels only rise: look again when its turn has come
      levels_.emplace_back(current, which);
      std::push_heap(levels_.begin(), levels_.end(), std::greater<>());
      continue;
    }
    for (const Member& member : members_[which]) {
      const Bundle& bundle = bundles_[member.bundle];
      if (bundle.frozen) continue;
      freeze(member.bundle, std::min(bundle.cap, level * bundle.weight), now);
      --left;
    }
  }
}

}  // namespace forestcoll::simulate
