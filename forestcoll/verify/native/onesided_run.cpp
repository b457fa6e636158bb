// An abstract run of a onesided program: launches, signals, packets, and which accesses they order.
//
// What orders what, as the runtime has it:
//
// * A thread block is many threads. Only a thread barrier (`nop`, `barrier`, the ends of a launch) orders what
//   they do: the instructions between two barriers are not ordered among themselves, so data instructions that
//   depend on each other, a wait and what reads the data it announces, and data and the signal that announces
//   it all need a `nop` in between.
// * A put through a port channel is done by somebody else, later. Later puts and signals of the same channel
//   come after it; its thread block knows of its end only by `flush`, or by being told by the receiver.
// * A relaxed signal or wait orders no data; it only says that the sender's launch has begun, hence that
//   everything before that launch at the sender's rank is over.
// * There is no barrier between launches: a rank may be a launch ahead of its peers. Between its launches its
//   caller does what it likes with input and output, which counts as writing both.
//
// The n-th wait takes the n-th signal (wiring.py made sure of one producer and one consumer each, and of
// equal counts). So a launch leaves all counters as it found them, every launch is ordered within as the first
// is, and what can collide with it does so in the next one: two launches show it all. Loops run `rounds`
// rounds on as many slices; two show every collision of neighbouring rounds.
//
// A packet (protocol LL) is a few bytes of data and the number of the launch that wrote it. Whoever reads one
// waits until it bears the number of its own launch, so no signal is needed:
//
// * A slot is written once a launch. A second packet of the same launch would be taken for the first.
// * A slot must not be written again before all its packets have been read: the number that a slow reader
//   waits for would never come back. With two halves of scratch launches take them by turns, so the next
//   launch leaves the packets of this one alone, the one after it does not.
// * A packet orders its own data, nothing else: it is written and read without a fence. What its writer *read*
//   before is over, for data depends on it; what its writer *wrote* elsewhere may not be seen yet. These are
//   the weak arrows of a trace: they settle whether something may be overwritten that was read before, and
//   nothing more. That a packet of a launch has come also says that this launch has begun at its writer, hence
//   that all before it is over there, as a relaxed signal does.
// * Packet by packet: a thread waits for its own packets only. So events are atoms, not operations.
// * What reads packets and writes plain data goes through its operands by one rule: thread t of T has the
//   elements t, t + T, ... from their begin (handleReduceSendPackets, handleReduceCopySendPackets,
//   handleUnpackPackets). So where two such operations of a thread block write just the same chunks, each
//   element has one thread, which does the second after the first: no barrier has to.

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "runs.hpp"

namespace forestcoll::verify {
namespace {

struct Token {  // the events that a signal comes after: all data before it, and its launch
  int data, begin;
};

struct End {  // of a channel, or a semaphore
  std::deque<Token> tokens;
  int waiting = -1, producer = -1;
  std::int64_t credit = 0;  // what is left of a semaphore's initial value
};

struct Tail {  // of a port channel: last event, thread barriers before it, the thread that pushed it
  int event, nops, pusher;
};

struct Barrier {
  std::vector<int> members, came;
};

struct OnesidedState {
  int line = 0, launch = 0;
  int begin = -1, sync = -1;           // the events that began the launch, and of the last thread barrier
  std::vector<int> open;      // events of own threads since then
  int nops = 0;                        // thread barriers so far
  std::map<int, Tail> tails;  // by channel
  std::optional<Blocked> blocked;
};

class OnesidedRun {
 public:
  OnesidedRun(const Code& code, const Atoms& atoms, int launches)
      : code_(code), columns_(code.columns), op_(columns_.op), atoms_(atoms), launches_(launches),
        states_(code.blocks()), ends_of_(columns_.channels.size()),
        peers_of_(columns_.channels.size()), semaphores_(columns_.semaphores.size()),
        running_(columns_.ranks.size()), caller_(columns_.ranks.size(), -1),
        proxies_(code.blocks() + columns_.rank_count()) {
    index();
  }

  Outcome run() {
    if (outcome_.twice) return std::move(outcome_);
    for (int r = 0; r < columns_.rank_count(); ++r) begin(r, 0, {});
    while (!ready_.empty()) {
      const int b = ready_.front();
      ready_.pop_front();
      states_[b].blocked.reset();
      advance(b, states_[b]);
    }
    for (int b = 0; b < code_.blocks(); ++b)
      if (states_[b].blocked) outcome_.stuck.push_back({b, *states_[b].blocked});
    return std::move(outcome_);
  }

 private:
  // --- who talks to whom

  int end(int rank, int peer, int port, int number) {
    const auto made = numbers_.try_emplace({rank, peer, port, number}, count_of(ends_));
    if (made.second) ends_.emplace_back();
    return made.first->second;
  }

  void index() {
    for (std::size_t s = 0; s < semaphores_.size(); ++s) semaphores_[s].credit = columns_.semaphores[s];
    for (int b = 0; b < code_.blocks(); ++b) {
      const Block& block = code_.block(b);
      for (int c = block.channels; c < block.channels + block.channel_count; ++c) {
        const Channel& channel = columns_.channels[c];
        ends_of_[c] = end(block.rank, channel.peer, channel.port, channel.index);
        peers_of_[c] = end(channel.peer, block.rank, channel.port, channel.index);
      }
      for (int l = code_.first[b]; l < code_.first[b + 1]; ++l) index(b, block, l);
    }
  }

  void index(int b, const Block& block, int l) {
    const Instruction& i = code_.at(l);
    const Operation& row = columns_.row(i);
    for (int k = 0; row.signals && k < i.channels; ++k) ends_[peer(block, i, k)].producer = b;
    for (int k = 0; i.op == op_.release && k < i.semaphores; ++k) semaphore(block, i, k).producer = b;
    if (i.op == op_.barrier) {
      auto& members = barriers_[{block.rank, i.ident}].members;
      if (members.empty() || members.back() != b) members.push_back(b);
    }
    if (!row.packets || outcome_.twice) return;
    if (writer_.empty()) {
      writer_.assign(atoms_.size(), -1);
      written_.resize(launches_ * writer_.size(), {-1, -1});
    }
    const auto targets = operands(l).subspan(i.sources);
    for (std::size_t k = std::min<std::size_t>(row.packet_dst, targets.size()); k < targets.size(); ++k)
      for (int atom = targets[k].low; atom < targets[k].high; ++atom) {
        if (writer_[atom] >= 0 && !outcome_.twice) outcome_.twice = {l, writer_[atom], atom};
        writer_[atom] = l;
      }
  }

  std::span<const Span> operands(int line) const {
    const auto& first = atoms_.operands.first;
    return {atoms_.operands.spans.data() + first[line], atoms_.operands.spans.data() + first[line + 1]};
  }
  int channel(const Block& block, const Instruction& i, int k) const {
    return block.channels + columns_.channels_of(i)[k];
  }
  int peer(const Block& block, const Instruction& i, int k) const { return peers_of_[channel(block, i, k)]; }
  End& semaphore(const Block& block, const Instruction& i, int k) {
    return semaphores_[columns_.ranks[block.rank].semaphores + columns_.semaphores_of(i)[k]];
  }

  // --- launches

  // Rank r's caller has its buffers back; then launch `launch` begins, if there is one.
  void begin(int r, int launch, std::vector<int> ends) {
    for (;; ++launch, ends.clear()) {
      const int at = outcome_.trace.add(~r, launch, launch, whole, code_.blocks() + r, caller_[r], ends);
      caller_[r] = at;
      if (launch == launches_) return;
      for (int b = columns_.ranks[r].blocks; b < columns_.ranks[r + 1].blocks; ++b) {
        if (!code_.length(b)) continue;
        OnesidedState& state = states_[b];
        state.line = code_.first[b];
        state.launch = launch;
        state.begin = state.sync = at;
        state.open.clear();
        ++state.nops;
        ++running_[r];
        ready_.push_back(b);
      }
      if (running_[r]) return;
    }
  }

  void finish(int b) {
    const int r = code_.block(b).rank;
    if (--running_[r]) return;
    std::vector<int> ends;
    for (int other = columns_.ranks[r].blocks; other < columns_.ranks[r + 1].blocks; ++other)
      if (code_.length(other)) {
        ends.push_back(states_[other].sync);
        append(ends, states_[other].open);
      }
    begin(r, states_[b].launch + 1, std::move(ends));
  }

  void advance(int b, OnesidedState& state) {
    for (; state.line < code_.first[b + 1]; ++state.line)
      if (!execute(b, state, code_.block(b), code_.at(state.line))) return;
    finish(b);
  }

  // Does one instruction; false when it has to wait.
  bool execute(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    const Operation& row = columns_.row(i);
    if (row.packets) return packets(b, state, block, i);
    if (i.op == op_.nop)
      nop(b, state);
    else if (row.waits)
      return wait(b, state, block, i);
    else if (row.signals && !row.put)
      for (int k = 0; k < i.channels; ++k) signal(b, state, block, i, k);
    else if (row.put)
      put(b, state, block, i);
    else if (row.data)
      state.open.push_back(event(b, state, whole, b, {}));
    else if (i.op == op_.flush)
      flush(b, state, block, i);
    else if (i.op == op_.barrier)
      return barrier(b, state, block, i);
    else if (i.op == op_.acquire)
      return acquire(b, state, block, i);
    else
      for (int k = 0; k < i.semaphores; ++k) {
        End& end = semaphore(block, i, k);
        end.tokens.push_back({state.sync, state.begin});
        wake(std::exchange(end.waiting, -1));
      }
    return true;
  }

  int event(int b, OnesidedState& state, int item, int chain, std::span<const int> cross) {
    return outcome_.trace.add(b, state.line, state.launch, item, chain, state.sync, cross);
  }

  void wake(int b) {
    if (b < 0 || !states_[b].blocked) return;
    states_[b].blocked.reset();
    ready_.push_back(b);
  }

  // --- thread barriers

  // One event after everything before it.
  void nop(int b, OnesidedState& state) {
    ++state.nops;
    if (state.open.empty()) return;
    state.sync = event(b, state, sync_only, b, state.open);
    state.open.clear();
  }

  void synchronise(const std::vector<int>& blocks) {
    std::vector<int> cross;
    const int last = blocks.back();
    for (int b : blocks) {
      ++states_[b].nops;
      append(cross, states_[b].open);
      if (b != last) cross.push_back(states_[b].sync);
    }
    const int at = event(last, states_[last], sync_only, last, cross);
    for (int b : blocks) {
      states_[b].sync = at;
      states_[b].open.clear();
    }
  }

  bool barrier(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    Barrier& here = barriers_[{block.rank, i.ident}];
    here.came.push_back(b);
    if (here.came.size() < here.members.size()) {
      const int missing = *std::ranges::find_if(here.members, [&](int m) {
        return std::ranges::find(here.came, m) == here.came.end();
      });
      state.blocked = {state.line, Need::barrier, i.ident, missing};
      return false;
    }
    synchronise(here.came);
    here.came.pop_back();
    for (int other : here.came) {
      ++states_[other].line;
      wake(other);
    }
    here.came.clear();
    return true;
  }

  // --- signals

  // What thread `position` may rely on to have been pushed through a port before it: -1, nothing.
  int tail(const OnesidedState& state, int c, int position) const {
    const auto it = state.tails.find(c);
    if (it == state.tails.end()) return -1;
    return it->second.pusher == position || it->second.nops != state.nops ? it->second.event : -1;
  }

  // An event of somebody who moves data, or signals, for a thread block.
  int proxy(int b, OnesidedState& state, int item, int c, int position) {
    const int before = tail(state, c, position);
    return event(b, state, item, proxies_++, {&before, before >= 0 ? 1U : 0U});
  }

  void deliver(int end, Token token) {
    ends_[end].tokens.push_back(token);
    wake(std::exchange(ends_[end].waiting, -1));
  }

  void put(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    if (!columns_.reads_by_port(block, i)) {
      state.open.push_back(event(b, state, whole, b, {}));
      return;
    }
    for (int k = 0; k < i.channels; ++k) {
      const int c = channel(block, i, k);
      if (!columns_.channels[c].port) {
        state.open.push_back(event(b, state, k, b, {}));
        continue;
      }
      const int made = proxy(b, state, k, c, k);
      state.tails[c] = {made, state.nops, k};
      if (columns_.row(i).signals) deliver(peers_of_[c], {made, state.begin});
      if (i.op == op_.put_signal_flush) state.open.push_back(event(b, state, sync_only, b, {&made, 1}));
    }
  }

  void signal(int b, OnesidedState& state, const Block& block, const Instruction& i, int k) {
    const int c = channel(block, i, k);
    if (i.op == op_.relaxed_signal) return deliver(peers_of_[c], {state.begin, state.begin});
    if (!columns_.channels[c].port) return deliver(peers_of_[c], {state.sync, state.begin});
    const int made = proxy(b, state, sync_only, c, k);
    state.tails[c] = {made, state.nops, k};
    deliver(peers_of_[c], {made, state.begin});
  }

  void flush(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    std::vector<int> cross;
    const auto add = [&](int c, int position) {
      if (const int before = tail(state, c, position); before >= 0) cross.push_back(before);
    };
    for (int k = 0; k < i.channels; ++k) add(channel(block, i, k), k);
    int position = 0;
    if (!i.channels)
      for (const auto& [c, tail] : state.tails) add(c, position++);
    state.open.push_back(event(b, state, sync_only, b, cross));
  }

  bool wait(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    for (int k = 0; k < i.channels; ++k) {
      const int c = channel(block, i, k);
      End& end = ends_[ends_of_[c]];
      if (!end.tokens.empty()) continue;
      end.waiting = b;
      state.blocked = {state.line, Need::signal, columns_.channels[c].peer, end.producer};
      return false;
    }
    std::vector<int> cross;
    for (int k = 0; k < i.channels; ++k) {
      auto& tokens = ends_[ends_of_[channel(block, i, k)]].tokens;
      cross.push_back(i.op == op_.relaxed_wait ? tokens.front().begin : tokens.front().data);
      tokens.pop_front();
    }
    state.open.push_back(event(b, state, sync_only, b, cross));
    return true;
  }

  bool acquire(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    for (int k = 0; k < i.semaphores; ++k) {
      End& end = semaphore(block, i, k);
      if (end.credit || !end.tokens.empty()) continue;
      end.waiting = b;
      state.blocked = {state.line, Need::semaphore, columns_.semaphores_of(i)[k], end.producer};
      return false;
    }
    std::vector<int> cross;
    for (int k = 0; k < i.semaphores; ++k) {
      End& end = semaphore(block, i, k);
      if (end.credit) {
        --end.credit;
      } else {
        cross.push_back(end.tokens.front().data);
        end.tokens.pop_front();
      }
    }
    state.open.push_back(event(b, state, sync_only, b, cross));
    return true;
  }

  // --- packets

  Token& written(int atom, int launch) { return written_[launch * writer_.size() + atom]; }

  bool packets(int b, OnesidedState& state, const Block& block, const Instruction& i) {
    const Operation& row = columns_.row(i);
    const auto all = operands(state.line);
    const auto sources = all.first(i.sources), targets = all.subspan(i.sources);
    const auto first = std::min<std::size_t>(row.packet_src, sources.size());
    if (!all_here(b, state, sources.subspan(first))) return false;
    if (i.op == op_.forward_packets && i.channels && columns_.channels[channel(block, i, 0)].port) {
      push(b, state, block, i, sources[0], targets);
      return true;
    }
    const auto plain = static_cast<std::size_t>(row.packet_dst);
    int item = 0;
    for (const Packet& one : spread(columns_, i, sources, targets)) {
      std::vector<int> before;
      const std::tuple thread{b, targets[0].low, targets[0].high, item};
      if (const auto it = threads_.find(thread); plain && it != threads_.end()) before.push_back(it->second);
      const auto packets = std::span(one.sources).subspan(std::min(first, one.sources.size()));
      const int made = read(b, state, item++, packets, std::move(before));
      if (plain) threads_[thread] = made;
      for (std::size_t k = std::min(plain, one.targets.size()); k < one.targets.size(); ++k)
        write(one.targets[k], state, made);
    }
    return true;
  }

  bool all_here(int b, OnesidedState& state, std::span<const Span> read) {
    for (const Span& span : read)
      for (int atom = span.low; atom < span.high; ++atom) {
        if (written(atom, state.launch).data >= 0) continue;
        readers_[{atom, state.launch}].insert(b);
        const int writer = writer_[atom];
        int on = -1;
        if (writer >= 0)
          on = static_cast<int>(std::ranges::upper_bound(code_.first, writer) -
                                code_.first.begin()) - 1;
        state.blocked = {state.line, Need::packets, atoms_.starts[atom], on};
        return false;
      }
    return true;
  }

  // The event that reads these packets and does the rest with them, after those `cross`.
  int read(int b, OnesidedState& state, int item, std::span<const int> atoms, std::vector<int> cross) {
    for (int atom : atoms) {
      const int begin = written(atom, state.launch).begin;
      if (std::ranges::find(cross, begin) == cross.end()) cross.push_back(begin);
    }
    const int made = event(b, state, item, b, cross);
    for (int atom : atoms) {
      outcome_.trace.weak_event.push_back(made);
      outcome_.trace.weak.push_back(written(atom, state.launch).data);
    }
    state.open.push_back(made);
    return made;
  }

  void write(int atom, OnesidedState& state, int event) {
    written(atom, state.launch) = {event, state.begin};
    const auto it = readers_.find({atom, state.launch});
    if (it == readers_.end()) return;
    for (int b : it->second) wake(b);
    readers_.erase(it);
  }

  // Over port channels: all threads wait, then a proxy sends what the packets have become.
  void push(int b, OnesidedState& state, const Block& block, const Instruction& i, Span source,
            std::span<const Span> targets) {
    for (int atom = source.low; atom < source.high; ++atom)
      read(b, state, sync_only, {&atom, 1}, {});
    nop(b, state);
    const int width = source.high - source.low;
    for (int k = 0; k < i.channels; ++k) {
      const int c = channel(block, i, k), before = tail(state, c, k);
      const int chain = proxies_++;
      std::vector<int> sent;
      for (int x = 0; x < targets[k].high - targets[k].low; ++x) {
        sent.push_back(event(b, state, k * width + x, chain, {&before, before >= 0 ? 1U : 0U}));
        write(targets[k].low + x, state, sent.back());
      }
      state.tails[c] = {event(b, state, sync_only, chain, sent), state.nops, k};
    }
  }

  const Code& code_;
  const Columns& columns_;
  const Names& op_;
  const Atoms& atoms_;
  const int launches_;
  std::vector<OnesidedState> states_;
  std::map<std::tuple<int, int, int, int>, int> numbers_;
  std::deque<End> ends_;
  std::vector<int> ends_of_, peers_of_;  // of each channel: its own end, the one at the peer
  std::vector<End> semaphores_;
  std::map<std::tuple<int, int>, Barrier> barriers_;
  std::vector<int> running_, caller_;
  int proxies_;  // the next chain of an asynchronous put
  std::deque<int> ready_;
  std::vector<int> writer_;  // line that writes packets to an atom
  std::vector<Token> written_;        // of each launch and atom: who wrote the packets, and that launch's begin
  std::map<std::tuple<int, int>, std::set<int>> readers_;  // who waits for packets of a launch
  // (thread block, chunks, which atom of them) -> who wrote that last in the course of packets
  std::map<std::tuple<int, int, int, int>, int> threads_;
  Outcome outcome_;
};

}  // namespace

Outcome run_onesided(const Code& code, const Atoms& atoms, int launches) {
  return OnesidedRun(code, atoms, launches).run();
}

std::vector<Packet> spread(const Columns& columns, const Instruction& i, std::span<const Span> sources,
                           std::span<const Span> targets) {
  std::vector<Packet> found;
  if (columns.row(i).adds) {  // all operands at once
    for (int k = 0; k < sources[0].high - sources[0].low; ++k) {
      found.emplace_back();
      for (const Span& s : sources) found.back().sources.push_back(s.low + k);
      for (const Span& t : targets) found.back().targets.push_back(t.low + k);
    }
    return found;
  }
  for (std::size_t t = 0; t < targets.size(); ++t)  // target by target
    for (int k = 0; k < targets[t].high - targets[t].low; ++k)
      found.push_back({{sources[sources.size() > 1 ? t : 0].low + k}, {targets[t].low + k}});
  return found;
}

}  // namespace forestcoll::verify
