"""Who talks to whom: connections, channels, barriers and semaphores, and whether they balance.

A network in which every connection and every semaphore has one producer and one consumer is
deterministic (Kahn): whatever the timing, the n-th receive takes the n-th send. These checks make
sure that it is one, and that a launch leaves it as it found it. They need no run: how often a
channel is signalled and waited for can be read off the instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.program import (
    RECEIVES,
    SENDS,
    Channel,
    Instruction,
    Op,
    Pipeline,
    Program,
    ThreadBlock,
)
from forestcoll.program.program import where
from forestcoll.verify import _machine
from forestcoll.verify.columns import columns_of

Connection = tuple[int, int, int]  # from rank, to rank, channel
End = tuple[int, int, str, int]  # of a onesided channel: at rank, to peer, kind, index


Faults = Iterator[PlanError | UnsupportedError]


def check_wiring(program: Program) -> None:
    """Check that all that is sent is received, and all that is signalled is waited for."""
    for fault in wiring_faults(program):
        raise fault


def wiring_faults(program: Program) -> Faults:
    """Everything that is wrong with who talks to whom; nothing is read but steps and channels."""
    if program.style == "fifo":
        yield from _check_connections(program)
    else:
        signals, waits, releases, acquires, barriers = _uses(program)
        yield from _check_channels(program, signals, waits)
        for r in range(program.n):
            yield from _check_semaphores(program, r, releases, acquires)
            yield from _check_barriers(program, r, barriers)


def other_end(end: End) -> End:
    """The end of the same channel at the peer."""
    rank, peer, kind, index = end
    return peer, rank, kind, index


def end_of(rank: int, channel: Channel) -> End:
    """The end that `channel` is for a thread block of `rank`."""
    return rank, channel.peer, channel.kind, channel.index


# --- fifo: connections ----------------------------------------------------------------------------


def _check_connections(program: Program) -> Faults:
    senders: dict[Connection, int] = {}
    receivers: dict[Connection, int] = {}
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            if block.send != -1:
                key = (r, block.send, block.channel)
                yield from _claim(senders, key, r, b, f"sends to rank {block.send}")
            if block.recv != -1:
                key = (block.recv, r, block.channel)
                yield from _claim(receivers, key, r, b, f"receives from rank {block.recv}")
    for connection in sorted(senders.keys() | receivers.keys()):
        sender, receiver = senders.get(connection), receivers.get(connection)
        yield from _check_messages(program, connection, sender, receiver)


def _claim(owners: dict[Connection, int], key: Connection, r: int, b: int, what: str) -> Faults:
    if key in owners:
        yield PlanError(
            f"rank {r}, thread block {b}: {what} on channel {key[2]}, as thread block "
            f"{owners[key]} does already; a connection belongs to one thread block",
            rule="XML-CONNECTION-SHARED",
            at=(r, b),
        )
    owners.setdefault(key, b)


def _messages(program: Program, rank: int, block: int | None, ops: frozenset[Op]) -> list[int]:
    if block is None:
        return []
    steps = program.ranks[rank].thread_blocks[block].steps
    return [s for s, i in enumerate(steps) if isinstance(i, Instruction) and i.op in ops]


def _check_messages(
    program: Program, connection: Connection, sender: int | None, receiver: int | None
) -> Faults:
    src, dst, channel = connection
    sends = _messages(program, src, sender, SENDS)
    receives = _messages(program, dst, receiver, RECEIVES)
    name = f"from rank {src} to rank {dst} on channel {channel}"
    for k, (s, t) in enumerate(zip(sends, receives, strict=False)):
        assert sender is not None
        assert receiver is not None
        a, b = _step(program, src, sender, s), _step(program, dst, receiver, t)
        count, wanted = _length(a), _length(b)
        if count != wanted:
            yield PlanError(
                f"{where(dst, receiver, t, b.op)}: receives {wanted} chunks, but message {k} "
                f"{name} has {count} ({where(src, sender, s, a.op)})",
                rule="XML-MESSAGE-LENGTH",
                at=(dst, receiver, t),
            )
            return  # whatever follows on this connection is out of step
    if len(sends) > len(receives):
        assert sender is not None
        s = sends[len(receives)]
        op = _step(program, src, sender, s).op
        yield PlanError(
            f"{where(src, sender, s, op)}: nobody receives it: {len(sends)} messages {name}, "
            f"{len(receives)} receives" + _at(dst, receiver),
            rule="XML-MESSAGE-LOST",
            at=(src, sender, s),
        )
    if len(receives) > len(sends):
        assert receiver is not None
        t = receives[len(sends)]
        op = _step(program, dst, receiver, t).op
        yield PlanError(
            f"{where(dst, receiver, t, op)}: nobody sends it: {len(receives)} receives {name}, "
            f"{len(sends)} messages" + _at(src, sender),
            rule="XML-MESSAGE-LOST",
            at=(dst, receiver, t),
        )


def _at(rank: int, block: int | None) -> str:
    return "" if block is None else f" (rank {rank}, thread block {block})"


def _step(program: Program, rank: int, block: int, step: int) -> Instruction:
    found = program.ranks[rank].thread_blocks[block].steps[step]
    assert isinstance(found, Instruction)
    return found


def _length(i: Instruction) -> int:
    return (*i.src, *i.dst)[0].count


# --- onesided: how often something is done in a launch --------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """What one thread block does to a semaphore in a launch, in order.

    `times` lists (count, None) for plain instructions, (count a round, loop length) for loops; the
    loop length is chunks / unit bytes: times the bytes of a chunk, the number of rounds. `steps`
    are those with which the entries begin.
    """

    block: int
    steps: tuple[int, ...]
    times: tuple[tuple[int, Fraction | None], ...]

    @property
    def step(self) -> int:
        """The first."""
        return self.steps[0]

    def __str__(self) -> str:
        words = []
        for count, length in self.times:
            often = "once" if count == 1 else f"{count} times"
            loop = (
                "" if length is None else f" a round of a pipeline ({length} rounds a chunk byte)"
            )
            words.append(often + loop)
        return " and ".join(words)


_Table = dict[tuple[int, int], dict[int, Use]]
"""By rank and thread block: what it names of channels, semaphores or barriers, and how often."""


def _uses(program: Program) -> list[_Table]:
    """Returns signals, waits, releases, acquires and barriers."""
    tables: list[_Table] = []
    for rows in _machine.uses(columns_of(program)):
        table: _Table = {}
        for rank, block, index, times in rows:
            steps = tuple([step for step, _, _, _ in times])
            often = [
                (count, None if unit < 0 else Fraction(chunks, unit))
                for _, count, chunks, unit in times
            ]
            table.setdefault((rank, block), {})[index] = Use(block, steps, tuple(often))
        tables.append(table)
    return tables


def _parting(rank: int, use: Use, peer: int, other: Use | None) -> tuple[int, int, int]:
    """Where the two begin to differ: at `use`, or at `other` where that has more."""
    pairs = zip(use.times, () if other is None else other.times, strict=False)
    alike = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
    if alike is None:
        alike = min(len(use.times), 0 if other is None else len(other.times))
    if alike < len(use.steps):
        return rank, use.block, use.steps[alike]
    assert other is not None  # or there would be nothing to be longer than
    return peer, other.block, other.steps[alike]


def _check_channels(program: Program, signalled: _Table, awaited: _Table) -> Faults:
    signals: dict[End, Use] = {}
    waits: dict[End, Use] = {}
    ways = ((signals, signalled, "signals"), (waits, awaited, "waits on"))
    ends: set[End] = set()
    for r, rank in enumerate(program.ranks):
        for b, block in enumerate(rank.thread_blocks):
            own = [end_of(r, c) for c in block.channels]
            if len(set(own)) != len(own):
                yield PlanError(
                    f"rank {r}, thread block {b}: lists a channel twice",
                    rule="MPP-CHANNEL-TWICE",
                    at=(r, b),
                )
            ends.update(own)
            for table, uses, verb in ways:
                for index, use in uses.get((r, b), {}).items():
                    if not 0 <= index < len(own):
                        continue  # the structure's check refuses it
                    end = own[index]
                    if end in table and table[end].block != b:
                        yield PlanError(
                            f"{where(r, b, use.step)}: {verb} its {_channel(end)}, as thread block "
                            f"{table[end].block} does; one thread block must own that",
                            rule="MPP-CHANNEL-SHARED",
                            at=(r, b, use.step),
                        )
                    table.setdefault(end, use)
    for end in sorted(signals.keys() | {other_end(end) for end in waits}):
        yield from _check_balance(ends, end, signals.get(end), waits.get(other_end(end)))


def _channel(end: End) -> str:
    return f"{end[2]} channel {end[3]} to rank {end[1]}"


def _check_balance(ends: set[End], end: End, signal: Use | None, wait: Use | None) -> Faults:
    rank, peer = end[0], end[1]
    if signal is not None and (wait is None or wait.times != signal.times):
        other = (
            f"rank {peer} never waits for it"
            if wait is None
            else f"rank {peer}, thread block {wait.block} waits for it {wait}"
        )
        if other_end(end) not in ends:
            other = f"rank {peer} has no such channel back"
        yield PlanError(
            f"{where(rank, signal.block, signal.step)}: signals its {_channel(end)} {signal} "
            f"a launch, but {other}; what is left over breaks the next launch",
            rule="MPP-SIGNAL-UNMATCHED",
            at=_parting(rank, signal, peer, wait),
        )
    if wait is not None and signal is None:
        lacking = "never signals it" if end in ends else "has no such channel back"
        yield PlanError(
            f"{where(peer, wait.block, wait.step)}: waits on its {_channel(other_end(end))} {wait} "
            f"a launch, but rank {rank} {lacking}",
            rule="MPP-SIGNAL-UNMATCHED",
            at=(peer, wait.block, wait.step),
        )


def _check_semaphores(program: Program, r: int, released: _Table, acquired: _Table) -> Faults:
    if not program.ranks[r].semaphores:  # the structure's check refuses whoever names one
        return
    tables: list[dict[int, Use]] = [{}, {}]
    ways = ((released, Op.RELEASE), (acquired, Op.ACQUIRE))
    for b in range(len(program.ranks[r].thread_blocks)):
        for table, (uses_of, op) in zip(tables, ways, strict=True):
            for index, use in uses_of.get((r, b), {}).items():
                if index in table:
                    yield UnsupportedError(
                        f"{where(r, b, use.step, op)}: semaphore {index}, as thread block "
                        f"{table[index].block} does; who is first depends on timing, which this "
                        "check does not follow: use one semaphore a pair of thread blocks",
                        rule="MPP-SEMAPHORE-SHARED",
                        at=(r, b, use.step),
                    )
                table.setdefault(index, use)
    releases, acquires = tables
    for index in sorted(releases.keys() | acquires.keys()):
        release, acquire = releases.get(index), acquires.get(index)
        if release is None or acquire is None or release.times != acquire.times:
            found, op = (release, Op.RELEASE) if release else (acquire, Op.ACQUIRE)
            assert found is not None
            other = acquire if release else release
            verb, reverse = ("releases", "acquired") if release else ("acquires", "released")
            rest = f"never {reverse}"
            if other is not None:
                rest = f"{reverse} {other} (thread block {other.block})"
            yield PlanError(
                f"{where(r, found.block, found.step, op)}: {verb} semaphore {index} {found} "
                f"a launch, but it is {rest}; it must return to its initial value",
                rule="MPP-SEMAPHORE-UNMATCHED",
                at=(r, found.block, found.step),
            )


def _check_barriers(program: Program, r: int, barriers: _Table) -> Faults:
    uses: dict[int, list[Use]] = {}
    groups: dict[int, tuple[int, int, int]] = {}  # barrier -> its group, as said by block and step
    for b, block in enumerate(program.ranks[r].thread_blocks):
        if (r, b) not in barriers:
            continue
        for index, use in barriers[r, b].items():
            uses.setdefault(index, []).append(use)
        for s, i in _plain(block):
            if i.op is Op.BARRIER:
                group, at_block, at_step = groups.setdefault(i.ident, (i.group, b, s))
                if i.group != group:
                    yield PlanError(
                        f"{where(r, b, s, i.op)}: barrier {i.ident} of {i.group} thread blocks, "
                        f"but thread block {at_block}, step {at_step} says {group}",
                        rule="MPP-BARRIER-UNMATCHED",
                        at=(r, b, s),
                    )
    for index, comers in uses.items():
        group, b, s = groups[index]
        if len(comers) != group:
            yield PlanError(
                f"{where(r, b, s, Op.BARRIER)}: barrier {index} is for {group} thread blocks, "
                f"but {len(comers)} come to it",
                rule="MPP-BARRIER-UNMATCHED",
                at=(r, b, s),
            )
        for use in comers[1:]:
            if use.times != comers[0].times:
                yield PlanError(
                    f"{where(r, use.block, use.step, Op.BARRIER)}: comes to barrier {index} {use}, "
                    f"thread block {comers[0].block} {comers[0]}",
                    rule="MPP-BARRIER-UNMATCHED",
                    at=(r, use.block, use.step),
                )


def _plain(block: ThreadBlock) -> Iterator[tuple[int, Instruction]]:
    for s, step in enumerate(block.steps):
        inner: Iterable[Instruction] = step.body if isinstance(step, Pipeline) else (step,)
        for i in inner:
            yield s, i
