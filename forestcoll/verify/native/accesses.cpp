// Accesses and their order, and sets of ranks: see memory.hpp.

#include <algorithm>
#include <bit>

#include "memory.hpp"

namespace forestcoll::verify {
namespace {

// Whether it is plain to see that `event` comes after `earlier`: by its chain, or by a chain's event that it
// waits for itself.
bool plain_order(const Trace& trace, int earlier, int event) {
  constexpr std::size_t few = 4;  // arrows that are looked at
  const int own = trace.chain[earlier];
  if (own == trace.chain[event] && (earlier <= trace.prev[event] || earlier == event)) return true;
  const auto across = trace.across(event);
  for (std::size_t k = 0; k < across.size() && k < few; ++k)
    if (own == trace.chain[across[k]] && (earlier == across[k] || earlier <= trace.prev[across[k]])) return true;
  return false;
}

// Takes the first events of the pairs in batches; one sweep over the trace hands on, for each event, the set
// of those that lead to it, a bit each.
class Search {
 public:
  Search(const Trace& trace, bool weak) : trace_(trace), weak_(weak) {}

  std::vector<Pair> search(const std::vector<Pair>& pairs) {
    std::vector<Pair> rest;
    for (auto from = pairs.begin(); from != pairs.end();) {
      std::vector<int> firsts;
      auto to = from;
      int high = 0;
      for (; to != pairs.end(); ++to) {
        if (firsts.empty() || firsts.back() != to->a) {
          if (firsts.size() == words * 64) break;
          firsts.push_back(to->a);
        }
        high = std::max(high, to->b);
      }
      sweep(firsts, high);
      std::size_t bit = 0;
      for (; from != to; ++from) {
        while (firsts[bit] != from->a) ++bit;
        if (!(row(from->b)[bit / 64] >> bit % 64 & 1)) rest.push_back(*from);
      }
    }
    return rest;
  }

 private:
  static constexpr std::size_t words = 16;

  std::uint64_t* row(int event) { return reach_.data() + (event - low_) * words; }

  void join(int event, int before) {
    if (before < low_) return;
    const std::uint64_t* from = row(before);
    std::uint64_t* to = row(event);
    for (std::size_t w = 0; w < words; ++w) to[w] |= from[w];
  }

  void sweep(const std::vector<int>& firsts, int high) {
    low_ = firsts.front();
    reach_.assign((high - low_ + 1) * words, 0);
    std::size_t bit = 0;
    auto weak = std::ranges::lower_bound(trace_.weak_event, low_);
    for (int e = low_; e <= high; ++e) {
      join(e, trace_.prev[e]);
      for (int c : trace_.across(e)) join(e, c);
      for (; weak_ && weak != trace_.weak_event.end() && *weak == e; ++weak)
        join(e, trace_.weak[weak - trace_.weak_event.begin()]);
      if (bit < firsts.size() && firsts[bit] == e) {
        row(e)[bit / 64] |= std::uint64_t{1} << bit % 64;
        ++bit;
      }
    }
  }

  const Trace& trace_;
  const bool weak_;
  int low_ = 0;
  std::vector<std::uint64_t> reach_;
};

}  // namespace

std::vector<Pair> unordered(const Trace& trace, std::vector<Pair> pairs, bool weak) {
  std::ranges::sort(pairs);
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return Search(trace, weak).search(pairs);
}

RankSets::RankSets(int ranks) : words_((ranks + 63) / 64) {
  std::vector<std::uint64_t> all(words_);
  number(all);
  for (int r = 0; r < ranks; ++r) {
    std::vector<std::uint64_t> alone(words_);
    alone[r / 64] = std::uint64_t{1} << r % 64;
    for (std::size_t w = 0; w < words_; ++w) all[w] |= alone[w];
    number(alone);
  }
  everyone_ = number(all);
}

int RankSets::number(const std::vector<std::uint64_t>& set) {
  std::uint64_t hash = 0;
  for (std::uint64_t word : set) hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
  const auto [first, last] = numbers_.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (std::equal(set.begin(), set.end(), bits(it->second))) return it->second;
  const auto made = static_cast<int>(bits_.size() / words_);
  append(bits_, set);
  numbers_.emplace(hash, made);
  return made;
}

int RankSets::join(int x, int y) {
  const std::uint64_t key = key_of(x, y);
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

std::vector<int> RankSets::members(int set) const { return common(set, set); }

std::vector<int> RankSets::common(int x, int y) const {
  std::vector<int> ranks;
  for (std::size_t w = 0; w < words_; ++w)
    for (std::uint64_t left = bits(x)[w] & bits(y)[w]; left; left &= left - 1)
      ranks.push_back(static_cast<int>(w) * 64 + std::countr_zero(left));
  return ranks;
}

int RankSets::count(int set) const {
  int many = 0;
  for (std::size_t w = 0; w < words_; ++w) many += std::popcount(bits(set)[w]);
  return many;
}

Accesses::Accesses(const Trace& trace, int atoms)
    : writer(atoms, -1), trace_(trace), readers_(atoms),
      used_(atoms) {}

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
  int before = -1, longer = 0;  // neighbours with the same readers share one longer list
  for (int x = span.low; x < span.high; ++x) {
    if (readers_[x] != before) {
      before = readers_[x];
      longer = count_of(lists_);
      lists_.push_back({event, before});
    }
    readers_[x] = longer;
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
  readers_[atom] = count_of(lists_) - 1;
}

void Accesses::meet_writers(int event, Span span) {
  for (int x = span.low; x < span.high; ++x)
    if (writer[x] >= 0 && (x == span.low || writer[x] != writer[x - 1])) meet(writer[x], event, x, false);
}

void Accesses::meet_readers(int event, Span span) {
  for (int x = span.low; x < span.high; ++x)
    for (int at = x > span.low && readers_[x] == readers_[x - 1] ? 0 : readers_[x]; at; at = lists_[at].rest)
      meet(lists_[at].event, event, x, true);
}

void Accesses::meet(int earlier, int event, int atom, bool light) {
  if (plain_order(trace_, earlier, event)) return;
  const std::uint64_t key = key_of(earlier, event);
  const auto made = collisions.try_emplace(key, Collision{atom, light});
  if (!light) made.first->second.light = false;
}

}  // namespace forestcoll::verify
