// Python's door to the abstract machine: a program's columns in, numbers and places out, for Python to word.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "memory.hpp"

namespace nb = nanobind;

namespace forestcoll::simulate {
void bind_simulation(nb::module_& m);  // simulate/native/module.cpp
}
void bind_scan(nb::module_& m);        // plans/msccl/scan.cpp

namespace forestcoll::verify {
namespace {

// --- how much there is to do

// (locations a chunk, steps on chunks, instructions): most slices, rounds as check.py says.
std::tuple<std::int64_t, std::int64_t, std::int64_t> scale(const Columns& columns, int rounds, int slices) {
  std::int64_t grain = 1, work = 0;
  for (const Instruction& i : columns.instructions) {
    if (i.loop >= 0) grain = std::lcm(grain, std::int64_t{rounds});
    work += (i.loop >= 0 ? rounds : 1) * (2 + std::int64_t{i.channels});
    if (i.sources + i.targets && i.parts > 0) grain = std::lcm(grain, std::int64_t{i.parts});
    grain = std::min<std::int64_t>(grain, slices + 1);
    for (int k = 0; k < i.sources + i.targets; ++k) work += columns.sources(i)[k].count;
  }
  return {grain, work, static_cast<std::int64_t>(columns.instructions.size())};
}

// (from rank, to rank, parts of a chunk, how many of them) that ranks hand straight to each other.
std::vector<std::tuple<int, int, int, std::int64_t>> moves(const Columns& columns) {
  std::map<std::tuple<int, int, int>, std::int64_t> sums;
  for (const Block& block : columns.blocks)
    for (int k = block.begin; k < block.end; ++k) {
      const Instruction& i = columns.instructions[k];
      if (columns.row(i).sends) sums[{block.rank, block.send, 1}] += columns.sources(i)[0].count;
      for (int o = 0; o < i.sources + i.targets; ++o) {
        const Operand& operand = columns.sources(i)[o];
        if (operand.rank == own_rank) continue;
        const bool reads = o < i.sources;
        sums[{reads ? operand.rank : block.rank, reads ? block.rank : operand.rank, i.parts}] += operand.count;
      }
    }
  std::vector<std::tuple<int, int, int, std::int64_t>> found;
  for (const auto& [key, count] : sums) found.emplace_back(std::get<0>(key), std::get<1>(key), std::get<2>(key), count);
  return found;
}

// Per rank and thread block what it takes of a target, and moves; `boxes`: of the ranks, none: all are in one. Steps,
// as targets count them; channels of one kind; chunks in one step; peers in one operation (onesided); thread blocks
// up to the last that it waits for; chunks that it receives or, onesided, moves inside its box; chunks that it sends.
auto takes(const Columns& columns, const std::vector<int>& boxes) {
  std::vector<std::vector<std::array<std::int64_t, 7>>> taken(columns.rank_count());
  for (const Block& block : columns.blocks) {
    auto& [steps, channels, most, peers, waited, into, out] = taken[block.rank].emplace_back();
    int ports = 0;
    for (int c = 0; c < block.channel_count; ++c) ports += columns.channels[block.channels + c].port > 0;
    channels = std::max({block.channel + 1, ports, block.channel_count - ports});
    for (int k = block.begin; k < block.end; ++k) {
      const Instruction& i = columns.instructions[k];
      const Operation& row = columns.row(i);
      const bool fabric = i.op == columns.op.fabric_store || i.op == columns.op.fabric_reduce_store;
      steps += i.loop < 0 ? std::max(1, i.afters) : 1 + (i.at == 0);
      int sides[2]{};
      for (int o = 0; o < i.sources + i.targets; ++o) {
        const Operand& operand = columns.sources(i)[o];
        const bool far = operand.rank != own_rank && !fabric;
        const bool near = far && operand.rank != block.rank &&
                          (boxes.empty() || boxes.at(operand.rank) == boxes.at(block.rank));
        sides[o < i.sources] += far;
        most = std::max<std::int64_t>(most, operand.count);
        into += operand.count * (near || (!o && row.receives));
        out += operand.count * (!o && row.sends);
      }
      // local sums have two operands more than they may have peers
      const int wide = i.op == columns.op.reduce_to ? i.sources - 2
                       : std::max(i.channels, i.targets ? std::max(sides[0], sides[1]) : 0);
      peers = std::max<std::int64_t>(peers, wide);
      for (int a = 0; a < i.afters; ++a) waited = std::max<std::int64_t>(waited, columns.after[i.after + a].block + 1);
    }
  }
  return taken;
}

template <class Row>
nb::bytes raw(const std::vector<Row>& rows) {
  return nb::bytes(rows.data(), rows.size() * sizeof(Row));
}

// --- how often something is done in a launch

// What one thread block does to a channel, a semaphore or a barrier: of plain steps, and of each loop, the first
// step and how often; with the chunks and unit bytes of the loop, or -1.
using Times = std::vector<std::tuple<int, int, std::int64_t, std::int64_t>>;
using Use = std::tuple<int, int, int, Times>;  // rank, thread block, index

// Which indices of what (of runs over: signals, waits, releases, acquires, barriers) an instruction names.
std::span<const int> named(const Columns& columns, const Instruction& i, int what) {
  const Operation& row = columns.row(i);
  const auto channels = static_cast<std::size_t>(i.channels), semaphores = static_cast<std::size_t>(i.semaphores);
  if (what == 0 ? row.signals : what == 1 && row.waits) return {columns.channels_of(i), channels};
  if (i.op == (what == 2 ? columns.op.release : columns.op.acquire) && (what == 2 || what == 3))
    return {columns.semaphores_of(i), semaphores};
  if (what == 4 && i.op == columns.op.barrier) return {&i.ident, 1};
  return {};
}

// Signals, waits, releases, acquires and barriers, each block by block in the order of their steps.
std::vector<std::vector<Use>> uses(const Columns& columns) {
  std::vector<std::vector<Use>> found(5);
  for (const Block& block : columns.blocks)
    for (int what = 0; what < 5; ++what) {
      auto& uses = found[what];
      const std::size_t first = uses.size();
      for (int k = block.begin; k < block.end; ++k) {
        const Instruction& i = columns.instructions[k];
        for (const int index : named(columns, i, what)) {
          auto use = std::find_if(uses.begin() + first, uses.end(), [&](const Use& u) { return std::get<2>(u) == index; });
          if (use == uses.end()) use = uses.insert(use, {block.rank, block.number, index, {}});
          Times& times = std::get<3>(*use);
          const bool loop = i.loop >= 0;
          const bool goes_on = !times.empty() && (loop ? std::get<0>(times.back()) == i.step && std::get<2>(times.back()) >= 0
                                                       : std::get<2>(times.back()) < 0);
          if (!goes_on)
            times.push_back({i.step, 0, loop ? columns.loops[i.loop].chunks : -1, loop ? columns.loops[i.loop].unit_bytes : -1});
          ++std::get<1>(times.back());
        }
      }
    }
  return found;
}

// --- results as Python's values

class Told {
 public:
  Told(const Code& code, const Layout& layout) : code_(code), layout_(layout) {}

  // (rank, thread block, step, which instruction of the step).
  nb::tuple place(int line) const {
    const auto after = std::ranges::upper_bound(code_.first, line);
    const Block& block = code_.block(static_cast<int>(after - code_.first.begin()) - 1);
    const Instruction& i = code_.at(line);
    return nb::make_tuple(block.rank, block.number, i.step, i.at);
  }

  // (launch, place), or (launch that follows, (rank,)) of a rank's caller.
  nb::tuple event(const Trace& trace, int e) const {
    const int b = trace.block[e];
    if (b < 0) return nb::make_tuple(trace.launch[e], nb::make_tuple(~b));
    return nb::make_tuple(trace.launch[e], place(trace.line[e]));
  }

  // (rank, buffer, chunk); of scratch that is there twice, chunks of the second half follow the first's.
  nb::tuple location(int at) const {
    const int rank = layout_.owner(at);
    const int which = at >= layout_.base(rank, scratch) ? scratch : at >= layout_.base(rank, output) ? output : input;
    return nb::make_tuple(rank, which, (at - layout_.base(rank, which)) / layout_.shape.grain);
  }

  nb::list stuck(const std::vector<Waiting>& waiting) const {
    nb::list rows;
    for (const auto& [b, why] : waiting) {
      nb::object of = nb::int_(why.of);
      if (why.need == Need::step) of = place(why.of);
      if (why.need == Need::packets) of = location(why.of);
      const int rank = why.on < 0 ? -1 : code_.block(why.on).rank;
      rows.append(nb::make_tuple(b, place(why.line), static_cast<int>(why.need), of, why.on, rank));
    }
    return rows;
  }

 private:
  const Code& code_;
  const Layout& layout_;
};

struct Mode {
  bool in_place;
  std::unique_ptr<Replay> replay;
};

class Proof {
 public:
  Proof(const Columns& columns, const Shape& shape, int rounds, const Messages& messages, int launches, bool finest)
      : layout_(shape), code_(columns, rounds), atoms_(find_atoms(code_, layout_, messages.piece, finest)),
        outcome_(columns.fifo ? run_fifo(code_, atoms_, messages) : run_onesided(code_, atoms_, launches)),
        sets_(layout_.ranks()), told_(code_, layout_), finest_(finest) {}

  nb::dict prove(const std::vector<bool>& modes, int root, int most) {
    nb::dict result;
    if (stopped(result)) return result;
    const Trace& trace = outcome_.trace;
    bool right = true;
    for (const bool in_place : modes) {
      if (!right) break;
      modes_.push_back({in_place, replay(in_place, finest_)});
      right = modes_.back().replay->run();
      if (right && modes_.back().replay->accesses.mixed) {
        modes_.back().replay = replay(in_place, true);
        right = modes_.back().replay->run();
      }
    }
    find_races();
    if (!modes_.empty() && !modes_.front().replay->overlap) root = modes_.front().replay->find_root(root);
    nb::list faults;
    for (Mode& mode : modes_) faults.append(words(mode, root, most));
    result["events"] = trace.size();
    result["root"] = root;
    result["modes"] = faults;
    return result;
  }

  // The values that come to be, and those that each output is made of.
  nb::dict note_values(bool in_place, int root) {
    nb::dict result;
    if (stopped(result)) return result;
    Replay replay(code_, layout_, atoms_, outcome_.trace, sets_, in_place, false, true);
    replay.run();
    nb::list values, outputs, completed;
    for (const auto& [line, slice, length] : replay.completed)
      completed.append(nb::make_tuple(told_.place(line), slice, length));
    result["completed"] = completed;
    for (const Noted& v : replay.noted)
      values.append(nb::make_tuple(v.rank, v.slice, v.length, v.first, v.second, v.complete));
    result["reordered"] = replay.reordered;
    for (int r = 0; r < layout_.ranks(); ++r) outputs.append(nb::cast(replay.outputs(r, root)));
    result["values"] = values;
    result["outputs"] = outputs;
    return result;
  }

 private:
  std::unique_ptr<Replay> replay(bool in_place, bool every) {
    return std::make_unique<Replay>(code_, layout_, atoms_, outcome_.trace, sets_, in_place, every, false);
  }

  bool stopped(nb::dict& result) const {
    if (!outcome_.stuck.empty()) result["stuck"] = told_.stuck(outcome_.stuck);
    if (outcome_.twice)
      result["twice"] = nb::make_tuple(told_.place(outcome_.twice->line), told_.place(outcome_.twice->earlier),
                                       told_.location(atoms_.starts[outcome_.twice->atom]));
    return !outcome_.stuck.empty() || outcome_.twice;
  }

  // Weak arrows settle whether what was read may be overwritten, where no mode found more at stake.
  void find_races() {
    std::vector<Pair> pairs;
    for (const Mode& mode : modes_)
      for (const auto& [key, collision] : mode.replay->accesses.collisions)
        if (!mode.replay->overlap)
          pairs.push_back({static_cast<int>(key >> 32), static_cast<int>(key & 0xFFFFFFFF)});
    const Trace& trace = outcome_.trace;
    races_ = unordered(trace, std::move(pairs), false);
    if (trace.weak.empty() || races_.empty()) return;
    std::vector<Pair> light;
    for (const Pair& pair : races_)
      if (std::ranges::none_of(modes_, [&](const Mode& mode) {
            const auto* one = collision(mode, pair);
            return one && !one->light;
          }))
        light.push_back(pair);
    const std::vector<Pair> still = unordered(trace, light, true);
    std::erase_if(races_, [&](const Pair& pair) {
      return std::ranges::binary_search(light, pair) &&
             !std::ranges::binary_search(still, pair);
    });
  }

  static const Collision* collision(const Mode& mode, const Pair& pair) {
    const auto& all = mode.replay->accesses.collisions;
    const auto it = all.find(key_of(pair.a, pair.b));
    return it == all.end() || mode.replay->overlap ? nullptr : &it->second;
  }

  nb::dict words(const Mode& mode, int root, int most) {
    nb::dict found;
    const Trace& trace = outcome_.trace;
    found["in_place"] = mode.in_place;
    if (mode.replay->overlap) {
      const auto [line, atom] = *mode.replay->overlap;
      found["overlap"] = nb::make_tuple(told_.place(line), told_.location(atoms_.starts[atom]));
      return found;
    }
    std::vector<Pair> races;
    for (const Pair& pair : races_)
      if (collision(mode, pair)) races.push_back(pair);
    std::ranges::sort(races, {}, [](const Pair& pair) { return std::pair(pair.b, pair.a); });
    nb::list rows, results;
    for (std::size_t k = 0; k < races.size() && static_cast<int>(k) < most; ++k)
      rows.append(nb::make_tuple(told_.event(trace, races[k].a), told_.event(trace, races[k].b),
                                 told_.location(atoms_.starts[collision(mode, races[k])->atom])));
    found["races"] = rows;
    if (mode.replay->wrong) {
      const auto [event, x, y] = *mode.replay->wrong;
      const nb::object twice = nb::cast(sets_.common(x.ranks, y.ranks));
      found["sum"] = nb::make_tuple(told_.event(trace, event), value(x), value(y), x.slice == y.slice, twice);
    } else if (races.empty()) {
      for (const WrongResult& wrong : mode.replay->wrong_results(root)) {
        nb::object writer = nb::none();
        if (wrong.writer >= 0 && trace.block[wrong.writer] >= 0) writer = told_.event(trace, wrong.writer);
        results.append(nb::make_tuple(wrong.rank, wrong.buffer, wrong.place / layout_.shape.grain,
                                      value(wrong.holds), value(wrong.needs), writer));
      }
    }
    found["results"] = results;
    return found;
  }

  // (chunk of the data, ranks), or None.
  nb::object value(Value v) const {
    if (!v) return nb::none();
    return nb::make_tuple((v.slice - 1) / layout_.shape.grain, nb::cast(sets_.members(v.ranks)));
  }

  Layout layout_;
  Code code_;
  Atoms atoms_;
  Outcome outcome_;
  RankSets sets_;
  Told told_;
  const bool finest_;
  std::vector<Mode> modes_;
  std::vector<Pair> races_;
};

}  // namespace
}  // namespace forestcoll::verify

NB_MODULE(_machine, m) {
  using namespace forestcoll::verify;
  nb::set_leak_warnings(false);  // the words live as long as their module
  nb::class_<Words>(m, "Words").def(nb::init<nb::dict, nb::sequence, nb::object>());
  nb::class_<Columns>(m, "Columns");
  nb::class_<Shape>(m, "Shape")
      .def("__init__", [](Shape* self, std::int64_t in, std::int64_t out, std::int64_t part,
                          std::vector<std::int64_t> scratch, std::int64_t grain, bool double_scratch,
                          bool inputs_each, bool outputs_each, bool reduces, int rooted, int shorter) {
        new (self) Shape{in, out, part, std::move(scratch), grain, double_scratch, inputs_each, outputs_each,
                         reduces, rooted, shorter};
      });
  m.def("columns", &read_program);
  m.def("take_columns", [](nb::capsule made, const Words& words) {
    auto& columns = *static_cast<Columns*>(made.data());
    columns.table = words.table;
    columns.op = words.op;
    return std::move(columns);
  });
  m.def("scale", &scale);
  m.def("moves", &moves);
  m.def("takes", &takes);
  m.def("blocks", [](const Columns& all) { return raw(all.blocks); });
  m.def("rows", [](const Columns& all) {
    return nb::make_tuple(raw(all.blocks), raw(all.instructions), raw(all.operands), raw(all.after));
  });
  m.def("uses", &uses);
  m.def("prove", [](const Columns& columns, const Shape& shape, int rounds, int launches, std::int64_t piece,
                    std::int64_t queue, const std::vector<bool>& modes, int root, int most, bool finest) {
    return Proof(columns, shape, rounds, {piece, queue}, launches, finest).prove(modes, root, most);
  });
  m.def("note_values", [](const Columns& columns, const Shape& shape, bool in_place, int root) {
    constexpr std::int64_t unbounded = 1 << 30;  // messages: a proof has shown that fewer are enough
    return Proof(columns, shape, 1, {unbounded, unbounded}, 1, false).note_values(in_place, root);
  });
  forestcoll::simulate::bind_simulation(m);
  bind_scan(m);
}
