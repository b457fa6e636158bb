#include "crew.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "pages.hpp"
#include "scheduler.hpp"

namespace forestcoll {
namespace {

pid_t thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// A rank is stopped by its parent, not by Ctrl-C, which reaches all processes of a terminal at once;
// handlers of the parent's (Python's) make no sense here.
void reset_signals(const sigset_t& mask) {
  for (int number = 1; number < 32; ++number)
    if (number != SIGKILL && number != SIGSTOP) signal(number, SIG_DFL);
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

// The life of a rank's process. It must not allocate: another thread may have held the allocator's
// lock when this process was forked.
[[noreturn]] void live(Machine& m, int rank, pid_t parent, std::uint32_t seen, const sigset_t& mask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before this one could ask to follow it
  char name[16];
  std::snprintf(name, sizeof name, "rank %d", rank);
  prctl(PR_SET_NAME, name);
  reset_signals(mask);
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
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  std::FILE* const file = std::fopen(path, "r");
  if (!file) return 0;
  const std::size_t n = std::fread(line, 1, sizeof line - 1, file);
  std::fclose(file);
  line[n] = 0;
  const char* const after = std::strrchr(line, ')');
  return after && after[1] ? after[2] : static_cast<char>(0);
}

}  // namespace

Crew::Crew(Machine& machine) : machine_(machine), thread_(thread_id()) {
  const pid_t parent = getpid();
  const std::uint32_t seen = machine.control->launch.load();
  pids_.reserve(static_cast<std::size_t>(machine.workers));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // no handler of ours in a child
  int error = 0;
  for (int rank = 0; rank < machine.workers && !error; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) live(machine, rank, parent, seen, before);
    if (pid < 0)
      error = errno;
    else
      pids_.push_back(pid);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!error) return;
  kill();
  throw std::system_error(error, std::generic_category(),
                          "cannot make a process for rank " + std::to_string(pids_.size()));
}

Crew::~Crew() { kill(); }

void Crew::begin() {
  machine_.control->launch.fetch_add(1);
  wake_sleepers(machine_.control->launch);
}

std::optional<Death> Crew::death() {
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    if (!pids_[rank]) continue;
    int status = 0;
    const pid_t found = waitpid(pids_[rank], &status, WNOHANG);
    if (found == 0 || (found < 0 && errno == EINTR)) continue;
    const pid_t pid = pids_[rank];
    pids_[rank] = 0;
    // Without `found`, somebody else has waited for it: it is dead, nobody knows why.
    if (found < 0) return Death{static_cast<int>(rank), pid, 0, -1};
    return death_of(static_cast<int>(rank), pid, status);
  }
  return std::nullopt;
}

std::vector<Death> Crew::halted() const {
  std::vector<Death> found;
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    const char state = pids_[rank] ? state_of(pids_[rank]) : static_cast<char>(0);
    if (state == 'T' || state == 't')
      found.push_back({static_cast<int>(rank), pids_[rank], 0, 0});
  }
  return found;
}

void Crew::kill() {
  for (const pid_t pid : pids_)
    if (pid) ::kill(pid, SIGKILL);
  for (pid_t& pid : pids_) {
    while (pid && waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid = 0;
  }
}

bool Crew::parked() const {
  return machine_.control->parked.load() == static_cast<std::uint32_t>(machine_.workers);
}

bool Crew::mine() const { return thread_ == thread_id(); }

}  // namespace forestcoll
