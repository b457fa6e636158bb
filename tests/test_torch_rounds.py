"""Plans as rounds and steps, without PyTorch: a model of a transport as unkind as is allowed."""

from __future__ import annotations

import random
from collections import deque
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from artefacts import Artefacts
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import all_good
from stored_schedules import forest_and_plans
from torch_ranks import Late

from forestcoll.program import BY_TREES, Collective
from forestcoll.verify.dataflow import Dataflow, dataflow, levels

# forestcoll.torch asks for PyTorch; nothing here uses it
cutting = Late("forestcoll.execute.torch.cutting")
rounds = Late("forestcoll.execute.torch.rounds")
Array = npt.NDArray[np.int64]
JUNK = -(2**40)


class Rank:
    """One rank of the model: its memory, and how far it is."""

    def __init__(self, number: int, steps: Any, input_: Array, output: Array) -> None:
        self.number, self.job = number, steps
        self.memories = [input_, output, np.full(steps.scratch, JUNK)]
        self.next = 0
        self.flights: deque[tuple[int, list[Half]]] = deque()

    def view(self, piece: Any) -> Array:
        return self.memories[piece.memory][piece.start : piece.start + piece.length]

    def finish(self) -> None:
        number, _ = self.flights.popleft()
        for each in self.job.steps[number].sums:
            first = self.view(each.first)
            added = first.copy() if each.second is None else first + self.view(each.second)
            self.view(each.target)[:] = added


class Half:
    """A send or a receive that has begun."""

    def __init__(self, rank: Rank, message: Any) -> None:
        self.views = [rank.view(r) for r in message.ranges]
        self.done = False


class Model:
    """Ranks and what is under way between them.

    A transfer may happen at any time from when both ends have begun it until one of them waits for
    it; sent data may be read at any time until then, and received memory holds junk until it comes.
    """

    def __init__(self, ranks: list[Rank], rng: random.Random) -> None:
        self.ranks, self.rng = ranks, rng
        self.sent: dict[tuple[int, int], deque[Half]] = {}
        self.wanted: dict[tuple[int, int], deque[Half]] = {}

    def run(self) -> None:
        while True:
            moves = [("transfer", pair) for pair in self.sent if self.matched(pair)]
            for rank in self.ranks:
                if rank.flights and all(half.done for half in rank.flights[0][1]):
                    moves.append(("finish", (rank.number, 0)))
                if rank.next < len(rank.job.steps) and len(rank.flights) < rank.job.lead:
                    moves.append(("start", (rank.number, 0)))
            if not moves:
                break
            what, (a, b) = self.rng.choice(moves)
            if what == "transfer":
                self.transfer(a, b)
            elif what == "finish":
                self.ranks[a].finish()
            else:
                self.start(self.ranks[a])
        assert all(not rank.flights for rank in self.ranks), "stuck"
        assert all(rank.next == len(rank.job.steps) for rank in self.ranks)

    def matched(self, pair: tuple[int, int]) -> bool:
        return bool(self.sent.get(pair)) and bool(self.wanted.get(pair))

    def start(self, rank: Rank) -> None:
        step, halves = rank.job.steps[rank.next], []
        for message in step.receives:
            half = Half(rank, message)
            for view in half.views:
                view[:] = JUNK
            self.wanted.setdefault((message.peer, rank.number), deque()).append(half)
            halves.append(half)
        for message in step.sends:
            half = Half(rank, message)
            self.sent.setdefault((rank.number, message.peer), deque()).append(half)
            halves.append(half)
        rank.flights.append((rank.next, halves))
        rank.next += 1

    def transfer(self, a: int, b: int) -> None:
        send, receive = self.sent[a, b].popleft(), self.wanted[a, b].popleft()
        assert [v.size for v in send.views] == [v.size for v in receive.views]
        for source, target in zip(send.views, receive.views, strict=True):
            target[:] = source
        send.done = receive.done = True


def simulate(
    flow: Dataflow, part: int, slices: int, lead: int, seed: int, *, in_place: bool
) -> None:
    """Run a plan in the model and compare what must come out, and what must stay."""
    rng = random.Random(seed)
    n, split = flow.ranks, flow.parts > 1
    level = levels(flow)
    cut = cutting.Cut(flow.collective, part, flow.parts, flow.units, 4, slices, lead)
    whole = flow.parts * part
    lengths = {
        Collective.ALLGATHER: (part, whole),
        Collective.REDUCE_SCATTER: (whole, part),
    }.get(flow.collective, (whole, whole))
    given = [np.array([rng.randrange(1, 10**6) for _ in range(lengths[0])], int) for _ in range(n)]
    ranks = []
    for r in range(n):
        steps = cutting.Cutter(rounds.Planner(flow, level, r, in_place).plan(), cut).job()
        output = np.full(lengths[1], JUNK)
        input_ = given[r].copy()
        if in_place and lengths[0] < lengths[1]:
            output[r * part : (r + 1) * part] = input_
            input_ = output[r * part : (r + 1) * part]
        elif in_place:
            output = input_[r * part : (r + 1) * part] if split else input_
        ranks.append(Rank(r, steps, input_, output))
    Model(ranks, rng).run()
    added = np.sum(given, axis=0) if lengths[0] else given[0]
    for r, rank in enumerate(ranks):
        expected = {
            Collective.ALLGATHER: np.concatenate(given) if split else given[0],
            Collective.REDUCE_SCATTER: added[r * part : (r + 1) * part] if split else added,
            Collective.ALLREDUCE: added,
            Collective.BROADCAST: given[flow.root],
            Collective.REDUCE: added,
        }[flow.collective]
        if flow.collective is not Collective.REDUCE or r == flow.root:
            assert rank.memories[rounds.Memory.OUTPUT].tolist() == expected.tolist()
        elif in_place:
            assert rank.memories[rounds.Memory.OUTPUT].tolist() == given[r].tolist()
        if not in_place:
            assert rank.memories[rounds.Memory.INPUT].tolist() == given[r].tolist()


Flows = dict[str, Dataflow]
MACHINES = {"ring gpus=5": BY_TREES} | dict.fromkeys(
    ("dgx1-v100", "fat-tree leaves=1 hosts=2 gpus=2"),
    (Collective.ALLREDUCE, Collective.REDUCE_SCATTER),
)


@pytest.fixture(scope="module")
def flows(compiled: Artefacts) -> Flows:
    """Programs made by hand, and compiled ones: meshes, switches, several paths; both formats."""
    found = {name: dataflow(program) for name, program in all_good().items()}
    for machine, collectives in MACHINES.items():
        for collective in collectives:
            for form, program in compiled(machine, collective).programs.items():
                found[f"{machine.split()[0]} {collective} {form}"] = dataflow(program)
    return found


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_timing_gives_the_right_result(flows: Flows, data: st.DataObject) -> None:
    flow = flows[data.draw(st.sampled_from(sorted(flows)))]
    simulate(
        flow,
        data.draw(st.one_of(st.integers(0, 40), st.integers(0, 3000)), label="part"),
        data.draw(st.integers(1, 9), label="slices"),
        data.draw(st.integers(1, 3), label="lead"),
        data.draw(st.integers(0, 2**32), label="seed"),
        in_place=data.draw(st.booleans(), label="in place"),
    )


def test_every_flow_both_ways(flows: Flows) -> None:
    for k, flow in enumerate(flows.values()):
        for in_place in (False, True):
            simulate(flow, 331, 4, 2, k, in_place=in_place)


def test_what_moves_is_what_the_plan_moves(flows: Flows) -> None:
    """The engine's traffic between any two ranks is that which `verify` counts."""
    for name, flow in flows.items():
        loads: dict[tuple[int, int], Fraction] = {}
        for source, made in flow.moves():
            value = flow.values[made]
            pair = flow.values[source].rank, value.rank
            loads[pair] = loads.get(pair, Fraction(0)) + Fraction(value.length, flow.units)
        assert loads == flow.verified.loads, name


def test_rounds_are_as_many_as_hops() -> None:
    forest, programs = forest_and_plans("dgx-a100-2", "allreduce")
    flow = dataflow(programs["msccl-xml"])
    assert max(levels(flow)) + 1 == 2 * forest.height == 4


def test_scratch_is_a_ring_of_slices() -> None:
    """Cutting finer takes less scratch: slots are for as many slices as can be under way."""
    program = forest_and_plans("dgx-a100-2", "allreduce")[1]["msccl-xml"]
    flow = dataflow(program)
    plan = rounds.Planner(flow, levels(flow), 3, True).plan()

    def scratch(slices: int) -> int:
        return (
            cutting.Cutter(plan, cutting.Cut(flow.collective, 10**6, 1, flow.units, 4, slices, 2))
            .job()
            .scratch
        )

    assert scratch(128) < scratch(16) / 4 < scratch(1)


def test_pieces_begin_aligned_where_there_is_room_and_nothing_takes_no_step(flows: Flows) -> None:
    flow = flows["ring allreduce msccl-xml"]
    plan = rounds.Planner(flow, levels(flow), 0, False).plan()
    steps, none = (
        cutting.Cutter(plan, cutting.Cut(flow.collective, count, 1, flow.units, 2, 3, 2))
        .job()
        .steps
        for count in (10_007, 0)
    )
    assert none == ()
    starts = {r.start for step in steps for m in step.receives for r in m.ranges}
    assert len(starts) > 3
    assert all(start % 32 == 0 for start in starts)
