// Thread blocks of onesided programs (lower/onesided.py): which groups of transfers share one.
//
// Every class of trees has up to two thread blocks at a rank, its halves: 0 and, where an allreduce
// broadcasts beside its sums, 1. A lane is `2 * peer + half`: the way to the peer's thread block of that
// half in the same class.
//
// What goes to a class together is a unit: a group of a tree's transfers, or the main groups of a reduce
// and a broadcast tree of a root that the root begins where it ends the other.
//
// Why nothing gets stuck, whoever shares a thread block: each does its pipelines in the order of their
// keys, the same at every rank, and data flows along it. The first unfinished tree can always go on.
//
// Where a rank only has handshakes in a class (its memory is read or written by others), it needs no thread
// block of its own for that: one that has room does them, so that fewer processors spin.

#include <array>
#include <set>
#include <string_view>

#include "../contract.hpp"
#include "objects.hpp"
#include "pipelines.hpp"

namespace forestcoll {

namespace onesided {
namespace {

using Block = Ints;  // what a thread block does: numbers of works

// What keeps a unit out of a class: rank, limit (operations, channels, remote buffers), figure, bound.
using Obstacle = std::optional<std::tuple<int, int, Chunks, int>>;
constexpr Chunks aligned = 16;  // bytes of which pipelines move multiples at a time

// Root of a unit for which there is no room, units in all, what keeps it out even of an empty class.
using Refusal = std::optional<std::tuple<int, int, Obstacle>>;

enum Word : int { class_instruction, class_ref, class_pipeline, class_channel, first_buffer, near_kind = 7, far_kind, first_op };

struct Counts {
  Chunks near = 0, far = 0;
};

// How many members two sets have together, each of a peer `width` wide.
template <int width>
Counts count(const Problem& problem, int rank, const Ints& a, const Ints& b) {
  Counts counts;
  auto left = a.begin(), right = b.begin();
  while (left != a.end() || right != b.end()) {
    const bool first = right == b.end() || (left != a.end() && *left <= *right);
    const int member = first ? *left : *right;
    if (first && right != b.end() && *right == member) ++right;
    ++(first ? left : right);
    ++(problem.near(rank, member / width) ? counts.near : counts.far);
  }
  return counts;
}

class OnesidedBlocks {
 public:
  // `trees`: of lower/layout.py, `apart` for each of them, whose children have groups of their own. Per rank
  // the first chunk of the whole that `inputs` and `outputs` have, and the number of its box. `limits`: those
  // of the target. `words`: what is written, in the order of `Word`.
  OnesidedBlocks(nb::sequence trees, const Ints& apart, Amounts inputs, Amounts outputs, Ints boxes,
         bool reduces, bool both, const std::tuple<int, int, int, int, int, int>& limits, nb::sequence words)
      : problem_{{}, std::move(boxes), std::move(inputs), std::move(outputs), reduces, both,
                 std::make_from_tuple<Limits>(limits)},
        words_(words_of(words)), instruction_(words_[class_instruction](words_[first_op])),
        ref_(words_[class_ref](words_[first_buffer], 0, 0)),
        pipeline_(words_[class_pipeline](nb::tuple(), 0, 0)) {
    const std::size_t n = problem_.boxes.size();
    require(n > 0 && problem_.inputs.size() == n && problem_.outputs.size() == n, "boxes, inputs and outputs differ in length");
    const auto& [blocks, steps, channels, peers, buffers, semaphores] = limits;
    require(std::min({blocks, steps, channels, peers, buffers, semaphores}) > 0, "a limit is below 1");
    require(nb::len(trees) == apart.size(), "trees and 'apart' differ in length");
    std::size_t number = 0;
    for (nb::handle each : trees) {
      Tree& tree = problem_.trees.emplace_back(Tree{read_tree(each, problem_.ranks())});
      require(0 <= apart[number] && apart[number] <= 2, "'apart' is 0, 1 or 2");
      cut(tree, problem_, static_cast<Apart>(apart[number++]));
    }
  }

  // The children of a rank in each group of a tree, the main one first.
  const Lists& groups(std::size_t tree, int rank) const {
    require(tree < problem_.trees.size() && 0 <= rank && rank < problem_.ranks(), "no such tree, or rank");
    return problem_.trees[tree].groups[rank];
  }

  // Deals all groups out to classes, the lightest first, and makes each rank's thread blocks.
  //
  // There are as many classes as keep `busy` thread blocks of a half at work at the rank with the most to do,
  // more where those cannot hold the units, fewer where some rank then has too many thread blocks.
  Refusal deal(int halves, int busy) {
    require(1 <= halves && halves <= 2 && busy > 0, "there are 1 or 2 halves, and some are busy");
    pipelines_.emplace(problem_, halves);
    const std::vector<Unit> wanted = units();
    std::map<int, long> load;
    for (const Unit& unit : wanted)
      for (const auto& [place, work] : unit.works)
        if (!work.pipes.empty()) ++load[place];
    long most = static_cast<long>(wanted.size()), largest = busy;
    for (const auto& entry : load) largest = std::max(largest, entry.second);
    const long enough = std::max(1L, most * busy / largest);
    long number = std::min(most, enough);
    while (true) {
      blocks_.clear();
      at_ = {};
      works_.clear();
      places_.clear();
      std::set<std::pair<Chunks, int>> order;  // weight and number of all classes
      for (int k = 0; k < number; ++k) order.emplace_hint(order.end(), 0, k);
      const auto stuck = std::ranges::find_if(wanted, [&](const Unit& unit) { return !place(unit, order); });
      if (stuck != wanted.end()) {
        if (number == most) return refusal(*stuck, wanted.size());
        number = std::min(most, number + std::max(1L, number / 4));
        continue;
      }
      std::size_t longest = 0;
      by_place_.assign(2 * problem_.ranks(), {});
      Ints all = numbers(number_of(works_));
      std::ranges::sort(all, {}, [&](int k) { return places_[k]; });
      for (int k : all) by_place_[places_[k].second].push_back(k);
      for (int rank : range(problem_.ranks())) longest = std::max(longest, blocks_.emplace_back(own(rank)).size());
      if (longest <= static_cast<std::size_t>(problem_.limits.thread_blocks)) break;
      if (number == 1) {
        blocks_.clear();
        return refusal(wanted.front(), wanted.size());
      }
      // few classes have few thread blocks, in proportion
      most = std::max(1L, std::min(number - 1, number * problem_.limits.thread_blocks / static_cast<long>(longest)));
      number = std::min(most, enough);
    }
    find_channels();
    return {};
  }

  // Per rank: steps and channels of each thread block, chunks of scratch, and semaphores. Pipelines
  // move `unit_bytes` at a time on average, each in proportion to its chunks: all take as many rounds.
  // Thread blocks share links slice by slice, and no tree is done long before those that it went with.
  // `uneven`: slices of neighbouring trees differ by up to a quarter, so that thread blocks which read over
  // one link do not all wait for their answers at the same time.
  auto program(Chunks unit_bytes, bool uneven) {
    require(!blocks_.empty(), "nothing has been dealt out");
    using Written = std::vector<std::pair<nb::object, nb::object>>;
    std::vector<std::tuple<Written, Chunks, int>> ranks;
    __int128 all = 0;
    Amounts firsts;
    for (const Pipe& pipe : pipelines_->pipes) {
      all += pipe.chunks;
      firsts.push_back(std::get<1>(pipe.key));
    }
    firsts = distinct(std::move(firsts));
    const auto unit = [&, count = pipelines_->pipes.size()](const Pipe& pipe) -> Chunks {
      const int place = place_in(firsts, std::get<1>(pipe.key));
      const int share = uneven ? 14 + 3 * place % 5 : 16;  // of 16
      const auto bytes = static_cast<Chunks>(static_cast<__int128>(unit_bytes) * share * pipe.chunks * count / all / 16);
      return std::max<Chunks>(1, bytes / aligned) * aligned;
    };
    for (int rank : range(problem_.ranks())) {
      Written own;
      for (const Block& block : blocks_[rank]) own.push_back(write(block, unit));
      ranks.emplace_back(std::move(own), pipelines_->scratch[rank], pipelines_->semaphores[rank]);
    }
    return ranks;
  }

 private:
  static Objects words_of(nb::sequence words) {
    Objects list;
    for (nb::handle word : words) list.push_back(nb::borrow(word));
    require(list.size() == first_op + static_cast<std::size_t>(Op::release) + 1, "some words are missing");
    return list;
  }

  // All groups of all trees, in units, root by root.
  std::vector<Unit> units() {
    std::vector<Unit> units;
    for (const Ints& together : overlapping()) {
      const Tree& one = problem_.trees[together.front()];
      bool fused = false;
      if (together.size() == 2 && one.first == problem_.trees[together[1]].first && one.count == problem_.trees[together[1]].count) {
        const auto [up, down] = one.down ? std::pair(together[1], together[0]) : std::pair(together[0], together[1]);
        if (pipelines_->fuse(up, down)) {
          Unit both = pipelines_->unit({{up, 0}, {down, 0}});
          fused = !obstacle(both, -1);
          if (fused)
            units.push_back(std::move(both));
          else
            pipelines_->part_ways(up);
        }
        if (!fused) pipelines_->hand_over(up, down);
      } else if (together.size() > 1) {
        pipelines_->queue(together);
      }
      if (!fused)
        for (const int number : together) units.push_back(pipelines_->unit({{number, 0}}));
      for (const int number : together)
        for (int group = 1; group < problem_.trees[number].group_count; ++group)
          units.push_back(pipelines_->unit({{number, group}}));
    }
    return units;
  }

  // Groups of trees that have chunks in common, if through others.
  Lists overlapping() const {
    const auto& trees = problem_.trees;
    Ints order = numbers(number_of(trees));
    std::ranges::stable_sort(order, {}, [&](int number) { return trees[number].first; });
    Lists groups;
    Chunks end = -1;
    for (const int number : order) {
      if (trees[number].first >= end) groups.emplace_back();
      groups.back().push_back(number);
      end = std::max(end, trees[number].first + trees[number].count);
    }
    return groups;
  }

  // All operations of a thread block that does both.
  Chunks steps(int rank, const Work& a, const Work& b) const {
    Chunks steps = a.steps + b.steps;
    for (const int barrier : {ready_from, done_to}) steps += !a.shakes[barrier].empty() || !b.shakes[barrier].empty();
    for (int kind : range(a.shakes)) {
      const auto [near, far] = count<2>(problem_, rank, a.shakes[kind], b.shakes[kind]);
      for (const Chunks some : {near, far}) steps += (some + problem_.limits.peers - 1) / problem_.limits.peers;
    }
    return steps;
  }

  // `number`: of a class, below 0: of an empty one.
  Obstacle obstacle(const Unit& unit, int number) const {
    static const Work idle;
    const Limits& limits = problem_.limits;
    for (const auto& [place, own] : unit.works) {
      const int other = at_.find(number, place);
      const Work& work = other < 0 ? idle : works_[other];
      if (other >= 0 && own.steps + work.steps > limits.steps) return Obstacle(std::in_place);  // nobody asks by how much
      const Chunks lanes = own.lanes.size() + work.lanes.size(), remote = own.remote.size() + work.remote.size();
      const Chunks most = own.steps + work.steps + 4 * lanes + 2;  // as if none were the same
      if (most <= limits.steps && lanes <= limits.channels && remote <= limits.remote_buffers) continue;
      const int rank = place / 2;
      const Chunks steps = this->steps(rank, own, work);
      if (steps > limits.steps) return std::tuple(rank, 0, steps, limits.steps);
      const auto [inside, outside] = count<2>(problem_, rank, own.lanes, work.lanes);
      if (std::max(inside, outside) > limits.channels) return std::tuple(rank, 1, std::max(inside, outside), limits.channels);
      const auto [near, far] = count<3>(problem_, rank, own.remote, work.remote);
      if (std::max(near, far) > limits.remote_buffers) return std::tuple(rank, 2, std::max(near, far), limits.remote_buffers);
    }
    return {};
  }

  // Whether some class has room for the unit, which it then holds: the lightest.
  bool place(const Unit& unit, std::set<std::pair<Chunks, int>>& order) {
    const auto least = std::ranges::find_if(order, [&](const auto& entry) { return !obstacle(unit, entry.second); });
    if (least == order.end()) return false;
    const auto [weight, number] = *least;
    for (const auto& [place, work] : unit.works) {
      int& own = at_.insert(number, place);
      if (own >= 0) {
        works_[own].join(work);
        continue;
      }
      own = number_of(works_);
      works_.push_back(work);
      places_.emplace_back(number, place);
    }
    order.erase(least);
    order.emplace(weight + unit.weight, number);
    return true;
  }

  Refusal refusal(const Unit& unit, std::size_t wanted) const {
    return std::tuple(unit.root, static_cast<int>(wanted), obstacle(unit, -1));
  }

  // The thread blocks of a rank, busy ones first; each class and half is in one of them.
  std::vector<Block> own(int rank) {
    struct Some {
      Block block;
      Chunks steps, near, far;
    };
    static const Work none;
    const Limits& limits = problem_.limits;
    std::vector<Some> busy, idle;
    for (const int place : {2 * rank, 2 * rank + 1})
      for (int number : by_place_[place]) {
        const Work& work = works_[number];
        const auto [near, far] = count<2>(problem_, rank, work.lanes, {});
        (work.pipes.empty() ? idle : busy).push_back({{number}, steps(rank, work, none), near, far});
      }
    for (Some& one : idle) {
      const auto host = std::ranges::find_if(busy, [&](const Some& other) {
        return other.steps + one.steps <= limits.steps && other.near + one.near <= limits.channels && other.far + one.far <= limits.channels;
      });
      if (host == busy.end()) {
        busy.push_back(std::move(one));
        continue;
      }
      host->block.push_back(one.block.front());
      host->steps += one.steps;
      host->near += one.near;
      host->far += one.far;
    }
    std::vector<Block> blocks;
    for (Some& one : busy) {
      for (int number : one.block) works_[number].block = number_of(blocks);
      blocks.push_back(std::move(one.block));
    }
    return blocks;
  }

  // --- channels

  // A channel's ranks, and the thread blocks of both that it is between, the lower rank first.
  using Ends = std::array<int, 4>;

  Ends ends(int work, int lane) const {
    const auto [number, place] = places_[work];
    const int rank = place / 2, peer = lane / 2;
    const int here = works_[work].block, there = works_.at(at_.find(number, lane)).block;
    return peer < rank ? Ends{peer, rank, there, here} : Ends{rank, peer, here, there};
  }

  void find_channels() {
    ends_.clear();
    for (int work : range(works_))
      for (const int lane : works_[work].lanes) ends_.push_back(ends(work, lane));
    ends_ = distinct(std::move(ends_));
  }

  // The kind, far or near, peer and index of a lane's channel. The n-th from i to j is the n-th from j to i.
  std::tuple<bool, int, int> channel(int work, int lane) const {
    const Ends own = ends(work, lane);
    const int index = place_in(ends_, own) - place_in(ends_, Ends{own[0], own[1], -1, -1});
    return {!problem_.near(places_[work].second / 2, lane / 2), lane / 2, index};
  }

  // --- instructions

  // The steps of a thread block, pipelines in the order of their keys, between handshakes; its channels.
  template <class UnitOf>
  std::pair<nb::object, nb::object> write(const Block& block, const UnitOf& unit) {
    std::vector<std::tuple<bool, int, int>> own;
    for (int number : block)
      for (const int lane : works_[number].lanes) own.push_back(channel(number, lane));
    own = distinct(std::move(own));
    const auto inside = std::ranges::count_if(own, [](const auto& c) { return !std::get<0>(c); });
    Shakes shakes;
    std::vector<std::pair<const Pipe*, std::size_t>> pipes;  // with the number of its work
    Lists numbers;  // of each work: by lane, its channel
    for (int number : block) {
      const Work& work = works_[number];
      Ints& number_of = numbers.emplace_back(2 * problem_.ranks());
      for (const int lane : work.lanes)
        number_of[lane] = place_in(own, channel(number, lane));
      for (int kind : range(shakes))
        for (const int lane : work.shakes[kind]) shakes[kind].push_back(number_of[lane]);
      for (const int pipe : work.pipes) pipes.emplace_back(&pipelines_->pipes[pipe], numbers.size() - 1);
    }
    for (Ints& some : shakes) some = distinct(std::move(some));
    std::ranges::stable_sort(pipes, {}, [](const auto& pipe) { return pipe.first->key; });

    Objects steps;
    const auto add = [&](const Instructions& some) {
      for (const Instruction& i : some) steps.push_back(object(i, nullptr));
    };
    const auto shake = [&](Op op, Shake kind) {
      add(sync(op, shakes[kind], [&](int c) { return c < inside; }, problem_.limits.peers));
    };
    const Instructions barrier = {{Op::nop}};
    shake(Op::relaxed_signal, ready_to);
    shake(Op::relaxed_wait, ready_from);
    if (!shakes[ready_from].empty()) add(barrier);
    for (const auto& [pipe, work] : pipes) {
      add(pipe->before);
      const nb::object body = tuple_of(pipe->body, [&, at = work](const Instruction& i) { return object(i, &numbers[at]); });
      const nb::object chunks = nb::cast(pipe->chunks), bytes = nb::cast(unit(*pipe));
      steps.push_back(pipeline_({&body, &chunks, &bytes}));
      add(pipe->after);
    }
    // the barrier: all threads have read, written and waited before one of them says so
    if (!shakes[done_to].empty()) add(barrier);
    shake(Op::signal, done_to);
    shake(Op::wait, done_from);
    const auto same = [](const nb::object& step) { return step; };
    return {tuple_of(steps, same), tuple_of(own, [&](const auto& c) {
              nb::object& alike = channels_[c];
              const auto [far, peer, index] = c;
              if (!alike.is_valid()) alike = words_[class_channel](peer, words_[far ? far_kind : near_kind], index);
              return alike;
            })};
  }

  // An instruction with channels in place of lanes, if numbers are given. Signals, waits and barriers that are
  // alike share one object: there are few different ones.
  nb::object object(const Instruction& i, const Ints* numbers) {
    Ints channels = i.lanes;
    if (numbers)
      for (int& lane : channels) lane = numbers->at(lane);
    const bool plain = i.src.empty() && i.dst.empty();
    nb::object fresh;
    nb::object& alike = plain ? plain_[{i.op, channels, i.semaphores}] : fresh;
    if (!alike.is_valid()) {
      const auto number = [](int value) { return nb::cast(value); };
      const auto place = [&](const Place& ref) { return operand(ref); };
      const nb::object src = tuple_of(i.src, place), dst = tuple_of(i.dst, place);
      const nb::object on = tuple_of(channels, number), semaphores = tuple_of(i.semaphores, number);
      alike = instruction_({&words_[first_op + static_cast<int>(i.op)], &src, &dst, nullptr, &on, &semaphores});
    }
    return alike;
  }

  // Operands that are alike share one object, too.
  nb::object operand(const Place& place) {
    nb::object& alike = operands_[place];
    if (!alike.is_valid()) {
      const nb::object offset = nb::cast(place.offset), count = nb::cast(place.count);
      const nb::object rank = place.rank < 0 ? nb::none() : nb::cast(place.rank);
      alike = ref_({&words_[first_buffer + place.buffer], &offset, &count, &rank});
    }
    return alike;
  }

  Problem problem_;
  Objects words_;
  Factory instruction_, ref_, pipeline_;
  std::optional<Pipelines> pipelines_;
  ArcIndex at_;              // the number of a class's work at 2 * rank + half
  std::vector<Work> works_;
  Pairs places_;             // of each its class, and 2 * rank + half
  Lists by_place_;           // by 2 * rank + half, class by class
  std::vector<std::vector<Block>> blocks_;  // per rank
  std::vector<Ends> ends_;                  // of all channels, ascending
  std::map<std::tuple<bool, int, int>, nb::object> channels_;
  std::map<std::tuple<Op, Ints, Ints>, nb::object> plain_;
  std::map<Place, nb::object> operands_;
};

}  // namespace
}  // namespace onesided

void bind_onesided_blocks(nb::module_& m) {
  using onesided::OnesidedBlocks;
  nb::class_<OnesidedBlocks>(m, "OnesidedBlocks")
      .def(nb::init<nb::sequence, const Ints&, Amounts, Amounts, Ints, bool, bool,
                    const std::tuple<int, int, int, int, int, int>&, nb::sequence>())
      .def("groups", &OnesidedBlocks::groups)
      .def("deal", &OnesidedBlocks::deal)
      .def("program", &OnesidedBlocks::program);
}

}  // namespace forestcoll
