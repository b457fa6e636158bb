#include "packing/transport.hpp"

#include <bit>

namespace forestcoll {

bool Transport::solve(bool whole_rows) {
  begin();
  bool all = true;
  for (bool whole : {true, false})
    for (int row : order_)
      while (demand_[row] > 0) {  // a row that finds no path now finds none later
        const Amount more = augment(row, whole ? demand_[row] : 1);
        if (more == 0) {
          if (!whole && whole_rows) return false;
          all &= whole;
          break;
        }
        demand_[row] -= more;
      }
  return all;
}

void Transport::begin() {
  units_.assign(column_.size(), 0);
  order_.resize(rows());
  std::iota(order_.rbegin(), order_.rend(), 0);
  for (int row : order_)
    for (int o : range(prefers_[row])) take(row, start_[row] + o);
  for (int row : order_) choose(row);
  row_of_.resize(column_.size());
  for (int row : range(rows()))
    std::fill(row_of_.begin() + start_[row], row_of_.begin() + start_[row + 1], row);
  index_rows();
}

void Transport::take(int row, int option) {
  const Amount units = std::min(demand_[row], room_[column_[option]]);
  units_[option] += units;
  room_[column_[option]] -= units;
  demand_[row] -= units;
}

void Transport::choose(int row) {
  int best = -1;
  for (int o = start_[row]; o < start_[row + 1]; ++o)
    if (room_[column_[o]] >= demand_[row] && (best < 0 || room_[column_[o]] > room_[column_[best]]))
      best = o;
  if (best >= 0) take(row, best);
}

void Transport::index_rows() {
  words_ = (demand_.size() + 63) / 64;
  left_.resize((room_.size() + 63) / 64);
  holds_.assign(room_.size() * words_, 0);
  may_.assign(demand_.size() * left_.size(), 0);
  option_.assign(room_.size() * demand_.size(), -1);
  for (int o : range(column_)) {
    may_[row_of_[o] * left_.size() + column_[o] / 64] |= std::uint64_t{1} << column_[o] % 64;
    give(o, 0);
    option_[row_of_[o] * room_.size() + column_[o]] = o;
  }
}

// Units of an option, more or (below 0) less.
void Transport::give(int option, Amount units) {
  units_[option] += units;
  const std::uint64_t bit = std::uint64_t{1} << row_of_[option] % 64;
  std::uint64_t& word = holds_[column_[option] * words_ + row_of_[option] / 64];
  word = units_[option] > 0 ? word | bit : word & ~bit;
}

// The options of a row in columns that nothing has reached yet are the next to be looked at.
void Transport::reach(int row) {
  for (int w : range(left_)) {
    const std::uint64_t may = may_[row * left_.size() + w];
    for (std::uint64_t both = may & left_[w]; both; both &= both - 1)
      next_.push_back(option(row, 64 * w + std::countr_zero(both)));
    left_[w] &= ~may;
  }
}

// One shortest path from `row` over columns that are full, and rows that could leave one for another, to
// room; of all such rows it takes the first. What it costs depends on the columns alone, but for a few
// words of bits. came_column_[c] is the option by which c was reached, came_row_[c] the option that its
// row gives up for it.
Amount Transport::augment(int row, Amount least) {
  came_column_.resize(room_.size());
  came_row_.assign(room_.size(), -1);
  std::ranges::fill(left_, ~std::uint64_t{0});
  queue_.clear();
  next_.clear();
  reach(row);
  for (std::size_t i = 0;; ++i) {
    std::ranges::sort(next_);
    for (int o : next_) {
      const int c = column_[o];
      came_column_[c] = o;
      if (i > 0) came_row_[c] = option(row_of_[o], queue_[i - 1]);
      if (room_[c] >= least) return settle(row, c);
      queue_.push_back(c);
    }
    if (i == queue_.size()) return 0;
    next_.clear();
    for (int w : range(words_))
      for (std::uint64_t held = holds_[queue_[i] * words_ + w]; held; held &= held - 1) {
        const int other = 64 * w + std::countr_zero(held);
        if (units_[option(other, queue_[i])] >= least) reach(other);
      }
  }
}

// Moves units along the columns that lead from `row` to column `last`, which has room; how many.
Amount Transport::settle(int row, int last) {
  Amount units = std::min(room_[last], demand_[row]);
  for (int c = last; came_row_[c] >= 0; c = column_[came_row_[c]])
    units = std::min(units, units_[came_row_[c]]);
  room_[last] -= units;
  for (int c = last;; c = column_[came_row_[c]]) {
    give(came_column_[c], units);
    if (came_row_[c] < 0) return units;
    give(came_row_[c], -units);
  }
}

}  // namespace forestcoll
