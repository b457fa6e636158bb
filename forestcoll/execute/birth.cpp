#include "birth.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <utility>

#include "shared.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FC_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FC_SANITIZED 1
#endif
#endif

namespace forestcoll {
namespace {

constexpr std::uintptr_t page = 1 << 16;     // a multiple of every page size
constexpr std::uintptr_t least = 1 << 20;    // bytes of a mapping that is looked at
constexpr std::uintptr_t large = 1 << 25;    // bytes; to let go of fewer is not worth a process
constexpr std::uintptr_t beside = 1 << 20;   // bytes on both sides of a thread pointer: its variables

using Range = std::pair<std::uintptr_t, std::uintptr_t>;  // first byte, byte behind the last

template <class T>
void add(std::vector<Range>& kept, const T* start, std::size_t n) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  if (n) kept.push_back({first / page * page, (first + n * sizeof(T) + page - 1) / page * page});
}

template <class T>
void add(std::vector<Range>& kept, const std::vector<T>& values) {
  add(kept, values.data(), values.size());
}

template <class T>
void add(std::vector<Range>& kept, const std::vector<std::vector<T>>& lists) {
  add(kept, lists.data(), lists.size());
  for (const auto& list : lists) add(kept, list);
}

// All ordinary memory that a rank reads, in order, without overlap. What is shared is kept anyway.
std::vector<Range> memory_of(const Machine& m) {
  std::vector<Range> all;
  add(all, &m, 1);
  add(all, m.plan.instructions);
  add(all, m.plan.operands);
  add(all, m.plan.dependencies);
  add(all, m.plan.names);
  add(all, m.plan.loops);
  add(all, m.plan.blocks);
  add(all, m.plan.writers);
  add(all, m.plan.readers);
  add(all, m.plan.semaphores);
  add(all, m.addresses);
  add(all, m.dependents);
  add(all, m.takers);
  add(all, m.members);
  add(all, m.packet_readers);
  add(all, m.tiles);
  add(all, m.pages);
  const auto self = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
  all.push_back({self - beside, self + beside});
  std::sort(all.begin(), all.end());
  std::vector<Range> merged;
  for (const Range& range : all)
    if (merged.empty() || range.first > merged.back().second)
      merged.push_back(range);
    else
      merged.back().second = std::max(merged.back().second, range.second);
  return merged;
}

// The caller's large private memory without a file: heaps and what Python's objects lie in. Not the
// mapping of the stack that this runs on.
std::vector<Range> private_memory() {
  std::vector<Range> found;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return found;
  char line[512];
  const auto here = reinterpret_cast<std::uintptr_t>(&line);
  while (std::fgets(line, sizeof line, maps)) {
    std::uintptr_t first, last;
    char rights[8];
    int name = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %*s %n", &first, &last, rights,
                    &name) != 3)
      continue;
    const bool unnamed = line[name] == 0 || line[name] == '\n';
    const bool heap = std::string_view(line + name).starts_with("[heap]");
    if ((unnamed || heap) && rights[1] == 'w' && rights[3] == 'p' && last - first >= least &&
        (here < first || here >= last))
      found.push_back({first, last});
  }
  std::fclose(maps);
  return found;
}

// What a rank has no use for; empty where that is little.
std::vector<Range> unneeded_memory([[maybe_unused]] const Machine& m) {
#ifdef FC_SANITIZED  // it keeps books on all memory in memory that looks like any other
  return {};
#else
  const std::vector<Range> kept = memory_of(m);
  std::vector<Range> found;
  std::uintptr_t bytes = 0;
  for (auto [first, last] : private_memory()) {
    auto keep = std::lower_bound(kept.begin(), kept.end(), first,
                                 [](const Range& range, auto at) { return range.second <= at; });
    for (; keep != kept.end() && keep->first < last; ++keep) {
      if (first < keep->first) found.push_back({first, keep->first});
      first = std::max(first, keep->second);
    }
    if (first < last) found.push_back({first, last});
  }
  for (const auto& [first, last] : found) bytes += last - first;
  return bytes < large ? std::vector<Range>{} : found;
#endif
}

// Shared with the process between, which must not read what it lets go of.
struct Report {
  std::atomic<std::int32_t> made{0}, error{0};
  pid_t* processes = nullptr;
  Range* unneeded = nullptr;
  std::size_t ranges = 0;
};

// In the process between: ranks are children of its parent, as if that had forked them itself.
[[noreturn]] void make_for_parent(Machine& m, Life live, const void* context, Report& report) {
  for (std::size_t i = 0; i < report.ranges; ++i) {
    const auto [first, last] = report.unneeded[i];
    munmap(reinterpret_cast<void*>(first), last - first);
  }
  for (int rank = 0; rank < m.workers; ++rank) {
    const long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    if (pid == 0) live(m, rank, context);
    if (pid < 0) {
      report.error.store(errno);
      break;
    }
    report.processes[rank] = static_cast<pid_t>(pid);
    report.made.store(rank + 1);
  }
  _exit(0);
}

Births make_by_another(Machine& m, Life live, const void* context,
                       const std::vector<Range>& unneeded) {
  Report* report = nullptr;
  const auto layout = [&](Carver& carver) {
    report = carver.array<Report>(1);
    pid_t* const processes = carver.array<pid_t>(static_cast<std::size_t>(m.workers));
    Range* const ranges = carver.array<Range>(unneeded.size());
    if (!report) return;
    report->processes = processes;
    report->unneeded = ranges;
  };
  Carver measure(nullptr);
  layout(measure);
  const Region memory(measure.used(), true);
  Carver cut(memory.start());
  layout(cut);
  report->ranges = unneeded.size();
  std::copy(unneeded.begin(), unneeded.end(), report->unneeded);
  const pid_t between = fork();
  if (between == 0) make_for_parent(m, live, context, *report);
  if (between < 0) return {{}, errno};
  while (waitpid(between, nullptr, 0) < 0 && errno == EINTR) {
  }
  const int count = report->made.load();
  int error = report->error.load();
  if (!error && count < m.workers) error = EAGAIN;  // it was killed: most likely for its memory
  return {{report->processes, report->processes + count}, error};
}

Births make_here(Machine& m, Life live, const void* context) {
  Births births;
  births.processes.reserve(static_cast<std::size_t>(m.workers));
  for (int rank = 0; rank < m.workers; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) live(m, rank, context);
    if (pid < 0) {
      births.error = errno;
      break;
    }
    births.processes.push_back(pid);
  }
  return births;
}

}  // namespace

Births make_ranks(Machine& machine, Life live, const void* context) {
  // Where addresses of functions are found when they are first called, a rank must not be the first.
  (void)Clock::now();
  const std::vector<Range> unneeded = unneeded_memory(machine);
  if (unneeded.empty() || machine.workers < 2) return make_here(machine, live, context);
  Births births = make_by_another(machine, live, context, unneeded);
  // Sandboxes may forbid to make a child for one's parent.
  const bool forbidden = births.error == EPERM || births.error == EINVAL || births.error == ENOSYS;
  return forbidden && births.processes.empty() ? make_here(machine, live, context) : births;
}

}  // namespace forestcoll
