"""The symbolic check: accepts what is right, and says where what is wrong goes wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from typing import Any

import programs as pg
import pytest
from programs import do, inp, out, scr

from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import (
    BY_TREES,
    Buffer,
    Channel,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    Ref,
    Step,
    ThreadBlock,
)
from forestcoll.schedule.forest import Forest, Tree
from forestcoll.verify import link_loads, verify

GOOD = pg.all_good()


# --- what is right


@pytest.mark.parametrize("name", GOOD)
def test_good_programs_pass(name: str) -> None:
    found = verify(GOOD[name])
    claims = (GOOD[name].out_of_place, GOOD[name].in_place)
    assert found.modes == tuple(compress(("out-of-place", "in-place"), claims))
    assert found.ranks == GOOD[name].n
    assert found.root == GOOD[name].root


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize(("launches", "rounds", "queue"), [(1, 1, 2), (2, 1, 3), (3, 3, 64)])
def test_good_programs_pass_however_much_is_unrolled(
    name: str, launches: int, rounds: int, queue: int
) -> None:
    found = verify(GOOD[name], launches=launches, rounds=rounds, queue=queue)
    assert found.loads == verify(GOOD[name]).loads


def test_figures_of_a_ring() -> None:
    found = verify(pg.ring_allreduce(4))
    share = Fraction(2 * 3, 4)  # every link carries 2 (n - 1) / n of the data
    assert found.loads == {(r, (r + 1) % 4): share for r in range(4)}
    assert found.chunks == 4
    assert found.moved == 24
    assert found.steps == 32
    assert found.queue == 2
    assert found.launches == 1


def test_figures_of_parts_and_reads() -> None:
    found = verify(pg.exchange_by_barrier(4))
    assert found.loads == {(0, 1): Fraction(1), (1, 0): Fraction(1)}
    assert found.moved == 4
    assert found.launches == 2
    assert found.queue is None


@pytest.mark.parametrize("p", [pg.chain_broadcast(4), pg.star_reduce(3), pg.pipelined_broadcast(4)])
def test_the_root_is_found(p: Program) -> None:
    n = p.n
    # Rename the ranks so that the root is not the first.
    turned = [
        replace(r, thread_blocks=tuple(_turn(b, n) for b in r.thread_blocks)) for r in p.ranks
    ]
    turned = turned[1:] + turned[:1]
    moved = replace(p, ranks=tuple(turned), root=-1)
    assert verify(moved).root == n - 1
    with pytest.raises(PlanError, match="wrong result"):
        verify(replace(moved, root=0))


def _turn(block: ThreadBlock, n: int) -> ThreadBlock:
    def peer(r: int) -> int:
        return r if r < 0 else (r - 1) % n

    def ref(x: Ref) -> Ref:
        return x if x.rank is None else replace(x, rank=peer(x.rank))

    def step(s: Step) -> Step:
        if isinstance(s, Pipeline):
            return replace(s, body=tuple(instruction(i) for i in s.body))
        return instruction(s)

    def instruction(i: Instruction) -> Instruction:
        return replace(i, src=tuple(map(ref, i.src)), dst=tuple(map(ref, i.dst)))

    return replace(
        block,
        steps=tuple(map(step, block.steps)),
        recv=peer(block.recv),
        send=peer(block.send),
        channels=tuple(replace(c, peer=peer(c.peer)) for c in block.channels),
    )


def test_one_rank_alone() -> None:
    only = pg.rank(pg.tb(do(Op.COPY, inp(0, 3), out(0, 3))), i=3, o=3)
    for collective in BY_TREES:
        assert verify(pg.program(collective, "fifo", [only])).loads == {}


def test_in_place_plans_may_leave_a_buffer_out() -> None:
    p = pg.ring_allgather(3)
    ranks = []
    for r in p.ranks:
        block = r.thread_blocks[0]
        block = replace(block, steps=block.steps[1:])  # no local copy
        ranks.append(replace(r, thread_blocks=(block,), input_chunks=0))
    alone = replace(p, ranks=tuple(ranks), out_of_place=False)
    assert verify(alone).modes == ("in-place",)
    with pytest.raises(PlanError, match="needs an output of 3 times the input"):
        verify(replace(alone, out_of_place=True))


def test_slices_and_more_of_them_change_nothing() -> None:
    """Repeating the list on other chunks, as runtimes do for slices, passes as one pass does."""
    p = pg.ring_allreduce(3)
    ranks = []
    for r in p.ranks:
        block = r.thread_blocks[0]
        steps: list[Step] = []
        for t in range(4):
            for s in block.steps:
                assert isinstance(s, Instruction)
                moved: dict[str, Any] = {
                    "src": tuple(replace(x, offset=x.offset + 3 * t) for x in s.src),
                    "dst": tuple(replace(x, offset=x.offset + 3 * t) for x in s.dst),
                }
                steps.append(replace(s, **moved))
        block = replace(block, steps=tuple(steps))
        ranks.append(replace(r, thread_blocks=(block,), input_chunks=12, output_chunks=12))
    found = verify(replace(p, ranks=tuple(ranks)))
    assert found.moved == 4 * verify(p).moved
    assert found.loads == verify(p).loads


def test_without_farewell_a_memory_put_is_still_safe() -> None:
    p = pg.pipelined_broadcast()
    for r in range(p.n):
        for _ in range(3):
            p = pg.drop(p, r, 0, 4)
    assert verify(p, launches=3).modes == ("out-of-place", "in-place")


def test_scratch_needs_no_handshake_when_the_launch_before_said_farewell() -> None:
    p = pg.reduce_to_root("memory")
    for r in range(p.n):
        for _ in range(3):
            p = pg.drop(p, r, 0, 0)
    assert verify(p, launches=3).root == 0


def test_a_large_plan_takes_seconds() -> None:
    p = pg.tree_allreduce(32, 2)
    start = time.process_time()
    found = verify(p, queue=1)
    assert time.process_time() - start < 5
    assert found.moved == 2 * 31 * 64
    assert found.steps > 9000


# --- what is wrong

R0, R1, R2, R3 = (f"rank {r}, thread block" for r in range(4))
Mutant = tuple[str, Callable[[], Program], list[str]]


def _no_handshakes(p: Program) -> Program:
    for r in range(p.n):
        for b, block in enumerate(p.ranks[r].thread_blocks):
            first = block.steps[0] if block.steps else None
            if isinstance(first, Instruction) and first.op is Op.RELAXED_SIGNAL:
                for _ in range(3):
                    p = pg.drop(p, r, b, 0)
    return p


def _no_farewells(p: Program) -> Program:
    for r in range(p.n):
        for b, block in enumerate(p.ranks[r].thread_blocks):
            if len(block.steps) > 3:
                p = pg.with_steps(p, r, b, lambda steps: steps.__delitem__(slice(-3, None)))
    return p


def _all(p: Program, change: Callable[[Program, int], Program]) -> Program:
    for r in range(p.n):
        p = change(p, r)
    return p


def _body(p: Program, r: int, change: Callable[[list[Any]], object]) -> Program:
    return pg.edit_body(p, r, 0, 3, change)


def _op(p: Program, r: int, at: int, op: Op) -> Program:
    def change(body: list[Any]) -> None:
        body[at] = replace(body[at], op=op)

    return pg.edit_body(p, r, 0, 3, change)


def eager_exchange(chunks: int) -> Program:
    """Two ranks that send all they have before they receive anything."""
    ranks = []
    for r in range(2):
        steps = [do(Op.COPY, inp(0, chunks), out(r * chunks, chunks))]
        steps += [do(Op.SEND, inp(c)) for c in range(chunks)]
        steps += [do(Op.RECV, (), out((1 - r) * chunks + c)) for c in range(chunks)]
        ranks.append(pg.rank(pg.tb(*steps, recv=1 - r, send=1 - r), i=chunks, o=2 * chunks))
    return pg.program(Collective.ALLGATHER, "fifo", ranks)


def _big_messages(chunks: int) -> Program:
    p = eager_exchange(chunks)
    for r in range(2):
        steps = [
            do(Op.COPY, inp(0, chunks), out(r * chunks, chunks)),
            do(Op.SEND, inp(0, chunks)),
            do(Op.RECV, (), out((1 - r) * chunks, chunks)),
        ]
        p = pg.with_block(p, r, 0, replace(p.ranks[r].thread_blocks[0], steps=tuple(steps)))
    return p


def _late_reader() -> Program:
    p = pg.direct_reduce_scatter()
    reader = pg.tb(do(Op.COPY, inp(0, 2), scr(6, 2)))
    blocks = (*p.ranks[0].thread_blocks, reader)
    return pg.with_rank(p, 0, replace(p.ranks[0], thread_blocks=blocks, scratch_chunks=8))


def _without_child() -> Program:
    p = pg.with_rank(pg.star_reduce(), 3, replace(pg.star_reduce().ranks[3], thread_blocks=()))
    return pg.with_rank(p, 0, replace(p.ranks[0], thread_blocks=p.ranks[0].thread_blocks[:3]))


FIFO: list[Mutant] = [
    (
        "a send dropped",
        lambda: pg.drop(pg.chain_broadcast(), 1, 1, 1),
        [
            f"{R2} 0, step 1 \\(recv\\): nobody sends it",
            "2 receives from rank 1 to rank 2",
            "1 mess",
        ],
    ),
    (
        "a receive dropped",
        lambda: pg.drop(pg.chain_broadcast(), 2, 0, 1),
        [f"{R1} 1, step 1 \\(send\\): nobody receives it", r"\(rank 2, thread block 0\)"],
    ),
    (
        "two receives swapped",
        lambda: pg.swap(pg.chain_broadcast(), 2, 0, 0, 1),
        [
            "wrong result: chunk 0 of rank 2's output holds chunk 1 of rank 0's input",
            "should hold chunk 0 of rank 0's input",
            f"last written by {R2} 0, step 1 \\(recv\\)",
        ],
    ),
    (
        "a dependency forgotten",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, after=()),
        [
            f"race: .*{R1} 0, step 0 \\(recv\\)",
            f"{R1} 1, step 0 \\(send\\)",
            "chunk 0 of rank 1's out",
        ],
    ),
    (
        "a dependency on the wrong step",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 1, after=((0, 0),)),
        ["race: ", f"{R1} 0, step 1 \\(recv\\)", f"{R1} 1, step 1 \\(send\\)", "chunk 1 of rank 1"],
    ),
    (
        "an offset beyond the buffer",
        lambda: pg.edit(pg.chain_broadcast(), 2, 0, 1, dst=(out(2),)),
        [f"{R2} 0, step 1 \\(recv\\): 1 chunks at offset 2 of rank 2's output, which has 2 chunks"],
    ),
    (
        "a count beyond the buffer",
        lambda: pg.edit(pg.chain_broadcast(), 0, 0, 0, src=(inp(1, 2),)),
        [f"{R0} 0, step 0 \\(copy\\): 2 chunks at offset 1 of rank 0's input"],
    ),
    (
        "a negative offset",
        lambda: pg.edit(pg.chain_broadcast(), 2, 0, 0, dst=(out(-1),)),
        [f"{R2} 0, step 0 \\(recv\\): 1 chunks at offset -1"],
    ),
    (
        "a count of zero",
        lambda: pg.edit(pg.chain_broadcast(), 2, 0, 0, dst=(out(0, 0),)),
        [f"{R2} 0, step 0 \\(recv\\): 0 chunks at offset 0"],
    ),
    (
        "an absurd count",
        lambda: pg.edit(pg.chain_broadcast(), 2, 0, 0, dst=(out(0, 10**30),)),
        [f"{R2} 0, step 0 \\(recv\\): 1000000000000000000000000000000 chunks"],
    ),
    (
        "a wrong but legal offset",
        lambda: pg.edit(pg.chain_broadcast(), 2, 0, 1, dst=(out(0),)),
        ["wrong result: chunk 0 of rank 2's output", f"last written by {R2} 0, step 1"],
    ),
    (
        "unequal counts at the two ends",
        lambda: pg.edit(pg.chain_broadcast(), 0, 1, 0, src=(inp(0, 2),)),
        [
            f"{R1} 0, step 0 \\(recv\\): receives 1 chunks, but message 0 from rank 0 to rank 1",
            f"has 2 \\({R0} 1, step 0 \\(send\\)\\)",
        ],
    ),
    (
        "the root's own copy missing",
        lambda: pg.drop(pg.chain_broadcast(), 0, 0, 0),
        ["chunk 0 of rank 0's output holds nothing defined", "nothing writes it", "out of place"],
    ),
    (
        "a peer that does not exist",
        lambda: _peer(pg.chain_broadcast(), 1, 1, send=7),
        [f"{R1} 1: sends to rank 7; a peer is one of 0 to 2 and not 1"],
    ),
    (
        "a peer that is oneself",
        lambda: _peer(pg.chain_broadcast(), 1, 0, recv=1),
        [f"{R1} 0: receives from rank 1; a peer"],
    ),
    (
        "a send without a peer",
        lambda: _peer(pg.chain_broadcast(), 1, 1, send=-1),
        [f"{R1} 1, step 0 \\(send\\): its thread block has no send peer"],
    ),
    (
        "another channel at one end",
        lambda: _peer(pg.chain_broadcast(), 2, 0, channel=1),
        [f"{R1} 1, step 0 \\(send\\): nobody receives it", "on channel 0"],
    ),
    (
        "a negative channel",
        lambda: _peer(pg.chain_broadcast(), 2, 0, channel=-1),
        [f"{R2} 0: channel -1 is negative"],
    ),
    (
        "two thread blocks on one connection",
        lambda: _peer(pg.direct_reduce_scatter(), 0, 2, send=1),
        [f"{R0} 2: sends to rank 1 on channel 0, as thread block 1 does already"],
    ),
    (
        "a dependency on a missing thread block",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, after=((9, 0),)),
        [f"{R1} 1, step 0 \\(send\\): comes after thread block 9; rank 1 has 2"],
    ),
    (
        "a dependency on a missing step",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, after=((0, 2),)),
        [f"{R1} 1, step 0 \\(send\\): comes after step 2 of thread block 0, which has 2"],
    ),
    (
        "a dependency on oneself",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, after=((1, 0),)),
        [f"{R1} 1, step 0 \\(send\\): .* own thread block: a circle"],
    ),
    (
        "dependencies in a circle",
        lambda: pg.edit(pg.chain_broadcast(), 1, 0, 0, after=((1, 0),)),
        [
            "deadlock: ",
            f"{R1} 0, step 0 \\(recv\\) comes after {R1} 1, step 0 \\(send\\)",
            f"{R1} 1, step 0 \\(send\\) comes after {R1} 0, step 0 \\(recv\\)",
            "round again",
        ],
    ),
    (
        "all receive first",
        lambda: _all(pg.ring_allgather(3), lambda p, r: pg.swap(p, r, 0, 1, 3)),
        [
            "deadlock: ",
            f"{R0} 0, step 1 \\(recv\\) waits for a message of rank 2",
            f"{R2} 0, step 1 \\(recv\\) waits for a message of rank 1",
        ],
    ),
    (
        "more messages than a connection holds",
        lambda: eager_exchange(3),
        [
            "deadlock: ",
            f"{R0} 0, step 3 \\(send\\) cannot send, its queue to rank 1 is full",
            f"{R1} 0, step 3 \\(send\\) cannot send",
            "a connection holds 2 messages",
        ],
    ),
    (
        "a message in more pieces than a connection holds",
        lambda: _big_messages(3),
        ["deadlock: ", f"{R0} 0, step 1 \\(send\\) cannot send"],
    ),
    (
        "race on the accumulator",
        lambda: pg.edit(pg.star_reduce(), 0, 2, 1, after=((0, 0),)),
        [
            "race: ",
            f"{R0} 1, step 1 \\(reduce\\)",
            f"{R0} 2, step 1 \\(reduce\\)",
            "chunk 0 of rank 0's",
        ],
    ),
    (
        "race with the first copy",
        lambda: pg.edit(pg.star_reduce(), 0, 1, 1, after=()),
        ["race: ", f"{R0} 0, step 0 \\(copy\\)", f"{R0} 1, step 1 \\(reduce\\)"],
    ),
    (
        "a scratch slot shared by two children",
        lambda: pg.edit(
            pg.edit(pg.star_reduce(), 0, 2, 0, dst=(scr(0),)),
            0,
            2,
            1,
            src=(scr(0),),
            after=((1, 1),),
        ),
        [
            "race: ",
            f"{R0} 2, step 0 \\(recv\\)",
            f"{R0} 1, step [01]",
            "chunk 0 of rank 0's scratch",
        ],
    ),
    (
        "added twice",
        lambda: pg.insert(pg.star_reduce(), 0, 3, 2, do(Op.REDUCE, scr(2), out(0))),
        [f"{R0} 3, step 2 \\(reduce\\): adds chunk 0 added up over", "rank 3 would count twice"],
    ),
    (
        "added to itself",
        lambda: pg.edit(pg.star_reduce(2), 0, 1, 1, src=(out(0),)),
        [
            f"{R0} 1, step 1 \\(reduce\\): adds chunk 0 of rank 0's input",
            "rank 0 would count twice",
        ],
    ),
    (
        "received over the accumulator",
        lambda: pg.edit(pg.star_reduce(2), 0, 1, 0, dst=(out(0),)),
        ["race: ", f"{R0} 0, step 0 \\(copy\\)", f"{R0} 1, step 0 \\(recv\\)", "rank 0's output"],
    ),
    (
        "added before it has come, and unordered with it",
        lambda: pg.insert(pg.star_reduce(3), 0, 0, 1, do(Op.REDUCE, scr(1), scr(0))),
        [
            "race: ",
            f"{R0} 0, step 1 \\(reduce\\)",
            f"{R0} 1, step 0 \\(recv\\)",
            "rank 0's scratch",
        ],
    ),
    (
        "an empty slot added",
        lambda: pg.with_rank(
            pg.edit(pg.star_reduce(2), 0, 1, 1, src=(scr(1),)),
            0,
            replace(pg.edit(pg.star_reduce(2), 0, 1, 1, src=(scr(1),)).ranks[0], scratch_chunks=2),
        ),
        [f"{R0} 1, step 1 \\(reduce\\): adds something undefined to chunk 0 of rank 0's input"],
    ),
    (
        "a child left out",
        _without_child,
        [
            "wrong result: chunk 0 of rank 0's output holds chunk 0 added up over ranks 0, 1, 2 ",
            "0, 1, 2, 3",
        ],
    ),
    (
        "another chunk sent to be added",
        lambda: pg.edit(pg.direct_reduce_scatter(), 1, 1, 0, src=(inp(2, 2),)),
        [f"{R0} 1, step 2 \\(reduce\\): adds", "different chunks"],
    ),
    (
        "the input changed",
        lambda: pg.insert(pg.star_reduce(2), 0, 1, 2, do(Op.COPY, out(0), inp(0))),
        [
            "wrong result: chunk 0 of rank 0's input holds chunk 0 added up over ranks 0, 1 at",
            "it must stay chunk 0 of rank 0's input",
            f"last written by {R0} 1, step 2 \\(copy\\) \\(out of place\\)",
        ],
    ),
    (
        "wrong in place only: the output as a store for something else",
        lambda: pg.insert(
            pg.edit(pg.direct_reduce_scatter(), 0, 1, 2, after=((0, 1),)),
            0,
            0,
            0,
            do(Op.COPY, inp(2, 2), out(0, 2)),
        ),
        [f"{R0} 1, step 2 \\(reduce\\): adds", "different chunks", r"\(in place\)"],
    ),
    (
        "wrong in place only: the result over input that is still read",
        _late_reader,
        [f"race: .*{R0} 3, step 0 \\(copy\\)", f"{R0} 4, step 0 \\(copy\\)", r"\(in place\)"],
    ),
    (
        "operands that half overlap",
        lambda: pg.insert(pg.chain_broadcast(3, 3), 0, 0, 1, do(Op.COPY, out(0, 2), out(1, 2))),
        [f"{R0} 0, step 1 \\(copy\\): two of its operands meet in chunk 1 of rank 0's output"],
    ),
    (
        "a remote buffer",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, src=(out(0, 1, 0),)),
        [f"{R1} 1, step 0 \\(send\\): a remote buffer"],
    ),
    (
        "an operation of the other style",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, op=Op.PUT, dst=(out(0, 1, 2),)),
        [f"{R1} 1, step 0 \\(put\\): no operation of fifo programs"],
    ),
    (
        "a source too many",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, src=(out(0), out(1))),
        [f"{R1} 1, step 0 \\(send\\): 2 sources; it takes 1 source"],
    ),
    (
        "a destination where none belongs",
        lambda: pg.edit(pg.chain_broadcast(), 1, 1, 0, dst=(out(1),)),
        [f"{R1} 1, step 0 \\(send\\): 1 destinations; it takes no destination"],
    ),
    (
        "a pipeline",
        lambda: pg.insert(pg.chain_broadcast(), 1, 0, 0, Pipeline((do(Op.NOP),), 1, 1)),
        [f"{R1} 0, step 0: a pipeline in a fifo program"],
    ),
    (
        "a part",
        lambda: pg.edit(pg.chain_broadcast(), 1, 0, 0, part=(0, 2)),
        [f"{R1} 0, step 0 \\(recv\\): only onesided data instructions"],
    ),
    (
        "copies of different lengths",
        lambda: pg.edit(pg.chain_broadcast(), 0, 0, 0, src=(inp(0),)),
        [f"{R0} 0, step 0 \\(copy\\): operands of 1 and 2 chunks"],
    ),
    (
        "a forwarded message lost",
        lambda: pg.edit(pg.ring_allgather(4), 2, 0, 2, op=Op.RECV),
        ["nobody sends it", "from rank 2 to rank 3"],
    ),
    (
        "a reduction left out on the way",
        lambda: pg.edit(pg.ring_allreduce(4), 2, 0, 2, op=Op.RECV_COPY_SEND, src=(), dst=(out(1),)),
        ["wrong result: chunk 1 of rank 0's output holds chunk 1 added up over ranks 0, 1, 3 at"],
    ),
]


def _peer(p: Program, r: int, b: int, **fields: int) -> Program:
    return pg.with_block(p, r, b, replace(p.ranks[r].thread_blocks[b], **fields))  # type: ignore[arg-type]


def _hazard() -> Program:
    """The root copies its sum on without a barrier before."""
    p = pg.reduce_to_root("memory")

    def change(body: list[Any]) -> None:
        body.append(do(Op.COPY, out(0), scr(0)))

    return pg.edit_body(p, 0, 0, 3, change)


def port_reuse(*between: Instruction) -> Program:
    """Rank 0 puts a scratch chunk through a port, then `between`, then overwrites the chunk."""
    ranks = []
    for r in range(2):
        steps = [
            do(Op.COPY, inp(0), scr(0)),
            *pg.handshake(0),
            do(Op.PUT, scr(0), out(r, 1, 1 - r), channels=[0]),
            *between,
            do(Op.COPY, inp(0), scr(0)),
            do(Op.COPY, inp(0), out(r)),
            do(Op.SIGNAL, channels=[0]),
            do(Op.WAIT, channels=[0]),
            *pg.farewell(0),
        ]
        ranks.append(pg.rank(pg.otb([(1 - r, "port", 0)], *steps), i=1, o=2, s=1))
    return pg.program(Collective.ALLGATHER, "onesided", ranks)


def _two_releasers() -> Program:
    p = pg.relay_by_semaphore()
    extra = pg.otb([], Instruction(Op.RELEASE, semaphores=(0,)))
    return pg.with_rank(p, 1, replace(p.ranks[1], thread_blocks=(*p.ranks[1].thread_blocks, extra)))


def _no_semaphores() -> Program:
    p = pg.edit_body(pg.relay_by_semaphore(), 1, 0, 3, lambda body: body.pop(2))
    return pg.edit_body(p, 1, 1, 3, lambda body: body.pop(0))


def _no_barriers() -> Program:
    p = pg.exchange_by_barrier()
    for r, b, s, i in list(p.instructions()):
        if i.op is Op.BARRIER:
            p = pg.edit(p, r, b, s, op=Op.NOP, group=0)
    return p


def _is(step: Step, op: Op) -> bool:
    return isinstance(step, Instruction) and step.op is op


def _channel(p: Program, r: int, b: int, c: int, new: Channel) -> Program:
    block = p.ranks[r].thread_blocks[b]
    channels = (*block.channels[:c], new, *block.channels[c + 1 :])
    return pg.with_block(p, r, b, replace(block, channels=channels))


ONESIDED: list[Mutant] = [
    (
        "a wait dropped",
        lambda: _body(pg.pipelined_broadcast(), 1, lambda body: body.pop(0)),
        [
            f"{R0} 0, step 0: signals its memory channel 0 to rank 1",
            f"{R1} 0 waits for it",
            "breaks the next launch",
        ],
    ),
    (
        "a signal dropped",
        lambda: _body(pg.pipelined_broadcast(), 0, lambda body: body.pop(3)),
        [f"{R0} 0, step 0: signals its memory channel 0 to rank 1", "round of a pipeline"],
    ),
    (
        "no nop after the wait",
        lambda: _body(pg.pipelined_broadcast(), 1, lambda body: body.pop(1)),
        ["race: ", f"{R0} 0, step 3 \\(put\\)", f"{R1} 0, step 3 \\(put\\)", "of rank 1's output"],
    ),
    (
        "no nop before the signal",
        lambda: _body(pg.pipelined_broadcast(), 0, lambda body: body.pop(2)),
        ["race: ", f"{R0} 0, step 3 \\(put\\)", f"{R1} 0, step 3 \\(put\\)", "of rank 1's output"],
    ),
    (
        "a relaxed wait for data",
        lambda: _op(pg.pipelined_broadcast(), 1, 0, Op.RELAXED_WAIT),
        ["race: ", f"{R0} 0, step 3 \\(put\\)", f"{R1} 0, step 3 \\(put\\)"],
    ),
    (
        "a relaxed signal for data",
        lambda: _op(pg.pipelined_broadcast(), 0, 3, Op.RELAXED_SIGNAL),
        ["race: ", f"{R0} 0, step 3 \\(put\\)", f"{R1} 0, step 3 \\(put\\)"],
    ),
    (
        "no handshake",
        lambda: _no_handshakes(pg.pipelined_broadcast()),
        [f"race: {R0} 0, step 0 \\(put\\) uses chunk 0 of rank 1's output", "rank 1's caller"],
    ),
    (
        "no nop after the handshake",
        lambda: pg.drop(pg.pipelined_broadcast(), 0, 0, 2),
        [f"race: {R0} 0, step 2 \\(put\\) uses chunk 0 of rank 1's output", "rank 1's caller"],
    ),
    (
        "a port's put on the way when the launch ends",
        lambda: _no_farewells(pg.pipelined_broadcast(kind="port")),
        [
            f"race: {R0} 0, step 3 \\(put\\) may still use chunk 0 of rank 0's input",
            "rank 0's launch is over",
        ],
    ),
    (
        "a signal too many",
        lambda: pg.insert(pg.direct_allgather(), 0, 1, 6, do(Op.SIGNAL, channels=[0])),
        [f"{R0} 1, step 0: signals its memory channel 0 to rank 1 3 times a launch", "2 times"],
    ),
    (
        "a wait too many",
        lambda: pg.insert(pg.direct_allgather(), 0, 1, 6, do(Op.WAIT, channels=[0])),
        [f"{R1} 1, step 0: signals its memory channel 0 to rank 0 2 times a launch", "3 times"],
    ),
    (
        "a wait for a channel that nobody signals",
        lambda: pg.with_block(
            pg.direct_allgather(), 0, 0, pg.otb([(1, "memory", 5)], do(Op.WAIT, channels=[0]))
        ),
        [f"{R0} 0, step 0: waits on its memory channel 5 to rank 1", "no such channel back"],
    ),
    (
        "an end of a channel missing",
        lambda: _channel(pg.direct_allgather(), 0, 1, 0, Channel(1, "memory", 3)),
        [
            f"{R1} 1, step 1: waits on its memory channel 0 to rank 0",
            "rank 0 has no such channel back",
        ],
    ),
    (
        "ends of different kinds",
        lambda: _channel(pg.direct_allgather(), 0, 1, 0, Channel(1, "port", 0)),
        [f"{R1} 1, step 1: waits on its memory channel 0", "no such channel back"],
    ),
    (
        "two thread blocks at one end",
        lambda: _one_block_more(
            pg.direct_allgather(), pg.otb([(1, "memory", 0)], do(Op.SIGNAL, channels=[0]))
        ),
        [f"{R0} 3, step 0: signals its memory channel 0 to rank 1, as thread block 1 does"],
    ),
    (
        "a channel listed twice",
        lambda: pg.with_block(
            pg.direct_allgather(), 0, 0, pg.otb([(1, "memory", 4), (1, "memory", 4)])
        ),
        [f"{R0} 0: lists a channel twice"],
    ),
    (
        "a channel to nowhere",
        lambda: _channel(pg.direct_allgather(), 0, 2, 0, Channel(12, "memory", 0)),
        [f"{R0} 2: channel 0 leads to rank 12; a peer"],
    ),
    (
        "a channel that the thread block lacks",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, channels=(4,)),
        [f"{R0} 1, step 3 \\(put\\): channel 4; the thread block has 1"],
    ),
    (
        "a put through a channel to somebody else",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, dst=(out(0, 1, 2),)),
        [f"{R0} 1, step 3 \\(put\\): none of its channels leads to rank 2"],
    ),
    (
        "a port put through a channel to somebody else",
        lambda: pg.edit(pg.direct_allgather(kind="port"), 0, 1, 3, dst=(out(0, 1, 2),)),
        [f"{R0} 1, step 3 \\(put\\): channels to ranks \\[1\\] for destinations at ranks \\[2\\]"],
    ),
    (
        "put_signal on a memory channel",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, op=Op.PUT_SIGNAL),
        [f"{R0} 1, step 3 \\(put_signal\\): works on port channels only"],
    ),
    (
        "put and signal in one besides the signal",
        lambda: pg.edit(pg.direct_allgather(kind="port"), 0, 1, 3, op=Op.PUT_SIGNAL),
        [f"{R0} 1, step 0: signals its port channel 0 to rank 1 4 times", "3 times"],
    ),
    (
        "a put into the own memory",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, dst=(out(0),)),
        [f"{R0} 1, step 3 \\(put\\): a local operand where one at a peer is needed"],
    ),
    (
        "a put from a peer's memory",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, src=(inp(0, 1, 1),)),
        [f"{R0} 1, step 3 \\(put\\): an operand at rank 1 that must be local"],
    ),
    (
        "a put beyond the peer's buffer",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, dst=(out(3, 1, 1),)),
        [f"{R0} 1, step 3 \\(put\\): 1 chunks at offset 3 of rank 1's output"],
    ),
    (
        "a put to the wrong place",
        lambda: pg.edit(pg.direct_allgather(), 0, 1, 3, dst=(out(2, 1, 1),)),
        ["race: ", f"{R0} 1, step 3 \\(put\\)", f"{R2} 2, step 3 \\(put\\)", "chunk 2 of rank 1's"],
    ),
    (
        "reading through a port",
        lambda: _channel(
            _channel(pg.exchange_by_barrier(), 0, 0, 0, Channel(1, "port", 0)),
            1,
            0,
            0,
            Channel(0, "port", 0),
        ),
        [f"{R0} 0, step 3 \\(get\\): needs memory channels"],
    ),
    (
        "a pipeline that covers something else",
        lambda: _body(
            pg.pipelined_broadcast(),
            1,
            lambda b: b.__setitem__(2, replace(b[2], src=(out(0),), dst=(out(0, 1, 2),))),
        ),
        [f"{R1} 0, step 3 \\(put\\): 1 chunks in a pipeline over 2"],
    ),
    (
        "pipelines of different units at the two ends",
        lambda: pg.edit(pg.pipelined_broadcast(), 2, 0, 3, unit_bytes=4096),
        [f"{R1} 0, step 0: signals its memory channel 0 to rank 2", "1/32768", "1/2048"],
    ),
    (
        "a loop at one end only",
        lambda: pg.with_steps(
            pg.pipelined_broadcast(2), 1, 0, lambda s: s.__setitem__(3, do(Op.WAIT, channels=[0]))
        ),
        [f"{R0} 0, step 0: signals", "round of a pipeline", f"{R1} 0 waits for it 3 times;"],
    ),
    (
        "an empty pipeline",
        lambda: pg.edit(pg.pipelined_broadcast(), 2, 0, 3, body=()),
        [f"{R2} 0, step 3: a pipeline needs a body"],
    ),
    (
        "a pipeline of nothing",
        lambda: pg.edit(pg.pipelined_broadcast(), 2, 0, 3, chunks=0),
        [f"{R2} 0, step 3: a pipeline over 0 chunks"],
    ),
    (
        "a release dropped",
        lambda: pg.edit_body(pg.relay_by_semaphore(), 1, 0, 3, lambda b: b.pop(2)),
        [f"{R1} 1, step 3 \\(acquire\\): acquires semaphore 0", "never released", "initial value"],
    ),
    (
        "an acquire dropped",
        lambda: pg.edit_body(pg.relay_by_semaphore(), 1, 1, 3, lambda b: b.pop(0)),
        [f"{R1} 0, step 3 \\(release\\): releases semaphore 0", "never acquired"],
    ),
    (
        "no semaphore at all",
        _no_semaphores,
        ["race: ", f"{R0} 1, step 3 \\(put\\)", f"{R1} 1, step 3 \\(put\\)", "of rank 1's output"],
    ),
    (
        "no nop before the release",
        lambda: pg.edit_body(pg.relay_by_semaphore(), 1, 0, 3, lambda b: b.pop(1)),
        ["race: ", f"{R0} 1, step 3 \\(put\\)", f"{R1} 1, step 3 \\(put\\)"],
    ),
    (
        "a semaphore that starts too high",
        lambda: pg.with_rank(
            pg.relay_by_semaphore(), 1, replace(pg.relay_by_semaphore().ranks[1], semaphores=(1,))
        ),
        ["race: ", f"{R0} 1, step 3 \\(put\\)", f"{R1} 1, step 3 \\(put\\)"],
    ),
    (
        "a semaphore that does not exist",
        lambda: pg.with_rank(
            pg.relay_by_semaphore(), 1, replace(pg.relay_by_semaphore().ranks[1], semaphores=())
        ),
        [f"{R1} 0, step 3 \\(release\\): semaphore 0; rank 1 has 0"],
    ),
    (
        "a semaphore below zero",
        lambda: pg.with_rank(
            pg.relay_by_semaphore(), 1, replace(pg.relay_by_semaphore().ranks[1], semaphores=(-1,))
        ),
        ["rank 1: semaphore 0 starts at -1"],
    ),
    (
        "no barrier before adding up",
        lambda: _no_barriers(),
        ["race: ", "thread block [01], step \\d+ \\(get\\)", r"\(reduce_to\)"],
    ),
    (
        "a barrier for more than there are",
        lambda: pg.edit(pg.exchange_by_barrier(), 1, 1, 4, group=3),
        [f"{R1} 1, step 4 \\(barrier\\): barrier 0 of 3 thread blocks; the rank has 2"],
    ),
    (
        "a barrier for fewer than come",
        lambda: _all(
            pg.exchange_by_barrier(),
            lambda p, r: _all_barriers(p, r, 1),
        ),
        [f"{R0} 0, step 4 \\(barrier\\): barrier 0 is for 1 thread blocks, but 2 come"],
    ),
    (
        "a barrier that is not agreed on",
        lambda: pg.edit(pg.exchange_by_barrier(), 1, 1, 4, group=1),
        [f"{R1} 1, step 4 \\(barrier\\): barrier 0 of 1 thread blocks, but thread block 0"],
    ),
    (
        "a barrier passed less often by one",
        lambda: pg.edit(pg.exchange_by_barrier(), 1, 1, 4, op=Op.NOP, group=0),
        [f"{R1} 1, step 7 \\(barrier\\): comes to barrier 0 once, thread block 0 2 times"],
    ),
    (
        "a peer's input read when its launch is over",
        lambda: _no_farewells(pg.reading_allreduce()),
        [
            "race: .*step 3 \\(read_reduce_put\\) may still use chunk 0 of rank 2's input",
            "launch is over",
        ],
    ),
    (
        "another chunk read",
        lambda: pg.edit(pg.reading_allreduce(), 1, 0, 3, src=(inp(1), inp(1, 1, 0), inp(2, 1, 2))),
        [
            f"{R1} 0, step 3 \\(read_reduce_put\\): adds .* chunk 2 of rank 2's input",
            "different chunks",
        ],
    ),
    (
        "a rank read twice",
        lambda: pg.edit(pg.reading_allreduce(), 1, 0, 3, src=(inp(1), inp(1, 1, 0), inp(1, 1, 0))),
        [f"{R1} 0, step 3 \\(read_reduce_put\\): adds", "rank 0 would count twice"],
    ),
    (
        "everyone waits first",
        lambda: _all(pg.reading_allreduce(), lambda p, r: pg.swap(p, r, 0, 0, 1)),
        [
            "deadlock: ",
            f"{R0} 0, step 0 \\(relaxed_wait\\) waits for a signal of rank 1",
            f"{R1} 0, step 0 \\(relaxed_wait\\) waits for a signal of rank 0",
        ],
    ),
    (
        "a pipeline after the farewell at one end",
        lambda: pg.swap(pg.pipelined_broadcast(2), 0, 0, 3, 6),
        [f"{R0} 0, step 0: signals its memory channel 0 to rank 1", "breaks the next launch"],
    ),
    (
        "dependent instructions without a nop",
        _hazard,
        [
            "race: ",
            f"{R0} 0, step 3 \\(reduce_to\\)",
            f"{R0} 0, step 3 \\(copy\\)",
            "put a nop between",
        ],
    ),
    (
        "scratch written while the launch before still reads it",
        lambda: _no_farewells(_no_handshakes(pg.reduce_to_root("memory"))),
        [
            "race: ",
            r"\(put\) of the next launch",
            f"{R0} 0, step 0 \\(reduce_to\\)",
            "rank 0's scratch",
        ],
    ),
    (
        "a port's source reused: nothing between",
        lambda: port_reuse(do(Op.NOP)),
        ["race: ", r"step 4 \(put\)", r"step 6 \(copy\)", "chunk 0 of rank [01]'s scratch"],
    ),
    (
        "a port's source reused: flushed, but no nop",
        lambda: port_reuse(do(Op.FLUSH, channels=[0])),
        ["race: ", r"step 4 \(put\)", r"step 6 \(copy\)"],
    ),
    (
        "dependencies of the other style",
        lambda: pg.edit(pg.pipelined_broadcast(), 0, 0, 2, after=((0, 0),)),
        [f"{R0} 0, step 2 \\(nop\\): 'after' has no meaning"],
    ),
    (
        "a connection of the other style",
        lambda: _peer(pg.pipelined_broadcast(), 0, 0, send=1),
        [f"{R0} 0: a fifo connection in a onesided program"],
    ),
    (
        "a part that does not exist",
        lambda: pg.edit(pg.exchange_by_barrier(), 0, 1, 3, part=(2, 2)),
        [f"{R0} 1, step 3 \\(get\\): part 2 of 2"],
    ),
    (
        "a part done by nobody",
        lambda: pg.edit(pg.exchange_by_barrier(), 0, 1, 3, part=(0, 2)),
        ["race: ", f"{R0} 0, step 3 \\(get\\)", f"{R0} 1, step 3 \\(get\\)"],
    ),
    (
        "a part in a pipeline",
        lambda: _body(
            pg.pipelined_broadcast(), 1, lambda b: b.__setitem__(2, replace(b[2], part=(0, 2)))
        ),
        [f"{R1} 0, step 3 \\(put\\): a part inside a pipeline"],
    ),
    (
        "a channel named twice",
        lambda: pg.edit(pg.reading_allreduce(), 0, 0, 5, channels=(0, 0)),
        [f"{R0} 0, step 5 \\(signal\\): names a channel twice"],
    ),
    (
        "a signal to nobody",
        lambda: pg.edit(pg.reading_allreduce(), 0, 0, 5, channels=()),
        [f"{R0} 0, step 5 \\(signal\\): names no channel"],
    ),
]


def _one_block_more(p: Program, block: ThreadBlock) -> Program:
    blocks = (*p.ranks[0].thread_blocks, block)
    return pg.with_rank(p, 0, replace(p.ranks[0], thread_blocks=blocks))


def _all_barriers(p: Program, r: int, group: int) -> Program:
    for b, block in enumerate(p.ranks[r].thread_blocks):
        for s, step in enumerate(block.steps):
            if _is(step, Op.BARRIER):
                p = pg.edit(p, r, b, s, group=group)
    return p


WHOLE: list[Mutant] = [
    ("no ranks", lambda: replace(pg.star_reduce(), ranks=()), ["the program has no ranks"]),
    (
        "no mode",
        lambda: replace(pg.star_reduce(), in_place=False, out_of_place=False),
        ["neither in place nor out of place"],
    ),
    ("a root beyond", lambda: replace(pg.star_reduce(), root=4), ["root 4 is no rank; .* 0 to 3"]),
    (
        "another style",
        lambda: replace(pg.star_reduce(), style="ring"),  # type: ignore[arg-type]
        ["style 'ring' is neither fifo nor onesided"],
    ),
    (
        "the wrong collective",
        lambda: replace(pg.star_reduce(), collective=Collective.ALLREDUCE),
        ["wrong result: chunk 0 of rank 1's output holds nothing defined"],
    ),
    (
        "the wrong root",
        lambda: replace(pg.chain_broadcast(), root=1),
        ["wrong result: chunk 0 of rank 0's output holds chunk 0 of rank 0's input"],
    ),
    (
        "buffers of the wrong size",
        lambda: replace(pg.ring_allgather(), collective=Collective.REDUCE_SCATTER),
        ["input of 1 and output of 4 chunks", "needs an input of 4 times the output"],
    ),
    (
        "buffers that differ between ranks",
        lambda: pg.with_rank(
            pg.ring_allgather(), 2, replace(pg.ring_allgather().ranks[2], output_chunks=5)
        ),
        ["rank 2: input of 1 and output of 5 chunks, but rank 0 has 1 and 4"],
    ),
    (
        "a negative buffer",
        lambda: pg.with_rank(
            pg.ring_allgather(), 2, replace(pg.ring_allgather().ranks[2], scratch_chunks=-5)
        ),
        ["rank 2: scratch_chunks is -5"],
    ),
    ("names missing", lambda: replace(pg.star_reduce(), names=("a",)), ["1 names for 4 ranks"]),
    (
        "no sizes served",
        lambda: replace(pg.star_reduce(), min_bytes=5, max_bytes=4),
        ["no size is served"],
    ),
]

MUTANTS = [("fifo: " + m[0], *m[1:]) for m in FIFO]
MUTANTS += [("onesided: " + m[0], *m[1:]) for m in ONESIDED]
MUTANTS += [("whole: " + m[0], *m[1:]) for m in WHOLE]


@pytest.mark.parametrize(("spoil", "words"), [m[1:] for m in MUTANTS], ids=[m[0] for m in MUTANTS])
def test_mutants_are_refused(spoil: Callable[[], Program], words: list[str]) -> None:
    with pytest.raises(PlanError) as found:
        verify(spoil())
    for word in words:
        assert re.search(word, str(found.value)), f"{word!r} is not in: {found.value}"


def test_messages_are_cut_as_the_largest_size_demands() -> None:
    p = _big_messages(3)
    with pytest.raises(PlanError, match="deadlock"):
        verify(p)
    # A slot holds 2 MiB and a connection two: 5 of 10 chunks go in two pieces of at most 3.
    big = _big_messages(5)
    largest = (2 << 20) // 3 * 10
    assert verify(replace(big, max_bytes=largest)).events == 2 * (1 + 2 * 2)
    with pytest.raises(PlanError, match="deadlock"):
        verify(replace(big, max_bytes=largest + 1))
    assert verify(replace(big, protocol="LL")).queue == 8
    with pytest.raises(PlanError, match="a connection holds 8 messages"):
        verify(replace(_big_messages(9), protocol="LL128"))


@pytest.mark.parametrize("name", ["chain_broadcast", "star_reduce", "direct_reduce_scatter"])
def test_a_queue_of_one_is_enough_without_fused_rings(name: str) -> None:
    if name == "direct_reduce_scatter":
        with pytest.raises(PlanError, match="deadlock"):  # two pieces before the first receive
            verify(GOOD[name], queue=1)
    else:
        assert verify(GOOD[name], queue=1).queue == 1


def test_a_fused_ring_needs_a_queue_of_two() -> None:
    words = r"deadlock: rank 0, thread block 0, step 2 \(recv_copy_send\) cannot send"
    with pytest.raises(PlanError, match=words):
        verify(pg.ring_allgather(), queue=1)


def test_a_deeper_queue_lets_eager_senders_pass() -> None:
    assert verify(eager_exchange(3), queue=3).queue == 3
    assert verify(_big_messages(3), queue=3).queue == 3
    assert verify(eager_exchange(2)).queue == 2
    with pytest.raises(PlanError, match="a connection holds 1 message:"):
        verify(eager_exchange(2), queue=1)


def test_flush_and_nop_free_a_ports_source() -> None:
    assert verify(port_reuse(do(Op.FLUSH, channels=[0]), do(Op.NOP))).launches == 2
    assert verify(port_reuse(do(Op.FLUSH), do(Op.NOP)), launches=3).launches == 3


def test_a_self_copy_may_run_beside_readers_but_not_beside_writers() -> None:
    p = pg.chain_broadcast(2, 1)  # in place rank 0 copies onto itself while it sends
    assert "in-place" in verify(p).modes
    extra = pg.tb(do(Op.COPY, out(0), out(0)))
    ranks = (p.ranks[0], replace(p.ranks[1], thread_blocks=(*p.ranks[1].thread_blocks, extra)))
    with pytest.raises(PlanError, match=r"race: .*rank 1, thread block 1, step 0 \(copy\)"):
        verify(replace(p, ranks=ranks))


def test_timing_that_is_not_followed_is_unsupported() -> None:
    with pytest.raises(
        UnsupportedError, match=r"semaphore 0, as thread block 0 does; who is first"
    ):
        verify(_two_releasers())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda: _sized(10**9), "chunks in all; at most"),
        (lambda: _sized(10**30), "chunks in all; at most"),
        (
            lambda: pg.edit(pg.exchange_by_barrier(), 0, 1, 3, part=(1, 10**9)),
            "parts cut a chunk into more than",
        ),
    ],
)
def test_too_large_is_unsupported(spoil: Callable[[], Program], words: str) -> None:
    start = time.monotonic()
    with pytest.raises(UnsupportedError, match=words):
        verify(spoil())
    assert time.monotonic() - start < 2


def test_too_much_work_is_unsupported() -> None:
    steps = [do(Op.COPY, inp(0, 300_000), out(0, 300_000))] * 40
    p = pg.program(Collective.BROADCAST, "fifo", [pg.rank(pg.tb(*steps), i=300_000, o=300_000)])
    with pytest.raises(UnsupportedError, match="steps on chunks to check; at most"):
        verify(p)


def _sized(chunks: int) -> Program:
    p = pg.star_reduce()
    return replace(
        p, ranks=tuple(replace(r, input_chunks=chunks, output_chunks=chunks) for r in p.ranks)
    )


@pytest.mark.parametrize("name", ["launches", "rounds", "queue"])
def test_nothing_is_unrolled_less_than_once(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        verify(pg.star_reduce(), **{name: 0})


# --- loads against the forest


def chain_forest(n: int, *, total: int = 2) -> Forest:
    graph = CapacityGraph(
        names=("switch", *(f"gpu{r}" for r in range(n))),
        gpu=(False, *[True] * n),
        multicast=(False,) * (n + 1),
        aggregation=(False,) * (n + 1),
        ranks=tuple(range(1, n + 1)),
        tail=(),
        head=(),
        capacity=(),
        unit=Fraction(1),
    )
    edges = tuple((r, 0, r + 1) for r in range(1, n))
    trees = tuple(Tree(1, "broadcast", 1, edges) for _ in range(total))
    return Forest("chain", graph, Collective.BROADCAST, total, trees, root=0)


@pytest.mark.parametrize("p", [pg.chain_broadcast(3, 2), pg.pipelined_broadcast(3, chunks=2)])
def test_loads_equal_the_forests(p: Program) -> None:
    assert link_loads(p, chain_forest(3)) == {(0, 1): Fraction(1), (1, 2): Fraction(1)}


def test_loads_that_differ_from_the_forests() -> None:
    forest = chain_forest(3)
    lighter = replace(forest, trees=forest.trees[:1])
    with pytest.raises(
        PlanError,
        match=r"rank 0 to rank 1: the program moves 1 of the data, the forest's trees 1/2",
    ):
        link_loads(pg.chain_broadcast(3), lighter)
    with pytest.raises(PlanError, match="the program has 4 ranks, the forest 3"):
        link_loads(pg.chain_broadcast(4), forest)
    extra = pg.insert(pg.chain_broadcast(3), 0, 1, 0, do(Op.SEND, inp(0, 2)))
    with pytest.raises(PlanError, match=r"rank 0 to rank 1: the program moves 2 of the data"):
        link_loads(extra, forest)


def test_buffers_by_letter() -> None:
    """Buffers compare by value, as readers of files make them."""
    p = pg.star_reduce(2)
    assert verify(pg.edit(p, 1, 0, 0, src=(Ref(Buffer("i"), 0, 1),))).root == 0
