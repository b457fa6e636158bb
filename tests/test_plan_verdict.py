"""What `verify_text` says of a plan: root, traffic, busiest pair of ranks, the reader's notes."""

from __future__ import annotations

from programs import text_of

from forestcoll.compile.verdict import verify_text


def test_root_traffic_and_busiest_pair() -> None:
    """Rank 1 sends its three chunks to both others, the last of them twice to rank 0."""
    verdict = verify_text(text_of("three"), "x")
    assert verdict.lines == [
        "broadcast, root 1, 3 ranks, at most 3 thread blocks per rank",
        "every output chunk is right, out-of-place and in-place; no deadlock with bounded queues, "
        "no race",
        "7 chunks move between ranks (3 are the whole data); most from rank 1 to rank 0, 4/3 of "
        "the data",
    ]
    names = ("root", "moved_chunks", "busiest_pair", "busiest_load", "notes")
    assert [verdict.figures[name] for name in names] == [1, "7", [1, 0], "4/3", []]


def test_notes_of_the_reader() -> None:
    verdict = verify_text(text_of("three").replace(' nchannels="1"', ""), "x")
    note = "line 1: <algo> has no nchannels; every attribute that the loaders ask for is there"
    assert verdict.lines[-1] == f"note: {note}"
    assert verdict.figures["notes"] == [note]


def test_a_plan_that_moves_nothing() -> None:
    verdict = verify_text(text_of("alone"), "x")
    assert len(verdict.lines) == 2
    assert verdict.figures["root"] is None
    assert verdict.figures["busiest_pair"] is None
