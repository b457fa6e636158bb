#include "transport.hpp"

#include <algorithm>
#include <numeric>

namespace forestcoll {

bool Transport::solve() {
  begin();
  for (bool whole : {true, false})
    for (int row : order_)
      while (demand_[row] > 0) {
        const Amount more = augment(row, whole ? demand_[row] : 1);
        if (more == 0 && !whole) return false;
        if (more == 0) break;
        demand_[row] -= more;
      }
  return true;
}

// A row that finds no path now finds none later: one attempt is enough.
void Transport::solve_most() {
  begin();
  for (bool whole : {true, false})
    for (int row : order_)
      while (demand_[row] > 0) {
        const Amount more = augment(row, whole ? demand_[row] : 1);
        if (more == 0) break;
        demand_[row] -= more;
      }
}

void Transport::begin() {
  units_.assign(column_.size(), 0);
  order_.resize(rows());
  std::iota(order_.rbegin(), order_.rend(), 0);
  for (int row : order_)
    for (int o = 0; o < prefers_[row]; ++o) take(row, start_[row] + o);
  for (int row : order_) choose(row);
  index_columns();
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
  row_of_.resize(column_.size());
  for (int row = 0; row < rows(); ++row)
    for (int o = start_[row]; o < start_[row + 1]; ++o) {
      row_of_[o] = row;
      by_column_[at[column_[o]]++] = o;
    }
}

// One shortest path from `row` over columns that are full, rows that could go elsewhere, to room.
// came_column_[c] is the option by which c was reached, came_row_[r] the option that r could give up.
Amount Transport::augment(int row, Amount least) {
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
