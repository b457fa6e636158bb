"""Small programs by hand, in the notation of notation.py.

All are right as they come from here, in every mode that they claim; the tests of the checker spoil
them one piece at a time, and other tests may run or write them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Literal

from edits import ROWS
from notation import build, parse, slip, spoilt, tree_of

from forestcoll import plans
from forestcoll.common.errors import ForestCollError
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.program import Collective, Program
from forestcoll.topology import Link, Node, Topology

Kind = Literal["memory", "port"]


def edit(p: Program, *edits: str) -> Program:
    """The program after edits of its tree (edits.py)."""
    return spoilt(tree_of(p), edits)


def lines(*given: str | Iterable[str]) -> str:
    """Lines, and lists of lines, below each other."""
    return "\n".join(each if isinstance(each, str) else "\n".join(each) for each in given)


# --- fifo


def chain_broadcast(n: int = 3, chunks: int = 2) -> Program:
    """Rank 0 to 1 to 2 ...: one thread block receives, another sends on what it received."""
    text = ["broadcast fifo root=0", f"rank {chunks} {chunks}", "block"]
    text += [f"copy i0:{chunks} -> o0:{chunks}", "block send=1"]
    text += [f"send i{c}" for c in range(chunks)]
    for r in range(1, n):
        text += [f"rank {chunks} {chunks}", f"block recv={r - 1}"]
        text += [f"recv -> o{c}" for c in range(chunks)]
        if r < n - 1:
            text += [f"block send={r + 1}", *(f"send o{c} after=0.{c}" for c in range(chunks))]
    return parse(lines(text))


def ring_allgather(n: int = 4) -> Program:
    """One thread block a rank: own chunk out first, then pass on what comes."""
    text = ["allgather fifo"]
    for r in range(n):
        text += [f"rank 1 {n}", f"block recv={(r - 1) % n} send={(r + 1) % n}"]
        text += [f"copy i0 -> o{r}", f"send o{r}"]
        text += [f"recv_copy_send -> o{(r - k) % n}" for k in range(1, n - 1)]
        text += [f"recv -> o{(r + 1) % n}"]
    return parse(lines(text))


def ring_allreduce(n: int = 4) -> Program:
    """Fused ring: partial sums go round once (rrs), results once more (rrcs, rcs)."""
    text = ["allreduce fifo"]
    for r in range(n):
        last = (r + 1) % n
        text += [f"rank {n} {n}", f"block recv={(r - 1) % n} send={last}"]
        text += [f"copy i0:{n} -> o0:{n}", f"send o{r}"]
        text += [f"recv_reduce_send o{(r - k) % n}" for k in range(1, n - 1)]
        text += [f"recv_reduce_copy_send o{last} -> o{last}"]
        text += [f"recv_copy_send -> o{(r - k) % n}" for k in range(n - 2)]
        text += [f"recv -> o{(r + 2) % n}"]
    return parse(lines(text))


def star_reduce(n: int = 4) -> Program:
    """All to rank 0, a thread block a child; the sums into the output are chained."""
    text = ["reduce fifo root=0", f"rank 1 1 {n - 1}", "block", "copy i0 -> o0"]
    for k in range(1, n):
        text += [f"block recv={k}", f"recv -> s{k - 1}"]
        text += [f"reduce s{k - 1} -> o0 after={k - 1}.{int(k > 1)}"]
    return parse(lines(text, ["rank 1 1\nblock send=0\nsend i0"] * (n - 1)))


def eager_exchange(chunks: int, count: int = 1) -> Program:
    """Two ranks that send all they have, in messages of `count`, before they receive anything."""
    text = ["allgather fifo"]
    for r in range(2):
        other = (1 - r) * chunks
        text += [f"rank {chunks} {2 * chunks}", f"block recv={1 - r} send={1 - r}"]
        text += [f"copy i0:{chunks} -> o{r * chunks}:{chunks}"]
        text += [f"send i{c}:{count}" for c in range(0, chunks, count)]
        text += [f"recv -> o{other + c}:{count}" for c in range(0, chunks, count)]
    return parse(lines(text))


def _others(r: int, n: int) -> list[int]:
    return [p for p in range(n) if p != r]


# --- onesided


def begin(*channels: int) -> str:
    """My launch has begun; so has yours."""
    over = ",".join(map(str, channels))
    return f"relaxed_signal over={over}\nrelaxed_wait over={over}\nnop"


def end(*channels: int) -> str:
    """I have read all; so have you."""
    over = ",".join(map(str, channels))
    return f"nop\nsignal over={over}\nwait over={over}"


def _ends(kind: Kind, peers: Iterable[int]) -> str:
    return "block channels=" + ",".join(f"{kind}:{p}:0" for p in peers)


def pipelined_broadcast(n: int = 3, kind: Kind = "memory", chunks: int = 2) -> Program:
    """A chain, slice after slice."""
    text = ["broadcast onesided root=0"]
    for r in range(n):
        peers = [p for p in (r - 1, r + 1) if 0 <= p < n]
        down = len(peers) - 1
        text += [f"rank {chunks} {chunks}", _ends(kind, peers), begin(*range(len(peers)))]
        text += [f"loop {chunks} 65536"]
        text += ["- wait over=0", "- nop"] if r else [f"- copy i0:{chunks} -> o0:{chunks}"]
        if r < n - 1:
            source = "o" if r else "i"
            text += [f"- put {source}0:{chunks} -> o0:{chunks}@{r + 1} over={down}"]
            text += ["- nop", f"- signal over={down}"]
        text += [end(*range(len(peers)))]
    return parse(lines(text))


def direct_allgather(n: int = 3, kind: Kind = "memory") -> Program:
    """Everyone puts its chunk into everyone's output, a thread block a peer.

    Ports read the input from where its allocation begins: in place that is another rank's part.
    """
    text = [f"allgather onesided places={'out' if kind == 'port' else 'both'}"]
    for r in range(n):
        text += [f"rank 1 {n}", f"block\ncopy i0 -> o{r}"]
        for peer in _others(r, n):
            text += [_ends(kind, [peer]), begin(0), f"put i0 -> o{r}@{peer} over=0"]
            text += [end(0)] * (2 if kind == "port" else 1)
    return parse(lines(text))


def fabric_allgather(n: int = 3, chunks: int = 2) -> Program:
    """Rank r has the switch store its chunks everywhere, once all have begun."""
    text, group, every = ["allgather onesided"], "/".join(map(str, range(n))), range(n - 1)
    for r in range(n):
        text += [f"rank {chunks} {n * chunks}"]
        text += [f"{_ends('memory', _others(r, n))} switches=o:{group}", begin(*every)]
        text += [f"fabric_store i0:{chunks} -> o{r * chunks}:{chunks} via=0", end(*every)]
    return parse(lines(text))


@cache
def _bases() -> dict[str, str]:
    blocks = (ROWS / "bases.txt").read_text().split("\n\n")
    return dict(block.split("\n", 1) for block in blocks)  # type: ignore[misc]


def base(name: str, *options: str) -> Program:
    """A program by its name in rows/bases.txt or here, with options such as `n=3`."""
    text = _bases().get(" ".join([name, *options]))
    if text is not None:
        return parse(text)
    pairs = (option.split("=") for option in options)
    values = {key: int(word) if word.isdigit() else word for key, word in pairs}
    program: Program = globals()[name](**values)
    return program


@cache
def text_of(name: str, *options: str) -> str:
    """The plan file of a base."""
    program = base(name, *options)
    return plans.dumps(program, format_of(program))


def format_of(program: Program) -> plans.Format:
    """The format that holds programs of its style."""
    return "msccl-xml" if program.style == "fifo" else "mscclpp-json"


def nvls(n: int = 3, channels: int = 16) -> Program:
    """An allreduce in the switch for a runtime of that many channels per thread block, as lowered.

    16: slices of eight thread blocks; 2: of two, which share the peers, so there are barriers.
    """
    from forestcoll.lower.nvls import lower_nvls
    from forestcoll.program.targets import MSCCLPP
    from forestcoll.solver import multicast

    names = [f"gpu{r}" for r in range(n)]
    nodes = {name: Node("gpu") for name in names}
    switch = {"switch": Node("switch", multicast=True, aggregation=True)}
    topology = Topology("star", nodes | switch, tuple(Link(g, "switch", 100) for g in names))
    graph = CapacityGraph.from_topology(topology)
    forest = multicast.forest(graph, Collective.ALLREDUCE, None, "star")
    assert forest is not None
    return lower_nvls(forest, replace(MSCCLPP, channels=channels), blocks=min(channels, 8))


GOOD = """
chain_broadcast, ring_allgather, ring_allreduce, star_reduce, direct_reduce_scatter,
pipelined_broadcast, pipelined_broadcast kind=port, direct_allgather, direct_allgather kind=port,
crossed_reduce_scatter, reading_allreduce, reduce_to_root kind=memory,
reduce_to_root kind=port chunks=3, relay_by_semaphore, exchange_by_barrier, packet_allreduce,
packet_chain, packet_chain kind=port chunks=3, packet_reduce, fabric_allreduce,
fabric_allreduce in_place=0, fabric_allgather
"""


def all_good() -> dict[str, Program]:
    """Programs of every kind that are right as they are, by their names and options."""
    names = [name.strip() for name in GOOD.replace("\n", " ").split(",")]
    return {name: base(*name.split()) for name in names}


def samples() -> dict[str, Program]:
    """Those, and some more of the rows': together they have every instruction."""
    more = ("chain_reduce", "pushing_allreduce", "reading_pair", "swapping_allgather")
    return all_good() | {name: base(name) for name in more}


def write_random(seed: int, style: str) -> tuple[Program, str] | None:
    """A program with names, sizes and some steps changed at random, and its plan; None if refused.

    It need not compute anything sensible: plan files carry it all the same.
    """
    dice = random.Random(seed)
    good = [p for name, p in all_good().items() if p.style == style and "fabric" not in name]
    whole = tree_of(dice.choice([base(f"every_{style}"), *good]))
    words = ["".join(dice.choices("ab&<\"'é>\t", k=dice.randint(0, 6))) for _ in range(9)]
    low = dice.randint(0, 2**20)
    whole |= {"name": words[0], "names": words[1 : 1 + len(whole["ranks"]) * dice.randrange(2)]}
    whole |= {"min_bytes": low, "max_bytes": dice.choice((0, dice.randint(low or 1, 2**28)))}
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        slip(whole, dice)
    with suppress(ForestCollError):
        program = build(whole)
        return program, plans.dumps(program, format_of(program))
    return None
