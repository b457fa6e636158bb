// An abstract run of a fifo program.
//
// A message is cut into pieces of at most `piece` chunks, as finely as the runtime does at the largest size
// that the program serves; a connection holds at most `queue` pieces, and a sender blocks while it is full.
// (Smaller sizes mean coarser pieces, which block less and order more.) Queues are counted in real pieces;
// events are as coarse as atoms.cpp allows. One pass over the instruction lists stands for all:
//
// * Slices. The lists are repeated for slice after slice of every chunk. Slices touch disjoint memory, a
//   dependency stays within its slice, and a pass leaves every connection empty. So any slice's events are
//   ordered exactly as in a pass of its own; and since doing slice after slice is one legal order, and in a
//   network of this kind one complete run means that all complete, more slices cannot get stuck either.
// * Launches. Ranks touch only their own memory, so by the same argument a rank that is a launch ahead only
//   finds its messages queued.

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <unordered_map>

#include "runs.hpp"

namespace forestcoll::verify {
namespace {

struct Connection {
  int sender = -1, receiver = -1;
  std::int64_t free = 0, queued = 0;
  std::deque<int> events;  // of the sender; the receiver's are still to come
};

struct Step {
  int line;
  bool receives, sends;
  std::int64_t pieces;
  int events, low;  // how many events it has, and its first atom
};

struct FifoState {
  Connection *into = nullptr, *out = nullptr;
  int line = 0, event = 0, last = -1;  // where it is; events of that; its last event of all
  std::int64_t piece = 0;              // of the current line
  std::vector<int> cross;  // what the step's first event comes after
  std::optional<Blocked> blocked;
};

class FifoRun {
 public:
  FifoRun(const Code& code, const Atoms& atoms, const Messages& messages)
      : code_(code), atoms_(atoms), messages_(messages), states_(code.blocks()), ends_(code.lines.size()) {
    outcome_.trace.piece = messages.piece;
    connect();
  }

  Outcome run() {
    for (int b = 0; b < code_.blocks(); ++b) {
      states_[b].line = code_.first[b];
      ready_.push_back(b);
    }
    while (!ready_.empty()) {
      const int b = ready_.front();
      ready_.pop_front();
      states_[b].blocked.reset();
      advance(b);
    }
    for (int b = 0; b < code_.blocks(); ++b)
      if (states_[b].blocked) outcome_.stuck.push_back({b, *states_[b].blocked});
    return std::move(outcome_);
  }

 private:
  void connect() {
    for (int b = 0; b < code_.blocks(); ++b) {
      const Block& block = code_.block(b);
      if (block.send >= 0) {
        states_[b].out = &connections_[{block.rank, block.send, block.channel}];
        states_[b].out->sender = b;
      }
      if (block.recv >= 0) {
        states_[b].into = &connections_[{block.recv, block.rank, block.channel}];
        states_[b].into->receiver = b;
      }
    }
    for (auto& [key, connection] : connections_) connection.free = messages_.queue;
  }

  Step step(int b) const {
    const int line = states_[b].line;
    const Operation& row = code_.columns.row(code_.at(line));
    if (!row.receives && !row.sends) return {line, false, false, 1, 1, 0};
    const Span atoms = atoms_.operands.spans[atoms_.operands.first[line]];
    const std::int64_t chunks = atoms_.starts[atoms.high] - atoms_.starts[atoms.low];
    const std::int64_t pieces = (chunks + messages_.piece - 1) / messages_.piece;
    const int events = messages_.piece > 1 ? static_cast<int>(pieces) : atoms.high - atoms.low;
    return {line, row.receives, row.sends, pieces, events, atoms.low};
  }

  // Runs a thread block until it ends or has to wait; wakes those who waited for it.
  void advance(int b) {
    FifoState& state = states_[b];
    for (; state.line < code_.first[b + 1]; ++state.line) {
      const Step s = step(b);
      if (!state.piece && !after(b, state, s)) return;
      if (!s.receives && !s.sends)
        event(b, state, s, whole, -1);
      else if (state.piece < s.pieces && !message(b, state, s))
        return;
      state.piece = state.event = 0;
      state.cross.clear();
      ends_[s.line] = state.last;
      if (const auto it = waiting_.find(s.line); it != waiting_.end()) {
        append(ready_, it->second);
        waiting_.erase(it);
      }
    }
  }

  // Whether all that the step comes after is done.
  bool after(int b, FifoState& state, const Step& s) {
    const Instruction& i = code_.at(s.line);
    state.cross.clear();
    for (int k = 0; k < i.afters; ++k) {
      const After& a = code_.columns.after[i.after + k];
      const int target = code_.columns.ranks[code_.block(b).rank].blocks + a.block;
      if (target == b) continue;
      const int line = code_.first[target] + a.step;
      if (states_[target].line <= line) {
        waiting_[line].push_back(b);
        state.blocked = {s.line, Need::step, line, target};
        return false;
      }
      state.cross.push_back(ends_[line]);
    }
    return true;
  }

  // Moves pieces until the step's last; false when the block has to wait before that.
  bool message(int b, FifoState& state, const Step& s) {
    Connection* into = s.receives ? state.into : nullptr;
    Connection* out = s.sends ? state.out : nullptr;
    while (state.piece < s.pieces) {
      std::int64_t many = s.pieces - state.piece;
      if (into && !(many = std::min(many, into->queued))) {
        state.blocked = {s.line, Need::message, code_.block(b).recv, into->sender};
        return false;
      }
      if (out) {
        if (!into && hand_over(*out, out->receiver, Need::message)) continue;
        many = std::min(many, out->free);
        if (!many) {
          state.blocked = {s.line, Need::space, code_.block(b).send, out->receiver};
          return false;
        }
      }
      move(b, state, s, many);
      if (into) {
        into->queued -= many;
        into->free += many;
        if (!out && state.piece < s.pieces) hand_over(*into, into->sender, Need::space);
        wake(into->sender);
      }
      if (out) {
        out->queued += many;
        out->free -= many;
        wake(out->receiver);
      }
    }
    return true;
  }

  // Lets sender and receiver finish a message together, if both do nothing but that. `other` is one of them;
  // it has to wait in the middle of it, and the queue is empty. Piece by piece they would come to the same.
  bool hand_over(Connection& connection, int other, Need waits_for) {
    if (other < 0) return false;
    const auto& blocked = states_[other].blocked;
    if (!blocked || blocked->need != waits_for || connection.queued) return false;
    const Step send = step(connection.sender), take = step(connection.receiver);
    if (send.receives || take.sends) return false;
    FifoState &sender = states_[connection.sender], &receiver = states_[connection.receiver];
    const std::int64_t many = send.pieces - sender.piece;
    move(connection.sender, sender, send, many);
    move(connection.receiver, receiver, take, many);
    wake(other);
    return true;
  }

  // Adds the events that begin with the next `many` pieces.
  void move(int b, FifoState& state, const Step& s, std::int64_t many) {
    const std::int64_t end = state.piece + many;
    const auto begins = [&](int k) -> std::int64_t {
      return messages_.piece > 1 ? k : atoms_.starts[s.low + k] - atoms_.starts[s.low];
    };
    while (state.event < s.events && begins(state.event) < end) {
      int sent = -1;
      if (s.receives) {
        sent = state.into->events.front();
        state.into->events.pop_front();
      }
      const int made = event(b, state, s, state.event, sent);
      if (s.sends) state.out->events.push_back(made);
      ++state.event;
    }
    state.piece = end;
  }

  int event(int b, FifoState& state, const Step& s, int item, int sent) {
    if (sent >= 0) state.cross.insert(state.cross.begin(), sent);
    state.last = outcome_.trace.add(b, s.line, 0, item, b, state.last, state.cross);
    state.cross.clear();
    return state.last;
  }

  // Lets `b` look again, unless it waits for a dependency and will be woken by that.
  void wake(int b) {
    if (b < 0 || !states_[b].blocked || states_[b].blocked->need == Need::step) return;
    states_[b].blocked.reset();
    ready_.push_back(b);
  }

  const Code& code_;
  const Atoms& atoms_;
  const Messages messages_;
  std::vector<FifoState> states_;
  std::vector<int> ends_;  // last event of each line
  std::map<std::tuple<int, int, int>, Connection> connections_;
  std::unordered_map<int, std::vector<int>> waiting_;  // for a line
  std::deque<int> ready_;
  Outcome outcome_;
};

}  // namespace

Outcome run_fifo(const Code& code, const Atoms& atoms, const Messages& messages) {
  return FifoRun(code, atoms, messages).run();
}

}  // namespace forestcoll::verify
