"""Thread blocks of packet programs: who does which job, within a target's limits.

Trees over the same chunks are a unit. Units go to classes, the lightest first; class j's fixed jobs
at a rank are thread block j there, its other jobs go along where there is room, else into thread
blocks of their own. Where that leaves few thread blocks, each is there several times and does a
slice of every job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from forestcoll.common.errors import PlanError
from forestcoll.lower.limits import Limits
from forestcoll.lower.tree_pieces import KINDS, Kind
from forestcoll.program import PACKETS, Buffer, Channel, Instruction, Op, Ref, ThreadBlock
from forestcoll.program.targets import Target

CLASSES = 16
"""Classes to start with, if there are that many units."""
BLOCKS = 8
"""Thread blocks that a rank should have at least: one alone would take long for a megabyte."""
_NOP = Instruction(Op.NOP)
Write = tuple[Ref, bool]  # a used part of an output, and whether in the course of packets


@dataclass(frozen=True, slots=True)
class Job:
    """What must be done in one go, with peers in place of channels.

    `level`: over those of all jobs that it waits for. `fixed`: shares memory with others of its
    unit. `peers` are reached by channels of one `kind`.
    """

    level: int
    fixed: bool
    steps: tuple[Instruction, ...]
    kind: Kind | None = None
    peers: tuple[int, ...] = ()


Unit = dict[int, list[Job]]
End = tuple[Kind, int]  # kind of channel, peer


@dataclass(slots=True)
class _Block:
    """A thread block in the making."""

    jobs: list[Job] = field(default_factory=list)
    ends: set[End] = field(default_factory=set)

    def room(self, job: Job, target: Target) -> bool:
        """Whether the job fits as well."""
        jobs = [*self.jobs, job]
        steps = sum(len(j.steps) for j in jobs)
        if steps + sum(j.fixed for j in jobs) > target.steps and steps <= target.steps:
            steps = len(_in_order(jobs))
        return steps <= target.steps and self.reaches(_ends(job), target)

    def reaches(self, more: Iterable[End], target: Target) -> bool:
        """Whether there are channels enough for these ends as well."""
        ends = self.ends.union(more)
        most = min(target.channels, target.remote_buffers)
        return all(sum(k == kind for k, _ in ends) <= most for kind in KINDS)

    def add(self, job: Job) -> None:
        """Takes the job."""
        self.jobs.append(job)
        self.ends |= _ends(job)


def _ends(job: Job) -> set[End]:
    return set() if job.kind is None else {(job.kind, peer) for peer in job.peers}


def deal(
    units: Sequence[Unit], n: int, limits: Limits, *, even: bool
) -> list[tuple[ThreadBlock, ...]]:
    """The thread blocks of each rank; PlanError where the target cannot hold them.

    `even`: slices of different jobs stay apart, so that thread blocks may share them.
    """
    classes = _classes(units, n, limits)
    ranks = [_blocks(classes, rank, limits.target) for rank in range(n)]
    fullest = max(range(n), key=lambda r: len(ranks[r]))
    blocks, most = len(ranks[fullest]), limits.target.thread_blocks
    if blocks > most:
        raise limits.refuse(limits.rank(fullest), "thread blocks", blocks, most)
    slices = 1
    while 2 * slices * len(classes) <= BLOCKS and 2 * slices * blocks <= most and even:
        slices *= 2
    ends = [{end for block in blocks for end in block.ends} for blocks in ranks]
    for rank in range(n):
        back = {(kind, peer) for peer in range(n) for kind, at in ends[peer] if at == rank}
        _list_unused(ranks[rank], back - ends[rank], limits.target)
    return [_written(blocks, slices) for blocks in ranks]


def _list_unused(blocks: Sequence[_Block], missing: set[End], target: Target) -> None:
    """Lists channels that only their other ends use, where there is room for them.

    The runtime would make them anyway, in pairs.
    """
    for end in sorted(missing):
        place = next((b for b in blocks if b.reaches([end], target)), None)
        if place is not None:
            place.ends.add(end)


def _classes(units: Sequence[Unit], n: int, limits: Limits) -> list[list[Unit]]:
    """The units dealt out so that each class's fixed jobs fit a thread block at every rank."""
    target = limits.target
    number = min(len(units), CLASSES, target.thread_blocks)
    while True:
        classes: list[list[Unit]] = [[] for _ in range(number)]
        blocks = [[_Block() for _ in range(n)] for _ in range(number)]
        stuck = None
        for unit in units:
            order = sorted(range(number), key=lambda c: (len(classes[c]), c))
            place = next((c for c in order if _fits(unit, blocks[c], target)), None)
            if place is None:
                stuck = unit
                break
            classes[place].append(unit)
            for rank, jobs in unit.items():
                for job in jobs:
                    if job.fixed:
                        blocks[place][rank].add(job)
        if stuck is None:
            return [c for c in classes if c]
        if number == min(len(units), target.thread_blocks):
            raise _refusal(stuck, units, limits)
        number = min(len(units), target.thread_blocks, 2 * number)


def _fits(unit: Unit, blocks: Sequence[_Block], target: Target) -> bool:
    for rank, jobs in unit.items():
        trial = _Block(list(blocks[rank].jobs), set(blocks[rank].ends))
        for job in jobs:
            if job.fixed:
                if not trial.room(job, target):
                    return False
                trial.add(job)
    return True


def _refusal(stuck: Unit, units: Sequence[Unit], limits: Limits) -> PlanError:
    target = limits.target
    for rank, jobs in stuck.items():
        steps = len(_in_order(job for job in jobs if job.fixed))
        if steps > target.steps:
            where = f"{limits.rank(rank)}, for packets of trees over the same chunks,"
            return limits.refuse(where, "operations in one thread block", steps, target.steps)
    return PlanError(
        f"{limits.title}: packets of {len(units)} groups of trees need more than "
        f"{target.thread_blocks} thread blocks, all that {target.name} holds; {limits.hint}"
    )


def _blocks(classes: Sequence[Sequence[Unit]], rank: int, target: Target) -> list[_Block]:
    """A rank's thread blocks: one a class with what is fixed; what does not fit has its own."""
    blocks: list[_Block] = []
    loose: list[Job] = []
    for units in classes:
        block = _Block()
        jobs = [job for unit in units for job in unit.get(rank, ())]
        for job in jobs:
            if job.fixed:
                block.add(job)
        for job in sorted(jobs, key=lambda j: j.level):
            if not job.fixed:
                if block.room(job, target):
                    block.add(job)
                else:
                    loose.append(job)
        if block.jobs:
            blocks.append(block)
    for job in loose:
        place = next((b for b in blocks if b.room(job, target)), None)
        if place is None:
            place = _Block()
            blocks.append(place)
        place.add(job)
    return blocks


def _written(blocks: Sequence[_Block], slices: int) -> tuple[ThreadBlock, ...]:
    """The thread blocks, each of them `slices` times.

    All share one channel of a kind to a peer: packets take no semaphore, only the way.
    """
    found = []
    for part in range(slices):
        for block in blocks:
            ends = sorted(block.ends)
            channels = tuple(Channel(peer, kind, 0) for kind, peer in ends)
            found.append(ThreadBlock(_steps(block, ends, (part, slices)), channels=channels))
    return tuple(found)


def _steps(block: _Block, ends: Sequence[End], part: tuple[int, int]) -> tuple[Instruction, ...]:
    """The jobs by level, with channels in place of peers."""
    place = {end: k for k, end in enumerate(ends)}
    steps: list[Instruction] = []
    for job, i in _in_order(block.jobs):
        if job is None:
            steps.append(i)
            continue
        channels = tuple(place[job.kind, p] for p in i.channels if job.kind is not None)
        steps.append(replace(i, channels=channels, part=part))
    return tuple(steps)


def _in_order(jobs: Iterable[Job]) -> list[tuple[Job | None, Instruction]]:
    """All instructions by level, and a barrier where one comes to an output that another has used.

    Not where both write just the same in the course of packets: each thread then comes to what it
    has written itself (forestcoll/verify/packets.py).
    """
    steps: list[tuple[Job | None, Instruction]] = []
    fresh: dict[int, set[Write]] = {}  # of each chunk since the last barrier
    for job in sorted(jobs, key=lambda j: j.level):
        used = [(chunk, write) for i in job.steps for write in _outputs(i) for chunk in _in(write)]
        if any(
            other != write or not write[1]
            for chunk, write in used
            if chunk in fresh
            for other in fresh[chunk]
        ):
            steps.append((None, _NOP))
            fresh = {}
        for chunk, write in used:
            fresh.setdefault(chunk, set()).add(write)
        steps += [(job, i) for i in job.steps]
    return steps


def _outputs(i: Instruction) -> list[Write]:
    plain = i.op in PACKETS and bool(PACKETS[i.op].packet_dst)
    return [(ref, plain) for ref in (*i.src, *i.dst) if ref.buffer is Buffer.OUTPUT]


def _in(write: Write) -> range:
    return range(write[0].offset, write[0].offset + write[0].count)
