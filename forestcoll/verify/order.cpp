// Order: see order.hpp. Most pairs are settled by one sweep that keeps what is plain; the rest by a search.

#include "order.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace forestcoll::verify {
namespace {

// What is known of a chain so far. `known[c]`: its next events come after all of chain c up to this event.
// `waits`: its events that came after others, but that its next events need not come after yet. `loose`: its
// last event that all before it in the chain lead to, and those since.
struct Chain {
  std::unordered_map<int, int> known;
  std::vector<int> waits, loose;
  std::size_t waited = 0;  // of `waits`, those that are over
};

// Orders that are plain to see: from what a chain has waited for itself. One sweep over the trace keeps, for
// each chain, up to which event of every other chain its next events come after. Only what an event waits for
// directly is handed on, except by a rank's caller, who knows all that the rank's thread blocks did.
class Plain {
 public:
  Plain(const Trace& trace, const Code& code)
      : trace_(trace), code_(code), proxies_(code.blocks() + code.columns.rank_count()) {}

  // `pairs` in the order of their second events.
  std::vector<Pair> sift(const std::vector<Pair>& pairs) {
    std::vector<Pair> rest;
    int event = 0;
    for (auto pair = pairs.begin(); pair != pairs.end(); ++event) {
      const Chain& chain = arrive(event);
      if (pair->b == event) look_across(event);
      for (; pair != pairs.end() && pair->b == event; ++pair)
        if (!knows(chain, event, pair->a)) rest.push_back(*pair);
    }
    return rest;
  }

 private:
  // The event's chain, with all that the event comes after as a part of it.
  Chain& arrive(int event) {
    const int at = trace_.chain[event], prev = trace_.prev[event];
    const auto cross = trace_.across(event);
    if (count_of(chains_) <= at) chains_.resize(static_cast<std::size_t>(at) + 1);
    Chain& chain = chains_[at];
    while (chain.waited < chain.waits.size() && chain.waits[chain.waited] <= prev)
      for (int other : trace_.across(chain.waits[chain.waited++])) learn(chain, other);
    if (chain.waited == chain.waits.size()) {
      chain.waits.clear();
      chain.waited = 0;
    }
    if (prev >= 0 && trace_.chain[prev] != at) learn(chain, prev);
    auto& loose = chain.loose;
    loose.erase(loose.begin(), std::find_if(loose.begin(), loose.end(), [&](int e) { return e > prev; }));
    bool all = loose.size() <= cross.size();
    if (all && !loose.empty()) {
      crossed_.assign(cross.begin(), cross.end());
      std::sort(crossed_.begin(), crossed_.end());
      all = std::includes(crossed_.begin(), crossed_.end(), loose.begin(), loose.end());
    }
    if (all) loose.clear();
    top_.push_back(all ? event : prev);
    loose.push_back(event);
    if (cross.empty()) return chain;
    if (trace_.block[event] >= 0)
      chain.waits.push_back(event);
    else
      for (int other : cross) inherit(at, trace_.chain[other]);
    return chains_[at];
  }

  // From now on, events of the chain come after `event`.
  void learn(Chain& chain, int event) {
    note(chain, event);
    if (trace_.chain[event] < proxies_) return;
    if (trace_.prev[event] >= 0) note(chain, trace_.prev[event]);
    for (int other : trace_.across(event)) note(chain, other);
  }

  void note(Chain& chain, int event) {
    int& known = chain.known.try_emplace(trace_.chain[event], -1).first->second;
    known = std::max(known, top_[event]);
  }

  // A caller's events come after all that a thread block of the rank has done so far.
  void inherit(int caller, int from) {
    Chain& block = chains_[from];
    for (; block.waited < block.waits.size(); ++block.waited)
      for (int before : trace_.across(block.waits[block.waited])) learn(block, before);
    block.waits.clear();
    block.waited = 0;
    if (caller == from) return;
    for (const auto& [chain, event] : block.known) {
      int& known = chains_[caller].known.try_emplace(chain, -1).first->second;
      known = std::max(known, event);
    }
  }

  // Notes what an event waits for itself.
  void look_across(int event) {
    const auto cross = trace_.across(event);
    crossed_.assign(cross.begin(), cross.end());
    std::sort(crossed_.begin(), crossed_.end());
    direct_.clear();
    for (int other : cross) {
      int& known = direct_.try_emplace(trace_.chain[other], -1).first->second;
      known = std::max(known, top_[other]);
    }
  }

  static int of(const Chain& chain, int other) {
    const auto it = chain.known.find(other);
    return it == chain.known.end() ? -1 : it->second;
  }

  bool knows(const Chain& chain, int event, int a) const {
    const int prev = trace_.prev[event], own = trace_.chain[a];
    if (a == prev || a <= of(chain, own) || (own == trace_.chain[event] && a <= prev)) return true;
    const auto direct = direct_.find(own);
    if (direct != direct_.end() && a <= direct->second) return true;
    if (std::binary_search(crossed_.begin(), crossed_.end(), a)) return true;
    if (own >= code_.blocks()) return false;
    // Whether the chain knows of the end of a launch in which a thread block did `a`.
    const int caller = of(chain, code_.blocks() + code_.block(own).rank);
    return caller >= 0 && trace_.launch[caller] > trace_.launch[a];
  }

  const Trace& trace_;
  const Code& code_;
  const int proxies_;
  std::vector<Chain> chains_;
  std::vector<int> crossed_;             // the arrows into one event
  std::unordered_map<int, int> direct_;  // and up to which event of each chain they reach
  std::vector<int> top_;  // per event: it and its chain's events up to this are before it
};

// Takes the first events of the pairs in batches; one sweep over the trace hands on, for each event, the set
// of those that lead to it, a bit each.
class Search {
 public:
  Search(const Trace& trace, bool weak) : trace_(trace), weak_(weak) {}

  std::vector<Pair> search(std::vector<Pair> pairs) {
    std::sort(pairs.begin(), pairs.end());
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

  std::uint64_t* row(int event) { return reach_.data() + static_cast<std::size_t>(event - low_) * words; }

  void join(int event, int before) {
    if (before < low_) return;
    const std::uint64_t* from = row(before);
    std::uint64_t* to = row(event);
    for (std::size_t w = 0; w < words; ++w) to[w] |= from[w];
  }

  void sweep(const std::vector<int>& firsts, int high) {
    low_ = firsts.front();
    reach_.assign(static_cast<std::size_t>(high - low_ + 1) * words, 0);
    std::size_t bit = 0;
    auto weak = std::lower_bound(trace_.weak_event.begin(), trace_.weak_event.end(), low_);
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

std::vector<Pair> unordered(const Trace& trace, const Code& code, std::vector<Pair> pairs, bool weak,
                            bool search) {
  std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
    return std::tie(x.b, x.a) < std::tie(y.b, y.a);
  });
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  return Search(trace, weak).search(search ? pairs : Plain(trace, code).sift(pairs));
}

}  // namespace forestcoll::verify
