// Ranks as processes are forked without the memory they never look at.
//
// A fork copies the page tables of all memory of its process, and what the parent writes meanwhile:
// milliseconds for a hundred megabytes, once for every rank. So what no rank needs of the caller's
// memory (a network, a notebook's arrays) is hidden from forks while the ranks are made.

#pragma once

#include <signal.h>
#include <sys/types.h>

#include <vector>

#include "machine.hpp"

namespace forestcoll {

struct Births {
  std::vector<pid_t> processes;  // of ranks 0, 1, ...: all, unless there was an error
  int error = 0;                 // errno: why there are no more
};

// A process for each rank, which calls `live` (never returns, allocates nothing); all signals are
// blocked meanwhile in the caller and in them. No other thread may fork meanwhile.
using Life = void (*)(Machine& machine, int rank, const void* context);
Births make_ranks(Machine& machine, Life live, const void* context);

}  // namespace forestcoll
