"""Who talks to whom: connections, channels, barriers and semaphores, and whether they balance.

A network in which every connection and every semaphore has one producer and one consumer is
deterministic (Kahn): whatever the timing, the n-th receive takes the n-th send. These checks make
sure that it is one, and that a launch leaves it as it found it. They need no run: how often a
channel is signalled and waited for can be read off the instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.program import (
    RECEIVES,
    SENDS,
    Channel,
    Op,
    Program,
)
from forestcoll.program.program import where
from forestcoll.verify import _machine
from forestcoll.verify.columns import OPS, columns_of, rows_of

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
    ways: tuple[dict[Connection, _Messages], dict[Connection, _Messages]] = {}, {}
    blocks, steps, operands, _ = rows_of(columns_of(program))
    counts = [count for *_, count in operands]
    for (r, b, block), (_, _, begin, end, *_) in zip(program.blocks(), blocks, strict=True):
        own = [(s, OPS[op], first) for op, s, _, first, *_ in islice(steps, end - begin)]
        for way, peer, key, ops, verb in (
            (ways[0], block.send, (r, block.send, block.channel), SENDS, "sends to"),
            (ways[1], block.recv, (block.recv, r, block.channel), RECEIVES, "receives from"),
        ):
            if peer == -1:
                continue
            if key in way:
                yield PlanError(
                    f"rank {r}, thread block {b}: {verb} rank {peer} on channel {key[2]}, as "
                    f"thread block {way[key][0]} does already; a connection belongs to one "
                    "thread block",
                    rule="XML-CONNECTION-SHARED",
                    at=(r, b),
                )
            else:
                way[key] = (
                    b,
                    [((r, b, s, op), counts[first]) for s, op, first in own if op in ops],
                )
    for key in sorted(ways[0].keys() | ways[1].keys()):
        yield from _check_messages(key, *(way.get(key, (-1, [])) for way in ways))


_Messages = tuple[int, list[tuple[tuple[int, int, int, Op], int]]]
"""Thread block, or -1, and its sends or receives on a connection: where, and of how many chunks."""


def _check_messages(connection: Connection, sends: _Messages, receives: _Messages) -> Faults:
    src, dst, channel = connection
    name = f"from rank {src} to rank {dst} on channel {channel}"
    pairs = enumerate(zip(sends[1], receives[1], strict=False))
    for k, ((sender, count), (receiver, wanted)) in pairs:
        if count != wanted:
            yield PlanError(
                f"{where(*receiver)}: receives {wanted} chunks, but message {k} {name} has {count} "
                f"({where(*sender)})",
                rule="XML-MESSAGE-LENGTH",
                at=receiver[:3],
            )
            return  # whatever follows on this connection is out of step
    for mine, other, end, verb, one, many in (
        (sends[1], receives, dst, "receives", "messages", "receives"),
        (receives[1], sends, src, "sends", "receives", "messages"),
    ):
        if len(mine) > len(other[1]):
            at = mine[len(other[1])][0]
            rest = "" if other[0] < 0 else f" (rank {end}, thread block {other[0]})"
            yield PlanError(
                f"{where(*at)}: nobody {verb} it: {len(mine)} {one} {name}, {len(other[1])} {many}"
                + rest,
                rule="XML-MESSAGE-LOST",
                at=at[:3],
            )


# --- onesided: how often something is done in a launch --------------------------------------------


@dataclass(frozen=True, slots=True)
class Use:
    """What one thread block does to a semaphore in a launch, in order.

    `times` lists (count, None) for plain instructions, (count a round, loop length) for loops; the
    loop length is chunks / unit bytes: times the bytes of a chunk, the number of rounds. `steps`
    are those with which the entries begin.
    """

    rank: int
    block: int
    steps: tuple[int, ...]
    times: tuple[tuple[int, Fraction | None], ...]

    @property
    def at(self) -> tuple[int, int, int]:
        """Rank, thread block and the first step."""
        return self.rank, self.block, self.steps[0]

    def __str__(self) -> str:
        words = []
        for count, length in self.times:
            often = "once" if count == 1 else f"{count} times"
            loop = (
                "" if length is None else f" a round of a pipeline ({length} rounds a chunk byte)"
            )
            words.append(often + loop)
        return " and ".join(words)


_Table = dict[tuple[int, int], list[tuple[int, Use]]]
"""By rank and thread block: which channels, semaphores or barriers it names, and how often."""


def _uses(program: Program) -> list[_Table]:
    """Returns signals, waits, releases, acquires and barriers."""
    tables: list[_Table] = []
    for rows in _machine.uses(columns_of(program)):
        tables.append({})
        for rank, block, index, times in rows:
            often = [(n, None if unit < 0 else _length(c, unit)) for _, n, c, unit in times]
            use = Use(rank, block, tuple([row[0] for row in times]), tuple(often))
            tables[-1].setdefault((rank, block), []).append((index, use))
    return tables


_length = lru_cache(4096)(Fraction)
"""There are few different ones."""


def _parting(use: Use, other: Use | None) -> tuple[int, int, int]:
    """Where the two begin to differ: at `use`, or at `other` where that has more."""
    times = () if other is None else other.times
    pairs = enumerate(zip(use.times, times, strict=False))
    alike = next((k for k, (a, b) in pairs if a != b), min(len(use.times), len(times)))
    longer = use if other is None or alike < len(use.steps) else other
    return longer.rank, longer.block, longer.steps[alike]


def _check_channels(program: Program, signalled: _Table, awaited: _Table) -> Faults:
    signals: dict[End, Use] = {}
    waits: dict[End, Use] = {}
    ends: set[End] = set()
    for r, b, block in program.blocks():
        own = [end_of(r, c) for c in block.channels]
        if len(set(own)) != len(own):
            yield PlanError(
                f"rank {r}, thread block {b}: lists a channel twice",
                rule="MPP-CHANNEL-TWICE",
                at=(r, b),
            )
        ends.update(own)
        for table, uses, verb in (
            (signals, signalled, "signals"),
            (waits, awaited, "waits on"),
        ):
            for index, use in uses.get((r, b), ()):
                if not 0 <= index < len(own):
                    continue  # the structure's check refuses it
                before = table.setdefault(own[index], use)
                if before.block != b:
                    yield PlanError(
                        f"{where(*use.at)}: {verb} its {_channel(own[index])}, as thread block "
                        f"{before.block} does; one thread block must own that",
                        rule="MPP-CHANNEL-SHARED",
                        at=use.at,
                    )
    for end in sorted(signals.keys() | {other_end(end) for end in waits}):
        signal, wait = signals.get(end), waits.get(other_end(end))
        if not (signal and wait and signal.times == wait.times):
            yield from _check_balance(ends, end, signal, wait)


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
            f"{where(*signal.at)}: signals its {_channel(end)} {signal} "
            f"a launch, but {other}; what is left over breaks the next launch",
            rule="MPP-SIGNAL-UNMATCHED",
            at=_parting(signal, wait),
        )
    if wait is not None and signal is None:
        lacking = "never signals it" if end in ends else "has no such channel back"
        yield PlanError(
            f"{where(*wait.at)}: waits on its {_channel(other_end(end))} {wait} "
            f"a launch, but rank {rank} {lacking}",
            rule="MPP-SIGNAL-UNMATCHED",
            at=wait.at,
        )


def _check_semaphores(program: Program, r: int, released: _Table, acquired: _Table) -> Faults:
    if not program.ranks[r].semaphores:  # the structure's check refuses whoever names one
        return
    releases: dict[int, Use] = {}
    acquires: dict[int, Use] = {}
    for b in range(len(program.ranks[r].thread_blocks)):
        for table, uses, op in (
            (releases, released, Op.RELEASE),
            (acquires, acquired, Op.ACQUIRE),
        ):
            for index, use in uses.get((r, b), ()):
                before = table.setdefault(index, use)
                if before is not use:
                    yield UnsupportedError(
                        f"{where(*use.at, op)}: semaphore {index}, as thread block "
                        f"{before.block} does; who is first depends on timing, which this "
                        "check does not follow: use one semaphore a pair of thread blocks",
                        rule="MPP-SEMAPHORE-SHARED",
                        at=use.at,
                    )
    for index in sorted(releases.keys() | acquires.keys()):
        ways = (
            (releases.get(index), Op.RELEASE, "releases", "acquired"),
            (acquires.get(index), Op.ACQUIRE, "acquires", "released"),
        )
        (mine, op, verb, reverse), (other, *_) = ways if ways[0][0] else ways[::-1]
        assert mine is not None
        if other is None or mine.times != other.times:
            rest = f"never {reverse}"
            if other is not None:
                rest = f"{reverse} {other} (thread block {other.block})"
            yield PlanError(
                f"{where(*mine.at, op)}: {verb} semaphore {index} {mine} a launch, but it is "
                f"{rest}; it must return to its initial value",
                rule="MPP-SEMAPHORE-UNMATCHED",
                at=mine.at,
            )


def _check_barriers(program: Program, r: int, barriers: _Table) -> Faults:
    uses: dict[int, list[Use]] = {}
    groups: dict[int, tuple[int, int, int]] = {}  # barrier -> its group, as said by block and step
    for b, block in enumerate(program.ranks[r].thread_blocks):
        for index, use in barriers.get((r, b), ()):
            uses.setdefault(index, []).append(use)
        for s, i in block.instructions() if (r, b) in barriers else ():
            if i.op is not Op.BARRIER:
                continue
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
                    f"{where(*use.at, Op.BARRIER)}: comes to barrier {index} {use}, "
                    f"thread block {comers[0].block} {comers[0]}",
                    rule="MPP-BARRIER-UNMATCHED",
                    at=use.at,
                )
