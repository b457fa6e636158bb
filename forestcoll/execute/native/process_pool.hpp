// Ranks as processes that run launch after launch.

#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "launch.hpp"

namespace forestcoll {
namespace {

// A rank is stopped by its parent, not by Ctrl-C, which reaches all processes of a terminal at once;
// handlers of the parent's (Python's) make no sense here.
void reset_signals(const sigset_t& mask) {
  for (int number = 1; number < 32; ++number)
    if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL);
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

// "rank 12", as tools show it. snprintf would look at the locale, which lies in the caller's heap.
void set_name(int rank) {
  char name[16] = "rank ";
  const std::size_t first = 5;
  std::size_t end = first;
  do name[end++] = '0' + rank % 10;
  while ((rank /= 10) && end + 1 < sizeof name);
  std::reverse(name + first, name + end);
  prctl(PR_SET_NAME, name);
}

// Blocks all signals of this thread for as long as it exists.
struct Blocked {
  sigset_t before;
  Blocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
  }
  ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
};

// What a rank's process is told by the one that makes the pool.
struct Origin {
  pid_t parent;
  std::uint32_t seen;  // number of the last launch
  sigset_t mask;       // signals that were blocked before
};

// The life of a rank's process. It must not allocate: another thread may have held the allocator's
// lock when this process was forked, and of ordinary memory it has what process_start.cpp lists.
void live(Machine& m, int rank, const void* context) {
  const Origin& origin = *static_cast<const Origin*>(context);
  std::uint32_t seen = origin.seen;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != origin.parent) _exit(1);  // it died before this one could ask to follow it
  set_name(rank);
  reset_signals(origin.mask);
  Control& control = *m.control;
  map_pages(m, rank);
  for (;;) {
    while (control.launch.load() == seen) sleep_while(control.launch, seen);
    seen = control.launch.load();
    run_worker(m, rank);
    control.parked.fetch_add(1);
    wake_sleepers(control.parked);
  }
}

Death death_of(int rank, pid_t pid, int status) {
  if (WIFSIGNALED(status)) return {rank, pid, WTERMSIG(status), 0};
  return {rank, pid, 0, WEXITSTATUS(status)};
}

// The letter that /proc has for what a process does; 0: none.
char state_of(pid_t pid) {
  char path[32], line[512];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  std::FILE* const file = std::fopen(path, "r");
  if (!file) return 0;
  const std::size_t n = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[n] = 0;
  const char* const after = std::strrchr(line, ')');
  return after && after[1] ? after[2] : 0;
}

}  // namespace

// One process for each rank, forked from this one, that runs launch after launch. They share memory
// with their parent and each other and nothing else; none outlives its parent, and all are gone, and
// waited for, when the pool is.
class ProcessPool {
 public:
  // Everything that the machine refers to must stay as it is for as long as the pool exists.
  // std::system_error: a process cannot be made.
  explicit ProcessPool(Machine& machine) {
    int error;
    {
      const Blocked blocked;  // no handler of ours in a child
      const Origin origin{getpid(), machine.control->launch.load(), blocked.before};
      error = start_processes(machine, live, &origin, pids_);
    }
    if (!error) return;
    kill();
    throw std::system_error(error, std::generic_category(),
                            "cannot make a process for rank " + std::to_string(pids_.size()));
  }
  ~ProcessPool() { kill(); }
  ProcessPool(const ProcessPool&) = delete;
  ProcessPool& operator=(const ProcessPool&) = delete;

  // The first rank found dead.
  std::optional<Death> death() {
    for (int rank = 0; rank < std::ssize(pids_); ++rank) {
      if (!pids_[rank]) continue;
      int status = 0;
      const pid_t found = waitpid(pids_[rank], &status, WNOHANG);
      if (found == 0 || (found < 0 && errno == EINTR)) continue;
      const pid_t pid = pids_[rank];
      pids_[rank] = 0;
      // Without `found`, somebody else has waited for it: it is dead, nobody knows why.
      if (found < 0) return Death{rank, pid, 0, -1};
      return death_of(rank, pid, status);
    }
    return std::nullopt;
  }

  // Ranks whose processes are stopped (SIGSTOP, debuggers).
  std::vector<Death> halted() const {
    std::vector<Death> found;
    for (int rank = 0; rank < std::ssize(pids_); ++rank) {
      const char state = pids_[rank] ? state_of(pids_[rank]) : 0;
      if (state == 'T' || state == 't') found.push_back({rank, pids_[rank], 0, 0});
    }
    return found;
  }

  // All, and waits for them.
  void kill() {
    for (const pid_t pid : pids_)
      if (pid) ::kill(pid, SIGKILL);
    for (pid_t& pid : pids_) {
      while (pid && waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      pid = 0;
    }
  }

 private:
  std::vector<pid_t> pids_;  // 0: dead and waited for
};

}  // namespace forestcoll
