#include "pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <map>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace forestcoll {
namespace {

constexpr std::int64_t least = 1 << 16;  // bytes; fewer pages are found as cheaply when they are used
constexpr std::int64_t most = 1 << 24;   // bytes at a time
constexpr std::int64_t page = 4096;      // a divisor of every page size

struct Hull {
  std::int64_t first = INT64_MAX, last = 0;  // chunks
};
using Hulls = std::map<std::pair<std::int64_t, std::int64_t>, Hull>;  // of (rank, buffer)

void add_operands(const Machine& m, const Block& block, bool messages_only, Hulls& hulls) {
  for (std::int32_t pc = block.begin; pc < block.end; ++pc) {
    const Instruction& in = m.plan.instructions[static_cast<std::size_t>(pc)];
    const Op op = static_cast<Op>(in.op);
    if (messages_only && (op < Op::recv || op > Op::recv_reduce_copy_send)) continue;
    for (std::int32_t i = in.operands; i < in.operands + in.sources + in.targets; ++i) {
      const Operand& o = m.plan.operands[static_cast<std::size_t>(i)];
      Hull& hull = hulls[{o.rank, o.buffer}];
      hull.first = std::min(hull.first, o.offset);
      hull.last = std::max(hull.last, o.offset + o.count);
    }
  }
}

void add_buffers(const Machine& m, const Hulls& hulls, std::vector<Tile>& list) {
  const std::size_t turns = m.addresses.size() / addresses_each / static_cast<std::size_t>(m.ranks);
  for (const auto& [place, hull] : hulls)
    for (std::size_t turn = 0; turn < turns; ++turn) {
      const auto rank = static_cast<std::size_t>(place.first) + turn * static_cast<std::size_t>(m.ranks);
      byte* const start = m.addresses[rank * addresses_each + static_cast<std::size_t>(place.second)];
      const std::int64_t bytes = (hull.last - hull.first) * m.geometry.chunk_bytes;
      if (bytes >= least) list.push_back({start + hull.first * m.geometry.chunk_bytes, bytes});
    }
}

// Most of a slot stays untouched where messages are short: then its few pages are found in use.
void add_slots(const Machine& m, std::size_t connection, std::vector<Tile>& list) {
  const Geometry& g = m.geometry;
  const std::int64_t message = g.slices > 1 ? g.slice_bytes : g.piece_chunks * g.chunk_bytes;
  const std::int64_t bytes = m.options.slots * m.options.slot_bytes;
  if (2 * message >= m.options.slot_bytes && bytes >= least)
    list.push_back({m.slot_bytes + static_cast<std::int64_t>(connection) * bytes, bytes});
}

}  // namespace

void list_pages(Machine& m) {
  std::vector<Hulls> hulls(static_cast<std::size_t>(m.ranks));
  m.pages.assign(static_cast<std::size_t>(m.ranks), {});
  for (const Block& block : m.plan.blocks)
    add_operands(m, block, false, hulls[static_cast<std::size_t>(block.rank)]);
  for (std::size_t c = 0; c < m.plan.writers.size(); ++c) {
    const Block& reader = m.plan.blocks[static_cast<std::size_t>(m.plan.readers[c])];
    const Block& writer = m.plan.blocks[static_cast<std::size_t>(m.plan.writers[c])];
    add_operands(m, reader, true, hulls[static_cast<std::size_t>(writer.rank)]);
    for (const std::int32_t rank : {writer.rank, reader.rank})
      add_slots(m, c, m.pages[static_cast<std::size_t>(rank)]);
  }
  for (std::size_t rank = 0; rank < hulls.size(); ++rank)
    add_buffers(m, hulls[rank], m.pages[rank]);
}

void map_pages(Machine& m, int rank) {
  for (const Tile& tile : m.pages[static_cast<std::size_t>(rank)])
    for (std::int64_t done = 0; done < tile.bytes; done += most) {
      const auto begin = reinterpret_cast<std::uintptr_t>(tile.start + done) / page * page;
      const auto end =
          reinterpret_cast<std::uintptr_t>(tile.start + std::min(done + most, tile.bytes));
      // Where the system cannot, pages are found when they are used.
      (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
      m.queues[rank].ticks.add();
    }
}

}  // namespace forestcoll
