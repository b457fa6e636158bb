#include "spread.hpp"

#include <algorithm>

#include "flow.hpp"

namespace forestcoll {
namespace {

// The transportation network in-ports -> out-ports with one arc a pair, closed at first.
class Transport {
 public:
  Transport(const std::vector<Port>& in, const std::vector<Port>& out)
      : rows_(static_cast<int>(in.size())),
        columns_(static_cast<int>(out.size())),
        net_(rows_ + columns_ + 2),
        pair_(in.size() * out.size()) {
    for (int i = 0; i < rows_; ++i) net_.add_arc(source(), i, in[i].units);
    for (int j = 0; j < columns_; ++j) net_.add_arc(rows_ + j, sink(), out[j].units);
    // Arcs are searched last-added first: row i meets columns i + 1, i + 2, ... in that order, so
    // that what is left over after an even division goes round instead of piling up in column 0.
    for (int i = 0; i < rows_; ++i)
      for (int step = columns_; step >= 1; --step) {
        const int j = (i + step) % columns_;
        pair_[i * columns_ + j] = net_.add_arc(i, rows_ + j, 0);
      }
    net_.reset();
  }

  // Lets every pair of `grade` carry `limit` units in all; its flow so far stays.
  void open(const std::vector<int>& grades, int grade, Amount limit) {
    for (std::size_t p = 0; p < pair_.size(); ++p)
      if (grades[p] == grade) net_.set_left(pair_[p], limit - units(static_cast<int>(p)));
  }

  Amount push() { return net_.push(source(), sink(), kInfinite); }
  Amount units(int pair) const { return net_.left(pair_[pair] ^ 1); }
  std::vector<Amount> state() const { return net_.state(); }
  void restore(const std::vector<Amount>& state) { net_.restore(state); }

 private:
  int source() const { return rows_ + columns_; }
  int sink() const { return rows_ + columns_ + 1; }

  int rows_, columns_;
  Residual net_;
  std::vector<int> pair_;
};

// Adds the pairs of one grade with the least common limit that lets them carry as much as without.
void add_grade(Transport& transport, const std::vector<int>& grades, int grade, Amount largest) {
  const std::vector<Amount> before = transport.state();
  auto carried = [&](Amount limit) {
    transport.restore(before);
    transport.open(grades, grade, limit);
    return transport.push();
  };
  const Amount most = carried(largest);
  if (most == 0) {
    transport.restore(before);
    return;
  }
  Amount low = 0, high = largest;  // carried(low) < most == carried(high)
  while (high - low > 1) {
    const Amount middle = low + (high - low) / 2;
    (carried(middle) == most ? high : low) = middle;
  }
  carried(low);  // fill evenly first, then hand out the last unit a pair
  transport.open(grades, grade, high);
  transport.push();
}

}  // namespace

std::vector<Match> spread(const std::vector<Port>& in, const std::vector<Port>& out,
                          const std::vector<int>& grade) {
  Transport transport(in, out);
  Amount largest = 0;
  for (const Port& port : in) largest = std::max(largest, port.units);
  std::vector<int> kinds(grade);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  for (int kind : kinds) add_grade(transport, grade, kind, largest);

  std::vector<Match> matches;
  const int columns = static_cast<int>(out.size());
  for (int p = 0; p < static_cast<int>(grade.size()); ++p)
    if (const Amount units = transport.units(p); units > 0)
      matches.push_back({p / columns, p % columns, units});
  return matches;
}

}  // namespace forestcoll
