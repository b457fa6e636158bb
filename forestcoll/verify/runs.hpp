// Abstract runs: what happens in which order, and whether it gets stuck.

#pragma once

#include <string>

#include "atoms.hpp"

namespace forestcoll::verify {

struct FifoLimits {
  std::int64_t piece, queue;  // most chunks in a piece of a message; pieces that a connection holds
  int slices = 1, launches = 1;
  bool records = true;  // whether events are wanted: of one slice and launch
  bool finest = false;  // whether every location is taken by itself, and every order searched for
};

struct PacketsTwice {
  int line, earlier, atom;
};

// A run's trace, and where it went wrong: thread blocks that wait for ever, packets written twice, pieces of
// messages that are left over on a connection.
struct Outcome {
  Trace trace;
  std::vector<Waiting> stuck;
  std::optional<PacketsTwice> twice;
  std::int64_t steps = 0;
  std::int64_t left_over = 0;
  int left_from = -1;  // block that sent them
};

// One pass of a fifo program, or several without events. Of a receiving event the first crossing arrow comes
// from the event that sent its message.
Outcome run_fifo(const Code& code, const Atoms& atoms, const FifoLimits& limits);

// All launches of a onesided program, packets or not.
Outcome run_onesided(const Code& code, const Atoms& atoms, int launches);

// Atom by atom, what an operation on packets works on: the atoms of its sources, and of its targets.
struct Packet {
  std::vector<int> sources, targets;
};

std::vector<Packet> spread(const Columns& columns, const Instruction& i, std::span<const Span> sources,
                           std::span<const Span> targets);

}  // namespace forestcoll::verify
