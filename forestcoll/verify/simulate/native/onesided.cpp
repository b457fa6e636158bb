// Threads of a onesided program (MSCCL++): puts, reads, signals, loops, packets, switches.
//
// A thread block does one operation after the other. It puts to one destination after the other
// (microsoft/mscclpp 1f5f065d, execution_kernel.hpp: handlePut loops over them), and reads what it adds up from
// all sources at once. What goes through a port is moved by a proxy, each channel's in order, while the thread
// block goes on. Reads of packets wait until all that wrote them are here.

#include <algorithm>
#include <set>
#include <unordered_map>

#include "coders.hpp"

namespace forestcoll::simulate {
namespace {

using verify::Block;
using verify::Channel;
using verify::Columns;
using verify::Instruction;
using verify::Operand;
using verify::own_rank;

constexpr double packet_bytes = 2;  // on a link for each byte of data in packets: the rest is flags

class OnesidedCoder {
 public:
  OnesidedCoder(const Columns& columns, const Rates& rates, Fabric& fabric, Threads& threads)
      : columns_(columns), rates_(rates), fabric_(fabric), threads_(threads) {
    threads.rate = rates.block * 1000;
  }

  void write();

 private:
  friend class Writer;

  // The counter of signals that have come to `rank`'s end of a channel.
  int signals(int rank, int peer, int port, int index) { return counter(signals_, {rank, peer, port, index}); }
  // The counter of thread blocks that have come to a barrier.
  int barrier(int rank, int ident) { return counter(barriers_, {rank, ident}); }

  template <class Key>
  int counter(std::map<Key, int>& table, const Key& key) {
    const auto it = table.find(key);
    return it != table.end() ? it->second : table[key] = threads_.counter();
  }

  const Columns& columns_;
  const Rates& rates_;
  Fabric& fabric_;
  Threads& threads_;
  std::map<std::tuple<int, int, int, int>, int> signals_;
  std::map<std::pair<int, int>, int> barriers_;
  std::unordered_map<std::int64_t, std::vector<int>> packets_;  // by rank and chunk: who writes them
  std::unordered_map<int, std::vector<int>> written_;           // by instruction: a counter a destination
  std::vector<int> semaphores_;
};

// Writes one thread block's thread, and those of its ports.
class Writer {
 public:
  Writer(OnesidedCoder& all, const Block& block)
      : all_(all), columns_(all.columns_), rates_(all.rates_), fabric_(all.fabric_), block_(block),
        thread_(all.threads_.thread(block.rank, block.number)) {}

  void write() {
    int step = -1;
    for (int k = block_.begin; k < block_.end; ++k) {
      const Instruction& i = columns_.instructions[k];
      if (i.step != step) begin(i);
      step = i.step;
      thread_.origin = {i.step, i.op, peer(i)};
      instruction(k, i, columns_.row(i));
    }
    tell(thread_, -1, 0);
  }

 private:
  struct Port {  // the proxy of a port channel of the thread block
    Thread* thread;
    int asked, flushed;
    std::size_t loop = 0;  // the thread block's loop that it is in
  };

  void begin(const Instruction& i) {
    step_ = i.step;
    rounds_ = 1;
    sliced_ = i.loop >= 0;
    if (sliced_) std::tie(rounds_, slice_.full, slice_.last) = fabric_.loop(columns_.loops[i.loop]);
    thread_.loop(rounds_);
  }

  bool fabric_op(const Instruction& i) const {
    return i.op == columns_.op.fabric_store || i.op == columns_.op.fabric_reduce_store;
  }

  int peer(const Instruction& i) const {
    if (i.channels) return channel(columns_.channels_of(i)[0]).peer;
    for (int k = 0; !fabric_op(i) && k < i.sources + i.targets; ++k)
      if (const int rank = columns_.sources(i)[k].rank; rank != own_rank) return rank;
    return -1;
  }

  const Channel& channel(int c) const { return columns_.channels[block_.channels + c]; }

  Size size(const Operand& operand, const Instruction& i) {
    return sliced_ ? slice_ : fabric_.bytes(operand.count, i.parts);
  }

  void instruction(int k, const Instruction& i, const verify::Operation& row) {
    const verify::Names& op = columns_.op;
    const int* semaphores = columns_.semaphores_of(i);
    const int first = columns_.ranks[block_.rank].semaphores;
    if (row.packets) {
      packet(k, i, row);
    } else if (row.put) {
      put(i, row);
    } else if (row.signals) {
      for (int c = 0; c < i.channels; ++c) signal(columns_.channels_of(i)[c]);
    } else if (row.waits) {
      for (int c = 0; c < i.channels; ++c) {
        const Channel& at = channel(columns_.channels_of(i)[c]);
        thread_.take(all_.signals(block_.rank, at.peer, at.port, at.index));
      }
    } else if (i.op == op.flush) {
      for (int c = 0; c < i.channels; ++c) flush(columns_.channels_of(i)[c]);
      for (std::size_t c = 0; !i.channels && c < order_.size(); ++c) flush(order_[c]);
    } else if (i.op == op.barrier) {
      const int counter = all_.barrier(block_.rank, i.ident);
      thread_.post(counter);
      thread_.reach(counter, met_[i.ident] += i.group, i.group);
    } else if (i.op == op.acquire) {
      for (int s = 0; s < i.semaphores; ++s) thread_.take(all_.semaphores_[first + semaphores[s]]);
    } else if (i.op == op.release) {
      for (int s = 0; s < i.semaphores; ++s) thread_.post(all_.semaphores_[first + semaphores[s]]);
    } else if (fabric_op(i)) {
      in_switch(i);
    } else if (i.op != op.nop) {
      data(i, row);
    }
  }

  // --- signals and ports

  // The proxy of channel `c`, in the same round of the same loop as the thread block.
  Port& port(int c) {
    const auto [it, fresh] = ports_.try_emplace(c);
    Port& port = it->second;
    if (fresh) {
      port.thread = &all_.threads_.thread(block_.rank, block_.number, true);
      port.asked = all_.threads_.counter();
      port.flushed = all_.threads_.counter();
      order_.push_back(c);
    }
    if (port.loop != thread_.segments.size()) {
      port.loop = thread_.segments.size();
      port.thread->segments.push_back({port.thread->count(), rounds_});
    }
    port.thread->origin = thread_.origin;
    return port;
  }

  Thread& ask(int c) {
    Port& asked = port(c);
    thread_.post(asked.asked);
    asked.thread->take(asked.asked);
    return *asked.thread;
  }

  void signal(int c) {
    const Channel& at = channel(c);
    const int counter = all_.signals(at.peer, block_.rank, at.port, at.index);
    const double delay = fabric_.latency(block_.rank, at.peer);
    Thread& teller = at.port == 1 ? ask(c) : thread_;
    teller.post(counter, delay);
    tell(teller, at.peer, delay);
  }

  void flush(int c) {
    if (channel(c).port != 1) return;
    Thread& asked = ask(c);
    asked.post(ports_.at(c).flushed);
    thread_.take(ports_.at(c).flushed);
  }

  void put(const Instruction& i, const verify::Operation& row) {
    // Over memory the kernel looks at destinations alone: a plan need not name channels
    const bool ports = columns_.reads_by_port(block_, i);
    for (int k = 0; k < i.targets; ++k) {
      const int to = columns_.targets(i)[k].rank;
      const Size bytes = size(columns_.sources(i)[i.sources > 1 ? k : 0], i);
      const int route = fabric_.between(block_.rank, to, bytes);
      untold_.emplace_back(&i, &columns_.targets(i)[k]);
      const Operand& from = columns_.sources(i)[i.sources > 1 ? k : 0];
      if (!ports) {
        touch(thread_, from, i, true);
        thread_.transfer(Kind::move, route, bytes, 1);
        continue;
      }
      const int c = columns_.channels_of(i)[k];
      Thread& asked = ask(c);
      touch(asked, from, i, true);
      asked.transfer(Kind::move, route, bytes, 0);
      if (row.signals) signal(c);
      if (i.op == columns_.op.put_signal_flush) flush(c);
    }
  }

  // --- data

  // Notes that an operand is read or written.
  void touch(Thread& thread, const Operand& at, const Instruction& i, bool reads, double later = 0) {
    const int owner = at.rank == own_rank ? block_.rank : at.rank;
    const std::int64_t first = std::int64_t{at.offset} * i.parts + std::int64_t{at.count} * i.part;
    // what a loop wrote and a later step tells is told as a whole
    const double stride = i.loop >= 0 && i.step == step_ ? slice_.full : 0;
    mark(all_.threads_, thread, fabric_, owner, at.buffer, reads, first, at.count, i.parts, stride, later);
  }

  // What was written at `peer` (-1: at anyone) is there for it once it is told.
  void tell(Thread& thread, int peer, double later) {
    for (const auto& [i, at] : untold_)
      if (peer < 0 || at->rank == peer)
        touch(thread, *at, *i, false, peer < 0 ? fabric_.latency(block_.rank, at->rank) : later);
    std::erase_if(untold_, [peer](const auto& one) { return peer < 0 || one.second->rank == peer; });
  }

  void local(const Instruction& i, bool sums) {
    double full = 0, last = 0;
    for (int k = 0; k < i.sources; ++k) {
      const Size bytes = size(columns_.sources(i)[k], i);
      full += sums ? rates_.sum_time(bytes.full) : rates_.copy_time(bytes.full);
      last += sums ? rates_.sum_time(bytes.last) : rates_.copy_time(bytes.last);
    }
    thread_.delay(full, last);
  }

  void data(const Instruction& i, const verify::Operation& row) {
    const Operand *src = columns_.sources(i), *dst = columns_.targets(i);
    if (i.op == columns_.op.get) {
      for (int k = 0; k < i.sources; ++k) {
        const Size bytes = size(src[k], i);
        const int route = fabric_.between(src[k].rank, block_.rank, bytes, true);
        touch(thread_, src[k], i, true);
        thread_.transfer(Kind::fetch, route, bytes, 1);
        touch(thread_, dst[k], i, false);
      }
      return;
    }
    constexpr int none = 1 << 30;  // as program/ops.py has it
    for (int k = 0; k < i.sources; ++k) touch(thread_, src[k], i, true);
    if (!row.adds || std::min(row.remote_src, row.remote_dst) == none) {
      if (i.op == columns_.op.reduce) touch(thread_, dst[0], i, true);
      local(i, i.op != columns_.op.copy);
      for (int k = 0; k < i.targets; ++k) touch(thread_, dst[k], i, false);
      return;
    }
    int peers = 0;
    double after = 0;
    for (int k = 0; k < i.sources + i.targets; ++k) peers += src[k].rank != own_rank;
    for (int k = 0; k < i.sources; ++k)
      if (src[k].rank != own_rank) after = std::max(after, fabric_.round_trip(src[k].rank, block_.rank));
    const int sharers = std::max(peers, 1);
    for (int k = 0; k < i.sources; ++k) {
      if (src[k].rank == own_rank) continue;
      const Size bytes = size(src[k], i);
      thread_.transfer(Kind::start, fabric_.between(src[k].rank, block_.rank, bytes, true), bytes, sharers);
    }
    for (int k = 0; k < i.targets; ++k) {
      if (dst[k].rank == own_rank) continue;
      const Size bytes = size(dst[k], i);
      thread_.transfer(Kind::start, fabric_.between(block_.rank, dst[k].rank, bytes, false, after), bytes, sharers);
    }
    thread_.join();
    if (rates_.adds_slowly || !peers) local(i, true);
    for (int k = 0; k < i.targets; ++k)
      if (dst[k].rank == own_rank)
        touch(thread_, dst[k], i, false);
      else
        untold_.emplace_back(&i, &dst[k]);
  }

  void packet(int k, const Instruction& i, const verify::Operation& row) {
    for (int s = row.packet_src; s < i.sources; ++s) {
      const Operand& read = columns_.sources(i)[s];
      std::set<int> counters;
      for (std::int64_t chunk = read.offset; chunk < read.offset + read.count; ++chunk) {
        const auto& writers = all_.packets_[std::int64_t{block_.rank} << 32 | chunk];
        counters.insert(writers.begin(), writers.end());
      }
      for (const int counter : counters) thread_.reach(counter, 1, 0);
    }
    for (int s = 0; s < std::min(row.packet_src, i.sources); ++s) touch(thread_, columns_.sources(i)[s], i, true);
    local(i, i.sources > 1 && i.op != columns_.op.put_packets);
    for (int d = 0; d < std::min(row.packet_dst, i.targets); ++d) touch(thread_, columns_.targets(i)[d], i, false);
    const auto& told = all_.written_[k];
    for (std::size_t d = 0; d < told.size(); ++d) {
      const Operand& to = columns_.targets(i)[row.packet_dst + d];
      if (to.rank == own_rank) {
        thread_.post(told[d]);
        continue;
      }
      const Size bytes = size(to, i).times(packet_bytes);
      thread_.transfer(Kind::move, fabric_.between(block_.rank, to.rank, bytes), bytes, 1, told[d]);
    }
  }

  // In and out of a switch that copies to its group, or adds what its group has.
  void in_switch(const Instruction& i) {
    const bool adds = i.op == columns_.op.fabric_reduce_store;
    std::vector<int> group;
    for (int k = 0; k < (adds ? i.sources : i.targets); ++k) {
      const int rank = (adds ? columns_.sources(i) : columns_.targets(i))[k].rank;
      group.push_back(rank == own_rank ? block_.rank : rank);
    }
    const Size bytes = size(columns_.targets(i)[0], i);
    for (int k = 0; k < i.sources; ++k) touch(thread_, columns_.sources(i)[k], i, true);
    const auto routes = fabric_.in_switch(block_.rank, adds, group);
    for (const int route : routes)
      thread_.transfer(Kind::start, route, bytes, verify::count_of(routes));
    thread_.join();
    for (int k = 0; k < i.targets; ++k)
      if (columns_.targets(i)[k].rank == own_rank)
        touch(thread_, columns_.targets(i)[k], i, false);
      else
        untold_.emplace_back(&i, &columns_.targets(i)[k]);
  }

  OnesidedCoder& all_;
  const Columns& columns_;
  const Rates& rates_;
  Fabric& fabric_;
  const Block& block_;
  Thread& thread_;
  int rounds_ = 1, step_ = -1;
  bool sliced_ = false;
  Size slice_;
  std::map<int, Port> ports_;
  std::vector<std::pair<const Instruction*, const Operand*>> untold_;  // what is written at peers that know not yet
  std::vector<int> order_;  // of the ports, as they were asked first
  std::map<int, int> met_;  // barriers: how often so far
};

void OnesidedCoder::write() {
  for (const Block& block : columns_.blocks)
    for (int k = block.begin; k < block.end; ++k) {
      const Instruction& i = columns_.instructions[k];
      const verify::Operation& row = columns_.row(i);
      for (int d = row.packets ? row.packet_dst : i.targets; d < i.targets; ++d) {
        const Operand& to = columns_.targets(i)[d];
        const int counter = threads_.counter();
        written_[k].push_back(counter);
        const std::int64_t owner = to.rank == own_rank ? block.rank : to.rank;
        for (std::int64_t chunk = to.offset; chunk < to.offset + to.count; ++chunk)
          packets_[owner << 32 | chunk].push_back(counter);
      }
    }
  for (const int value : columns_.semaphores) semaphores_.push_back(threads_.counter(value));
  for (const Block& block : columns_.blocks) Writer(*this, block).write();
}

}  // namespace

void code_onesided(const Columns& columns, const Rates& rates, Fabric& fabric, Threads& threads) {
  OnesidedCoder(columns, rates, fabric, threads).write();
}

}  // namespace forestcoll::simulate
