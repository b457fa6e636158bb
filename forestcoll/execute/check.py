"""The structure that a program must have before it may touch memory.

This is what keeps a stranger's plan from crashing the process: every index, range and count that
the engine follows blindly is tested here. Whether the plan computes the right thing is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.errors import PlanError, UnsupportedError
from forestcoll.program import (
    ADDS,
    DATA,
    FABRIC,
    OPERATIONS,
    PACKETS,
    PUTS,
    RECEIVES,
    SEMAPHORES,
    SENDS,
    SIGNALS,
    STYLES,
    WAITS,
    Buffer,
    Channel,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    ThreadBlock,
)

MAX_SOURCES = 80  # interpreter.hpp: max_sources
_LIMIT = 2**31 - 1  # the tables hold 32-bit numbers


def check(program: Program) -> None:
    """PlanError with rank, thread block and step; UnsupportedError beyond the engine's limits."""
    if program.style not in ("fifo", "onesided"):
        raise PlanError(f"style: {program.style!r} is neither 'fifo' nor 'onesided'")
    if not program.ranks:
        raise PlanError("the program has no ranks")
    if program.double_scratch and (program.style, program.protocol) != ("onesided", "LL"):
        raise PlanError("two halves of scratch are for packets (onesided, protocol LL)")
    _check_chunks(program)
    for r, rank in enumerate(program.ranks):
        _check_semaphores(r, rank)
        for b, block in enumerate(rank.thread_blocks):
            _check_ends(program, r, b, block)
            for s, step in enumerate(block.steps):
                if isinstance(step, Pipeline):
                    where = f"rank {r}, thread block {b}, step {s}"
                    _check_pipeline(program, rank, step, where)
                    for i in step.body:
                        if i.op in PACKETS:
                            raise PlanError(
                                f"rank {r}, thread block {b}, step {s} ({i.op}): packets in a "
                                "pipeline, which would write them round after round"
                            )
                        _Checker(program, (r, b, s), i).check()
                else:
                    _Checker(program, (r, b, s), step).check()
    if program.style == "fifo":
        _check_connections(program)


def _check_chunks(program: Program) -> None:
    n = program.n
    first = program.ranks[0]
    for r, rank in enumerate(program.ranks):
        sizes = (rank.input_chunks, rank.output_chunks, rank.scratch_chunks)
        if min(sizes) < 0 or max(sizes) > _LIMIT:
            raise PlanError(f"rank {r}: chunk counts {sizes} are not between 0 and {_LIMIT}")
        if rank.input_chunks < 1 or rank.output_chunks < 1:
            raise PlanError(f"rank {r}: input and output need at least one chunk, not {sizes[:2]}")
        if sizes[:2] != (first.input_chunks, first.output_chunks):
            raise PlanError(
                f"rank {r}: {sizes[0]} input and {sizes[1]} output chunks, but rank 0 has "
                f"{first.input_chunks} and {first.output_chunks}; all ranks need the same"
            )
    i, o = first.input_chunks, first.output_chunks
    to_in, to_out = program.collective.input_parts(n), program.collective.output_parts(n)
    rule = "input chunks = output chunks"
    if to_in < to_out:
        rule = f"output chunks = {n} x input chunks"
    elif to_in > to_out:
        rule = f"input chunks = {n} x output chunks"
    if i * to_out != o * to_in or i % to_in:
        raise PlanError(f"{program.collective} over {n} ranks needs {rule}, not {i} and {o}")


def _check_semaphores(r: int, rank: RankProgram) -> None:
    for k, value in enumerate(rank.semaphores):
        if not 0 <= value <= _LIMIT:
            raise PlanError(f"rank {r}: semaphore {k} begins at {value}, not 0 to {_LIMIT}")


def _check_ends(program: Program, r: int, b: int, block: ThreadBlock) -> None:
    where = f"rank {r}, thread block {b}"
    ends = [("receives from", block.recv), ("sends to", block.send)]
    ends = [(what, peer) for what, peer in ends if peer != -1]
    if program.style == "onesided":
        if ends:
            raise PlanError(f"{where}: {ends[0][0]} rank {ends[0][1]}, which is fifo style")
        ends = [("has a channel to", c.peer) for c in block.channels]
    elif block.channels:
        raise PlanError(f"{where}: has onesided channels in a fifo program")
    for what, peer in ends:
        if not 0 <= peer < program.n:
            raise PlanError(f"{where}: {what} rank {peer}; there are ranks 0 to {program.n - 1}")
        if peer == r:
            raise PlanError(f"{where}: {what} its own rank")


def _check_pipeline(program: Program, rank: RankProgram, loop: Pipeline, where: str) -> None:
    if program.style != "onesided":
        raise PlanError(f"{where}: a pipeline in a fifo program")
    if not loop.body:
        raise PlanError(f"{where}: the pipeline is empty")
    most = max(rank.input_chunks, rank.output_chunks, rank.scratch_chunks)
    if not 1 <= loop.chunks <= most:
        raise PlanError(f"{where}: the pipeline covers {loop.chunks} chunks, not 1 to {most}")
    if not 1 <= loop.unit_bytes < 2**62:
        raise PlanError(f"{where}: the pipeline's unit of {loop.unit_bytes} bytes is impossible")
    for i in loop.body:
        if not isinstance(i, Instruction):
            raise PlanError(f"{where}: a pipeline inside a pipeline")
        for ref in (*i.src, *i.dst):
            if ref.count != loop.chunks:
                raise PlanError(
                    f"{where} ({i.op}): {ref.count} chunks in a pipeline of {loop.chunks}; "
                    "every data instruction of a body must cover exactly the pipeline's chunks"
                )
        if i.part != (0, 1):
            raise PlanError(f"{where} ({i.op}): a partial instruction inside a pipeline")


class _Checker:
    """Tests of one instruction."""

    __slots__ = ("at", "block", "i", "program", "r", "rank")

    def __init__(self, program: Program, at: tuple[int, int, int], i: Instruction) -> None:
        self.program, self.at, self.i = program, at, i
        self.r = at[0]
        self.rank = program.ranks[self.r]
        self.block = self.rank.thread_blocks[at[1]]

    @property
    def where(self) -> str:
        return f"rank {self.r}, thread block {self.at[1]}, step {self.at[2]} ({self.i.op})"

    def fail(self, text: str) -> PlanError:
        return PlanError(f"{self.where}: {text}")

    def check(self) -> None:
        if self.i.op not in STYLES[self.program.style]:
            raise self.fail(f"not an instruction of the {self.program.style} style")
        self.check_shape()
        self.check_switches()
        for ref, remote, packets in self.refs():
            self.check_ref(ref, remote)
            self.check_scratch(ref, packets)
            self.check_half(ref)
        self.check_synchronization()
        self.check_part()
        if self.i.op in SENDS and self.block.send < 0:
            raise self.fail("sends, but its thread block has no rank to send to")
        if self.i.op in RECEIVES and self.block.recv < 0:
            raise self.fail("receives, but its thread block has no rank to receive from")

    def check_shape(self) -> None:
        i, sources, targets = self.i, len(self.i.src), len(self.i.dst)
        counts = {ref.count for ref in (*i.src, *i.dst)}
        row = OPERATIONS[i.op]
        want = row.src[0], row.dst[0]
        if i.op in DATA - PACKETS.keys() and (row.src[1], row.dst[1]) == want:
            if (sources, targets) != want:
                raise self.fail(
                    f"needs {want[0]} sources and {want[1]} targets, not {sources} and {targets}"
                )
        elif i.op in PUTS or i.op in (Op.COPY, Op.GET):
            if targets < 1 or sources not in (1, targets):
                raise self.fail(
                    f"needs one source for all targets or one each, not {sources} for {targets}"
                )
            pairs = zip(i.src, i.dst, strict=True) if sources == targets else ()
            if sources == targets and all(s.count == d.count for s, d in pairs):
                return
        elif i.op in ADDS and i.op not in PACKETS:
            if sources < row.src[0] or not row.dst[0] <= targets <= row.dst[1]:
                raise self.fail(f"{sources} sources and {targets} targets are not possible")
            if sources > MAX_SOURCES:
                raise UnsupportedError(
                    f"{self.where}: {sources} sources; this engine adds at most {MAX_SOURCES}"
                )
        elif i.op in PACKETS:
            self.check_packets()
            pairs = zip(i.src, i.dst, strict=False) if i.op is Op.PUT_PACKETS else ()
            if 1 < sources == targets and all(s.count == d.count for s, d in pairs):
                return
        elif sources or targets:
            raise self.fail("takes no data")
        if len(counts) > 1:
            raise self.fail(f"its operands differ in size: {sorted(counts)} chunks")

    def check_switches(self) -> None:
        """The switches that the operation goes through exist, and lead to its buffers."""
        i, ranks = self.i, range(self.program.n)
        needs = OPERATIONS[i.op].switches
        if len(i.switches) != needs:
            raise self.fail(f"goes through {len(i.switches)} switches, not {needs}")
        for number, ref in zip(i.switches, i.dst if needs == 1 else (*i.src, *i.dst), strict=False):
            if not 0 <= number < len(self.block.switches):
                raise self.fail(f"switch {number} of a thread block that has fewer")
            switch = self.block.switches[number]
            group = switch.ranks
            if self.r not in group or len(set(group)) < len(group) or set(group) - set(ranks):
                raise self.fail(f"a switch of ranks {list(group)}")
            if ref.buffer != switch.buffer or ref.rank is not None:
                raise self.fail("an operand that its switch does not lead to")
            if len(group) > MAX_SOURCES:
                raise UnsupportedError(
                    f"{self.where}: a switch of {len(group)} ranks; this engine has {MAX_SOURCES}"
                )

    def check_packets(self) -> None:
        """The numbers of operands, and that packets and nothing else lie in scratch."""
        i, shape, sources, targets = self.i, PACKETS[self.i.op], len(self.i.src), len(self.i.dst)
        if self.program.protocol != "LL":
            raise self.fail(f"packets in a program of protocol {self.program.protocol}, not LL")
        most_in, most_out = min(shape.src[1], MAX_SOURCES), min(shape.dst[1], MAX_SOURCES)
        if not 1 <= sources <= most_in or not shape.dst[0] <= targets <= most_out:
            raise self.fail(f"{sources} sources and {targets} targets are not possible")
        if i.op is Op.PUT_PACKETS and sources not in (1, targets):
            raise self.fail(
                f"needs one source for all targets or one each, not {sources} for {targets}"
            )

    def refs(self) -> Iterator[tuple[Ref, bool, bool]]:
        """Every operand, whether it may be another rank's memory, and whether it is packets."""
        op, shape = self.i.op, PACKETS.get(self.i.op)
        if op in FABRIC:
            sources, targets = self.block.operands(self.r, self.i)
            yield from ((ref, op is Op.FABRIC_REDUCE_STORE, False) for ref in sources)
            yield from ((ref, True, False) for ref in targets)
            return
        for k, ref in enumerate(self.i.src):
            packets = shape is not None and k >= shape.packet_src
            yield ref, op in (Op.GET, Op.READ_REDUCE, Op.READ_REDUCE_PUT), packets
        for k, ref in enumerate(self.i.dst):
            if shape is not None:
                yield ref, shape.remote and k >= shape.remote_dst, k >= shape.packet_dst
                continue
            far = op in PUTS or (op in (Op.READ_REDUCE_PUT, Op.REDUCE_PUT) and k > 0)
            yield ref, far, False

    def check_ref(self, ref: Ref, remote: bool) -> None:
        owner = self.r if ref.rank is None else ref.rank
        if not 0 <= owner < self.program.n:
            raise self.fail(f"rank {owner} does not exist")
        if owner != self.r and not remote:
            raise self.fail(f"this operand cannot be memory of another rank ({owner})")
        rank = self.program.ranks[owner]
        if ref.buffer == Buffer.INPUT:
            size = rank.input_chunks
        elif ref.buffer == Buffer.OUTPUT:
            size = rank.output_chunks
        elif ref.buffer == Buffer.SCRATCH:
            size = rank.scratch_chunks
        else:
            raise self.fail(f"unknown buffer {ref.buffer!r}")
        if ref.count < 1 or ref.offset < 0 or ref.offset + ref.count > size:
            name = Buffer(ref.buffer).name.lower()
            raise self.fail(
                f"chunks {ref.offset} to {ref.offset + ref.count - 1} of rank {owner}'s {name}, "
                f"which has {size}"
            )

    def check_scratch(self, ref: Ref, packets: bool) -> None:
        """Packets lie in scratch; plain data there would lie at other addresses, across them."""
        if packets and ref.buffer != Buffer.SCRATCH:
            raise self.fail(
                f"packets in the {Buffer(ref.buffer).name.lower()}; they lie in scratch"
            )
        holds = self.program.protocol == "LL" and self.program.style == "onesided"
        if holds and not packets and ref.buffer == Buffer.SCRATCH:
            raise self.fail("plain data in scratch, which holds packets in a program of LL")

    def check_half(self, ref: Ref) -> None:
        """In the second half's launches, packets to a peer stay within its scratch."""
        lead = self.program.lead(self.r, ref)
        if lead <= 0 or ref.rank is None:
            return
        own, size = self.rank.scratch_chunks, self.program.ranks[ref.rank].scratch_chunks
        if ref.offset + ref.count + own > 2 * size:
            raise self.fail(
                f"packets beyond rank {ref.rank}'s scratch in every other launch: rank {self.r} "
                f"has two halves of {own} chunks and puts them {own} chunks further then, rank "
                f"{ref.rank} has two of {size}; give all ranks the larger scratch_chunks"
            )

    def check_synchronization(self) -> None:
        i = self.i
        if i.op in SIGNALS or i.op in WAITS:
            if not i.channels:
                raise self.fail("names no channel")
            for c in i.channels:
                if not 0 <= c < len(self.block.channels):
                    have = len(self.block.channels)
                    raise self.fail(f"channel {c} of a thread block that has {have}")
        if i.op in SEMAPHORES:
            if not i.semaphores:
                raise self.fail("names no semaphore")
            for k in i.semaphores:
                if not 0 <= k < len(self.rank.semaphores):
                    raise self.fail(f"semaphore {k} of {len(self.rank.semaphores)}")
        if i.op is Op.BARRIER and not 1 <= i.group <= len(self.rank.thread_blocks):
            raise self.fail(
                f"a barrier of {i.group} thread blocks; the rank has {len(self.rank.thread_blocks)}"
            )
        if i.after and self.program.style != "fifo":
            raise self.fail("dependencies between thread blocks are fifo style; use semaphores")
        for b, s in i.after:
            blocks = self.rank.thread_blocks
            if not 0 <= b < len(blocks) or not 0 <= s < len(blocks[b].steps):
                raise self.fail(f"waits for thread block {b}, step {s}, which does not exist")

    def check_part(self) -> None:
        index, size = self.i.part
        if not 0 <= index < size <= 2**20:
            raise self.fail(f"part {index} of {size} is impossible")
        if size > 1 and self.program.style == "fifo":
            raise self.fail("a partial instruction in a fifo program")


def channel_keys(program: Program) -> dict[tuple[int, int, str, int], list[int]]:
    """(rank, peer, kind, index) of every onesided channel end, with its thread blocks."""
    ends: dict[tuple[int, int, str, int], list[int]] = {}
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            for c in block.channels:
                ends.setdefault(channel_key(r, c), []).append(b)
    return ends


def channel_key(rank: int, channel: Channel) -> tuple[int, int, str, int]:
    """The name of one end of a channel; its other end has rank and peer exchanged."""
    return rank, channel.peer, channel.kind, channel.index


def _check_connections(program: Program) -> None:
    """One owner for each end of a connection, a partner for it, messages of equal size."""
    senders: dict[tuple[int, int, int], tuple[int, list[tuple[int, int]]]] = {}
    receivers: dict[tuple[int, int, int], tuple[int, list[tuple[int, int]]]] = {}
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            sent, received = _messages(block)
            for peer, key, messages, owners, what in (
                (block.send, (r, block.send, block.channel), sent, senders, "sends to"),
                (block.recv, (block.recv, r, block.channel), received, receivers, "receives from"),
            ):
                if peer < 0 or not messages:
                    continue
                if key in owners:
                    raise PlanError(
                        f"rank {r}, thread block {b}: {what} rank {peer} on channel "
                        f"{block.channel}, which thread block {owners[key][0]} does already"
                    )
                owners[key] = (b, messages)
    for key in senders.keys() - receivers.keys():
        raise _no_partner(key[0], senders[key][0], "sends to", key[1], key[2])
    for key in receivers.keys() - senders.keys():
        raise _no_partner(key[1], receivers[key][0], "receives from", key[0], key[2])
    for (a, z, channel), (b, sent) in senders.items():
        for k, ((s, have), (t, want)) in enumerate(
            zip(sent, receivers[a, z, channel][1], strict=False)
        ):
            if have != want:
                raise PlanError(
                    f"rank {z}, thread block {receivers[a, z, channel][0]}, step {t}: receives "
                    f"{want} chunks, but message {k} on channel {channel} from rank {a}, thread "
                    f"block {b}, step {s} has {have}"
                )


def _messages(block: ThreadBlock) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(step, chunks) of every message that is sent, and of every one that is received."""
    sent, received = [], []
    for s, i in enumerate(block.steps):
        if isinstance(i, Pipeline) or i.op not in SENDS | RECEIVES:
            continue
        count = (i.src or i.dst)[0].count
        if i.op in SENDS:
            sent.append((s, count))
        if i.op in RECEIVES:
            received.append((s, count))
    return sent, received


def _no_partner(rank: int, block: int, what: str, peer: int, channel: int) -> PlanError:
    return PlanError(
        f"rank {rank}, thread block {block}: {what} rank {peer} on channel {channel}, "
        "but no thread block there does the opposite"
    )
