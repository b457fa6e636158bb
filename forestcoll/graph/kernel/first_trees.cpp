// The start of the search where roots cannot reach everything themselves: trees grown nearest first.
#include "hanging.hpp"

namespace forestcoll {

namespace {

constexpr double kShallow = 0.3;  // what a hop of depth costs: those that are low may send on

}  // namespace

bool Hanging::start_grown(int unit) {
  const std::vector<int>& box = boxed_.box;
  const auto place = [&](int rank, int depth) {
    if (depth < height_) router_.leave_from(box[rank], rank, kShallow * depth);
  };
  const auto wanted = [&](int rank) {
    return !hangs(unit, box[rank]) && !is_root(unit, box[rank]);
  };
  router_.start_growth();
  place(roots_[unit], 0);
  for (int left = boxes() - 1; left > 0; --left) {
    const int arc = router_.next_entry(wanted);
    if (arc < 0) {  // what could send there hangs too low: begin anew
      for (int b = 0; b < boxes(); ++b)
        if (hangs(unit, b)) detach(unit, b);
      return start_star(unit);
    }
    arcs_.clear();
    router_.append_way(boxed_.graph.tail[arc], arcs_);
    arcs_.push_back(arc);
    const int rank = boxed_.graph.head[arc];
    attach(unit, box[rank], box[boxed_.graph.tail[arcs_.front()]], arcs_);
    place(rank, hook(unit, box[rank]).depth);
  }
  return true;
}

}  // namespace forestcoll
