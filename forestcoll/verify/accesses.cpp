// Accesses and sets of ranks: see memory.hpp.

#include <algorithm>
#include <bit>

#include "memory.hpp"

namespace forestcoll::verify {

RankSets::RankSets(int ranks) : words_((static_cast<std::size_t>(ranks) + 63) / 64) {
  std::vector<std::uint64_t> all(words_);
  number(all);
  for (int r = 0; r < ranks; ++r) {
    std::vector<std::uint64_t> alone(words_);
    alone[static_cast<std::size_t>(r) / 64] = std::uint64_t{1} << r % 64;
    for (std::size_t w = 0; w < words_; ++w) all[w] |= alone[w];
    number(alone);
  }
  everyone_ = number(all);
}

std::int32_t RankSets::number(const std::vector<std::uint64_t>& set) {
  std::uint64_t hash = 0;
  for (std::uint64_t word : set) hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
  const auto [first, last] = numbers_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (std::equal(set.begin(), set.end(), bits(it->second))) return it->second;
  const auto made = static_cast<std::int32_t>(bits_.size() / words_);
  bits_.insert(bits_.end(), set.begin(), set.end());
  numbers_.emplace(hash, made);
  return made;
}

std::int32_t RankSets::join(std::int32_t x, std::int32_t y) {
  const std::uint64_t key = static_cast<std::uint64_t>(x) << 32 | static_cast<std::uint32_t>(y);
  const auto known = joined_.find(key);
  if (known != joined_.end()) return known->second;
  std::vector<std::uint64_t> both(words_);
  bool apart = true;
  for (std::size_t w = 0; w < words_; ++w) {
    apart &= !(bits(x)[w] & bits(y)[w]);
    both[w] = bits(x)[w] | bits(y)[w];
  }
  return joined_[key] = apart ? number(both) : 0;
}

std::vector<int> RankSets::members(std::int32_t set) const { return common(set, set); }

std::vector<int> RankSets::common(std::int32_t x, std::int32_t y) const {
  std::vector<int> ranks;
  for (std::size_t w = 0; w < words_; ++w)
    for (std::uint64_t left = bits(x)[w] & bits(y)[w]; left; left &= left - 1)
      ranks.push_back(static_cast<int>(w) * 64 + std::countr_zero(left));
  return ranks;
}

int RankSets::count(std::int32_t set) const {
  int many = 0;
  for (std::size_t w = 0; w < words_; ++w) many += std::popcount(bits(set)[w]);
  return many;
}

Accesses::Accesses(const Trace& trace, int atoms)
    : writer(static_cast<std::size_t>(atoms), -1), trace_(trace), readers_(static_cast<std::size_t>(atoms)),
      used_(static_cast<std::size_t>(atoms)) {}

void Accesses::look_at(Span span) {
  mixed |= std::any_of(used_.begin() + span.low, used_.begin() + span.high, [](char c) { return c != 0; });
}

void Accesses::read(int event, Span span, bool later) {
  if (!later) look_at(span);
  meet_writers(event, span);
  if (later) {
    std::fill(used_.begin() + span.low, used_.begin() + span.high, 1);
    return;
  }
  groups_.clear();
  for (int x = span.low; x < span.high; ++x) {  // atoms with the same readers share one longer list
    const auto [group, fresh] = of(readers_[x]);
    if (fresh) {
      group->first = static_cast<std::int32_t>(lists_.size());
      lists_.push_back({event, readers_[x]});
    }
    readers_[x] = group->first;
  }
}

void Accesses::write(int event, Span span, bool later) {
  if (!later) look_at(span);
  meet_writers(event, span);
  meet_readers(event, span);
  if (later) std::fill(used_.begin() + span.low, used_.begin() + span.high, 1);
  std::fill(writer.begin() + span.low, writer.begin() + span.high, later ? -1 : event);
  std::fill(readers_.begin() + span.low, readers_.begin() + span.high, 0);
}

void Accesses::take(int event, int atom, bool later) {
  if (later) {
    used_[atom] = 1;
    return;
  }
  mixed |= used_[atom] != 0;
  lists_.push_back({event, readers_[atom]});
  readers_[atom] = static_cast<std::int32_t>(lists_.size()) - 1;
}

// The group of an entry, and whether it is new.
std::pair<Accesses::Group*, bool> Accesses::of(std::int32_t key) {
  const auto place = static_cast<std::size_t>(key + 1);
  if (place >= slot_.size()) slot_.resize(2 * place + 2);
  const auto at = static_cast<std::size_t>(slot_[place]);
  if (at < groups_.size() && groups_[at].key == key) return {&groups_[at], false};
  slot_[place] = static_cast<std::int32_t>(groups_.size());
  groups_.push_back({key, 0});
  return {&groups_.back(), true};
}

// Each entry of table[span] once, with the first index at which it stands.
void Accesses::group(const std::vector<std::int32_t>& table, Span span) {
  groups_.clear();
  for (int x = span.high - 1; x >= span.low; --x) of(table[x]).first->first = x;
}

void Accesses::meet_writers(int event, Span span) {
  group(writer, span);
  for (const Group& one : groups_)
    if (one.key >= 0) meet(one.key, event, one.first, false);
}

void Accesses::meet_readers(int event, Span span) {
  group(readers_, span);
  for (const Group& one : groups_)
    for (std::int32_t at = one.key; at; at = lists_[at].rest) meet(lists_[at].event, event, one.first, true);
}

void Accesses::meet(int earlier, int event, int atom, bool light) {
  if (plain_order(trace_, earlier, event)) return;
  const std::uint64_t key = static_cast<std::uint64_t>(earlier) << 32 | static_cast<std::uint32_t>(event);
  const auto made = collisions.try_emplace(key, Collision{atom, light});
  if (!light) made.first->second.light = false;
}

}  // namespace forestcoll::verify
