// Ranks as processes: started without the memory that they never look at, their own memory mapped.

#include "launch.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FC_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FC_SANITIZED 1
#endif
#endif

namespace forestcoll {
namespace {

constexpr std::uintptr_t grain = 1 << 16;    // bytes; a multiple of every page size
constexpr std::uintptr_t noticed = 1 << 20;  // bytes of a mapping that is looked at
constexpr std::uintptr_t beside = 1 << 20;   // bytes on both sides of a thread pointer: its variables

using Range = std::pair<std::uintptr_t, std::uintptr_t>;  // first byte, byte behind the last

template <class T>
void add(std::vector<Range>& kept, const T* start, std::size_t n) {
  const auto first = reinterpret_cast<std::uintptr_t>(start);
  if (n) kept.push_back({first / grain * grain, (first + n * sizeof(T) + grain - 1) / grain * grain});
}

template <class T>
void add(std::vector<Range>& kept, const std::vector<T>& values) {
  add(kept, values.data(), values.size());
  if constexpr (requires(T list) { list.data(); })
    for (const auto& list : values) add(kept, list);
}

// All ordinary memory that a rank reads, in order, without overlap. What is shared is kept anyway.
std::vector<Range> memory_of(const Machine& m) {
  std::vector<Range> all;
  const auto keep = [&](const auto&... lists) { (add(all, lists), ...); };
  add(all, &m, 1);
  keep(m.plan.instructions, m.plan.operands, m.plan.dependencies, m.plan.names, m.plan.loops,
       m.plan.blocks, m.plan.writers, m.plan.readers, m.plan.semaphores, m.options.addresses,
       m.options.exact, m.options.epilogue.completes,
       m.options.epilogue.steps, m.exact, m.dependents, m.takers, m.members, m.packet_readers, m.pages, m.slots);
  const auto self = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
  all.push_back({self - beside, self + beside});
  std::ranges::sort(all);
  std::vector<Range> merged;
  for (const Range& range : all)
    if (merged.empty() || range.first > merged.back().second)
      merged.push_back(range);
    else
      merged.back().second = std::max(merged.back().second, range.second);
  return merged;
}

// The caller's large private memory without a file: heaps and what Python's objects lie in. Not the
// mapping of the stack that this runs on. Empty where the caller holds a network card's registers:
// its library may hide memory from forks, too, and would find it shown again.
std::vector<Range> private_memory() {
  std::vector<Range> found;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  if (!maps) return found;
  char line[512];
  const auto here = reinterpret_cast<std::uintptr_t>(&line);
  bool card = false;
  while (!card && std::fgets(line, sizeof line, maps)) {
    std::uintptr_t first, last;
    char rights[8];
    int name = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %*s %n", &first, &last, rights,
                    &name) != 3)
      continue;
    card = std::string_view(line + name).starts_with("/dev/infiniband/");
    const bool unnamed = line[name] == 0 || line[name] == '\n';
    const bool heap = std::string_view(line + name).starts_with("[heap]");
    if ((unnamed || heap) && rights[1] == 'w' && rights[3] == 'p' && last - first >= noticed &&
        (here < first || here >= last))
      found.push_back({first, last});
  }
  std::fclose(maps);
  return card ? std::vector<Range>{} : found;
}

// What a rank has no use for; empty where that is little.
std::vector<Range> unneeded_memory([[maybe_unused]] const Machine& m) {
#ifdef FC_SANITIZED  // it keeps books on all memory in memory that looks like any other
  return {};
#else
  if (m.options.user) return {};  // nobody knows what it reads
  const std::vector<Range> kept = memory_of(m);
  std::vector<Range> found;
  for (auto [first, last] : private_memory()) {
    auto keep = std::ranges::upper_bound(kept, first, {}, &Range::second);
    for (; keep != kept.end() && keep->first < last; ++keep) {
      if (first < keep->first) found.push_back({first, keep->first});
      first = std::max(first, keep->second);
    }
    if (first < last) found.push_back({first, last});
  }
  return found;
#endif
}

// Memory that no fork copies, for as long as this lives.
class Hidden {
 public:
  explicit Hidden(std::vector<Range> ranges) : ranges_(std::move(ranges)) { advise(MADV_DONTFORK); }
  ~Hidden() { advise(MADV_DOFORK); }
  Hidden(const Hidden&) = delete;
  Hidden& operator=(const Hidden&) = delete;

 private:
  void advise(int advice) const {  // where it is refused, a fork copies more
    for (const auto& [first, last] : ranges_)
      (void)madvise(reinterpret_cast<void*>(first), last - first, advice);
  }
  std::vector<Range> ranges_;
};

// fork() would look after the allocator's other arenas in the child, which has none of them.
pid_t fork_here() {
#ifdef FC_SANITIZED
  return fork();
#else
  return syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
#endif
}

constexpr Amount least = 1 << 16;  // bytes; fewer pages are found as cheaply when they are used
constexpr Amount most = 1 << 24;   // bytes at a time
constexpr Amount page = 4096;      // a divisor of every page size

struct Hull {
  Amount first = INT64_MAX, last = 0;  // chunks
};
using Hulls = std::map<std::pair<Amount, Amount>, Hull>;  // of (rank, buffer)

void add_operands(const Machine& m, const Block& block, bool messages_only, Hulls& hulls) {
  for (Index pc = block.begin; pc < block.end; ++pc) {
    const Instruction& in = m.plan.instructions[pc];
    if (messages_only && (in.op < Op::recv || in.op > Op::recv_reduce_copy_send)) continue;
    for (Index i = in.operands; i < in.operands + in.sources + in.targets; ++i) {
      const Operand& o = m.plan.operands[i];
      Hull& hull = hulls[{o.rank, o.buffer}];
      hull.first = std::min(hull.first, o.offset);
      hull.last = std::max(hull.last, o.offset + o.count);
    }
  }
}

void add_buffers(const Options& options, const Hulls& hulls, std::vector<Area>& list) {
  const Amount all = options.addresses.size();
  for (const auto& [place, hull] : hulls)
    for (auto at = place.first * addresses_each; at < all; at += options.ranks * addresses_each) {
      byte* const start = options.addresses[at + place.second];
      const Amount chunk = options.geometry.chunk_bytes, bytes = (hull.last - hull.first) * chunk;
      if (bytes >= least) list.push_back({start + hull.first * chunk, bytes});
    }
}

// Most of a slot stays untouched where messages are short: then its few pages are found in use.
void add_slots(const Machine& m, Index connection, std::vector<Area>& list) {
  const Geometry& g = m.options.geometry;
  const Amount message = g.slices > 1 ? g.slice_bytes : g.piece_chunks * g.chunk_bytes;
  const Amount bytes = m.options.slots * m.slot_stride();
  if (2 * message >= m.options.slot_bytes && bytes >= least)
    list.push_back({m.slots[connection], bytes});
}

}  // namespace

int start_processes(Machine& machine, Life live, const void* context, std::vector<pid_t>& ids) {
  // Where addresses of functions are found when they are first called, a rank must not be the first.
  (void)Clock::now();
  ids.reserve(machine.workers);
  const Hidden hidden(unneeded_memory(machine));
  for (int rank = 0; rank < machine.workers; ++rank) {
    const pid_t pid = fork_here();
    if (pid == 0) live(machine, rank, context);
    if (pid < 0) return errno;
    ids.push_back(pid);
  }
  return 0;
}

void list_pages(Machine& m) {
  std::vector<Hulls> hulls(m.options.ranks);
  m.pages.resize(hulls.size());
  for (const Block& block : m.plan.blocks)
    add_operands(m, block, false, hulls[block.rank]);
  for (Index c = 0; c < m.connection_count(); ++c) {
    const Block& reader = m.plan.blocks[m.plan.readers[c]];
    const Block& writer = m.plan.blocks[m.plan.writers[c]];
    add_operands(m, reader, true, hulls[writer.rank]);
    for (const Index rank : {writer.rank, reader.rank})
      add_slots(m, c, m.pages[rank]);
  }
  for (int rank = 0; rank < m.options.ranks; ++rank)
    add_buffers(m.options, hulls[rank], m.pages[rank]);
}

void map_pages(Machine& m, int rank) {
  for (const Area& area : m.pages[rank])
    for (Amount done = 0; done < area.bytes; done += most) {
      const auto begin = reinterpret_cast<std::uintptr_t>(area.start + done) / page * page;
      const auto end =
          reinterpret_cast<std::uintptr_t>(area.start + std::min(done + most, area.bytes));
      // Where the system cannot, pages are found when they are used.
      (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
      m.queues[rank].ticks.add();
    }
}

}  // namespace forestcoll
