// Transportation: rows need units, columns offer them, and a row may only use some columns.
#pragma once

#include <bit>

#include "graph.hpp"

namespace forestcoll {

// A problem and its solution. Fill, solve, read, clear; memory is kept for the next problem.
class Transport {
 public:
  // Columns are numbered from 0 in the order in which they are added.
  void clear() {
    room_.clear();
    demand_.clear();
    start_.assign(1, 0);
    column_.clear();
    prefers_.clear();
  }
  void add_column(Amount offered) { room_.push_back(offered); }

  // The row that comes next; say its options first. With `prefer` it takes as much as it can of those
  // that it has so far, in turn, before the others have their choice.
  void add_option(int column) { column_.push_back(column); }
  void prefer() { preferred_ = number_of(column_) - start_.back(); }
  void end_row(Amount demand) {
    demand_.push_back(demand);
    start_.push_back(number_of(column_));
    prefers_.push_back(std::exchange(preferred_, 0));
  }

  int rows() const { return number_of(demand_); }

  // Whether every row got all it needs. Each takes a column that has room for all of it, the one that
  // has most, so that rows are divided seldom; shortest augmenting paths do the rest, those that move
  // whole rows first. Rows of the same problem are always met in the same order: what must be
  // divided falls to the same ones. Without `whole_rows` it does not stop at a row that cannot have all
  // it needs: such rows get as much as possible of it.
  bool solve(bool whole_rows = true) {
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

  // What `row` could not be given.
  Amount missing(int row) const { return demand_[row]; }

  // Calls use(column, units) for what `row` was given.
  template <typename Use>
  void read(int row, const Use& use) const {
    for (int o = start_[row]; o < start_[row + 1]; ++o)
      if (units_[o] > 0) use(column_[o], units_[o]);
  }

 private:
  void begin() {
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
  void choose(int row) {
    int best = -1;
    for (int o = start_[row]; o < start_[row + 1]; ++o)
      if (room_[column_[o]] >= demand_[row] && (best < 0 || room_[column_[o]] > room_[column_[best]]))
        best = o;
    if (best >= 0) take(row, best);
  }
  void take(int row, int option) {
    const Amount units = std::min(demand_[row], room_[column_[option]]);
    units_[option] += units;
    room_[column_[option]] -= units;
    demand_[row] -= units;
  }
  void index_rows() {
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
  // One shortest path from `row` over columns that are full, and rows that could leave one for another, to
  // room; of all such rows it takes the first. What it costs depends on the columns alone, but for a few
  // words of bits. came_column_[c] is the option by which c was reached, came_row_[c] the option that its
  // row gives up for it.
  Amount augment(int row, Amount least) {
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
  Amount settle(int row, int last) {
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
  // Units of an option, more or (below 0) less.
  void give(int option, Amount units) {
    units_[option] += units;
    const std::uint64_t bit = std::uint64_t{1} << row_of_[option] % 64;
    std::uint64_t& word = holds_[column_[option] * words_ + row_of_[option] / 64];
    word = units_[option] > 0 ? word | bit : word & ~bit;
  }
  int option(int row, int column) const { return option_[row * room_.size() + column]; }
  // The options of a row in columns that nothing has reached yet are the next to be looked at.
  void reach(int row) {
    for (int w : range(left_)) {
      const std::uint64_t may = may_[row * left_.size() + w];
      for (std::uint64_t both = may & left_[w]; both; both &= both - 1)
        next_.push_back(option(row, 64 * w + std::countr_zero(both)));
      left_[w] &= ~may;
    }
  }

  Amounts room_, demand_, units_;  // per column; per row: what is missing; per option
  Ints start_{0}, column_;         // options of row i: start_[i] .. start_[i + 1]
  Ints prefers_;                   // per row, how many of its options
  int preferred_ = 0;
  Ints row_of_;  // per option
  Ints order_, queue_, came_row_, came_column_, next_;
  int words_ = 0;            // of 64 rows each
  std::vector<std::uint64_t> holds_, may_, left_;  // bits: rows that have units of a column, columns
                                                   // that a row may use, columns not yet reached
  Ints option_;                 // per row and column, -1 where the row may not use it
};

}  // namespace forestcoll
