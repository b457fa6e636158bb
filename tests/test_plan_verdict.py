"""What `verify_text` says of a plan: root, traffic, busiest pair of ranks, the reader's notes."""

from __future__ import annotations

from forestcoll import plans
from forestcoll.compile.verdict import verify_text
from forestcoll.program import Buffer, Collective, Instruction, Op, Program, RankProgram, Ref
from forestcoll.program import ThreadBlock as Block


def _broadcast() -> Program:
    """Rank 1 sends its three chunks to both others, the last of them twice to rank 0."""
    send = Instruction(Op.SEND, src=(Ref(Buffer.INPUT, 0, 3),))
    last = Instruction(Op.SEND, src=(Ref(Buffer.INPUT, 2, 1),))
    take = Instruction(Op.RECV, dst=(Ref(Buffer.OUTPUT, 0, 3),))
    again = Instruction(Op.RECV, dst=(Ref(Buffer.OUTPUT, 2, 1),))
    keep = Instruction(
        Op.COPY, (Ref(Buffer.INPUT, 0, 3),), (Ref(Buffer.OUTPUT, 0, 3),), after=((0, 1), (1, 0))
    )
    ranks = (
        RankProgram((Block((take, again), recv=1),), 3, 3, 0),
        RankProgram((Block((send, last), send=0), Block((send,), send=2), Block((keep,))), 3, 3, 0),
        RankProgram((Block((take,), recv=1),), 3, 3, 0),
    )
    return Program("three", Collective.BROADCAST, "fifo", ranks, True, True, root=1)


def test_root_traffic_and_busiest_pair() -> None:
    text = plans.dumps(_broadcast(), "msccl-xml")
    verdict = verify_text(text, "x")
    assert verdict.lines == [
        "broadcast, root 1, 3 ranks, at most 3 thread blocks per rank",
        "every output chunk is right, out-of-place and in-place; no deadlock with bounded queues, "
        "no race",
        "7 chunks move between ranks (3 are the whole data); most from rank 1 to rank 0, 4/3 of "
        "the data",
    ]
    assert verdict.figures["root"] == 1
    assert verdict.figures["moved_chunks"] == "7"
    assert verdict.figures["busiest_pair"] == [1, 0]
    assert verdict.figures["busiest_load"] == "4/3"
    assert verdict.figures["notes"] == []


def test_notes_of_the_reader() -> None:
    text = plans.dumps(_broadcast(), "msccl-xml").replace(' nchannels="1"', "")
    verdict = verify_text(text, "x")
    note = "line 1: <algo> has no nchannels; every attribute that the loaders ask for is there"
    assert verdict.lines[-1] == f"note: {note}"
    assert verdict.figures["notes"] == [note]


def test_a_plan_that_moves_nothing() -> None:
    copy = Instruction(Op.COPY, (Ref(Buffer.INPUT, 0, 1),), (Ref(Buffer.OUTPUT, 0, 1),))
    ranks = (RankProgram((Block((copy,)),), 1, 1, 0),)
    alone = Program("one", Collective.ALLREDUCE, "fifo", ranks, True, True)
    verdict = verify_text(plans.dumps(alone, "msccl-xml"), "x")
    assert len(verdict.lines) == 2
    assert verdict.figures["root"] is None
    assert verdict.figures["busiest_pair"] is None
