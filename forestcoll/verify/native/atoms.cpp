// Atoms: see runs.hpp.
//
// A plan of many small chunks does the same to long runs of them. Two neighbouring locations are parted only
// where some operand begins or ends between them, or where something copies, adds, sends or takes them to or
// from a place that is parted there. `find_atoms` closes this under all transfers of the program, from the
// operands' ends to a fixpoint; what is then left whole are the atoms, and one value, one last writer and
// one list of readers stand for a whole atom. Why nothing is lost:
//
// * Memory. Every operand covers whole atoms, and operands that are added, copied or sent to each other are
//   parted alike. So all locations of an atom have the same history: the same accesses by the same events,
//   and as values the same contributors to chunks that stay neighbours. One of them is wrong, or raced for,
//   exactly if all are. The first stands for them in messages.
// * Order. Where a piece of a message may be as small as a chunk, an event is an atom of a message in place
//   of a chunk of it. Take two accesses to one location, the j-th of their atoms. If arrows lead from one to
//   the other chunk by chunk, the same arrows lead from atom to atom. If arrows lead from atom to atom: those
//   between a send and its receive keep j, and one within a thread block, or from a step to what comes after
//   it, leads from every location of the one atom (or step) to every location of the other, so the last such
//   arrow may arrive at j. Where pieces are longer, they are the events, and atoms end where pieces do.
// * Deadlock is no matter of atoms: fifo_run.cpp counts real pieces in real slots.
//
// In place, input and output are parted alike where they are the same memory; so one set of atoms, and one
// trace, serve both modes.

#include "runs.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

namespace forestcoll::verify {
namespace {

// Sweeps over all ties, and looks at a tie, before every location is taken by itself. That is always right,
// and costs no more than that there are so many locations.
constexpr std::int64_t most_sweeps = 64, most_looks = 4'000'000;

using Cuts = std::vector<unsigned char>;

struct Tie {  // ranges that are parted alike
  int length, first, count;
};

class Finder {
 public:
  Finder(const Code& code, const Layout& layout, std::int64_t piece)
      : code_(code), layout_(layout), piece_(piece), cuts_(static_cast<std::size_t>(layout.size()) + 1) {}

  Atoms find(std::int64_t sweeps) {
    buffers();
    for (int b = 0; b < code_.blocks(); ++b)
      for (int l = code_.first[b]; l < code_.first[b + 1]; ++l) line(code_.block(b), l);
    found_.operands.first.push_back(count_of(found_.operands.spans));
    if (code_.columns.fifo) messages();
    close(sweeps);
    const int size = layout_.size();
    found_.number.resize(size);
    for (int x = 0; x < size; ++x) {
      if (cuts_[x]) found_.starts.push_back(x);
      found_.number[x] = count_of(found_.starts) - 1;
    }
    found_.starts.push_back(size);
    for (Span& span : found_.operands.spans) span = found_.span(span);
    for (auto& [at, spans] : found_.in_place)
      for (Span& span : spans) span = found_.span(span);
    return std::move(found_);
  }

 private:
  void buffers() {
    const Shape& shape = layout_.shape;
    for (int r = 0; r < layout_.ranks(); ++r) {
      for (int which : {input, output, scratch}) cuts_[layout_.base(r, which)] = 1;
      const auto same = layout_.shared(r);
      tie(same.data(), 2);
      const Span half = layout_.buffer(r, scratch);
      if (shape.double_scratch && half.high > half.low) {
        const Span halves[] = {half, {half.high, 2 * half.high - half.low}};
        tie(halves, 2);
      }
      const Span out = layout_.buffer(r, output);  // whose data it must hold changes from part to part
      for (std::int64_t at = out.low; at < out.high; at += shape.part * shape.grain) cuts_[at] = 1;
    }
  }

  void line(const Block& block, int at) {
    const Instruction& i = code_.at(at);
    auto& spans = found_.operands.spans;
    const auto first = spans.size();
    found_.operands.first.push_back(static_cast<int>(first));
    const int count = i.sources + i.targets;
    if (!count) return;
    for (int k = 0; k < count; ++k) spans.push_back(slice(block, code_.columns.sources(i)[k], 0, at));
    if (i.sources == i.targets && i.sources > 1 && code_.columns.row(i).pairs)
      for (int k = 0; k < i.sources; ++k) {
        const Span pair[] = {spans[first + k], spans[first + k + i.sources]};
        tie(pair, 2);
      }
    else
      tie(spans.data() + first, count);
    if (layout_.shape.shorter >= 0 && !code_.columns.fifo) misplace(block, i, at, first);
  }

  // In place the runtime may take other memory for an operand in the shorter user buffer: of it, it knows
  // where it lies only for the threads of its own rank. Ports read from where the allocation begins, which
  // is rank 0's part, and at peers all are as far from their allocation's begin as at the own rank
  // (microsoft/mscclpp 1f5f065d, executor.cc: setupRegisteredMemories; execution_plan.cc: getConstOffset).
  void misplace(const Block& block, const Instruction& i, int at, std::size_t first) {
    const Shape& shape = layout_.shape;
    const bool port = code_.columns.reads_by_port(block, i);
    const int longer = shape.shorter == input ? output : input;
    std::vector<Span> moved;
    bool other = false;
    for (int k = 0; k < i.sources + i.targets; ++k) {
      const Operand& o = code_.columns.sources(i)[k];
      const bool own = o.rank == own_rank || o.rank == block.rank;
      const int owner = own ? block.rank : o.rank, part = own && port && k < i.sources ? 0 : block.rank;
      if (o.buffer != shape.shorter) {
        moved.push_back(found_.operands.spans[first + k]);
        continue;
      }
      other |= part != owner;
      Operand there = o;
      there.buffer = longer;
      moved.push_back(slice(block, there, part * shape.part, at));
    }
    if (!other) return;
    for (std::size_t k = 0; k < moved.size(); ++k) {
      const Span pair[] = {found_.operands.spans[first + k], moved[k]};
      tie(pair, 2);
    }
    found_.in_place[at] = std::move(moved);
  }

  // The slice of an operand that a line handles: of a round, or of a part.
  Span slice(const Block& block, const Operand& o, std::int64_t chunks, int at) const {
    const std::int64_t grain = layout_.shape.grain, length = o.count * grain;
    const std::int64_t low = layout_.base(o.rank == own_rank ? block.rank : o.rank, o.buffer) +
                             (o.offset + chunks) * grain;
    const int round = code_.lines[at].round;
    const std::int64_t index = round >= 0 ? round : code_.at(at).part;
    const std::int64_t of = round >= 0 ? code_.rounds : code_.at(at).parts;
    return {static_cast<int>(low + length * index / of),
            static_cast<int>(low + length * (index + 1) / of)};
  }

  // The ends of the ranges part atoms, and so does whatever parts one of them.
  void tie(const Span* spans, int count) {
    for (int k = 0; k < count; ++k) cuts_[spans[k].low] = cuts_[spans[k].high] = 1;
    const int length = spans[0].high - spans[0].low;
    if (count < 2 || length < 2) return;
    ties_.push_back({length, count_of(lows_), count});
    for (int k = 0; k < count; ++k) lows_.push_back(spans[k].low);
  }

  void messages() {
    std::map<std::tuple<int, int, int>, std::array<std::vector<Span>, 2>> connections;
    std::vector<std::array<std::vector<Span>, 2>*> order;  // as they are named first
    for (int b = 0; b < code_.blocks(); ++b) {
      const Block& block = code_.block(b);
      auto& out = connections[{block.rank, block.send, block.channel}];
      auto& into = connections[{block.recv, block.rank, block.channel}];
      if (block.send >= 0) order.push_back(&out);
      for (int l = code_.first[b]; l < code_.first[b + 1]; ++l) {
        const Operation& row = code_.columns.row(code_.at(l));
        if (row.sends) out[0].push_back(found_.operands.spans[found_.operands.first[l]]);
        if (row.receives) into[1].push_back(found_.operands.spans[found_.operands.first[l]]);
      }
    }
    for (const auto* one : order)
      for (std::size_t k = 0; k < std::min((*one)[0].size(), (*one)[1].size()); ++k) {
        const Span pair[] = {(*one)[0][k], (*one)[1][k]};
        if (pair[0].high - pair[0].low != pair[1].high - pair[1].low) break;  // wiring.py says so
        tie(pair, 2);
        for (std::int64_t end = pair[0].low; piece_ > 1 && end < pair[0].high; end += piece_) cuts_[end] = 1;
      }
  }

  // The cuts and all that follow from them by the ties: sweeps forwards and backwards by turns, for cuts
  // follow the data quickly either way.
  void close(std::int64_t sweeps) {
    const auto count = static_cast<std::int64_t>(ties_.size());
    for (std::int64_t left = std::min(sweeps, most_looks / (count + 1)); left > 0; --left) {
      bool changed = false;
      for (const Tie& one : ties_) changed |= spread(one);
      if (!changed) return;
      std::ranges::reverse(ties_);
    }
    std::ranges::fill(cuts_, 1);
  }

  bool spread(const Tie& one) {
    const int* lows = lows_.data() + one.first;
    const auto inner = static_cast<std::size_t>(one.length) - 1;
    const unsigned char* model = cuts_.data() + lows[0] + 1;
    bool alike = true;
    for (int k = 1; alike && k < one.count; ++k)
      alike = std::memcmp(cuts_.data() + lows[k] + 1, model, inner) == 0;
    if (alike) return false;
    together_.assign(model, model + inner);
    for (int k = 1; k < one.count; ++k)
      for (std::size_t x = 0; x < inner; ++x) together_[x] |= cuts_[lows[k] + 1 + x];
    for (int k = 0; k < one.count; ++k)  // ranges may overlap: what one of them has got must stay
      for (std::size_t x = 0; x < inner; ++x) cuts_[lows[k] + 1 + x] |= together_[x];
    return true;
  }

  const Code& code_;
  const Layout& layout_;
  const std::int64_t piece_;
  Cuts cuts_, together_;
  std::vector<Tie> ties_;
  std::vector<int> lows_;
  Atoms found_;
};

}  // namespace

Code::Code(const Columns& columns, int rounds) : columns(columns), rounds(rounds) {
  for (const Block& block : columns.blocks) {
    first.push_back(count_of(lines));
    for (int i = block.begin; i < block.end;) {
      const int loop = columns.instructions[i].loop;
      int end = i + 1;
      while (loop >= 0 && end < block.end && columns.instructions[end].loop == loop) ++end;
      for (int round = 0; round < (loop < 0 ? 1 : rounds); ++round)
        for (int k = i; k < end; ++k) lines.push_back({k, loop < 0 ? -1 : round});
      i = end;
    }
  }
  first.push_back(count_of(lines));
}

Layout::Layout(const Shape& shape) : shape(shape) {
  std::int64_t at = 0;
  for (int r = 0; r < ranks(); ++r)
    for (int which : {input, output, scratch}) {
      bases_.push_back(static_cast<int>(at));
      at += chunks(r, which) * shape.grain * (shape.double_scratch && which == scratch ? 2 : 1);
    }
  bases_.push_back(static_cast<int>(at));
}

int Layout::owner(int location) const {
  const auto after = std::upper_bound(bases_.begin(), bases_.end() - 1, location);
  return static_cast<int>(after - bases_.begin() - 1) / 3;
}

std::array<Span, 2> Layout::shared(int rank) const {
  const auto part = static_cast<int>(shape.part * shape.grain * rank);
  const Span in = buffer(rank, input), out = buffer(rank, output);
  if (shape.input > shape.output) return {Span{in.low + part, in.low + part + out.high - out.low}, out};
  if (shape.input < shape.output) return {in, Span{out.low + part, out.low + part + in.high - in.low}};
  return {in, out};
}

Atoms find_atoms(const Code& code, const Layout& layout, std::int64_t piece, bool finest) {
  return Finder(code, layout, piece).find(finest ? 0 : most_sweeps);
}

}  // namespace forestcoll::verify
