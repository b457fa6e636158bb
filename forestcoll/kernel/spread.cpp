#include "spread.hpp"

#include <algorithm>

#include "flow.hpp"

namespace forestcoll {
namespace {

// The transportation network in-ports -> out-ports. Pairs come in grade by grade: most are never
// needed.
class Pairs {
 public:
  Pairs(const std::vector<Port>& in, const std::vector<Port>& out)
      : rows_(static_cast<int>(in.size())), columns_(static_cast<int>(out.size())),
        net_(rows_ + columns_ + 2) {
    for (int i = 0; i < rows_; ++i) net_.add_arc(source(), i, in[i].units);
    for (int j = 0; j < columns_; ++j) net_.add_arc(rows_ + j, sink(), out[j].units);
  }

  // Adds the pairs of `grade`, carrying nothing so far; returns the least common limit at which each
  // port could send or receive what it has left over these pairs alone, as far as it has any.
  Amount add(const std::vector<int>& grades, int grade) {
    begin_ = arcs_.size();
    std::vector<Amount> count(rows_ + columns_, 0);
    // Arcs are searched last-added first: row i meets columns i + 1, i + 2, ... in that order, so
    // that what is left over after an even division goes round instead of piling up in column 0.
    for (int i = 0; i < rows_; ++i)
      for (int step = columns_; step >= 1; --step) {
        const int j = (i + step) % columns_;
        if (grades[i * columns_ + j] != grade) continue;
        arcs_.push_back({i, j, net_.add_arc(i, rows_ + j, 0)});
        ++count[i];
        ++count[rows_ + j];
      }
    Amount limit = 0;
    for (int p = 0; p < rows_ + columns_; ++p)
      if (count[p] > 0) limit = std::max(limit, (net_.left(2 * p) + count[p] - 1) / count[p]);
    return limit;
  }

  // Lets every pair of the last grade carry `limit` units in all; its flow so far stays.
  void open(Amount limit) {
    for (std::size_t n = begin_; n < arcs_.size(); ++n)
      net_.set_left(arcs_[n].arc, limit - net_.left(arcs_[n].arc ^ 1));
  }

  // What could still be matched at most.
  Amount wanted() const {
    Amount in = 0, out = 0;
    for (int i = 0; i < rows_; ++i) in += net_.left(2 * i);
    for (int j = 0; j < columns_; ++j) out += net_.left(2 * (rows_ + j));
    return std::min(in, out);
  }

  Amount push() { return net_.push(source(), sink(), kInfinite); }
  std::vector<Amount> state() const { return net_.state(); }
  void restore(const std::vector<Amount>& state) { net_.restore(state); }

  std::vector<Match> matches() const {
    std::vector<Match> list;
    for (const Arc& arc : arcs_)
      if (const Amount units = net_.left(arc.arc ^ 1); units > 0)
        list.push_back({arc.row, arc.column, units});
    std::sort(list.begin(), list.end(), [](const Match& a, const Match& b) {
      return a.in != b.in ? a.in < b.in : a.out < b.out;
    });
    return list;
  }

 private:
  struct Arc {
    int row, column, arc;
  };

  int source() const { return rows_ + columns_; }
  int sink() const { return rows_ + columns_ + 1; }

  int rows_, columns_;
  Residual net_;
  std::vector<Arc> arcs_;
  std::size_t begin_ = 0;  // of the last grade
};

// Adds the pairs of one grade with the least common limit that lets them carry as much as without.
void add_grade(Pairs& pairs, const std::vector<int>& grades, int grade, Amount largest) {
  Amount high = pairs.add(grades, grade);
  const std::vector<Amount> before = pairs.state();
  auto carried = [&](Amount limit) {
    pairs.restore(before);
    pairs.open(limit);
    return pairs.push();
  };
  // No limit below `high` lets some port send all it has left; often `high` itself lets every port.
  Amount low = high - 1, most = pairs.wanted();
  if (high < 1) return;
  if (carried(high) < most) {
    low = 0;
    most = carried(largest);
    high = largest;
  }
  if (most == 0) {
    pairs.restore(before);
    return;
  }
  while (high - low > 1) {  // carried(low) < most == carried(high)
    const Amount middle = low + (high - low) / 2;
    (carried(middle) == most ? high : low) = middle;
  }
  carried(low);  // fill evenly first, then hand out the last unit a pair
  pairs.open(high);
  pairs.push();
}

}  // namespace

std::vector<Match> spread(const std::vector<Port>& in, const std::vector<Port>& out,
                          const std::vector<int>& grade) {
  Pairs pairs(in, out);
  Amount largest = 0;
  for (const Port& port : in) largest = std::max(largest, port.units);
  std::vector<int> kinds(grade);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  for (int kind : kinds)
    if (pairs.wanted() > 0) add_grade(pairs, grade, kind, largest);
  return pairs.matches();
}

}  // namespace forestcoll
