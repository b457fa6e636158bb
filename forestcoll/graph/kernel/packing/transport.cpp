#include "packing/transport.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace forestcoll {

namespace {

constexpr int kNarrow = 16;  // columns up to which sets of rows are kept for each

}  // namespace

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
    for (int o = 0; o < prefers_[row]; ++o) take(row, start_[row] + o);
  for (int row : order_) choose(row);
  row_of_.resize(column_.size());
  for (int row = 0; row < rows(); ++row)
    std::fill(row_of_.begin() + start_[row], row_of_.begin() + start_[row + 1], row);
  narrow_ = room_.size() <= kNarrow;
  if (narrow_) index_rows();
  else index_columns();
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

void Transport::index_columns() {
  column_start_.assign(room_.size() + 1, 0);
  for (int c : column_) ++column_start_[c + 1];
  std::partial_sum(column_start_.begin(), column_start_.end(), column_start_.begin());
  std::vector<int> at(column_start_.begin(), column_start_.end() - 1);
  by_column_.resize(column_.size());
  for (int o = 0; o < static_cast<int>(column_.size()); ++o) by_column_[at[column_[o]]++] = o;
}

void Transport::index_rows() {
  words_ = (demand_.size() + 63) / 64;
  holds_.assign(room_.size() * words_, 0);
  may_.assign(room_.size() * words_, 0);
  option_.assign(room_.size() * demand_.size(), -1);
  for (int o = 0; o < static_cast<int>(column_.size()); ++o) {
    const std::size_t place = column_[o] * words_ + row_of_[o] / 64;
    const std::uint64_t bit = std::uint64_t{1} << row_of_[o] % 64;
    may_[place] |= bit;
    if (units_[o] > 0) holds_[place] |= bit;
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

// The option by which the first row that has `least` units of column `from` may use column `to`.
int Transport::first_option(int from, int to, Amount least) const {
  for (std::size_t w = 0; w < words_; ++w)
    for (std::uint64_t both = holds_[from * words_ + w] & may_[to * words_ + w]; both;
         both &= both - 1) {
      const int row = static_cast<int>(64 * w) + std::countr_zero(both);
      if (units_[option(row, from)] >= least) return option(row, to);
    }
  return -1;
}

// The path that `over_rows` finds, from column to column: of all rows that could leave one for another
// it takes the first. What it costs depends on the columns alone, but for a few words of bits.
Amount Transport::over_columns(int row, Amount least) {
  const int columns = static_cast<int>(room_.size());
  came_column_.assign(columns, -1);
  came_row_.assign(columns, -1);  // here: the option that the row gives up for came_column_
  queue_.clear();
  next_.clear();
  for (int o = start_[row]; o < start_[row + 1]; ++o) next_.push_back(o);
  for (std::size_t i = 0;; ++i) {
    for (int o : next_) {
      const int c = column_[o];
      if (came_column_[c] >= 0) continue;
      came_column_[c] = o;
      if (i > 0) came_row_[c] = option(row_of_[o], queue_[i - 1]);
      if (room_[c] >= least) return settle(row, c);
      queue_.push_back(c);
    }
    if (i == queue_.size()) return 0;
    next_.clear();
    for (int to = 0; to < columns; ++to) {
      if (came_column_[to] >= 0) continue;
      if (const int o = first_option(queue_[i], to, least); o >= 0) next_.push_back(o);
    }
    std::sort(next_.begin(), next_.end());
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

// One shortest path from `row` over columns that are full, rows that could go elsewhere, to room.
// came_column_[c] is the option by which c was reached, came_row_[r] the option that r could give up.
Amount Transport::over_rows(int row, Amount least) {
  came_column_.assign(room_.size(), -1);
  came_row_.assign(rows(), -1);
  queue_.assign(1, row);
  for (std::size_t i = 0; i < queue_.size(); ++i) {
    const int r = queue_[i];
    for (int o = start_[r]; o < start_[r + 1]; ++o) {
      const int c = column_[o];
      if (came_column_[c] >= 0) continue;
      came_column_[c] = o;
      if (room_[c] >= least) {
        Amount units = std::min(room_[c], demand_[row]);
        for (int at = row_of_[o]; at != row; at = row_of_[came_column_[column_[came_row_[at]]]])
          units = std::min(units, units_[came_row_[at]]);
        room_[c] -= units;
        int option = o;
        for (int at = row_of_[o];; at = row_of_[option]) {
          units_[option] += units;
          if (at == row) return units;
          units_[came_row_[at]] -= units;
          option = came_column_[column_[came_row_[at]]];
        }
      }
      for (int n = column_start_[c]; n < column_start_[c + 1]; ++n) {
        const int other = row_of_[by_column_[n]];
        if (units_[by_column_[n]] >= least && other != row && came_row_[other] < 0) {
          came_row_[other] = by_column_[n];
          queue_.push_back(other);
        }
      }
    }
  }
  return 0;
}

}  // namespace forestcoll
