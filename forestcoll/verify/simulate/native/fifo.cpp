// Threads of a fifo program (MSCCL XML): messages in slots, slice after slice of every chunk.
//
// The whole list of a thread block is repeated for slice after slice of a chunk: as much as a message holds.
// Where a chunk is smaller than that, a step of several chunks sends as many of them in one message as it
// holds. A message is handed over in parts. A connection holds a number of messages; their receiver frees a
// slot when it has taken the data out. Inside a box the sending thread block writes into the receiver's slots;
// between boxes it writes into its own, and a proxy sends them on.
//
// Sources: Azure/msccl-executor-nccl c6f6b36 (msccl_kernel_impl.h, msccl_setup.cc, prims_simple.h); message
// sizes and slots: targets.py.

#include <algorithm>

#include "coders.hpp"

namespace forestcoll::simulate {

int Fabric::between(int source, int target, Size size, bool reads, double after) {
  const std::tuple key{source, target, reads, after};
  if (last_ == ways_.end() || last_->first != key) {
    const auto [it, fresh] = ways_.try_emplace(key);
    if (fresh) it->second = ask<Ways>("ways", source, target, reads, after);
    last_ = it;
  }
  const Ways& ways = last_->second;
  if (ways.size() == 1) return ways[0].first;
  std::vector<double>& sent = dealt_[{source, target}];
  sent.resize(ways.size());
  std::size_t best = 0;
  for (std::size_t w = 1; w < ways.size(); ++w)
    if ((sent[w] + size.full) / static_cast<double>(ways[w].second) <
        (sent[best] + size.full) / static_cast<double>(ways[best].second))
      best = w;
  sent[best] += size.full;
  return ways[best].first;
}

namespace {

using verify::Block;
using verify::Columns;
using verify::Instruction;

// Counters of a connection, and its proxy where it leaves a box. `free`: parts that the sender may write;
// `here`: parts that the receiver may take; `room`: slots of the receiver that the proxy may fill, `staged`:
// parts that it may send; `back`: microseconds until the sender knows of a free slot.
struct Queue {
  int free, here, room = -1, staged = -1;
  double back = 0;
  Thread* proxy = nullptr;
};

class FifoCoder {
 public:
  FifoCoder(const Columns& columns, const Slices& slices, const Rates& rates, Fabric& fabric, Threads& threads)
      : columns_(columns), slices_(slices), rates_(rates), fabric_(fabric), threads_(threads),
        flags_(columns.instructions.size(), -1) {
    threads.rate = rates.block * 1000;
  }

  void write() {
    for (int r = 0; r < columns_.rank_count(); ++r) {
      const int first = columns_.ranks[r].blocks, last = columns_.ranks[r + 1].blocks;
      for (int b = first; b < last; ++b)
        for (int k = columns_.blocks[b].begin; k < columns_.blocks[b].end; ++k)
          for (int a = 0; a < columns_.instructions[k].afters; ++a)
            if (int& flag = flags_[place(first, columns_.instructions[k], a)]; flag < 0) flag = threads_.counter();
      for (int b = first; b < last; ++b) block(columns_.blocks[b], first);
    }
  }

 private:
  int place(int first, const Instruction& i, int a) const {
    const verify::After& after = columns_.after[i.after + a];
    return columns_.blocks[first + after.block].begin + after.step;
  }

  Queue& queue(int sender, int receiver, int channel) {
    const auto [it, fresh] = queues_.try_emplace({sender, receiver, channel});
    Queue& queue = it->second;
    if (!fresh) return queue;
    queue.back = fabric_.latency(receiver, sender);
    queue.free = threads_.counter(slices_.slots);
    queue.here = threads_.counter();
    if (slices_.boxes[sender] == slices_.boxes[receiver]) return queue;
    queue.room = threads_.counter(slices_.slots);
    queue.staged = threads_.counter();
    queue.proxy = &threads_.thread(sender, -1, true);
    queue.proxy->loop(slices_.rounds);
    return queue;
  }

  void block(const Block& block, int first) {
    Thread& thread = threads_.thread(block.rank, block.number);
    thread.loop(slices_.rounds);
    out_ = into_ = nullptr;
    for (int k = block.begin; k < block.end; ++k) {
      const Instruction& i = columns_.instructions[k];
      const verify::Operation& row = columns_.row(i);
      thread.origin = {i.step, i.op, row.sends ? block.send : row.receives ? block.recv : -1};
      for (int a = 0; a < i.afters; ++a) thread.reach(flags_[place(first, i, a)], 1, 1);
      if (row.sends || row.receives)
        message(thread, block, i, row);
      else if (i.op != columns_.op.nop)
        local(thread, i, row);
      if (flags_[k] >= 0) thread.post(flags_[k]);
    }
  }

  void local(Thread& thread, const Instruction& i, const verify::Operation& row) {
    std::int64_t chunks = 0;
    for (int k = 0; k < i.sources; ++k) chunks += columns_.sources(i)[k].count;
    for (int k = 0; k < i.sources + i.targets; ++k)
      if (k < i.sources || i.op == columns_.op.reduce) touch(thread, columns_.sources(i)[k], true, 0, columns_.sources(i)[k].count);
    work(thread, slices_.size.times(static_cast<double>(chunks)), row.adds);
    for (int k = 0; k < i.targets; ++k) touch(thread, columns_.targets(i)[k], false, 0, columns_.targets(i)[k].count);
  }

  // Notes that chunks of the rank's own are read or written.
  void touch(Thread& thread, const verify::Operand& at, bool reads, std::int64_t first, std::int64_t count) {
    // slices are one after another in each chunk; where there are several, marks are of one chunk each
    for (std::int64_t chunk = at.offset + first; chunk < at.offset + first + count; ++chunk)
      mark(threads_, thread, fabric_, thread.rank, at.buffer, reads, chunk, 1, 1, slices_.size.full);
  }

  void work(Thread& thread, Size size, bool adds) {
    if (adds)
      thread.delay(rates_.sum_time(size.full), rates_.sum_time(size.last));
    else
      thread.delay(rates_.copy_time(size.full), rates_.copy_time(size.last));
  }

  void message(Thread& thread, const Block& block, const Instruction& i, const verify::Operation& row) {
    if (row.sends && !out_) out_ = &queue(block.rank, block.send, block.channel);
    if (row.receives && !into_) into_ = &queue(block.recv, block.rank, block.channel);
    if (row.sends && out_->proxy) {
      out_->proxy->origin = thread.origin;
      out_->proxy->block = thread.block;
    }
    const std::int64_t count = columns_.sources(i)->count;
    for (std::int64_t first = 0; first < count; first += slices_.chunks) {
      const auto chunks = static_cast<double>(std::min(slices_.chunks, count - first));
      const Size size = slices_.size.times(chunks / slices_.parts);
      for (int part = 0; part < slices_.parts; ++part) {
        if (row.receives) thread.take(into_->here);
        if (row.sends) thread.take(out_->free);
        if (i.sources && !part) touch(thread, columns_.sources(i)[0], true, first, static_cast<std::int64_t>(chunks));
        if (row.sends)
          send(thread, block, *out_, size);
        else
          work(thread, size, row.adds);
        if (row.receives) thread.post(into_->room >= 0 ? into_->room : into_->free, into_->back);
      }
      if (i.targets) touch(thread, columns_.targets(i)[0], false, first, static_cast<std::int64_t>(chunks));
    }
  }

  void send(Thread& thread, const Block& block, Queue& out, Size size) {
    const Size wire = size.times(slices_.wire);
    const int route = fabric_.between(block.rank, block.send, wire);
    if (!out.proxy) return thread.transfer(Kind::move, route, wire, 1, out.here);
    work(thread, size, false);
    thread.post(out.staged);
    out.proxy->take(out.staged);
    out.proxy->take(out.room);
    out.proxy->transfer(Kind::move, route, wire, 0, out.here);
    out.proxy->post(out.free);
  }

  const Columns& columns_;
  const Slices& slices_;
  const Rates& rates_;
  Fabric& fabric_;
  Threads& threads_;
  std::vector<int> flags_;  // counter of each instruction that others come after
  std::map<std::tuple<int, int, int>, Queue> queues_;
  Queue *out_, *into_;  // of the thread block, once it has used them
};

}  // namespace

void code_fifo(const Columns& columns, const Slices& slices, const Rates& rates, Fabric& fabric, Threads& threads) {
  FifoCoder(columns, slices, rates, fabric, threads).write();
}

}  // namespace forestcoll::simulate
