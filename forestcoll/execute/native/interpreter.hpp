// The instruction loop: what one thread block of one rank does, for CPU threads, CUDA and HIP alike.
//
// Header only; no containers, allocation, exceptions or input and output. A plan is flat arrays of
// plain integers (tables.hpp, built by tables.py, which all engines share). Everything that differs
// between machines is behind a `Layer`, one object for each thread block. The loop calls it with all
// threads of the block together and with the same arguments; what a call returns must be the same for
// all of them. `byte*` below means memory that the thread block can reach, its own or a peer's.
//
//   const Tables& tables()            const Geometry& geometry()
//   byte* address(rank, buffer)       start of a rank's buffer (0 input, 1 output, 2 scratch), or of
//                                     the allocation in which it lies (3, 4, 5)
//   bool aborted()                    true once the launch must end early; asked once an instruction
//   void report(const Position&)      where the thread block is, once per instruction
//
//   Waits. true: it has come to pass, and all that the other side wrote before is visible (acquire).
//   false: not yet; the loop returns Outcome::blocked and is called again later. A wait may be asked
//   any number of times; only a true `acquire` takes something away.
//   bool reached(block, progress)     block (numbered over all ranks; of the own rank) has completed
//                                     so many steps in this launch
//   bool can_send()                   the outgoing connection has a free slot
//   bool can_receive(target, operand, bytes)  the next message is there, of so many bytes; another
//                                     size is the layer's to report. Until then the sender may write
//                                     it straight to `target`, combined with `operand` if not null
//   bool acquire(counter)             takes one from a semaphore that is above zero
//   bool passed(barrier, ticket)      everybody of that round has arrived
//   bool drained()                    what was put elsewhere from memory of the rank has been read: it
//                                     may change, and whoever is told so may have it changed
//   bool fetched(address, bytes)      what lies in another process can be read here; to be asked for
//                                     all that an instruction reads, then with nullptr
//   bool arrived(rank, packets, bytes)  packets of `bytes` bytes of data, in scratch of `rank`, all
//                                     bear the number of this launch
//
//   Effects. Each follows the wait that it needs, never waits itself and never fails. (release): all
//   that the thread block wrote before is visible to whoever sees it.
//   byte* outgoing_slot()             where the next message may be built in place; after can_send
//   void deliver(source, bytes)       sends a message (release); `source` may be outgoing_slot()
//   void take(target, operand, bytes) stores the message, combined with operand unless that is null,
//                                     and frees its slot (release); `target` may be `operand` or
//                                     outgoing_slot()
//   void complete(progress)           publishes this thread block's progress (release)
//   void signal(counter)              adds one to a semaphore, the own rank's or a peer's (release)
//   uint64_t arrive(barrier, group)   announces this thread block (release), returns its ticket
//   void copy(target, source, bytes)  areas are the same or apart, unless the plan is wrong
//   void combine(target, sources, n, bytes)   target = sources[0] op ... op sources[n - 1], n from 1
//                                     to max_sources + 1; target may be any of the sources
//   void pack(rank, packets, source, bytes)     makes packets of this launch in scratch of `rank`
//   void forward(rank, packets, source packets, bytes)   the same data once more
//   void unpack(target, packets, bytes)
//   void combine_packets(target, packets, n, own, bytes)   target = packets[0] op ... op own
//
// Addresses and sizes are multiples of the element, not of a vector. Relaxed signals and waits come as
// `signal` and `acquire`: a layer may not weaken them. What one launch leaves is the next one's begin:
// messages are numbered on, semaphores are where they were.
//
// The averages of `avg` are not the loop's business: with it a layer combines by `sum`, and once all
// thread blocks of all ranks are done the engine divides every output that holds a reduction
// (elements.hpp, `divide_element`).
//
// A layer whose waits spin (a GPU) never returns false unless the launch is aborted. A layer that has
// more thread blocks than processors returns false and runs another thread block: all waits of an
// instruction come before its first effect, so that an interrupted instruction is simply begun again
// and `Position` is all the state there is.

#pragma once

#include <cstdint>

#include "tables.hpp"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define FC_DEVICE __device__ inline
#else
#define FC_DEVICE inline
#endif

namespace forestcoll {

using byte = unsigned char;

// Sizes of one launch. fifo: either a slice is a whole chunk (slices = 1) and a message carries up to
// piece_chunks chunks, or a slice is part of a chunk and a message carries one slice.
struct Geometry {
  Amount chunk_bytes, element_bytes;
  Amount slice_bytes, slices, piece_chunks;
};

struct Position {
  Index pc = 0;
  Amount slice = 0, round = 0;
  Amount piece = 0;  // how far inside the instruction
  Count ticket = 0;  // at a barrier
};

enum class Outcome { done, blocked };

// Bytes [begin, begin + bytes) of `repeat` areas, a chunk apart.
struct Window {
  Amount begin, bytes, repeat;
};

FC_DEVICE Amount at_most(Amount value, Amount limit) {
  return value < limit ? value : limit;
}

// What one instruction does, with its operands.
template <class Layer>
struct Step {
  Layer& layer;
  const Block& block;
  const Instruction& in;
  Position& at;
  const Tables& tables = layer.tables();
  const Geometry& g = layer.geometry();
  const Operand* const sources = tables.operands + in.operands;
  const Operand* const targets = sources + in.sources;

  // The instruction's one of nearly equal slices of units of `size` bytes, the longer ones first, as
  // the runtime cuts.
  FC_DEVICE Window slice_of(Amount units, Amount size) {
    const Amount least = units / in.parts, longer = units % in.parts;
    const Amount begin = in.part * least + at_most(in.part, longer);
    return {begin * size, (least + (in.part < longer)) * size, 1};
  }

  FC_DEVICE Window window_of(Amount count) {
    if (in.loop >= 0) {
      const Amount unit = tables.loops[in.loop].unit_bytes;
      const Amount begin = at.round * unit;
      return {begin, at_most(unit, count * g.chunk_bytes - begin), 1};
    }
    if (block.fifo && g.slices > 1) {
      const Amount begin = at.slice * g.slice_bytes;
      return {begin, at_most(g.slice_bytes, g.chunk_bytes - begin), count};
    }
    if (in.parts > 1) return slice_of(count * (g.chunk_bytes / g.element_bytes), g.element_bytes);
    return {0, count * g.chunk_bytes, 1};
  }

  // Where an operand's buffer begins for a thread block, as MSCCL++ finds it. Own memory lies where it
  // is said to. In a peer's memory only the allocation is known; from there it is as far as in the own
  // one: scratch of a peer is addressed in the half that this rank takes, input and output at the
  // offset that this rank's caller gave.
  FC_DEVICE byte* buffer_address(const Operand& operand) {
    byte* const own = layer.address(block.rank, operand.buffer);
    if (operand.rank == block.rank) return own;
    const Amount allocation = operand.buffer + buffers_each;
    return layer.address(operand.rank, allocation) + (own - layer.address(block.rank, allocation));
  }

  FC_DEVICE byte* operand_address(const Operand& operand) {
    return buffer_address(operand) + operand.offset * g.chunk_bytes;
  }

  // Whether all that the instruction depends on is done, in this iteration.
  FC_DEVICE bool dependencies_reached() {
    for (Index i = 0; i < in.afters; ++i) {
      const Dependency& on = tables.dependencies[in.after + i];
      const Amount progress = at.slice * on.steps + on.step + 1;
      if (!layer.reached(on.block, progress)) return false;
    }
    return true;
  }

  // Whether what concerns other processes' ranks is done. Only operands of copies and reductions lie
  // there, and those are read window by window.
  FC_DEVICE bool apart_reached() {
    if (in.drains & drains_puts && !layer.drained()) return false;
    if (!(in.drains & fetches_sources)) return true;
    for (Index i = 0; i < in.sources; ++i) {
      const Window w = window_of(sources[i].count);
      layer.fetched(operand_address(sources[i]) + w.begin, w.bytes);
    }
    return layer.fetched(nullptr, 0);
  }

  // send, recv and their fused forms: the message of `count` chunks goes in pieces that fit a slot.
  FC_DEVICE bool run_message() {
    const Amount count = sources[0].count;  // without a source, the target's
    const Amount pieces = (count + g.piece_chunks - 1) / g.piece_chunks;
    const bool sends = in.op != Op::recv && in.op != Op::recv_reduce_copy;
    for (; at.piece < pieces; ++at.piece) {
      const Amount first = at.piece * g.piece_chunks;
      Amount begin = first * g.chunk_bytes;
      Amount bytes = at_most(g.piece_chunks, count - first) * g.chunk_bytes;
      if (g.slices > 1) {
        begin += at.slice * g.slice_bytes;
        bytes = at_most(g.slice_bytes, g.chunk_bytes - at.slice * g.slice_bytes);
      }
      byte* from = in.sources ? operand_address(sources[0]) + begin : nullptr;
      byte* to = in.targets ? operand_address(targets[0]) + begin : nullptr;
      if (sends && !layer.can_send()) return false;
      if (in.op == Op::send) {
        layer.deliver(from, bytes);
        continue;
      }
      if (!to) to = layer.outgoing_slot();
      const byte* combine_with = in.op >= Op::recv_reduce_send ? from : nullptr;
      if (!layer.can_receive(to, combine_with, bytes)) return false;
      layer.take(to, combine_with, bytes);
      if (sends) layer.deliver(to, bytes);
    }
    return true;
  }

  // copy, put and get: source i to target i, or one source to all targets.
  FC_DEVICE void run_copies() {
    const Amount stride = g.chunk_bytes;
    for (Index i = 0; i < in.targets; ++i) {
      const Window w = window_of(targets[i].count);
      byte* to = operand_address(targets[i]) + w.begin;
      const byte* from = operand_address(sources[in.sources == 1 ? 0 : i]) + w.begin;
      for (Amount k = 0; k < w.repeat; ++k)
        layer.copy(to + k * stride, from + k * stride, w.bytes);
    }
  }

  // reduce, reduce_to and the reading or putting forms: all sources into target 0, that to the others.
  FC_DEVICE void run_reduction() {
    const Amount stride = g.chunk_bytes;
    const Window w = window_of(targets[0].count);
    const bool accumulates = in.op == Op::reduce;
    byte* const to = operand_address(targets[0]) + w.begin;
    for (Amount k = 0; k < w.repeat; ++k) {
      const byte* from[max_sources + 1];
      int n = 0;
      if (accumulates) from[n++] = to + k * stride;
      for (Index i = 0; i < in.sources; ++i)
        from[n++] = operand_address(sources[i]) + w.begin + k * stride;
      layer.combine(to + k * stride, from, n, w.bytes);
      for (Index i = 1; i < in.targets; ++i)
        layer.copy(operand_address(targets[i]) + w.begin + k * stride, to + k * stride, w.bytes);
    }
  }

  // Bytes of data that an operation on packets handles. Slices are multiples of 16, as the runtime's.
  FC_DEVICE Window packet_window(Amount count) {
    return slice_of(count * g.chunk_bytes / 16, 16);
  }

  // A packet is four bytes of data and four of its launch's number: chunks of packets are twice as long.
  FC_DEVICE byte* packet_address(const Operand& operand, Amount begin) {
    const Amount data = operand.offset * g.chunk_bytes + begin;
    return buffer_address(operand) + 2 * data;
  }

  // put_packets: source i to target i (or the one source to all), which never waits.
  FC_DEVICE void run_pack() {
    for (Index i = 0; i < in.targets; ++i) {
      const Window w = packet_window(targets[i].count);
      const byte* from = operand_address(sources[in.sources == 1 ? 0 : i]) + w.begin;
      layer.pack(targets[i].rank, packet_address(targets[i], w.begin), from, w.bytes);
    }
  }

  // The operations that read packets: `plain` sources and targets come first, packets follow.
  FC_DEVICE bool run_packets(Index plain_sources, Index plain_targets) {
    const Window w = packet_window(targets[0].count);
    const byte* packets[max_sources];
    Index n = 0;
    for (Index i = plain_sources; i < in.sources; ++i) {
      packets[n] = packet_address(sources[i], w.begin);
      if (!layer.arrived(sources[i].rank, packets[n++], w.bytes)) return false;
    }
    if (!plain_targets) {
      for (Index i = 0; i < in.targets; ++i)
        layer.forward(targets[i].rank, packet_address(targets[i], w.begin), packets[0], w.bytes);
      return true;
    }
    byte* const to = operand_address(targets[0]) + w.begin;
    if (plain_sources)
      layer.combine_packets(to, packets, n, operand_address(sources[0]) + w.begin, w.bytes);
    else
      layer.unpack(to, packets[0], w.bytes);
    for (Index i = 1; i < in.targets; ++i)
      layer.pack(targets[i].rank, packet_address(targets[i], w.begin), to, w.bytes);
    return true;
  }

  FC_DEVICE void raise_all() {
    for (Index i = 0; i < in.named; ++i) layer.signal(tables.names[in.names + i]);
  }

  FC_DEVICE bool acquire_all() {
    for (; at.piece < in.named; ++at.piece)
      if (!layer.acquire(tables.names[in.names + at.piece])) return false;
    return true;
  }

  FC_DEVICE bool run_barrier() {
    if (at.piece == 0) {
      at.ticket = layer.arrive(in.barrier, in.group);
      at.piece = 1;
    }
    return layer.passed(in.barrier, at.ticket);
  }

  // One instruction; false: it has to wait, and `at` says where to go on.
  FC_DEVICE bool run_instruction() {
    switch (in.op) {
      case Op::nop:
      case Op::flush:  // before it came `drained`
      case Op::loop:
        return true;
      case Op::send:
      case Op::recv:
      case Op::recv_copy_send:
      case Op::recv_reduce_send:
      case Op::recv_reduce_copy:
      case Op::recv_reduce_copy_send:
        return run_message();
      case Op::copy:
      case Op::put:
      case Op::get:
      case Op::fabric_store:  // here the operands are those of the whole group
        run_copies();
        return true;
      case Op::put_signal:
      case Op::put_signal_flush:
        run_copies();
        raise_all();
        return true;
      case Op::reduce:
      case Op::reduce_to:
      case Op::read_reduce:
      case Op::read_reduce_put:
      case Op::reduce_put:
      case Op::fabric_reduce_store:
        run_reduction();
        return true;
      case Op::signal:
      case Op::relaxed_signal:
      case Op::release:
        raise_all();
        return true;
      case Op::wait:
      case Op::relaxed_wait:
      case Op::acquire:
        return acquire_all();
      case Op::barrier:
        return run_barrier();
      case Op::put_packets:
      case Op::copy_packets:
        run_pack();
        return true;
      case Op::forward_packets:
        return run_packets(0, 0);
      case Op::unpack:
        return run_packets(0, 1);
      case Op::reduce_packets:
      case Op::reduce_put_packets:
      case Op::reduce_copy_packets:
      case Op::reduce_copy_put_packets:
        return run_packets(1, 1);
    }
    return true;
  }

  // Moves `at` past the instruction it stands on; true when that completed a step of the plan.
  FC_DEVICE bool advance() {
    const Index done = at.pc++;
    at.piece = 0;
    if (in.loop < 0) return true;
    const Loop& loop = tables.loops[in.loop];
    if (done < loop.last) return false;  // as its head is
    const Amount unit = loop.unit_bytes;
    const Amount bytes = loop.chunks * g.chunk_bytes;
    ++at.round;
    if (at.round < bytes / unit + (bytes % unit != 0)) {
      at.pc = loop.first;
      return false;
    }
    at.round = 0;
    return true;
  }
};

// Runs `block` from `at` on until it is done or has to wait (then call again with the same `at`).
template <class Layer>
FC_DEVICE Outcome run_thread_block(Layer& layer, const Block& block, Position& at) {
  const Amount slices = block.fifo ? layer.geometry().slices : 1;
  if (block.begin == block.end) return Outcome::done;
  while (at.slice < slices) {
    if (at.pc == block.end) {
      ++at.slice;
      at.pc = block.begin;
      continue;
    }
    if (layer.aborted()) return Outcome::blocked;
    layer.report(at);
    Step<Layer> step{layer, block, layer.tables().instructions[at.pc], at};
    if (at.piece == 0 && !step.dependencies_reached()) return Outcome::blocked;
    if (at.piece == 0 && step.in.drains && !step.apart_reached()) return Outcome::blocked;
    if (!step.run_instruction()) return Outcome::blocked;
    const Amount progress = at.slice * block.steps + step.in.step + 1;
    if (step.advance()) layer.complete(progress);
  }
  return Outcome::done;
}

}  // namespace forestcoll
