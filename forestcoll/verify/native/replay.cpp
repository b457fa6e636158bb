// Memory along a trace: see memory.hpp.

#include <algorithm>

#include "memory.hpp"

namespace forestcoll::verify {

Replay::Replay(const Code& code, const Layout& layout, const Atoms& atoms, const Trace& trace, RankSets& sets,
               bool in_place, bool every, bool notes)
    : accesses(trace, atoms.size()), code_(code), columns_(code.columns), layout_(layout), atoms_(atoms),
      trace_(trace), sets_(sets), in_place_(in_place), every_(every), notes_(notes),
      number_(atoms.size()), values_(number_.size()),
      sent_(code.columns.fifo ? trace.size() : 0), work_(code.lines.size()),
      kept_(2 * code.columns.ranks.size()) {
  for (std::size_t a = 0; a < number_.size(); ++a) number_[a] = static_cast<int>(a);
  for (int r = 0; in_place && r < layout.ranks(); ++r) {
    const auto same = layout.shared(r);
    const Span kept = atoms.span(same[layout.input_longer() ? 0 : 1]);
    const Span gone = atoms.span(same[layout.input_longer() ? 1 : 0]);
    for (int k = 0; k < gone.high - gone.low; ++k) number_[gone.low + k] = kept.low + k;
  }
  for (int r = 0; r < layout.ranks(); ++r) {
    const Span in = layout.buffer(r, input), from = atoms.span(in), to = buffer(r, input);
    for (int k = 0; k < from.high - from.low; ++k) {
      const int start = atoms.starts[from.low + k];
      values_[to.low + k] = input_value(r, start - in.low);
      if (notes) note(r, values_[to.low + k], atoms.starts[from.low + k + 1] - start, -1, -1);
    }
  }
}

bool Replay::run() {
  for (int e = 0; e < trace_.size() && !overlap; ++e)
    if (columns_.fifo ? !message(e) : !one_event(e)) return false;
  for (int r = 0; columns_.fifo && r < layout_.ranks(); ++r) keep(r);
  return !overlap;
}

// --- values

Span Replay::buffer(int rank, int which) const {
  const Span atoms = atoms_.span(layout_.buffer(rank, which));
  return {number_[atoms.low], number_[atoms.high - 1] + 1};
}

// What the caller of `rank` puts into its input, `place` locations from its start.
Value Replay::input_value(int rank, std::int64_t place) const {
  const Shape& shape = layout_.shape;
  if (!shape.inputs_each && shape.outputs_each) place += rank * shape.part * shape.grain;
  return {static_cast<int>(1 + place), sets_.one(rank)};
}

// What the output of `rank` must hold at the end; nothing where the collective leaves it open.
std::optional<Value> Replay::output_value(int rank, int root, std::int64_t place) const {
  const Shape& shape = layout_.shape;
  if (shape.rooted == 2 && rank != root) return {};
  const std::int64_t length = shape.part * shape.grain;
  const std::int64_t taken = (shape.inputs_each ? rank : 0) * length + place % length;
  if (shape.outputs_each) return input_value(static_cast<int>(place / length), taken);
  if (shape.reduces) return Value{static_cast<int>(1 + taken), sets_.everyone()};
  return input_value(root, taken);
}

// The sum of two values: defined, of the same slice, and of different ranks. Otherwise nothing defined, and
// the first such event is noted.
Value Replay::add(int event, Value x, Value y) {
  if (x && y && x.slice == y.slice)
    if (const int both = sets_.join(x.ranks, y.ranks)) {
      const Value sum{x.slice, both};
      if (notes_) {
        const int r = rank_of(event), first = find_noted(r, x), second = find_noted(r, y);
        const int length = noted[first].length;
        note(r, sum, length, first, second);
        if (both == sets_.everyone()) completed.push_back({trace_.line[event], x.slice - 1, length});
      }
      return sum;
    }
  if (!wrong) wrong = {event, x, y};
  return {};
}

// --- instructions

// What a line does in this mode: sources added up (or copied) to targets. A copy that does nothing in place
// may run beside readers, though not beside writers, whose data it could undo: its target is not written.
const Replay::Work* Replay::work(int line) {
  if (work_[line]) return &works_[work_[line] - 1];
  const Instruction& i = code_.at(line);
  std::vector<Span> all(atoms_.operands.spans.begin() + atoms_.operands.first[line],
                        atoms_.operands.spans.begin() + atoms_.operands.first[line + 1]);
  if (in_place_) {
    if (const auto it = atoms_.in_place.find(line); it != atoms_.in_place.end()) all = it->second;
    for (Span& span : all) span = {number_[span.low], number_[span.high - 1] + 1};
  }
  if (i.op == columns_.op.reduce) all.insert(all.begin(), all.end() - i.targets, all.end());
  const auto sources = count_of(all) - i.targets;
  const auto src = std::span<const Span>(all).first(sources), dst = std::span<const Span>(all).subspan(sources);
  if (const auto where = clash(i, src, dst)) {
    overlap = {line, *where};
    return nullptr;
  }
  bool skips = false;
  if (i.op == columns_.op.copy)
    for (std::size_t k = 0; k < dst.size(); ++k) skips |= src[k] == dst[k];
  works_.push_back({count_of(spans_), sources, i.targets, columns_.row(i).plain_move, skips});
  append(spans_, all);
  work_[line] = count_of(works_);
  return &works_.back();
}

// An atom where two operands overlap though the threads of a block would need an order.
std::optional<int> Replay::clash(const Instruction& i, std::span<const Span> src, std::span<const Span> dst) const {
  if (dst.empty() || (src.empty() && dst.size() == 1)) return {};
  const bool pairs = columns_.row(i).plain_move;
  const auto meet = [](Span x, Span y) { return x.low < y.high && y.low < x.high; };
  for (std::size_t k = 0; k < dst.size(); ++k) {
    for (std::size_t j = 0; j < k; ++j)
      if (meet(dst[k], dst[j])) return std::max(dst[k].low, dst[j].low);
    for (std::size_t j = 0; j < src.size(); ++j) {
      const bool equal = src[j] == dst[k] && !(pairs && src.size() > 1 && j != k);
      if (!equal && meet(dst[k], src[j])) return std::max(dst[k].low, src[j].low);
    }
  }
  return {};
}

void Replay::touch(int event, const Work& work) {
  const bool later = trace_.launch[event] > 0 && !every_;
  const Span *src = spans_.data() + work.spans, *dst = src + work.sources;
  for (int k = 0; k < work.sources; ++k) accesses.read(event, src[k], later);
  for (int k = 0; k < work.targets; ++k)
    if (!work.skips || !(src[k] == dst[k])) accesses.write(event, dst[k], later);
}

void Replay::local(int event, const Work& work) {
  touch(event, work);
  if (trace_.launch[event] > 0) return;
  const Span *src = spans_.data() + work.spans, *dst = src + work.sources;
  const auto from = [&](Span s) { return std::span<const Value>(values_.data() + s.low, values_.data() + s.high); };
  if (notes_)
    for (int k = 0; k < work.sources; ++k) move(owner(src[k].low), rank_of(event), from(src[k]));
  data_.clear();
  for (int k = 0; k < (work.copies ? work.sources : 1); ++k) append(data_, from(src[k]));
  for (int k = 1; !work.copies && k < work.sources; ++k)
    for (std::size_t x = 0; x < data_.size(); ++x) data_[x] = add(event, data_[x], values_[src[k].low + x]);
  const auto width = src[0].high - src[0].low;
  for (int k = 0; k < work.targets; ++k) {
    const auto* first = data_.data() + (work.copies && work.sources > 1 ? k * width : 0);
    std::copy(first, first + width, values_.begin() + dst[k].low);
    if (notes_) move(rank_of(event), owner(dst[k].low), from(dst[k]));
  }
}

// --- fifo

// The atoms of a message's operand that an event handles.
Span Replay::part(int event, Span span) const {
  const std::int64_t item = trace_.item[event];
  if (trace_.piece == 1) return {static_cast<int>(span.low + item), static_cast<int>(span.low + item + 1)};
  const auto first = static_cast<int>(atoms_.starts[span.low] + item * trace_.piece);
  const auto last = std::min<std::int64_t>(first + trace_.piece, atoms_.starts[span.high]);
  return atoms_.span({first, static_cast<int>(last)});
}

// An event of a fifo program: one part of a message that is sent, received or both, or a local step.
bool Replay::message(int event) {
  const Instruction& i = code_.at(trace_.line[event]);
  const Operation& row = columns_.row(i);
  if (i.op == columns_.op.nop) return true;
  const Work* work = this->work(trace_.line[event]);
  if (!work) return false;
  if (!row.sends && !row.receives) {
    local(event, *work);
    return true;
  }
  sum_.clear();
  if (row.receives) {
    const int sent = trace_.across(event)[0];
    const auto begin = pool_.begin() + sent_[sent];
    const Span mine = part(event, spans_[work->spans]);
    sum_.assign(begin, begin + (mine.high - mine.low));
    if (notes_) move(rank_of(sent), rank_of(event), sum_);
  }
  if (work->sources) {
    const Span own = part(event, spans_[work->spans]);
    accesses.read(event, own, false);
    if (row.receives)
      for (std::size_t x = 0; x < sum_.size(); ++x) sum_[x] = add(event, sum_[x], values_[own.low + x]);
    else
      sum_.assign(values_.begin() + own.low, values_.begin() + own.high);
  }
  if (work->targets) {
    const Span to = part(event, spans_[work->spans + work->sources]);
    accesses.write(event, to, false);
    std::ranges::copy(sum_, values_.begin() + to.low);
  }
  if (row.sends) {
    sent_[event] = pool_.size();
    append(pool_, sum_);
  }
  return true;
}

// --- onesided

bool Replay::one_event(int event) {
  if (trace_.item[event] == sync_only) return true;
  if (trace_.block[event] < 0) {
    caller(event);
    return true;
  }
  const int line = trace_.line[event], item = trace_.item[event];
  if (columns_.row(code_.at(line)).packets) return packet(event);
  const Work* work = this->work(line);
  if (!work) return false;
  if (item < 0) {
    local(event, *work);
    return true;
  }
  const auto first = count_of(spans_);  // one target of a put
  spans_.push_back(spans_[work->spans + (work->sources > 1 ? item : 0)]);
  spans_.push_back(spans_[work->spans + work->sources + item]);
  local(event, {first, 1, 1, true, false});
  spans_.resize(first);
  return true;
}

// Between launches input and output are the caller's, who may change both.
void Replay::caller(int event) {
  const int rank = ~trace_.block[event], launch = trace_.launch[event];
  if (launch == 1) keep(rank);
  for (int which : {input, output}) {
    const bool longer = which == (layout_.input_longer() ? input : output);
    if (!in_place_ || longer) accesses.write(event, buffer(rank, which), launch > 0 && !every_);
  }
}

// One packet of an operation on packets, or as much of plain data.
bool Replay::packet(int event) {
  const int line = trace_.line[event], launch = trace_.launch[event];
  const Instruction& i = code_.at(line);
  const Operation& row = columns_.row(i);
  const Work* work = this->work(line);
  if (!work) return false;
  auto& packets = packets_[line];
  if (packets.empty()) {
    const Span* src = spans_.data() + work->spans;
    packets = spread(columns_, i, {src, static_cast<std::size_t>(work->sources)},
                     {src + work->sources, static_cast<std::size_t>(work->targets)});
  }
  Packet one = packets[trace_.item[event]];
  const bool later = launch > 0 && !every_;
  const auto first = std::min<std::size_t>(row.packet_src, one.sources.size());
  const auto plain = static_cast<std::size_t>(row.packet_dst);
  for (std::size_t k = 0; k < one.sources.size(); ++k) {
    int& atom = one.sources[k] = half(event, one.sources[k], k >= first);
    if (k >= first)
      accesses.take(event, atom, later);
    else
      accesses.read(event, {atom, atom + 1}, later);
  }
  for (std::size_t k = 0; k < one.targets.size(); ++k) {
    int& atom = one.targets[k] = half(event, one.targets[k], k >= plain);
    accesses.write(event, {atom, atom + 1}, later);
  }
  if (launch > 0) return true;
  for (std::size_t k = 0; notes_ && k < one.sources.size(); ++k)
    move(owner(one.sources[k]), rank_of(event), {&values_[one.sources[k]], 1});
  // Runtimes add up the packets, then what lies at the rank itself.
  std::rotate(one.sources.begin(), one.sources.begin() + first, one.sources.end());
  Value sum = values_[one.sources[0]];
  for (std::size_t k = 1; k < one.sources.size(); ++k) sum = add(event, sum, values_[one.sources[k]]);
  for (const int atom : one.targets) {
    values_[atom] = sum;
    if (notes_) move(rank_of(event), owner(atom), {&sum, 1});
  }
  return true;
}

// The atom that is meant in that launch: half of the own scratch decides, at peers too (misplaced.py).
int Replay::half(int event, int atom, bool packets) const {
  if (!packets || trace_.launch[event] % 2 == 0 || !layout_.shape.double_scratch) return atom;
  const Span own = layout_.buffer(rank_of(event), scratch);
  return atoms_.number[atoms_.starts[atom] + own.high - own.low];
}

// --- what is left

void Replay::keep(int rank) {
  for (int which : {input, output}) {
    const Span span = buffer(rank, which);
    kept_[2 * rank + which] = {{values_.begin() + span.low, values_.begin() + span.high},
                               {accesses.writer.begin() + span.low, accesses.writer.begin() + span.high}};
  }
}

// The root of a rooted collective (else -1); found from the data where `told` is -1.
int Replay::find_root(int told) const {
  const int n = layout_.ranks();
  if (!layout_.shape.rooted) return -1;
  if (told >= 0) return told;
  if (layout_.shape.rooted == 1) {
    int root = -1;
    for (int r = 0; r < n; ++r) {
      const Value value = kept_[2 * r + output].values[0];
      if (!value) continue;
      const int first = sets_.members(value.ranks)[0];
      if (root >= 0 && root != first) return 0;
      root = first;
    }
    return std::max(root, 0);
  }
  int best = 0;
  std::int64_t most = -1;
  for (int r = 0; r < n; ++r) {
    const Span out = layout_.buffer(r, output), atoms = atoms_.span(out);
    const auto& values = kept_[2 * r + output].values;
    bool right = true;
    std::int64_t filled = 0;
    for (int a = atoms.low; a < atoms.high; ++a) {
      const Value value = values[a - atoms.low];
      right &= value == *output_value(r, r, atoms_.starts[a] - out.low);
      filled += std::int64_t{sets_.count(value.ranks)} * (atoms_.starts[a + 1] - atoms_.starts[a]);
    }
    if (right) return r;
    if (filled > most) {
      most = filled;
      best = r;
    }
  }
  return best;
}

// For every buffer that is not as the collective defines: its first chunk that is wrong.
std::vector<WrongResult> Replay::wrong_results(int root) const {
  std::vector<WrongResult> found;
  for (int r = 0; r < layout_.ranks(); ++r)
    for (int which : {output, input}) {
      if (which == input && in_place_) continue;
      const Span locations = layout_.buffer(r, which), atoms = atoms_.span(locations);
      const Kept& kept = kept_[2 * r + which];
      for (int a = atoms.low; a < atoms.high; ++a) {
        const int place = atoms_.starts[a] - locations.low;
        const auto needs = which == input ? input_value(r, place) : output_value(r, root, place);
        if (!needs) break;
        const int k = a - atoms.low;
        if (kept.values[k] == *needs) continue;
        found.push_back({r, which, place, kept.values[k], *needs, kept.writers[k]});
        break;
      }
    }
  return found;
}

// --- values as they come to be

int Replay::find_noted(int rank, Value value) const {
  const auto it = known_.find(key_of(value.slice, value.ranks));
  if (it == known_.end()) return -1;
  for (const int k : it->second)
    if (noted[k].rank == rank) return k;
  return -1;
}

void Replay::note(int rank, Value value, int length, int first, int second) {
  int order = first < 0 ? rank : noted[first].order;
  if (second >= 0) {  // which summand comes first makes no difference
    const auto [low, high] = std::minmax(order, noted[second].order);
    order = orders_.emplace(key_of(low, high), layout_.ranks() + count_of(orders_)).first->second;
  }
  if (const int k = find_noted(rank, value); k >= 0) {
    reordered |= noted[k].order != order;
    return;
  }
  known_[key_of(value.slice, value.ranks)].push_back(count_of(noted));
  noted.push_back({rank, value.slice - 1, length, first, second, value.ranks == sets_.everyone(), order});
}

// Values that go from one rank to another.
void Replay::move(int from, int to, std::span<const Value> values) {
  if (from == to) return;
  for (const Value value : values)
    if (const int k = value ? find_noted(from, value) : -1; k >= 0) note(to, value, noted[k].length, k, -1);
}

std::vector<int> Replay::outputs(int rank, int root) const {
  const Span out = layout_.buffer(rank, output), atoms = atoms_.span(out);
  std::vector<int> found;
  for (int a = atoms.low; a < atoms.high; ++a) {
    const auto value = output_value(rank, root, atoms_.starts[a] - out.low);
    if (!value) break;
    found.push_back(find_noted(rank, *value));
  }
  return found;
}

}  // namespace forestcoll::verify
