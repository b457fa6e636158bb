// A rank's process finds its memory's pages before the clock starts, not one by one while it copies.

#pragma once

#include "machine.hpp"

namespace forestcoll {

// Lists, for every rank, the memory that its process reaches in a launch: what its instructions name,
// where its messages may land, its connections' slots.
void list_pages(Machine& machine);

// In the process of `rank`: maps all of it. Allocates nothing; counts as progress.
void map_pages(Machine& machine, int rank);

}  // namespace forestcoll
