// A launch: workers run many thread blocks until all are done or none can go on. Workers are threads,
// or processes, one a rank (process_start.cpp, process_pool.hpp).

#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "machine.hpp"

namespace forestcoll {

// Runs the plan once, with the addresses of `turn`. When `caller.poll` returns true the launch is
// interrupted. After a launch that was not done the machine is of no more use.
Result launch(Machine& machine, int turn, const Caller& caller);
// With other processes; by any thread.
Activity activity(const Machine& machine);
void end(Machine& machine, Status status);  // of this launch

// Ends the processes of ranks, if there are any.
void end_processes(Machine& machine);

// Makes teams, queues and states ready for a launch of which every block is in line.
void prepare_launch(Machine& machine);

// What worker `worker` does from the beginning of a launch to its end. Allocates nothing, throws
// nothing and calls nothing of Python: it may run in a process that was forked.
void run_worker(Machine& machine, int worker);

// Ends the launch for everybody; the first to come decides whether it is stuck.
void stop(Machine& machine, bool stuck);

// A rank's process finds its memory's pages before the clock starts, not one by one while it copies.

// Lists, for every rank, the memory that its process reaches in a launch: what its instructions name,
// where its messages may land, its connections' slots.
void list_pages(Machine& machine);

// In the process of `rank`: maps all of it. Allocates nothing; counts as progress.
void map_pages(Machine& machine, int rank);

// Processes are forked without the memory that ranks never look at: a fork copies the page tables of
// all memory of its process, and what the parent writes meanwhile, milliseconds for a hundred
// megabytes, once for every rank. So what no rank needs of the caller's memory (a network, a
// notebook's arrays) is hidden from forks while they are made.

// A process for each rank, which calls `live` (never returns, allocates nothing); all signals are
// blocked meanwhile in the caller and in them. No other thread may fork meanwhile.
using Life = void (*)(Machine& machine, int rank, const void* context);
// `ids`: of ranks 0, 1, ...; all, unless there is an error, which is returned (errno).
int start_processes(Machine& machine, Life live, const void* context, std::vector<pid_t>& ids);

}  // namespace forestcoll
