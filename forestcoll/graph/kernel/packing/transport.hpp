// Transportation: rows need units, columns offer them, and a row may only use some columns.
#pragma once

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
  bool solve(bool whole_rows = true);

  // What `row` could not be given.
  Amount missing(int row) const { return demand_[row]; }

  // Calls use(column, units) for what `row` was given.
  template <typename Use>
  void read(int row, const Use& use) const {
    for (int o = start_[row]; o < start_[row + 1]; ++o)
      if (units_[o] > 0) use(column_[o], units_[o]);
  }

 private:
  void begin();
  void choose(int row);
  void take(int row, int option);
  void index_rows();
  Amount augment(int row, Amount least);
  Amount settle(int row, int last);
  void give(int option, Amount units);
  int option(int row, int column) const { return option_[row * room_.size() + column]; }
  void reach(int row);

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
