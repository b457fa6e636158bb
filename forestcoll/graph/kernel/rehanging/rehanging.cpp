#include "rehanging/rehanging.hpp"

#include <string_view>
#include <unordered_map>

#include "rehanging/box_attachments.hpp"

namespace forestcoll {

namespace {

constexpr double kCareful = 0.05, kBold = 0.35;
// Signs that no round ever will end well: a quarter of the first leaves four fifths over, or all of
// it one in kHopeless edges; a later one more than one in kSlow, and more than half of what was.
constexpr Amount kHopeless = 8, kSlow = 50;

// Fisher-Yates by our own generator: std::shuffle differs between standard libraries.
template <class T>
void shuffle(std::vector<T>& list, Random& random) {
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random() % i]);
}

constexpr int kPatience = 15;        // rounds without progress after which the search ends
constexpr long kPatientMoves = 60'000;  // the same for the last few units, in moves
constexpr Amount kFew = 500;         // units of overload that are worked on one by one

Pairs crowded(const BoxAttachments& hanging) {
  Pairs found;
  for (int u : range(hanging.units()))
    for (int b : range(hanging.boxes()))
      if (hanging.crowded(u, b)) found.emplace_back(u, b);
  return found;
}

bool start(BoxAttachments& hanging, bool grow) {
  Ints order = numbers(hanging.units());
  shuffle(order, hanging.random());
  for (int u : order) {
    if (!(grow ? hanging.start_grown(u) : hanging.start_star(u))) return false;
    poll_signals();
  }
  return true;
}

void move(BoxAttachments& hanging, int unit, int box, double bold) {
  if (hanging.random()() % 4 < 3) hanging.rehang(unit, box, bold);
  else hanging.replant(unit, box, bold);
}

double boldness(double stuck) { return kCareful + (kBold - kCareful) * std::min(1.0, stuck); }

// Rounds over all boxes whose ways are crowded, until little overload is left, or too much.
void go_round(BoxAttachments& hanging, long most, long& moves) {
  Amount best = hanging.overload(), last = best;
  for (int rounds = 1, stale = 0; hanging.overload() > (rounds > 1 ? kFew : 0); ++rounds) {
    auto list = crowded(hanging);
    shuffle(list, hanging.random());
    for (int i : range(list)) {
      const auto& [unit, box] = list[i];
      if (!hanging.crowded(unit, box)) continue;
      move(hanging, unit, box, boldness(static_cast<double>(stale) / kPatience));
      if (++moves % 256 == 0) poll_signals();
      if (hanging.overload() == 0 || moves >= most) return;
      if (rounds == 1 && i == number_of(list) / 4 && hanging.overload() * 5 > best * 4) return;
    }
    const Amount left = hanging.overload();
    if (left * (rounds == 1 ? kHopeless : kSlow) > hanging.edges() && (rounds == 1 || 2 * left > last)) return;
    last = left;
    hanging.ledger().raise_prices();
    if (hanging.overload() * 50 < best * 49) best = hanging.overload(), stale = 0;
    else if (++stale >= kPatience) return;
  }
}

// Moves for the last units: whatever stands over its capacity hands that on, from link to link,
// until a link with room is met.
void finish(BoxAttachments& hanging, long most, long& moves) {
  Amount best = hanging.overload();
  long since = 0;
  while (hanging.overload() > 0 && since < kPatientMoves && moves < most) {
    for (std::size_t i = hanging.ledger().overfull().size(); i-- > 0 && hanging.overload() > 0;) {
      const auto [unit, box] = hanging.draw_crowded();
      move(hanging, unit, box, boldness(static_cast<double>(since) / kPatientMoves));
      ++since;
      if (++moves % 256 == 0) poll_signals();
    }
    hanging.ledger().raise_prices();
    if (hanging.overload() < best) best = hanging.overload(), since = 0;
  }
}

long negotiate(BoxAttachments& hanging, long most) {
  long moves = 0;
  go_round(hanging, most, moves);
  if (hanging.overload() <= kFew) finish(hanging, most, moves);
  return moves;
}

// The trees, with every way once.
void read(const BoxAttachments& hanging, Rehung& result) {
  std::unordered_map<std::string_view, int> number;  // by the bytes of the way's arcs
  Ints order;
  for (int u : range(hanging.units())) {
    order.clear();
    for (int b : range(hanging.boxes()))
      if (hanging.hangs(u, b)) order.push_back(b);
    std::ranges::stable_sort(order, {}, [&](int b) { return hanging.hook(u, b).depth; });
    Ints& tree = result.trees.emplace_back();
    for (int b : order) {
      const auto way = hanging.way(u, b);
      const std::string_view bytes(reinterpret_cast<const char*>(way.data()), way.size_bytes());
      const auto [it, fresh] = number.try_emplace(bytes, number_of(result.ways));
      if (fresh) result.ways.emplace_back(way.begin(), way.end());
      tree.push_back(hanging.hook(u, b).depth);
      tree.push_back(it->second);
    }
  }
}

}  // namespace

Rehung rehang(const BoxedGraph& boxed, const std::vector<Unit>& units,
              const RehangOptions& options) {
  BoxAttachments hanging(boxed, units, options.height, options.seed);
  Rehung result;
  if (!start(hanging, options.grow)) {
    result.overload = -1;
    return result;
  }
  result.moves = negotiate(hanging, options.moves);
  result.overload = hanging.overload();
  if (result.overload == 0) read(hanging, result);
  return result;
}

}  // namespace forestcoll
