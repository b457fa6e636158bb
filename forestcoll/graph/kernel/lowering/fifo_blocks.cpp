// Thread blocks of fifo programs while they are written (lower/fifo.py): what each does for transfers
// in an order, and what it waits for.
//
// A program has a hundred thousand steps and is written several times until it fits, so steps are
// numbers here, and rows of verify/native/columns.hpp when all of it fits: that module makes columns of them.

#include <array>
#include <queue>

#include "../../../verify/native/columns.hpp"
#include "python.hpp"
#include "transfers.hpp"

namespace forestcoll {

namespace {

enum class Op : int { send, recv, copy, reduce };
struct Step {
  Op op;
  Place src, dst;
  int waits, end;  // in the rank's list
};

// The thread blocks of one rank: `ports` of them own ends of connections, `local` more copy the own
// data, and `adders` more only add.
struct Rank {
  int ports = 0, local = 0, kept = 0;
  bool copies_first = false;
  std::vector<std::vector<Step>> steps;
  std::vector<std::array<int, 3>> ends;  // of each thread block: who it receives from, who it sends to, its channel
  Ints lengths;  // steps of each thread block, with a no-op for every dependency but the last
  Pairs waits;   // thread block, step
  // Per chunk of output and scratch its last writer, thread block and step; nobody writes the input.
  std::array<Pairs, 3> writers;
  // Per chunk of the input, and of scratch that is used again, who has sent it and where.
  std::array<std::vector<Pairs>, 3> readers;
  Lists waited;  // per thread block, until which step of others it has waited already
};

// Takes in, of each thread block, the later step.
void take_later(Pairs& latest, const Pairs& more) {
  for (const auto& [block, step] : more) {
    const auto at = std::ranges::find_if(latest, [&](const auto& one) { return one.first == block; });
    if (at == latest.end())
      latest.emplace_back(block, step);
    else
      at->second = std::max(at->second, step);
  }
}

class Blocks {
 public:
  // `transfers`: they may still be put in order. `inputs`: per rank the first chunk of the whole that its
  // input has. `recycles`: scratch is used again, so whoever writes it waits for those who sent what was
  // there. `ops`: the operations of this file as columns number them.
  Blocks(const Transfers& transfers, Ints inputs, int outputs, bool recycles, Ints ops)
      : transfers_(transfers.items), connections_(transfers.connections), inputs_(std::move(inputs)),
        outputs_(outputs), recycles_(recycles), ops_(std::move(ops)), pair_(transfers_.size()) {
    int trees = 0;
    for (const Transfer& t : transfers_) trees = std::max(trees, t.tree + 1);
    parts_.resize(trees * inputs_.size());
    for (const Transfer& t : transfers_)
      if (t.land != Land::final) ++parts_[sum_of(t)];
    late_.resize(parts_.size());
    adder_.resize(parts_.size());
  }

  // Lets whoever sends a partial sum on add it up, if it has at most so many parts.
  void add_late(int most) {
    for (const Transfer& t : transfers_)
      if (t.land != Land::final) late_[sum_of(t)] = t.total.buffer == scratch && parts_[sum_of(t)] <= most;
  }

  // Leaves every sum to one of the thread blocks of its rank that only add, each of which takes `steps`
  // parts of one group's sums: per rank how many there are, as few as can be; and which of them, by transfer.
  // A group's sums are dealt out as evenly as they come, and stand in the order of the transfers. Were those of
  // several groups in one list, all would wait for the one that is late.
  std::pair<Ints, Ints> add_apart(int steps) {
    apart_ = true;
    std::vector<std::vector<std::pair<int, Ints>>> ranks(inputs_.size());  // group, its sums
    Marks begun(parts_.size());
    for (const Transfer& t : transfers_) {
      if (t.land == Land::final || std::exchange(begun[sum_of(t)], true)) continue;
      const int group = std::get<2>(connections_[t.connection]);
      auto& groups = ranks[t.dst];
      auto own = std::ranges::find(groups, group, &std::pair<int, Ints>::first);
      if (own == groups.end()) own = groups.insert(own, {group, {}});
      own->second.push_back(sum_of(t));
    }
    Ints counts, adders;
    for (const auto& groups : ranks) {
      int& first = counts.emplace_back(0);
      for (const auto& [_, sums] : groups) first += deal(sums, steps, first);
    }
    for (const Transfer& t : transfers_) adders.push_back(t.land == Land::final ? 0 : adder_[sum_of(t)]);
    return {std::move(counts), std::move(adders)};
  }

  // The steps that each connection takes where it ends, and where it begins.
  Pairs steps_of_connections() const {
    Pairs steps(connections_.size());
    for (const Transfer& t : transfers_) {
      auto& [into, out] = steps[t.connection];
      out += sends_late(t) ? 1 + parts_[sent_sum(t)] : 1;
      into += t.land == Land::final || late_[sum_of(t)] || apart_ ? 1 : 2;
    }
    return steps;
  }

  // Per rank the steps that it takes however they are spread over thread blocks.
  Ints steps_of_ranks() const {
    Ints steps(inputs_.size());
    for (const Transfer& t : transfers_) {
      ++steps[t.src];
      steps[t.dst] += t.land == Land::final ? 1 : 2;
    }
    return steps;
  }

  // Gives each transfer that channel of its connection's which has least to carry; the connections and
  // channels that any has.
  Pairs share_out(const Lists& channels) {
    Lists loads, numbers;
    for (const Ints& own : channels) {
      loads.emplace_back(own.size());
      numbers.emplace_back(own.size(), -1);
    }
    pairs_.clear();
    for (int m : range(transfers_)) {
      const Transfer& t = transfers_[m];
      Ints& load = loads[t.connection];
      const auto lane = std::ranges::min_element(load) - load.begin();
      load[lane] += t.source.count;
      int& pair = numbers[t.connection][lane];
      if (pair < 0) {
        pair = number_of(pairs_);
        pairs_.emplace_back(t.connection, channels[t.connection][lane]);
      }
      pair_[m] = pair;
    }
    return pairs_;
  }

  // Transfers in the order in which they are sent, and received: true, and false. Each is received where
  // it is sent, or when `arrivals` of all have been sent, or where it must: those of a connection's channel
  // one by one, before it sends the next; what opens a sum before its other parts.
  std::vector<std::pair<int, bool>> events(const Ints& arrivals) const {
    std::vector<std::pair<int, bool>> events;
    const int count = number_of(transfers_);
    if (arrivals.empty()) {
      for (int m : range(count)) events.insert(events.end(), {{m, true}, {m, false}});
      return events;
    }
    Ints held(pairs_.size(), -1), openers(parts_.size(), -1);  // by connections and channels, and sums
    using Coming = std::pair<int, int>;
    std::priority_queue<Coming, std::vector<Coming>, std::greater<>> coming;
    Marks left(count);
    const auto take = [&](int m) {
      if (std::exchange(left[m], false)) events.emplace_back(m, false);
    };
    const auto receive = [&](int m) {
      const Transfer& t = transfers_[m];
      if (left[m] && t.land == Land::add && openers[sum_of(t)] >= 0) take(openers[sum_of(t)]);
      take(m);
    };
    const auto receive_next = [&] {
      receive(coming.top().second);
      coming.pop();
    };
    for (int m : range(count)) {
      const Transfer& t = transfers_[m];
      while (!coming.empty() && coming.top().first <= m) receive_next();
      const int before = std::exchange(held[pair_[m]], m);
      if (before >= 0) receive(before);
      events.emplace_back(m, true);
      left[m] = true;
      if (t.land == Land::open) openers[sum_of(t)] = m;
      if (t.source.count > 1)
        receive(m);
      else
        coming.emplace(arrivals.at(m), m);
    }
    while (!coming.empty()) receive_next();
    return events;
  }

  // Begins the thread blocks of the next rank: per pair of `share_out` the one that receives from it and
  // the one that sends over it are named in `into` and `out` by (pair, thread block).
  void begin(const Pairs& into, const Pairs& out, int ports, int local, int adders, int kept) {
    if (ranks_.empty()) {
      into_.assign(pairs_.size(), -1);
      out_.assign(pairs_.size(), -1);
    }
    Rank& rank = ranks_.emplace_back();
    rank.ports = ports;
    rank.local = local;
    rank.kept = kept;
    rank.steps.resize(ports + local + adders);
    rank.lengths.resize(rank.steps.size());
    rank.waited.resize(rank.steps.size());
    rank.ends.resize(rank.steps.size(), {-1, -1, 0});
    for (const bool sends : {false, true})
      for (const auto& [pair, block] : sends ? out : into) {
        (sends ? out_ : into_).at(pair) = block;
        const auto& [connection, channel] = pairs_[pair];
        const auto& [src, dst, group, parity] = connections_[connection];
        rank.ends.at(block)[sends] = sends ? dst : src;
        rank.ends[block][2] = channel;
      }
    rank.writers[output].assign(outputs_, {-1, -1});
    rank.writers[scratch].assign(kept, {-1, -1});
  }

  // Per rank the steps of its thread blocks, once all transfers are written. `copies`: per rank the own
  // data that it copies to its output, (chunk of the input, of the output, how many), before all else
  // where `early` has the rank, else after it.
  Lists write(const std::vector<std::vector<std::tuple<int, int, int>>>& copies,
                          const std::vector<bool>& early, const Ints& arrivals) {
    for (int r : range(ranks_))
      if ((ranks_[r].copies_first = early.at(r))) copy(ranks_[r], copies.at(r));
    std::vector<std::vector<Place>> waiting(parts_.size());  // what is not yet in a sum
    for (const auto& [m, sends] : events(arrivals)) {
      const Transfer& t = transfers_[m];
      if (!sends) {
        receive(m, waiting);
        continue;
      }
      Rank& rank = ranks_[t.src];
      const int block = out_[pair_[m]];
      if (sends_late(t))
        for (const Place& part : std::exchange(waiting[sent_sum(t)], {})) add(rank, block, Op::reduce, part, t.source);
      add(rank, block, Op::send, t.source, {});
    }
    Lists lengths;
    for (int r : range(ranks_)) {
      if (!early[r]) copy(ranks_[r], copies[r]);
      lengths.push_back(ranks_[r].lengths);
    }
    return lengths;
  }

  // Forgets all thread blocks.
  void clear() { ranks_.clear(); }

  // Chunks of scratch of a rank.
  int scratch_of(int rank) const { return ranks_.at(rank).kept; }

  // The columns of all that is written, for verify's module. In a rank of over `most` thread blocks those that others
  // wait for are in front, for the runtime can only wait for the first ones.
  nb::capsule columns(int most) const {
    auto* const all = new verify::Columns{.fifo = true};
    const nb::capsule owner(all, [](void* made) noexcept { delete static_cast<verify::Columns*>(made); });
    for (const Rank& rank : ranks_) add_columns(*all, rank, most);
    all->ranks.push_back({number_of(all->blocks), 0});
    return owner;
  }

 private:
  void add_columns(verify::Columns& all, const Rank& own, int most) const {
    const int number = number_of(all.ranks), count = number_of(own.steps);
    all.ranks.push_back({number_of(all.blocks), 0});
    Ints order = numbers(count), place(count);
    if (count > most) {
      Marks waited(count);
      for (const auto& [block, step] : own.waits) waited[block] = true;
      std::ranges::stable_sort(order, std::greater(), [&](int b) { return waited[b]; });
    }
    for (int b : range(count)) place[order[b]] = b;
    for (int b : order) {
      const auto& [recv, send, channel] = own.ends[b];
      const int begin = number_of(all.instructions), steps = number_of(own.steps[b]);
      all.blocks.push_back({number, place[b], begin, begin + steps, recv, send, channel, 0, 0, steps});
      for (const Step& step : own.steps[b]) {
        all.instructions.push_back({.op = ops_[static_cast<int>(step.op)],
                                    .step = number_of(all.instructions) - begin,
                                    .operands = number_of(all.operands),
                                    .sources = step.src.buffer != none,
                                    .targets = step.dst.buffer != none,
                                    .after = number_of(all.after),
                                    .afters = step.end - step.waits,
                                    .parts = 1,
                                    .loop = -1});
        for (const auto& [buffer, offset, length] : {step.src, step.dst})
          if (buffer != none) all.operands.push_back({verify::own_rank, buffer, offset, length});
        for (int k = step.waits; k < step.end; ++k) all.after.push_back({place[own.waits[k].first], own.waits[k].second});
        std::ranges::sort(all.after.end() - (step.end - step.waits), all.after.end(), {}, &verify::After::block);
      }
    }
  }

  // The number of the sum that a transfer is a part of which does not land `final`.
  int sum_of(const Transfer& t) const { return t.tree * number_of(inputs_) + t.dst; }

  // The number of the partial sum that it sends on, and whether its sender adds that up.
  int sent_sum(const Transfer& t) const { return t.tree * number_of(inputs_) + t.src; }
  bool sends_late(const Transfer& t) const {
    return t.land != Land::final && t.source.buffer == scratch && late_[sent_sum(t)];
  }

  // Gives each sum to the adder that has least, of the fewest from `first` on of whom none has over `steps`:
  // how many.
  int deal(const Ints& sums, int steps, int first) {
    int whole = 0;
    for (int sum : sums) whole += parts_[sum];
    for (int count = (whole + steps - 1) / steps;; ++count) {
      Ints loads(count);
      for (int sum : sums) {
        const auto least = std::ranges::min_element(loads);
        *least += parts_[sum];
        adder_[sum] = first + static_cast<int>(least - loads.begin());
      }
      if (count >= number_of(sums) || std::ranges::max(loads) <= steps) return count;
    }
  }

  // Fresh scratch for one transfer.
  static Place slot(Rank& rank, int count) {
    rank.kept += count;
    rank.writers[scratch].resize(rank.kept, {-1, -1});
    return {scratch, rank.kept - count, count};
  }

  void receive(int m, std::vector<std::vector<Place>>& waiting) {
    const Transfer& t = transfers_[m];
    Rank& rank = ranks_[t.dst];
    const int block = into_[pair_[m]];
    Place part = t.total;
    if (t.land == Land::add) part = slot(rank, t.total.count);
    add(rank, block, Op::recv, {}, part);
    if (t.land == Land::final) return;
    if (t.land == Land::open) part = {input, t.chunk - inputs_[t.dst], t.total.count};
    if (late_[sum_of(t)])
      waiting[sum_of(t)].push_back(part);
    else
      add(rank, apart_ ? rank.ports + rank.local + adder_[sum_of(t)] : block, Op::reduce, part, t.total);
  }

  // Copies the own data from input to output, by the thread blocks that are there for it. In place the
  // two are one memory, which a copy writes though it changes nothing: it waits for all that read it before.
  void copy(Rank& rank, const std::vector<std::tuple<int, int, int>>& copies) {
    int turn = 0;
    for (const auto& [from, to, count] : copies) {
      Pairs readers;
      for (int chunk = from; chunk < from + count && chunk < number_of(rank.readers[input]); ++chunk)
        take_later(readers, rank.readers[input][chunk]);
      add(rank, rank.ports + turn++ % rank.local, Op::copy, {input, from, count}, {output, to, count}, std::move(readers));
    }
  }

  // Appends a step: it waits for `readers` and the last writers of all that it touches.
  void add(Rank& rank, int block, Op op, const Place& src, const Place& dst, Pairs readers = {}) {
    const int step = number_of(rank.steps[block]);
    const int first = number_of(rank.waits);
    if (recycles_ && op == Op::recv && dst.buffer == scratch) readers = forget_readers(rank, dst);
    for (const auto& [other, last] : readers) wait(rank, block, other, last, first);
    for (const Place* place : {&src, &dst}) {
      if (place->buffer <= input) continue;
      const Pairs& writers = rank.writers[place->buffer];
      for (int chunk = place->offset; chunk < place->offset + place->count; ++chunk)
        if (writers[chunk].first >= 0) wait(rank, block, writers[chunk].first, writers[chunk].second, first);
    }
    if (dst.buffer != none) {
      Pairs& writers = rank.writers[dst.buffer];
      std::fill_n(writers.begin() + dst.offset, dst.count, std::pair{block, step});
    } else if (src.buffer == input ? !rank.copies_first : src.buffer == scratch && recycles_) {
      std::vector<Pairs>& sent = rank.readers[src.buffer];
      if (number_of(sent) < src.offset + src.count) sent.resize(src.offset + src.count);
      for (int chunk = src.offset; chunk < src.offset + src.count; ++chunk) take_later(sent[chunk], {{block, step}});
    }
    std::sort(rank.waits.begin() + first, rank.waits.end());
    const int end = number_of(rank.waits);
    rank.lengths[block] += std::max(1, end - first);
    rank.steps[block].push_back({op, src, dst, first, end});
  }

  static void wait(Rank& rank, int block, int other, int step, int first) {
    if (other == block) return;
    Ints& waited = rank.waited[block];
    if (number_of(waited) <= other) waited.resize(other + 1, -1);
    if (step <= waited[other]) return;
    waited[other] = step;
    for (std::size_t k = first; k < rank.waits.size(); ++k)
      if (rank.waits[k].first == other) {
        rank.waits[k].second = step;
        return;
      }
    rank.waits.emplace_back(other, step);
  }

  // Who has sent what lay in scratch, and forgets them.
  static Pairs forget_readers(Rank& rank, const Place& place) {
    Pairs readers;
    std::vector<Pairs>& sent = rank.readers[scratch];
    const int end = std::min(place.offset + place.count, number_of(sent));
    for (int chunk = place.offset; chunk < end; ++chunk) take_later(readers, std::exchange(sent[chunk], {}));
    return readers;
  }

  const std::vector<Transfer>& transfers_;
  const std::vector<Connection>& connections_;
  Ints inputs_;
  int outputs_;
  bool recycles_, apart_ = false;
  Ints ops_;
  Ints parts_, adder_;      // of each sum, and the thread block that adds it up where some only add
  Marks late_;              // whether its sender adds it up
  Pairs pairs_;             // connections and channels
  Ints pair_;               // of each transfer
  Ints into_, out_;         // of each the thread block that receives, and that sends
  std::vector<Rank> ranks_;
};

}  // namespace

void bind_fifo_blocks(nb::module_& m) {
  nb::class_<Blocks>(m, "FifoBlocks")
      .def(nb::init<const Transfers&, Ints, int, bool, Ints>(), nb::keep_alive<1, 2>())
      .def("add_late", &Blocks::add_late)
      .def("add_apart", &Blocks::add_apart)
      .def("steps_of_connections", &Blocks::steps_of_connections)
      .def("steps_of_ranks", &Blocks::steps_of_ranks)
      .def("share_out", &Blocks::share_out)
      .def("events", &Blocks::events)
      .def("clear", &Blocks::clear)
      .def("begin", &Blocks::begin)
      .def("write", &Blocks::write)
      .def("scratch_of", &Blocks::scratch_of)
      .def("columns", &Blocks::columns);
}

}  // namespace forestcoll
