#include "transfers.hpp"

#include <bit>
#include <limits>

#include "rank_tree.hpp"

namespace forestcoll {

namespace {

constexpr int kTurns = 1 << 12;         // places among which the parts of each tree are spread
constexpr double kFull = 1.03;          // time of a schedule, of what its busiest link takes, from which on
                                        // another one is looked for
constexpr int kFine = 10, kCoarse = 40;  // a chunk takes the widest link 2^10 units of time at least, but
                                         // the narrowest 2^40 at most

struct Tree : RankTree {
  Ints connection;  // per rank, to or from its parent
};

struct Part {  // chunks of a tree
  int tree, first, count;
};

class Maker {
 public:
  Maker(const std::vector<bool>& early, const Ints& inputs, const Ints& outputs)
      : early_(early), inputs_(inputs), outputs_(outputs) {}

  Transfers make(nb::sequence trees, const Ints& groups, int most) {
    const int n = number_of(early_);
    std::map<std::tuple<bool, int, Ints>, Ints> alike;  // parts of trees
    for (nb::handle each : trees) {
      const int number = number_of(trees_);
      Tree& tree = trees_.emplace_back(Tree{read_tree(each, n), Ints(n)});
      require(tree.first + tree.count <= std::numeric_limits<int>::max(), "more chunks than can be numbered");
      const Ints parities = nb::cast<Ints>(each.attr("parities"));
      for (int rank : tree.order) {
        const int parent = tree.parent[rank], group = groups.at(number);
        if (rank != tree.root)
          tree.connection[rank] = made_.connect(tree.down ? Connection{parent, rank, group, parities.at(rank)}
                                                          : Connection{rank, parent, group, parities.at(rank)});
      }
      Ints& own = alike[{tree.down, tree.root, tree.parent}];
      const Amount parts = (tree.count + most - 1) / most;
      for (Amount part = 0; part < parts; ++part) {
        const Amount low = tree.count * part / parts, high = tree.count * (part + 1) / parts;
        own.push_back(number_of(parts_));
        parts_.push_back({number, static_cast<int>(tree.first + low), static_cast<int>(high - low)});
      }
    }
    // all parts of a tree are spread evenly over the turns, be they many or few
    made_.turns.resize(parts_.size());
    for (const auto& [_, own] : alike)
      for (int place : range(own)) made_.turns[own[place]] = (2L * place + 1) * kTurns / (2L * number_of(own));
    made_.scratch_chunks.resize(n);
    for (const bool down : {false, true})
      for (int number : range(parts_))
        if (trees_[parts_[number].tree].down == down) (down ? broadcast(number) : reduce(number));
    return std::move(made_);
  }

 private:
  Place input_of(int rank, const Part& part) const { return {input, part.first - inputs_[rank], part.count}; }
  Place output_of(int rank, const Part& part) const { return {output, part.first - outputs_[rank], part.count}; }

  // Over the tree's link to or from a child; its number.
  int add(int number, int child, const Place& source, const Place& total, const Ints& needs) {
    const Tree& tree = trees_[parts_[number].tree];
    const int connection = tree.connection[child], at = number_of(made_.items);
    const auto& [src, dst, group, parity] = made_.connections[connection];
    const Land land = tree.down ? Land::final : Land::add;
    made_.items.push_back({src, dst, source, total, parts_[number].first, number, 0, connection, land});
    made_.needs.add(needs);
    return at;
  }

  void reduce(int number) {
    const Part& part = parts_[number];
    const Tree& tree = trees_[part.tree];
    Lists needs(early_.size());  // per rank what brings its sum
    Ints sums(early_.size());    // in the order of the chunks, so that neighbours there are neighbours here
    for (std::size_t k = tree.order.size(); --k > 0;) {
      const int rank = tree.order[k], parent = tree.parent[rank];
      const Place source = needs[rank].empty() ? input_of(rank, part) : Place{scratch, sums[rank], part.count};
      Place total = output_of(parent, part);
      if (parent != tree.root) {
        int& used = made_.scratch_chunks[parent];
        if (needs[parent].empty()) sums[parent] = std::exchange(used, used + part.count);
        total = {scratch, sums[parent], part.count};
      }
      Ints awaited = needs[rank];
      if (tree.ordered && !needs[parent].empty()) awaited.push_back(needs[parent].back());
      needs[parent].push_back(add(number, rank, source, total, awaited));
    }
    for (int chunk : range(part.count)) home_[part.first + chunk] = needs[tree.root];
  }

  void broadcast(int number) {
    const Part& part = parts_[number];
    const Tree& tree = trees_[part.tree];
    Lists needs(early_.size());
    Ints& whole = needs[tree.root];
    for (int chunk : range(part.count))
      for (int m : home_[part.first + chunk]) whole.push_back(m);
    whole = distinct(std::move(whole));
    for (int rank : tree.order) {
      if (rank == tree.root) continue;
      const int parent = tree.parent[rank];
      const bool own = parent == tree.root && !early_[parent];
      const Place source = own ? input_of(parent, part) : output_of(parent, part);
      needs[rank] = {add(number, rank, source, output_of(rank, part), needs[parent])};
    }
  }

  const std::vector<bool>& early_;
  const Ints &inputs_, &outputs_;
  std::vector<Tree> trees_;
  std::vector<Part> parts_;
  std::map<int, Ints> home_;  // chunk: the transfers that bring its sum home
  Transfers made_;
};

// How many transfers each link serves at once: one for each channel of a connection. Then the same with
// links inside a fabric that are wider than the ends of their ways, if there are any: they serve several
// connections side by side, each as fast as its end.
Lists lanes_of_links(const Lists& ways, const Amounts& capacity, const Ints& channels) {
  Ints lanes(capacity.size(), 1);
  for (int c : range(ways))
    for (int link : ways[c]) lanes[link] = std::max(lanes[link], channels[c]);
  Ints beside = lanes;
  for (const Ints& way : ways)
    for (int k = 1; k + 1 < number_of(way); ++k)
      for (int end : {way.front(), way.back()}) {
        const Wide fitting = Wide{capacity[way[k]]} * lanes[end] / capacity[end];
        beside[way[k]] = static_cast<int>(std::max<Wide>(beside[way[k]], fitting));
      }
  return beside == lanes ? Lists{lanes} : Lists{lanes, beside};
}

bool touch(const Place& a, const Place& b) { return a.buffer == b.buffer && a.offset + a.count == b.offset; }

}  // namespace

Transfers transfers_of(nb::sequence trees, const Ints& groups, int most, const std::vector<bool>& early,
                       const Ints& inputs, const Ints& outputs) {
  require(most > 0 && std::min(inputs.size(), outputs.size()) >= early.size(), "no chunks, or ranks without buffers");
  return Maker(early, inputs, outputs).make(trees, groups, most);
}

int Transfers::connect(const Connection& connection) {
  const auto [place, fresh] = numbers_.try_emplace(connection, number_of(connections));
  if (fresh) connections.push_back(connection);
  return place->second;
}

Transfers::Transfers(const std::vector<Row>& rows) {
  for (const auto& [src, dst, from, source, into, total, count, chunk, tree, level, group, land] : rows)
    items.push_back({src, dst, {from, source, count}, {into, total, count}, chunk, tree, level,
                     connect({src, dst, group, -1}), static_cast<Land>(land)});
}

std::vector<Transfers::Row> Transfers::rows() const {
  std::vector<Row> rows;
  for (const Transfer& t : items)
    rows.emplace_back(t.src, t.dst, t.source.buffer, t.source.offset, t.total.buffer, t.total.offset,
                      t.source.count, t.chunk, t.tree, t.level, std::get<2>(connections[t.connection]), static_cast<int>(t.land));
  return rows;
}

Pairs Transfers::loads() const {
  Pairs loads(connections.size());
  for (const Transfer& t : items) {
    loads[t.connection].first += t.source.count;
    ++loads[t.connection].second;
  }
  return loads;
}

// Lets the first part, in this order, of every sum that is not the root's open it. In place the root's
// result lies on its input: nothing may be received there.
void Transfers::open_sums() {
  const std::size_t n = scratch_chunks.size();
  Marks begun(turns.size() * n);
  for (Transfer& t : items)
    if (t.land != Land::final && t.total.buffer == scratch)
      t.land = std::exchange(begun[t.tree * n + t.dst], true) ? Land::add : Land::open;
}

void Transfers::join_neighbours(int most) {
  std::vector<Transfer> joined;
  for (const Transfer& t : items) {
    Transfer* last = joined.empty() ? nullptr : &joined.back();
    if (last && last->connection == t.connection && last->level == t.level && last->land == t.land &&
        last->source.count + t.source.count <= most && touch(last->source, t.source) &&
        touch(last->total, t.total) && (t.land == Land::final || last->chunk + last->source.count == t.chunk)) {
      last->tree = std::min(last->tree, t.tree);
      last->source.count += t.source.count;
      last->total.count += t.total.count;
    } else {
      joined.push_back(t);
    }
  }
  // the first part of a sum before the others of the same level
  std::ranges::sort(joined, {}, [](const Transfer& t) {
    return std::tuple{t.level, t.land != Land::open, t.tree, t.src, t.dst, t.chunk};
  });
  items = std::move(joined);
}

void Transfers::join(int most) {
  std::ranges::sort(items, {}, [](const Transfer& t) {
    return std::tuple{t.connection, t.level, t.source.buffer, t.source.offset};
  });
  join_neighbours(most);
}

FlatLists Transfers::take_needs() {
  require(needs.ends.size() == items.size(), "transfers that are no trees', or in an order already");
  return std::exchange(needs, {});
}

void Transfers::join_levels(int most) {
  const FlatLists needed = take_needs();
  for (int m : range(items))
    for (int n : needed[m]) items[m].level = std::max(items[m].level, items[n].level + 1);
  std::ranges::stable_sort(items, {}, [](const Transfer& t) { return std::pair{t.level, t.src}; });
  open_sums();
  std::ranges::stable_sort(items, {}, [](const Transfer& t) {
    return std::tuple{t.connection, t.level, t.land, t.chunk};
  });
  join_neighbours(most);
}

std::pair<Ints, double> Transfers::schedule(const Lists& ways, const Amounts& capacity, const Ints& channels,
                                            bool exchange, bool back, bool turns) {
  require(ways.size() == connections.size() && channels.size() == ways.size(), "a way and channels for each connection");
  for (const Ints& way : ways) require_below(way, number_of(capacity), "a way names an unknown link");
  const FlatLists needed = take_needs();
  const auto [least, most] = std::ranges::minmax(capacity);
  require(least > 0, "a link without capacity");
  const Wide unit = std::min(Wide{most} << kFine, Wide{least} << kCoarse);
  const int n = number_of(scratch_chunks), width = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
  std::map<std::pair<int, int>, int> kind_of;  // connection and chunks
  Ints kinds, ties;
  for (const Transfer& t : items) {
    kinds.push_back(kind_of.try_emplace({t.connection, t.source.count}, number_of(kind_of)).first->second);
    const int distance = exchange ? t.dst ^ t.src : (t.dst - t.src + n) % n;
    ties.push_back(this->turns[t.tree] * width + (back ? width - distance : distance));
  }
  Lists ways_of_kinds(kind_of.size());
  for (const auto& [key, kind] : kind_of) ways_of_kinds[kind] = ways[key.first];
  Amounts starts, ends(items.size());
  double stretch = std::numeric_limits<double>::infinity();
  // Uplinks serve one transfer after the other, so that not all arrive at the same time. Where ports are
  // idle for that, side by side.
  for (const Ints& lanes : lanes_of_links(ways, capacity, channels)) {
    std::vector<Amounts> lengths(kind_of.size());
    for (const auto& [key, kind] : kind_of)
      for (int link : ways_of_kinds[kind])
        lengths[kind].push_back(static_cast<Amount>(std::max<Wide>(1, key.second * lanes[link] * unit / capacity[link])));
    auto [times, takes] = schedule_on_links(lanes, ways_of_kinds, lengths, kinds, needed, ties, turns);
    if (takes < stretch) {
      stretch = takes;
      starts = std::move(times);
      for (int m : range(ends)) ends[m] = starts[m] + std::ranges::max(lengths[kinds[m]]);
    }
    if (stretch < kFull) break;
  }
  Ints order = numbers(number_of(items)), arrivals;
  std::ranges::stable_sort(order, {}, [&](int m) { return starts[m]; });
  std::ranges::sort(starts);
  std::vector<Transfer> sorted;
  for (int m : order) {
    sorted.push_back(items[m]);
    arrivals.push_back(place_in(starts, ends[m]));
  }
  items = std::move(sorted);
  open_sums();
  return {std::move(arrivals), stretch};
}

void bind_transfers(nb::module_& m) {
  nb::class_<Transfers>(m, "Transfers")
      .def(nb::init<const std::vector<Transfers::Row>&>())
      .def_ro("connections", &Transfers::connections)
      .def_ro("scratch", &Transfers::scratch_chunks)
      .def("loads", &Transfers::loads)
      .def("rows", &Transfers::rows)
      .def("join", &Transfers::join)
      .def("join_levels", &Transfers::join_levels)
      .def("schedule", &Transfers::schedule);
  m.def("transfers_of", &transfers_of);
}

}  // namespace forestcoll
