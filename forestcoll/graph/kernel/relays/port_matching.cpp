#include "relays/port_matching.hpp"

#include "flow.hpp"

namespace forestcoll {
namespace {

constexpr int kFillRounds = 256;  // of filling; what they leave is matched by flows

// Rows that have units, columns that take them, and what goes from where to where.
struct Table {
  Amounts rows, columns;  // what each has left
  Amounts units;          // row by row

  Table(Amounts in, Amounts out)
      : rows(std::move(in)), columns(std::move(out)), units(rows.size() * columns.size(), 0) {}

  int height() const { return number_of(rows); }
  int width() const { return number_of(columns); }

  std::size_t cell(int row, int column) const {
    return row * columns.size() + column;
  }

  void add(int row, int column, Amount amount) {
    units[cell(row, column)] += amount;
    rows[row] -= amount;
    columns[column] -= amount;
  }

  // What could still be matched at most.
  Amount wanted() const {
    Amount in = 0, out = 0;
    for (Amount left : rows) in += left;
    for (Amount left : columns) out += left;
    return std::min(in, out);
  }
};

// A row and a column that may be matched, as long as pair of boxes `boxes` has anything left.
struct Cell {
  int row = 0, column = 0;
  int boxes = 0;
};

// Raises all cells together by the most that every row, column and pair of boxes can bear, then those
// where all three can still give one more, and so on: nobody gets more at the cost of one with less
// (max-min fairness by progressive filling; Bertsekas, Gallager, Data Networks, 6.5.2).
void fill(Table& table, std::vector<Cell> cells, Amounts& limit) {
  Amounts row_count(table.rows.size()), column_count(table.columns.size()),
      box_count(limit.size());
  auto count = [&](const Cell& cell, Amount by) {
    row_count[cell.row] += by;
    column_count[cell.column] += by;
    box_count[cell.boxes] += by;
  };
  auto full = [&](const Cell& cell) {
    return table.rows[cell.row] < row_count[cell.row] ||
           table.columns[cell.column] < column_count[cell.column] ||
           limit[cell.boxes] < box_count[cell.boxes];
  };
  for (const Cell& cell : cells) count(cell, 1);
  for (int round = 0; round < kFillRounds && !cells.empty(); ++round) {
    Amount step = kInfinite;
    for (const Cell& cell : cells)
      step = std::min({step, table.rows[cell.row] / row_count[cell.row],
                       table.columns[cell.column] / column_count[cell.column],
                       limit[cell.boxes] / box_count[cell.boxes]});
    for (const Cell& cell : cells) {
      table.add(cell.row, cell.column, step);
      limit[cell.boxes] -= step;
    }
    Marks gone(cells.size());
    for (int i : range(cells)) gone[i] = full(cells[i]);
    std::size_t kept = 0;
    for (int i : range(cells)) {
      if (gone[i]) count(cells[i], -1);
      else cells[kept++] = cells[i];
    }
    cells.resize(kept);
  }
}

// Calls use(i, j) for every cell, row i's from column i down: flows take the arc first that was added
// last, so what is left over after an even division goes round instead of piling up in column 0.
template <typename Use>
void reverse_robin(const Table& table, const Use& use) {
  for (int i : range(table.height()))
    for (int step = table.width(); step >= 1; --step) use(i, (i + step) % table.width());
}

// Rows that a source feeds with what they have left, and columns that hand on what they have to a sink.
struct Network {
  explicit Network(Table& table)
      : table_(table), source_(table.height() + table.width()), net_(source_ + 2) {
    for (int i : range(table.height())) net_.add_arc(source_, i, table.rows[i]);
    for (int j : range(table.width()))
      net_.add_arc(table.height() + j, source_ + 1, table.columns[j]);
  }

  void push() { net_.push(source_, source_ + 1, kInfinite); }

  Table& table_;
  int source_;
  Residual net_;
};

// The network rows -> columns with what is matched already; arcs come in bit by bit.
class Flow : public Network {
 public:
  using Network::Network;

  // Row i may send up to `most` units more to column j, or take back up to `back`.
  void open(int i, int j, Amount most, Amount back) {
    const int arc = net_.add_arc(i, table_.height() + j, most);
    net_.set_left(arc ^ 1, std::min(back, table_.units[table_.cell(i, j)]));
    arcs_.push_back({i, j, arc, most});
  }

  // Writes what has changed to the table.
  void settle() {
    for (Arc& a : arcs_) {
      table_.add(a.row, a.column, a.left - net_.left(a.arc));
      a.left = net_.left(a.arc);
    }
  }

 private:
  struct Arc {
    int row, column, arc;
    Amount left;
  };

  std::vector<Arc> arcs_;
};

// The most that `allowed` cells can carry, as evenly as it can be.
void fill_evenly(Table& table, const Marks& allowed) {
  std::vector<Cell> cells;
  auto is_allowed = [&](int i, int j) {
    return allowed[table.cell(i, j)] != 0;
  };
  for (int i : range(table.height()))
    for (int j : range(table.width()))
      if (is_allowed(i, j)) cells.push_back({i, j, 0});
  Amounts limit{kInfinite};
  fill(table, std::move(cells), limit);
  for (const Amount most : {Amount{1}, Amount{2}, kInfinite}) {  // a bit more, then what it takes
    if (table.wanted() == 0) return;
    Flow flow(table);
    reverse_robin(table, [&](int i, int j) {
      if (is_allowed(i, j)) flow.open(i, j, most, most == kInfinite ? most : 0);
    });
    flow.push();
    flow.settle();
  }
}

// What goes from ports of one box to ports of another: rows of the one, columns of the other.
struct Gate {
  int in = -1, out = -1;                          // its nodes
  Pairs rows, columns;  // (row or column, its arc)
};

// Matches what is left over within what is left to each pair of boxes; what was matched between the
// same two boxes may be matched otherwise.
class Rest : Network {
 public:
  Rest(Table& table, const Ports& in, const Ports& out,
       const Ints& grade, int even, int boxes)
      : Network(table), in_(in), grade_(grade), even_(even), boxes_(boxes), of_(boxes),
        gates_(static_cast<std::size_t>(boxes) * boxes) {
    for (int j : range(table.width())) of_[out[j].box].push_back(j);
  }

  void match(Amounts& limit) {
    for (int i : range(table_.height()))
      for (int b : range(boxes_))
        if (open(i, b)) enter(i, b);
    for (int pair : range(gates_))
      if (gates_[pair].in >= 0) leave(gates_[pair], pair % boxes_, limit[pair]);
    push();
    for (Gate& gate : gates_) {
      if (gate.in < 0) continue;
      for (auto& [i, arc] : gate.rows)
        for (auto& [j, other] : gate.columns) table_.add(i, j, -units(i, j));
      for (const bool best : {true, false})  // the best grade first
        for (auto& [i, arc] : gate.rows)
          for (auto& [j, other] : gate.columns)
            if (!best || grade(i, j) == 0) settle(i, arc, j, other);
    }
  }

 private:
  int grade(int i, int j) const { return grade_[table_.cell(i, j)]; }
  Amount units(int i, int j) const { return table_.units[table_.cell(i, j)]; }

  bool open(int i, int b) const {
    return !of_[b].empty() &&
           std::ranges::all_of(of_[b], [&](int j) { return grade(i, j) < even_; });
  }

  // An arc from row i to its gate to box b, with what flows there by now.
  void enter(int i, int b) {
    Gate& gate = gates_[static_cast<std::size_t>(in_[i].box) * boxes_ + b];
    if (gate.in < 0) {
      gate.in = net_.add_node();
      gate.out = net_.add_node();
    }
    gate.rows.emplace_back(i, net_.add_arc(i, gate.in, kInfinite));
    Amount flow = 0;
    for (int j : of_[b]) flow += units(i, j);
    net_.set_left(gate.rows.back().second ^ 1, flow);
  }

  // The arcs from a gate to the columns of box b.
  void leave(Gate& gate, int b, Amount limit) {
    Amount total = 0;
    for (int j : of_[b]) {
      Amount flow = 0;
      for (const auto& [i, arc] : gate.rows) flow += units(i, j);
      gate.columns.emplace_back(j, net_.add_arc(gate.out, table_.height() + j, kInfinite));
      net_.set_left(gate.columns.back().second ^ 1, flow);
      total += flow;
    }
    net_.set_left(net_.add_arc(gate.in, gate.out, limit) ^ 1, total);
  }

  // Gives the cell what flows from its row and to its column and has no cell yet.
  void settle(int i, int from, int j, int to) {
    const Amount most = std::min(net_.left(from ^ 1), net_.left(to ^ 1));
    net_.set_left(from ^ 1, net_.left(from ^ 1) - most);
    net_.set_left(to ^ 1, net_.left(to ^ 1) - most);
    table_.add(i, j, most);
  }

  const Ports& in_;
  const Ints& grade_;
  int even_, boxes_;
  Lists of_;  // columns, per box
  std::vector<Gate> gates_;  // per pair of boxes
};

// How much each pair of boxes should carry: all that cells below grade `even` can, spread evenly.
Amounts between_boxes(const Ports& in, const Ports& out,
                                  const Ints& grade, int even, int boxes) {
  Amounts rows(boxes, 0), columns(boxes, 0);
  for (const Port& port : in) rows[port.box] += port.units;
  for (const Port& port : out) columns[port.box] += port.units;
  Marks allowed(static_cast<std::size_t>(boxes) * boxes, 0);
  for (int i : range(in))
    for (int j : range(out))
      if (grade[i * out.size() + j] < even) allowed[in[i].box * boxes + out[j].box] = 1;
  Table table(std::move(rows), std::move(columns));
  fill_evenly(table, allowed);
  return std::move(table.units);
}

}  // namespace

std::vector<Match> spread(const Ports& in, const Ports& out,
                          const Ints& grade, int even) {
  Amounts rows, columns;
  int boxes = 0;
  for (const Port& port : in) rows.push_back(port.units), boxes = std::max(boxes, port.box + 1);
  for (const Port& port : out) columns.push_back(port.units), boxes = std::max(boxes, port.box + 1);
  Table table(std::move(rows), std::move(columns));
  Amounts limit = between_boxes(in, out, grade, even, boxes);
  const Ints kinds = distinct(grade);
  auto at = [&](int i, int j) { return grade[table.cell(i, j)]; };
  for (const int kind : kinds) {
    if (kind >= even) break;
    std::vector<Cell> cells;
    for (int i : range(table.height()))
      for (int j : range(table.width()))
        if (at(i, j) == kind) cells.push_back({i, j, in[i].box * boxes + out[j].box});
    fill(table, std::move(cells), limit);
    for (int i : range(table.height()))
      for (int step : range(table.width())) {  // one more for some, row i's from column i + 1 on
        const int j = (i + 1 + step) % table.width();
        Amount& left = limit[in[i].box * boxes + out[j].box];
        if (at(i, j) != kind || std::min({table.rows[i], table.columns[j], left}) == 0) continue;
        table.add(i, j, 1);
        --left;
      }
  }
  if (table.wanted() > 0) Rest(table, in, out, grade, even, boxes).match(limit);
  if (table.wanted() > 0) {
    Flow flow(table);
    for (const int kind : kinds) {  // whatever is matched may be matched otherwise
      reverse_robin(table, [&](int i, int j) {
        if (at(i, j) == kind) flow.open(i, j, kInfinite, kInfinite);
      });
      flow.push();
    }
    flow.settle();
  }
  std::vector<Match> matches;
  for (int i : range(table.height()))
    for (int j : range(table.width()))
      if (const Amount units = table.units[table.cell(i, j)]; units > 0)
        matches.push_back({i, j, units});
  return matches;
}

}  // namespace forestcoll
