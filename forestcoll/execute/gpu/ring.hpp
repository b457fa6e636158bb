// How a thread block of a GPU tells its host what is to go to other nodes: a ring in memory of the host,
// pinned and coherent, which one thread writes and the host empties (relay.hpp).

#pragma once

#include "../native/tables.hpp"

namespace forestcoll {

constexpr Count ring_entries = 64;
constexpr Amount piece = 256 << 10;  // bytes of an entry, at most
// Bytes of a thread block's own memory in which it makes packets for other nodes, by turns in each half.
constexpr Amount packets_made = 64 << 10;

// Of an effect (wire.hpp).
struct RingEntry {
  Number number;
  Index object;              // connection, semaphore or rank
  const unsigned char* own;  // the bytes: in the GPU's memory
  const unsigned char* far;  // where they go, in the address space that stands for other nodes' arenas
  // Written last (release, system scope): bytes << 32 | the entry's place, from 1, among those of all
  // rings. Who has heard of another entry comes after it, and the host goes by these places.
  Count last;
};
static_assert(sizeof(RingEntry) == 32);

struct Ring {
  RingEntry entries[ring_entries];
  Count completed;  // how many of them the host is done with: their bytes have been read
  Count apart[7];   // from the next one
};

}  // namespace forestcoll
