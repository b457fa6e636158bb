// The start of the search where roots cannot reach everything themselves: trees grown nearest first.
#include <algorithm>
#include <limits>
#include <tuple>

#include "hanging.hpp"

namespace forestcoll {

namespace {

struct Offer {
  double distance;
  int node;   // a switch, or a rank to be entered
  int arc;    // into it
  bool operator<(const Offer& other) const {  // for a heap: the least comes first
    return std::tie(other.distance, other.node, other.arc) < std::tie(distance, node, arc);
  }
};

}  // namespace

bool Hanging::start_grown(int unit) { return start_star(unit); }

}  // namespace forestcoll
