// Whether one event of a trace is certain to come after another.

#pragma once

#include <vector>

#include "trace.hpp"

namespace forestcoll::verify {

struct Pair {
  int a, b;  // events, a < b
  auto operator<=>(const Pair&) const = default;
};

// Whether it is plain to see that `event` comes after `earlier`: by its chain, or by a chain's event that it
// waits for itself.
inline bool plain_order(const Trace& trace, int earlier, int event) {
  constexpr std::size_t few = 4;  // arrows that are looked at
  const int own = trace.chain[earlier];
  if (own == trace.chain[event] && (earlier <= trace.prev[event] || earlier == event)) return true;
  const auto across = trace.across(event);
  for (std::size_t k = 0; k < across.size() && k < few; ++k)
    if (own == trace.chain[across[k]] && (earlier == across[k] || earlier <= trace.prev[across[k]])) return true;
  return false;
}

// Those of the pairs where no chain of arrows leads from a to b; `weak`: nor one with weak arrows. `search`: all
// of them by search.
std::vector<Pair> unordered(const Trace& trace, const Code& code, std::vector<Pair> pairs, bool weak, bool search);

}  // namespace forestcoll::verify
