// Plain values that the kernel's files exchange. Nothing here knows of GPUs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace forestcoll {

using Amount = std::int64_t;  // capacities, flows, weights

// A directed graph with capacities; arc e goes from tail[e] to head[e].
struct Digraph {
  int nodes = 0;
  std::vector<int> tail, head;
  std::vector<Amount> capacity;

  int arcs() const { return static_cast<int>(tail.size()); }
};

// What is asked of a digraph: a source feeds supply[v] into every node v with supply[v] > 0, and
// every sink must be able to receive all of it, sum(supply), at once.
struct Demand {
  std::vector<Amount> supply;  // per node
  std::vector<int> sinks;

  Amount total() const {
    Amount sum = 0;
    for (Amount s : supply) sum += s;
    return sum;
  }
};

// A state that theory excludes: a bug in this kernel, never the user's fault.
struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};

// Lets Python's signal handlers run now and then (Ctrl-C); defined in module.cpp.
void poll_signals();

}  // namespace forestcoll
