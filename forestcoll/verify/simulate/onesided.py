"""Threads of a onesided program (MSCCL++): puts, reads, signals, pipelines, packets, switches.

A thread block does one operation after the other. It puts to one destination after the other
(microsoft/mscclpp 1f5f065d, execution_kernel.hpp: handlePut loops over them), and reads what it
adds up from all sources at once. What goes through a port is moved by a proxy, each channel's in
order, while the thread block goes on. Reads of packets wait until all that wrote them are here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from forestcoll.program import (
    FABRIC,
    PACKETS,
    PUTS,
    SIGNALS,
    SYNCS,
    WAITS,
    Channel,
    Instruction,
    Op,
    Pipeline,
    Program,
    Ref,
    ThreadBlock,
    those,
)
from forestcoll.verify.simulate.code import FETCH, MOVE, START, Coder, Origin, Size, Thread
from forestcoll.verify.simulate.fabric import Stages

PACKET = 2.0
"""Bytes on a link for each byte of data in packets: the rest is flags."""

End = tuple[int, int, str, int]  # rank, peer, kind, index of a channel
_SIGNALS = SIGNALS & SYNCS
_READS = those(lambda row: row.remote and row.adds and not row.packets)


class _Port:
    """The proxy of a port channel of a thread block."""

    def __init__(self, thread: Thread, asked: int, flushed: int) -> None:
        self.thread, self.asked, self.flushed = thread, asked, flushed


class OnesidedCoder:
    """Writes the threads of all thread blocks of a onesided program."""

    def __init__(self, program: Program, chunk: Fraction, coder: Coder) -> None:
        self.program, self.chunk, self.coder = program, chunk, coder
        self.options = coder.options
        self._signals: dict[End, int] = {}
        self._barriers: dict[tuple[int, int], int] = {}
        self._packets: dict[tuple[int, int], list[int]] = defaultdict(list)  # rank, chunk: counters
        self._writers: dict[tuple[int, int, int], list[int]] = {}  # rank, block, step: per packet

    def write(self) -> None:
        """Adds all threads to the coder."""
        self._find_packets()
        for rank, own in enumerate(self.program.ranks):
            semaphores = [self.coder.counter(value) for value in own.semaphores]
            for number, block in enumerate(own.thread_blocks):
                _Writer(self, rank, number, block, semaphores).write()

    def signals(self, rank: int, channel: Channel) -> int:
        """The counter of signals that have come to `rank`'s end of a channel."""
        end = (rank, channel.peer, channel.kind, channel.index)
        if end not in self._signals:
            self._signals[end] = self.coder.counter()
        return self._signals[end]

    def barrier(self, rank: int, ident: int) -> int:
        """The counter of thread blocks that have come to a barrier."""
        if (rank, ident) not in self._barriers:
            self._barriers[rank, ident] = self.coder.counter()
        return self._barriers[rank, ident]

    def _find_packets(self) -> None:
        for rank, block, step, i in self.program.instructions():
            shape = PACKETS.get(i.op)
            if shape is None:
                continue
            found = []
            for ref in i.dst[shape.packet_dst :]:
                counter = self.coder.counter()
                found.append(counter)
                owner = rank if ref.rank is None else ref.rank
                for chunk in range(ref.offset, ref.offset + ref.count):
                    self._packets[owner, chunk].append(counter)
            self._writers[rank, block, step] = found

    def written(self, rank: int, block: int, step: int) -> list[int]:
        """The counters of an operation's packets, one a destination."""
        return self._writers[rank, block, step]

    def awaited(self, rank: int, ref: Ref) -> list[int]:
        """The counters of whoever writes these packets of `rank`."""
        chunks = range(ref.offset, ref.offset + ref.count)
        return sorted({counter for chunk in chunks for counter in self._packets[rank, chunk]})


class _Writer:
    """Writes one thread block's thread, and those of its ports."""

    def __init__(
        self,
        coder: OnesidedCoder,
        rank: int,
        number: int,
        block: ThreadBlock,
        semaphores: list[int],
    ) -> None:
        self.all, self.coder, self.options = coder, coder.coder, coder.options
        self.rank, self.number, self.block, self.semaphores = rank, number, block, semaphores
        self.thread = self.coder.thread(rank, number)
        self.rounds = 1
        self._size: Callable[[Ref, Instruction], Size] = self._whole
        self._slice = Size(0.0, 0.0)
        self._ports: dict[int, _Port] = {}
        self._loops: dict[int, int] = {}  # per port the thread block's loop that it is in
        self._met: dict[int, int] = defaultdict(int)  # barriers: how often so far

    def write(self) -> None:
        for place, step in enumerate(self.block.steps):
            if isinstance(step, Pipeline):
                total, unit = step.chunks * self.all.chunk, step.unit_bytes
                self.rounds = math.ceil(total / unit)
                last = total - max(0, self.rounds - 1) * unit
                self._slice, self._size = Size(float(unit), float(last)), self._sliced
                body = step.body
            else:
                self.rounds, self._size, body = 1, self._whole, (step,)
            self.thread.loop(self.rounds)
            for i in body:
                peers = [self.block.channels[c].peer for c in i.channels[:1]]
                peers += [ref.rank for ref in (*i.src, *i.dst) if ref.rank is not None]
                self.thread.origin = Origin(place, i.op, peers[0] if peers else -1)
                self._write(place, i)

    def _whole(self, ref: Ref, i: Instruction) -> Size:
        size = float(ref.count * self.all.chunk / i.part[1])
        return Size(size, size)

    def _sliced(self, ref: Ref, i: Instruction) -> Size:
        return self._slice

    def _write(self, place: int, i: Instruction) -> None:
        op, thread = i.op, self.thread
        if op in _SIGNALS:
            for c in i.channels:
                self._signal(c)
        elif op in WAITS:
            for c in i.channels:
                thread.take(self.all.signals(self.rank, self.block.channels[c]))
        elif op in PUTS:
            self._put(i)
        elif op is Op.FLUSH:
            for c in i.channels or tuple(self._ports):
                self._flush(c)
        elif op is Op.BARRIER:
            counter = self.all.barrier(self.rank, i.ident)
            self._met[i.ident] += i.group
            thread.post(counter)
            thread.reach(counter, self._met[i.ident], i.group)
        elif op is Op.ACQUIRE:
            for s in i.semaphores:
                thread.take(self.semaphores[s])
        elif op is Op.RELEASE:
            for s in i.semaphores:
                thread.post(self.semaphores[s])
        elif op in PACKETS:
            self._packet(place, i)
        elif op in FABRIC:
            self._switch(i)
        elif op is not Op.NOP:
            self._data(i)

    # --- signals and ports ------------------------------------------------------------------------

    def _port(self, c: int) -> _Port:
        """The proxy of channel `c`, in the same round of the same loop as the thread block."""
        port = self._ports.get(c)
        if port is None:
            thread = self.coder.thread(self.rank, self.number, proxy=True)
            port = _Port(thread, self.coder.counter(), self.coder.counter())
            self._ports[c] = port
        if self._loops.get(c) != len(self.thread.segments):
            self._loops[c] = len(self.thread.segments)
            port.thread.segments.append((len(port.thread.origins), self.rounds))
        port.thread.origin = self.thread.origin
        return port

    def _ask(self, c: int) -> Thread:
        port = self._port(c)
        self.thread.post(port.asked)
        port.thread.take(port.asked)
        return port.thread

    def _signal(self, c: int) -> None:
        channel = self.block.channels[c]
        counter = self.all.signals(channel.peer, Channel(self.rank, channel.kind, channel.index))
        delay = self.coder.latency(self.rank, channel.peer)
        (self._ask(c) if channel.kind == "port" else self.thread).post(counter, delay)

    def _flush(self, c: int) -> None:
        if self.block.channels[c].kind != "port":
            return
        self._ask(c).post(self._ports[c].flushed)
        self.thread.take(self._ports[c].flushed)

    def _put(self, i: Instruction) -> None:
        # Over memory the kernel looks at destinations alone: a plan need not name channels
        ports = i.channels if self.block.reads_by_port(i) else (None,) * len(i.dst)
        sources = i.src * len(i.dst) if len(i.src) == 1 else i.src
        for ref, to, c in zip(sources, i.dst, ports, strict=True):
            assert to.rank is not None
            size = self._size(ref, i)
            route = self.coder.between(self.rank, to.rank, size)
            if c is None:
                self.thread.transfer(MOVE, route, size, self.options.cap())
                continue
            self._ask(c).transfer(MOVE, route, size, 0.0)
            if i.op in SIGNALS:
                self._signal(c)
            if i.op is Op.PUT_SIGNAL_FLUSH:
                self._flush(c)

    # --- data -------------------------------------------------------------------------------------

    def _local(self, i: Instruction, refs: tuple[Ref, ...], *, sums: bool) -> None:
        time = self.options.sum_time if sums else self.options.copy_time
        sizes = [self._size(ref, i) for ref in refs]
        self.thread.delay(
            sum(time(size.full) for size in sizes), sum(time(size.last) for size in sizes)
        )

    def _data(self, i: Instruction) -> None:
        if i.op is Op.GET:
            for ref in i.src:
                assert ref.rank is not None
                size = self._size(ref, i)
                route = self.coder.between(ref.rank, self.rank, size, reads=True)
                self.thread.transfer(FETCH, route, size, self.options.cap())
            return
        if i.op not in _READS:
            self._local(i, i.src, sums=i.op is not Op.COPY)
            return
        reads = [(ref.rank, ref) for ref in i.src if ref.rank is not None]
        puts = [(ref.rank, ref) for ref in i.dst if ref.rank is not None]
        after = max((self.coder.round_trip(rank, self.rank) for rank, _ in reads), default=0.0)
        cap = self.options.cap(len(reads) + len(puts))
        for rank, ref in reads:
            size = self._size(ref, i)
            route = self.coder.between(rank, self.rank, size, reads=True)
            self.thread.transfer(START, route, size, cap)
        for rank, ref in puts:
            size = self._size(ref, i)
            route = self.coder.between(self.rank, rank, size, after=after)
            self.thread.transfer(START, route, size, cap)
        self.thread.join()
        if self.options.reduce_rate is not None or not (reads or puts):
            self._local(i, i.src, sums=True)

    def _packet(self, place: int, i: Instruction) -> None:
        shape = PACKETS[i.op]
        for ref in i.src[shape.packet_src :]:
            for counter in self.all.awaited(self.rank, ref):
                self.thread.reach(counter, 1, 0)
        self._local(i, i.src, sums=len(i.src) > 1 and i.op is not Op.PUT_PACKETS)
        told = self.all.written(self.rank, self.number, place)
        for counter, ref in zip(told, i.dst[shape.packet_dst :], strict=True):
            if ref.rank is None:
                self.thread.post(counter)
                continue
            size = self._size(ref, i).times(PACKET)
            route = self.coder.between(self.rank, ref.rank, size)
            self.thread.transfer(MOVE, route, size, self.options.cap(), counter)

    def _switch(self, i: Instruction) -> None:
        """In and out of a switch that copies to its group, or adds what its group has.

        What it adds is read: a request goes in and out, sums come back, and then they are stored.
        """
        group = self.block.switches[i.switches[0]].ranks
        size, fabric = self._size(i.dst[0], i), self.coder.fabric
        switch, nodes = fabric.switch(group), fabric.graph.ranks
        up = {rank: fabric.number[nodes[rank], switch] for rank in group}
        down = {rank: fabric.number[switch, nodes[rank]] for rank in group}
        store: Stages = ((up[self.rank],), tuple(down.values()))
        ways = [fabric.over(store)]
        if i.op is Op.FABRIC_REDUCE_STORE:
            read = fabric.answer((tuple(up.values()), (down[self.rank],)))
            ways = [read, replace(ways[0], lead=read.lead + read.latency)]
        for way in ways:
            self.thread.transfer(START, self.coder.route(way), size, self.options.cap(len(ways)))
        self.thread.join()
