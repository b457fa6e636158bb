#include "sharing.hpp"

#include <algorithm>
#include <cmath>

namespace forestcoll::simulate {

namespace {

constexpr double kSame = 1e-12;  // rates that differ by less, relatively, differ by rounding

}  // namespace

Sharing::Sharing(std::vector<double> capacity)
    : capacity_(std::move(capacity)),
      room_(capacity_.size()),
      weight_(capacity_.size()),
      open_(capacity_.size()),
      members_(capacity_.size()),
      dirty_(capacity_.size()),
      seen_(capacity_.size()) {}

int Sharing::add(const std::vector<int>& links, double bytes, double weight, double cap, double now) {
  int number;
  if (free_.empty()) {
    number = static_cast<int>(flows.size());
    flows.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Flow& flow = flows[number];
  flow.links = &links;
  flow.weight = weight;
  flow.cap = cap;
  flow.left = bytes;
  flow.rate = 0;
  flow.since = now;
  flow.active = true;
  flow.place.resize(links.size());
  for (std::size_t slot = 0; slot < links.size(); ++slot) {
    const int link = links[slot];
    flow.place[slot] = static_cast<std::int32_t>(members_[link].size());
    members_[link].push_back({number, static_cast<std::int32_t>(slot)});
    if (!dirty_[link]) changed_links_.push_back(link);
    dirty_[link] = 1;
  }
  return number;
}

void Sharing::remove(int number) {
  Flow& flow = flows[number];
  for (std::size_t slot = 0; slot < flow.links->size(); ++slot) {
    const int link = (*flow.links)[slot];
    std::vector<Member>& list = members_[link];
    const Member last = list.back();
    list[flow.place[slot]] = last;
    flows[last.flow].place[last.slot] = flow.place[slot];
    list.pop_back();
    if (!dirty_[link]) changed_links_.push_back(link);
    dirty_[link] = 1;
  }
  flow.active = false;
  ++flow.version;
  free_.push_back(number);
}

// All links and flows that hang together with the links that changed.
void Sharing::gather() {
  links_ = changed_links_;
  flows_.clear();
  for (int link : links_) seen_[link] = 1;
  for (std::size_t k = 0; k < links_.size(); ++k) {
    for (const Member& member : members_[links_[k]]) {
      Flow& flow = flows[member.flow];
      if (flow.seen) continue;
      flow.seen = true;
      flow.frozen = false;
      flows_.push_back(member.flow);
      for (int link : *flow.links) {
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
  for (int number : flows_) {
    flows[number].seen = false;
    for (int link : *flows[number].links) weight_[link] += flows[number].weight;
  }
}

void Sharing::freeze(int number, double rate, double now) {
  Flow& flow = flows[number];
  flow.frozen = true;
  for (int link : *flow.links) {
    room_[link] = std::max(0.0, room_[link] - rate);
    weight_[link] -= flow.weight;
    --open_[link];
  }
  if (std::abs(rate - flow.rate) <= kSame * rate) return;
  flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
  flow.since = now;
  flow.rate = rate;
  ++flow.version;
  changed_.push_back(number);
}

const std::vector<int>& Sharing::settle(double now) {
  changed_.clear();
  if (changed_links_.empty()) return changed_;
  gather();
  for (int link : changed_links_) dirty_[link] = 0;
  changed_links_.clear();

  using Level = std::pair<double, int>;  // bytes a microsecond and weight; link, or ~flow with a cap
  std::vector<Level> heap;
  heap.reserve(links_.size());
  for (int link : links_)
    if (!members_[link].empty()) heap.emplace_back(room_[link] / weight_[link], link);
  for (int flow : flows_)
    if (flows[flow].cap < kUnlimited) heap.emplace_back(flows[flow].cap / flows[flow].weight, ~flow);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  std::size_t left = flows_.size();
  while (left && !heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto [level, which] = heap.back();
    heap.pop_back();
    if (which < 0) {
      if (flows[~which].frozen) continue;
      freeze(~which, flows[~which].cap, now);
      --left;
      continue;
    }
    if (!open_[which]) continue;
    const double current = room_[which] / weight_[which];
    if (current > level * (1 + kSame)) {  // levels only rise: look again when its turn has come
      heap.emplace_back(current, which);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
      continue;
    }
    for (const Member& member : members_[which]) {
      Flow& flow = flows[member.flow];
      if (flow.frozen) continue;
      freeze(member.flow, std::min(flow.cap, level * flow.weight), now);
      --left;
    }
  }
  return changed_;
}

}  // namespace forestcoll::simulate
