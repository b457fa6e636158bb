// Thread blocks of fifo programs while they are written (lower/fifo.py): what each does for transfers
// in an order, and what it waits for.
//
// A program has a hundred thousand steps and is written several times until it fits, so steps are
// numbers here; instructions become objects of program/ when all of it fits.

#include <array>
#include <deque>
#include <queue>
#include <unordered_map>

#include "objects.hpp"

namespace forestcoll {

namespace {

using Connection = std::tuple<int, int, int, int>;  // sender, receiver, group, parity of the channels

enum Buffer : int { none = -1, input, output, scratch };
constexpr int first_buffer = 2, first_op = 5;  // among the words
enum class Op : int { send, recv, copy, reduce };
enum class Land { open, add, final };

struct Place {  // chunks of a buffer
  int buffer = none, offset = 0, count = 0;
};

struct Transfer {
  int src, dst;
  Place source, total;
  Land land;
  int chunk, tree, connection = 0, adder = 0;
  int sum = -1;   // number of the sum that it is a part of, -1: none
  int late = -1;  // of the sum that it sends on, if its sender adds that up
  int pair = 0;   // connection and channel
};

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
  // `transfers`: of lower/schedule.py. `inputs`: per rank the first chunk of the whole that its input
  // has. `recycles`: scratch is used again, so whoever writes it waits for those who sent what was there.
  // `words`: the classes Instruction and Ref; the buffers, and the operations, in the orders of this file.
  Blocks(nb::sequence transfers, Ints inputs, int outputs, bool recycles, nb::sequence words)
      : inputs_(std::move(inputs)), outputs_(outputs), recycles_(recycles) {
    for (nb::handle word : words) words_.push_back(nb::borrow(word));
    fill_in_.emplace(words_[0](words_[first_op]));
    std::map<Connection, int> numbers;
    std::map<std::tuple<int, int, int>, int> sums;  // rank, buffer, offset
    for (nb::handle each : transfers) {
      Transfer t = read(each);
      const Connection connection{t.src, t.dst, number(each, group_), number(each, parity_)};
      const auto [place, fresh] = numbers.try_emplace(connection, number_of(connections_));
      if (fresh) connections_.push_back(connection);
      t.connection = place->second;
      if (t.land != Land::final) {
        t.sum = sums.try_emplace({t.dst, t.total.buffer, t.total.offset}, number_of(sums)).first->second;
      }
      transfers_.push_back(t);
    }
    parts_.resize(sums.size());
    for (Transfer& t : transfers_) {
      if (t.sum >= 0) ++parts_[t.sum];
      if (t.source.buffer != scratch) continue;
      const auto sum = sums.find({t.src, scratch, t.source.offset});
      if (sum != sums.end()) t.late = sum->second;
    }
    late_.resize(sums.size());
  }

  const std::vector<Connection>& connections() const { return connections_; }

  // Lets whoever sends a partial sum on add it up, if it has at most so many parts.
  void add_late(int most) {
    for (const Transfer& t : transfers_)
      if (t.sum >= 0) late_[t.sum] = t.total.buffer == scratch && parts_[t.sum] <= most;
  }

  // Leaves every sum to one of the thread blocks of its rank that only add: which of them, by transfer.
  void add_apart(const Ints& adders) {
    apart_ = true;
    for (int m : range(transfers_)) transfers_[m].adder = adders.at(m);
  }

  // The steps that each connection takes where it ends, and where it begins.
  Pairs steps_of_connections() const {
    Pairs steps(connections_.size());
    Ints waiting(parts_.size());  // parts that whoever sends the sum on adds to it
    for (const Transfer& t : transfers_) {
      auto& [into, out] = steps[t.connection];
      ++out;
      if (t.late >= 0 && late_[t.late]) out += std::exchange(waiting[t.late], 0);
      ++into;
      if (t.sum >= 0 && late_[t.sum])
        ++waiting[t.sum];
      else if (t.sum >= 0 && !apart_)
        ++into;
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
    for (Transfer& t : transfers_) {
      Ints& load = loads[t.connection];
      const auto lane = std::ranges::min_element(load) - load.begin();
      load[lane] += t.source.count;
      int& pair = numbers[t.connection][lane];
      if (pair < 0) {
        pair = number_of(pairs_);
        pairs_.emplace_back(t.connection, channels[t.connection][lane]);
      }
      t.pair = pair;
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
    std::vector<std::deque<int>> queues(pairs_.size());
    std::map<std::pair<int, int>, int> openers;  // by tree and rank
    using Coming = std::pair<int, int>;
    std::priority_queue<Coming, std::vector<Coming>, std::greater<>> coming;
    Marks left(count);
    const std::function<void(int)> receive = [&](int m) {
      std::deque<int>& queue = queues[transfers_[m].pair];
      while (left[m]) {
        const int first = queue.front();
        queue.pop_front();
        const auto opener = openers.find({transfers_[first].tree, transfers_[first].dst});
        if (opener != openers.end() && opener->second != first) receive(opener->second);
        left[first] = false;
        events.emplace_back(first, false);
      }
    };
    const auto receive_next = [&] {
      const int m = coming.top().second;
      coming.pop();
      receive(m);
    };
    for (int m : range(count)) {
      const Transfer& t = transfers_[m];
      while (!coming.empty() && coming.top().first <= m) receive_next();
      std::deque<int>& queue = queues[t.pair];
      if (!queue.empty()) receive(queue.back());
      events.emplace_back(m, true);
      left[m] = true;
      queue.push_back(m);
      if (t.land == Land::open) openers[{t.tree, t.dst}] = m;
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
    for (const auto& [pair, block] : into) into_.at(pair) = block;
    for (const auto& [pair, block] : out) out_.at(pair) = block;
    Rank& rank = ranks_.emplace_back();
    rank.ports = ports;
    rank.local = local;
    rank.kept = kept;
    rank.steps.resize(ports + local + adders);
    rank.lengths.resize(rank.steps.size());
    rank.waited.resize(rank.steps.size());
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
        receive(t, waiting);
        continue;
      }
      Rank& rank = ranks_[t.src];
      if (t.late >= 0 && late_[t.late]) {
        for (const Place& part : waiting[t.late]) add(rank, out_[t.pair], Op::reduce, part, t.source);
        waiting[t.late].clear();
      }
      add(rank, out_[t.pair], Op::send, t.source, {});
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

  // The thread blocks of a rank by their numbers so far, and the instructions of each: those that others
  // wait for in front if there are over `most`, for the runtime can only wait for the first ones.
  std::vector<std::pair<int, nb::tuple>> program(int rank, int most) {
    const Rank& own = ranks_.at(rank);
    const int count = number_of(own.steps);
    Ints order = numbers(count), place(count);
    if (count > most) {
      Marks waited(count);
      for (const auto& [block, step] : own.waits) waited[block] = true;
      std::ranges::stable_sort(order, [&](int a, int b) { return waited[a] > waited[b]; });
    }
    for (int b : range(count)) place[order[b]] = b;
    std::vector<std::pair<int, nb::tuple>> blocks;
    for (int b : order) {
      const nb::object list = tuple_of(own.steps[b], [&](const Step& step) { return instruction(own, step, place); });
      blocks.emplace_back(b, nb::borrow<nb::tuple>(list));
    }
    return blocks;
  }

 private:
  Place place_of(nb::handle ref) const {
    const nb::object buffer = get(ref, buffer_);
    int number = 0;
    while (number < 2 && !buffer.is(words_[first_buffer + number])) ++number;
    return {number, this->number(ref, offset_), this->number(ref, count_)};
  }

  static int number(nb::handle owner, nb::handle name) { return nb::cast<int>(get(owner, name)); }

  Transfer read(nb::handle t) const {
    const nb::object land = get(t, land_);
    const Py_UCS4 letter = PyUnicode_READ_CHAR(land.ptr(), 0);
    return {number(t, src_), number(t, dst_), place_of(get(t, source_)), place_of(get(t, total_)),
            letter == 'f' ? Land::final : letter == 'o' ? Land::open : Land::add,
            number(t, chunk_), number(t, tree_)};
  }

  // Fresh scratch for one transfer.
  static Place slot(Rank& rank, int count) {
    rank.kept += count;
    rank.writers[scratch].resize(rank.kept, {-1, -1});
    return {scratch, rank.kept - count, count};
  }

  void receive(const Transfer& t, std::vector<std::vector<Place>>& waiting) {
    Rank& rank = ranks_[t.dst];
    const int block = into_[t.pair];
    Place part = t.total;
    if (t.land == Land::add) part = slot(rank, t.total.count);
    add(rank, block, Op::recv, {}, part);
    if (t.land == Land::final) return;
    if (t.land == Land::open) part = {input, t.chunk - inputs_[t.dst], t.total.count};
    if (late_[t.sum])
      waiting[t.sum].push_back(part);
    else
      add(rank, apart_ ? rank.ports + rank.local + t.adder : block, Op::reduce, part, t.total);
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

  // An operand, or none, as a tuple; those alike share one object, and its number.
  const std::pair<int, nb::object>& operand(const Place& place) {
    const std::uint64_t key = (place.buffer & 3ull) << 62 | static_cast<std::uint64_t>(place.offset) << 31 | place.count;
    const auto [at, fresh] = operands_.try_emplace(key);
    auto& [number, refs] = at->second;
    if (fresh) {
      number = number_of(operands_);
      refs = nb::tuple();
      if (place.buffer != none)
        refs = nb::make_tuple(words_[1](words_[first_buffer + place.buffer], place.offset, place.count));
    }
    return at->second;
  }

  // Those that wait for nothing share one object, too: there are few different ones.
  nb::object instruction(const Rank& rank, const Step& step, const Ints& place) {
    const auto& [src_number, src] = operand(step.src);
    const auto& [dst_number, dst] = operand(step.dst);
    const nb::object& op = words_[first_op + static_cast<int>(step.op)];
    if (step.waits == step.end) {
      const std::uint64_t key = static_cast<std::uint64_t>(src_number) << 33 | static_cast<std::uint64_t>(dst_number) << 2 |
                                static_cast<unsigned>(step.op);
      nb::object& alike = instructions_[key];
      if (!alike.is_valid()) alike = (*fill_in_)({&op, &src, &dst});
      return alike;
    }
    Pairs waits;
    for (int k = step.waits; k < step.end; ++k) waits.emplace_back(place[rank.waits[k].first], rank.waits[k].second);
    std::ranges::sort(waits);
    const nb::object after = tuple_of(waits, [](const auto& wait) { return nb::make_tuple(wait.first, wait.second); });
    return (*fill_in_)({&op, &src, &dst, &after});
  }

  static nb::object intern(const char* word) { return nb::steal(PyUnicode_InternFromString(word)); }
  nb::object src_ = intern("src"), dst_ = intern("dst"), source_ = intern("source"), total_ = intern("total"),
             land_ = intern("land"), chunk_ = intern("chunk"), tree_ = intern("tree"), group_ = intern("group"),
             parity_ = intern("parity"), buffer_ = intern("buffer"), offset_ = intern("offset"), count_ = intern("count");
  Ints inputs_;
  int outputs_;
  bool recycles_, apart_ = false;
  Objects words_;
  std::optional<Factory> fill_in_;  // an instruction
  std::vector<Transfer> transfers_;
  std::vector<Connection> connections_;
  Ints parts_;              // of each sum
  Marks late_;  // whether its sender adds it up
  Pairs pairs_;             // connection and channel, by the numbers of `Transfer::pair`
  Ints into_, out_;         // of each the thread block that receives, and that sends
  std::vector<Rank> ranks_;
  std::unordered_map<std::uint64_t, std::pair<int, nb::object>> operands_;
  std::unordered_map<std::uint64_t, nb::object> instructions_;
};

}  // namespace

void bind_fifo_blocks(nb::module_& m) {
  nb::class_<Blocks>(m, "FifoBlocks")
      .def(nb::init<nb::sequence, Ints, int, bool, nb::sequence>())
      .def_prop_ro("connections", &Blocks::connections)
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
      .def("program", &Blocks::program);
}

}  // namespace forestcoll
