// A few workers run many thread blocks until all are done or none can go on.

#pragma once

#include "machine.hpp"

namespace forestcoll {

// Makes teams, queues and states ready for a launch of which every block is in line.
void prepare_launch(Machine& machine);

// What worker `worker` does from the beginning of a launch to its end. Allocates nothing, throws
// nothing and calls nothing of Python: it may run in a process that was forked.
void run_worker(Machine& machine, int worker);

// Ends the launch for everybody; the first to come decides whether it is stuck.
void stop(Machine& machine, bool stuck);

}  // namespace forestcoll
