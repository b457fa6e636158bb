"""The engine's queues hold what the runtimes' hold: what verifies also runs."""

from __future__ import annotations

from dataclasses import replace

import programs as pg
import pytest
from notation import parse
from programs import eager_exchange

from forestcoll.common.errors import ExecutionError, PlanError, UnsupportedError
from forestcoll.execute.cpu import run
from forestcoll.execute.sizes import SLOT_BYTES, SLOT_LEAST, SLOT_TOTAL, layout, queue
from forestcoll.program import Program, Protocol
from forestcoll.verify import verify

MIB = 1 << 20


def served(p: Program, largest: int, protocol: Protocol = "Simple") -> Program:
    return replace(p, max_bytes=largest, protocol=protocol)


def fused_pipe(chunks: int) -> Program:
    """Rank 0 sends on through a fused rank 1 to rank 2, which first sends to rank 0 itself.

    Rank 0 takes that only when all its own data is on the way.
    """
    c, text = f":{chunks}", ["allgather fifo places=out"]
    for block in (
        f"recv=2 send=1\ncopy i0{c} -> o0{c}\nsend i0{c}\nrecv -> o{2 * chunks}{c}",
        f"recv=0 send=2\nrecv_copy_send -> o0{c}",
        f"recv=1 send=0\nsend i0{c}\nrecv -> o0{c}",
    ):
        text += [f"rank {chunks} {3 * chunks}\nblock {block}"]
    return parse(pg.lines(text))


def goes_on(p: Program) -> bool:
    """Whether the symbolic check finds no deadlock."""
    try:
        verify(p)
    except PlanError as error:
        return "deadlock" not in str(error)
    return True


@pytest.mark.parametrize("chunks", [3, 5, 8])
@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_what_goes_on_in_the_runtimes_slots_goes_on_here(chunks: int, protocol: Protocol) -> None:
    """Both send `chunks` chunks in one message before they receive: a matter of the size."""
    plan = eager_exchange(chunks, chunks)
    sizes = [10_000, 100_000, MIB, 3 * MIB]
    fitting = []
    for size in sizes:
        p = served(plan, size, protocol)
        if not goes_on(p):
            continue
        fitting.append(size)
        for part in (size, size // 2 + 40, 80):
            assert run(p, part, timeout=20).wrong == 0, (size, part)
    assert fitting
    assert protocol == "Simple" or chunks == 8 or fitting == sizes


def test_a_message_beyond_the_runtimes_slots_gets_stuck() -> None:
    plan = eager_exchange(5, 5)
    largest = 2 * MIB // 3 * 10
    assert run(served(plan, largest), largest, modes=["out-of-place"]).wrong == 0
    assert verify(served(plan, largest)).queue == 2
    with pytest.raises(ExecutionError, match="until an earlier message is received"):
        run(plan, 10 * MIB)


def test_fused_blocks_hold_as_much_as_the_runtimes() -> None:
    """The middle rank may take what the third does not take yet."""
    plan = fused_pipe(12)
    largest = (2 * MIB // 3) * 36  # 3 chunks a slot: 12 chunks are in the two queues
    with pytest.raises(PlanError, match="wrong result"):  # nothing but deadlock and order matters
        verify(served(plan, largest))
    assert run(served(plan, largest), largest // 8, check=False, timeout=20).wrong == 0
    with pytest.raises(PlanError, match="deadlock"):
        verify(served(plan, largest + 36))


def test_ll_holds_eight_messages() -> None:
    held: dict[Protocol, int] = {"Simple": 2, "LL": 8, "LL128": 8}
    for protocol, most in held.items():
        p = replace(eager_exchange(most), protocol=protocol)
        verify(p)
        assert run(p, 100_000, timeout=20).wrong == 0
        p = replace(eager_exchange(most + 1), protocol=protocol)
        with pytest.raises(PlanError, match="deadlock"):
            verify(p)
        with pytest.raises(ExecutionError, match="until an earlier message is received"):
            run(p, 100_000, timeout=20)


def test_queues_of_many_connections_take_less_memory() -> None:
    p = served(eager_exchange(8, 8), 8 * MIB)
    data = layout(p, 8 * MIB, 4)
    assert data.chunk_bytes == MIB // 2
    assert queue(p, data, 2, None, None, None) == (2 * 4, SLOT_BYTES)
    slots, size = queue(p, data, 5000, None, None, None)
    assert slots == 2 * 4
    assert SLOT_LEAST <= size <= SLOT_TOTAL / 5000 / slots
    assert queue(p, data, 10**9, None, None, None) == (2 * 4, SLOT_LEAST)
    assert queue(p, data, 10**9, 3, 64, None) == (3, 64)
    small = layout(p, 80_000, 4)
    assert queue(p, small, 2, None, None, None) == (2, SLOT_BYTES)
    assert queue(p, small, 2, None, None, 16) == (2 * 4, SLOT_BYTES)  # slice by slice
    anything = replace(p, max_bytes=0)
    assert queue(anything, data, 2, None, None, None) == (2, SLOT_BYTES)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"slot_bytes": 2**62}, r"slots of 4611686018427387904 bytes for each of \d+ connections"),
        ({"slots": 2**62}, r"4611686018427387904 slots of \d+ bytes"),
        ({"slots": 2**40, "slot_bytes": 2**40}, "choose fewer or smaller slots"),
    ],
)
def test_slots_that_no_memory_holds(how: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        run(pg.ring_allreduce(), 4096, **how)  # type: ignore[arg-type]


def test_large_wishes_are_brought_down() -> None:
    found = run(pg.ring_allreduce(), 4096, slice_bytes=2**70, threads=2**40)
    assert found.wrong == 0
