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


def direct_reduce_scatter(n: int = 3, part: int = 2) -> Program:
    """Everyone sends everyone its part; sums are built in scratch and copied out.

    In place the output is the own part of the input: all who read it must be done.
    """
    text = ["reduce-scatter fifo"]
    for r in range(n):
        text += [f"rank {n * part} {part} {n * part}"]
        text += [f"block\ncopy i{r * part}:{part} -> s0:{part}"]
        for k, peer in enumerate(_others(r, n), 1):
            slot = f"s{k * part}:{part}"
            text += [f"block recv={peer} send={peer}", f"send i{peer * part}:{part}"]
            text += [f"recv -> {slot}", f"reduce {slot} -> s0:{part} after={k - 1}.{2 * (k > 1)}"]
        text += [f"block\ncopy s0:{part} -> o0:{part} after={n - 1}.2"]
    return parse(lines(text))


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


def tree_allreduce(n: int, per: int, strides: tuple[int, ...] = (1, 2, 5, 11)) -> Program:
    """Up and down breadth-first trees over the links +-strides, `per` chunks per root.

    One thread block a connection and direction, each in the order of time: a plan as big as real
    ones (about 8 instructions a chunk and rank).
    """
    links = [d for s in strides for d in (s, n - s)]
    messages: list[tuple[int, int, bool, int, int]] = []  # time, chunk, down, from, to
    for root in range(n):
        depth, parent, line = {root: 0}, {root: root}, [root]
        for k, u in enumerate(line):  # grows while it is walked: breadth first
            turn = (root + k) % len(links)
            for d in links[turn:] + links[:turn]:
                v = (u + d) % n
                if v not in depth:
                    depth[v], parent[v] = depth[u] + 1, u
                    line.append(v)
        height = max(depth.values())
        for c in range(root * per, (root + 1) * per):
            messages += [(height - depth[v], c, False, v, parent[v]) for v in line[1:]]
            messages += [(height + depth[v], c, True, parent[v], v) for v in line[1:]]
    chunks = n * per
    blocks = [{"block": [f"copy i0:{chunks} -> o0:{chunks}"]} for _ in range(n)]
    last = [dict.fromkeys(range(chunks), "0.0") for _ in range(n)]
    slots = [0] * n

    def add(r: int, key: str, line: str) -> str:
        own = blocks[r].setdefault(f"block {key}", [])
        own.append(line)
        return f"{list(blocks[r]).index(f'block {key}')}.{len(own) - 1}"

    for _, c, down, u, v in sorted(messages):
        sent = add(u, f"send={v}", f"send o{c} after={last[u][c]}")
        if down:
            last[v][c] = add(v, f"recv={u}", f"recv -> o{c} after={last[v][c]}")
            continue
        last[u][c] = sent  # what comes back must not overwrite what is still to leave
        add(v, f"recv={u}", f"recv -> s{slots[v]}")
        last[v][c] = add(v, f"recv={u}", f"reduce s{slots[v]} -> o{c} after={last[v][c]}")
        slots[v] += 1
    text = ["allreduce fifo"]
    for r in range(n):
        text += [f"rank {chunks} {chunks} {slots[r]}"]
        text += [line for head, own in blocks[r].items() for line in (head, *own)]
    return parse(lines(text))


def neighbours(children: int) -> Program:
    """All to rank 0, whose last thread block adds them up one after the other."""
    text = [f"reduce fifo root=0\nrank 1 1 {children}\nblock\ncopy i0 -> o0"]
    text += [f"block recv={k + 1}\nrecv -> s{k}" for k in range(children)]
    after = ",".join(f"{b}.0" for b in range(children + 1))
    text += [f"block\nreduce s0 -> o0 after={after}"]
    text += [f"reduce s{k} -> o0" for k in range(1, children)]
    return parse(lines(text, ["rank 1 1\nblock send=0\nsend i0"] * children))


# --- onesided


def begin(*channels: int) -> str:
    """My launch has begun; so has yours."""
    over = ",".join(map(str, channels))
    return f"relaxed_signal over={over}\nrelaxed_wait over={over}\nnop"


def end(*channels: int) -> str:
    """I have read all; so have you."""
    over = ",".join(map(str, channels))
    return f"nop\nsignal over={over}\nwait over={over}"


def _ends(kind: Kind, peers: Iterable[int], number: int = 0) -> str:
    return "block channels=" + ",".join(f"{kind}:{p}:{number}" for p in peers)


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


def signals(kind: Kind = "memory") -> Program:
    """An allgather of two ranks, each signalling on channel 0 in two operations."""
    text = ["allgather onesided"]
    for r, peer in enumerate((1, 0)):
        text += ["rank 1 2", f"block channels={kind}:{peer}:0,{kind}:{peer}:1", begin(0, 1)]
        text += [f"put i0 -> o{r}@{peer} over=0", f"copy i0 -> o{r}", "nop", "signal over=0"]
        text += ["signal over=1,0", "wait over=0", "wait over=1,0"]
    return parse(lines(text))


def crossed_reduce_scatter() -> Program:
    """Each of two ranks adds up the other's part and puts it into the other's output.

    Out of place only: a peer's output is sought as far from its allocation's begin as the own.
    """
    text = ["reduce-scatter onesided places=out"]
    for p in (1, 0):
        text += ["rank 2 1 1", _ends("memory", [p]), begin(0)]
        text += [f"read_reduce i{p} i{p}@{p} -> s0 over=0", "nop", f"put s0 -> o0@{p} over=0"]
        text += [end(0)]
    return parse(lines(text))


def reading_allreduce(n: int = 3) -> Program:
    """Rank r reads chunk r of all inputs, adds them up and puts the sum into all outputs."""
    text = ["allreduce onesided"]
    for r in range(n):
        peers, every = _others(r, n), range(n - 1)
        src, dst = (" ".join(f"{x}{r}@{p}" for p in peers) for x in "io")
        text += [f"rank {n} {n}", _ends("memory", peers), begin(*every)]
        text += [f"read_reduce_put i{r} {src} -> o{r} {dst}", end(*every)]
    return parse(lines(text))


def reduce_to_root(kind: Kind = "port", chunks: int = 1) -> Program:
    """Two leaves put into slots of rank 0's scratch, slice by slice; rank 0 adds up."""
    c, loop = chunks, f"loop {chunks} 4096"
    text = ["reduce onesided root=0", f"rank {c} {c} {2 * c}", _ends(kind, (1, 2)), begin(0, 1)]
    text += [loop, "- wait over=0,1", "- nop"]
    text += [f"- reduce_to i0:{c} s0:{c} s{c}:{c} -> o0:{c}", end(0, 1)]
    for k in range(2):
        text += [f"rank {c} {c}", _ends(kind, [0]), begin(0), loop]
        text += [f"- put i0:{c} -> s{k * c}:{c}@0 over=0", "- nop", "- signal over=0", end(0)]
    return parse(lines(text))


def relay_by_semaphore(chunks: int = 2) -> Program:
    """Broadcast 0 to 1 to 2; at rank 1 one thread block waits and releases, another passes on."""
    c, loop = chunks, f"loop {chunks} 512"
    put = f"put i0:{c} -> o0:{c}@1 over=0\n- nop\n- signal over=0"
    passing = f"put o0:{c} -> o0:{c}@2 over=0\n- nop\n- signal over=0"
    text = ["broadcast onesided root=0", f"rank {c} {c}\nblock\ncopy i0:{c} -> o0:{c}"]
    text += [_ends("memory", [1]), begin(0), loop, f"- {put}", end(0)]
    text += [f"rank {c} {c} semaphores=0", _ends("memory", [0]), begin(0), loop]
    text += ["- wait over=0\n- nop\n- release sem=0", end(0), _ends("memory", [2]), begin(0), loop]
    text += [f"- acquire sem=0\n- nop\n- {passing}", end(0)]
    text += [f"rank {c} {c}", _ends("memory", [1]), begin(0), loop, "- wait over=0", end(0)]
    return parse(lines(text).replace(f"rank {c} {c} semaphores", f"rank {c} {c} 0 semaphores"))


def exchange_by_barrier(parts: int = 2) -> Program:
    """Allreduce of two ranks: each thread block fetches a part; a barrier; then all add up.

    The other way round: what one thread block fetched, another adds.
    """
    text, barrier = ["allreduce onesided"], f"barrier at=0/{parts}"
    for r in range(2):
        text += ["rank 2 2 2"]
        for k in range(parts):
            text += [_ends("memory", [1 - r], k), begin(0)]
            text += [f"get i0:2@{1 - r} -> s0:2 over=0 part={k}/{parts}", barrier]
            text += ["signal over=0", "wait over=0", barrier]
            text += [f"reduce_to i0:2 s0:2 -> o0:2 part={parts - 1 - k}/{parts}"]
    return parse(lines(text))


# --- packets


def ll(p: Program, *, double: bool = True) -> Program:
    """The program as one of packets."""
    return replace(p, protocol="LL", double_scratch=double)


def packet_allreduce(n: int = 3, chunks: int = 2) -> Program:
    """Everybody sends its part of root r's chunks to r in packets; r sums and sends to everybody.

    A thread block a root, no signal: who has all sums knows that everybody has begun this launch.
    """
    text, c = ["allreduce onesided protocol=LL"], chunks
    for r in range(n):
        peers = _others(r, n)
        text += [f"rank {n * c} {n * c} {2 * (n - 1) * c}"]
        for root in range(n):
            own, total = f"i{root * c}:{c}", f"o{root * c}:{c}"
            if root == r:
                slots = " ".join(f"s{k * c}:{c}" for k in range(n - 1))
                back = " ".join(f"s{(n - 1 + _others(p, n).index(r)) * c}:{c}@{p}" for p in peers)
                over = ",".join(map(str, range(n - 1)))
                text += [_ends("memory", peers)]
                text += [f"reduce_put_packets {own} {slots} -> {total} {back} over={over}"]
            else:
                mine, answer = _others(root, n).index(r), n - 1 + peers.index(root)
                text += [_ends("memory", [root], 1)]
                text += [f"put_packets {own} -> s{mine * c}:{c}@{root} over=0"]
                text += [f"unpack s{answer * c}:{c} -> {total}"]
    return ll(parse(lines(text)))


def packet_chain(kind: Kind = "memory", chunks: int = 1) -> Program:
    """Allreduce up and down the chain 0 - 1 - 2; over ports packets are forwarded from scratch.

    Scratch: own sums on their way (0), from below or above (1, 2), the result (3).
    """
    c, far = chunks, kind == "port"
    own, total, mine, up, result = f"i0:{c}", f"o0:{c}", f"s0:{c}", f"s{c}:{c}", f"s{3 * c}:{c}"
    kept = f"reduce_copy_packets {own} {up} -> {total} {mine}"
    text = ["allreduce onesided", f"rank {c} {c} {8 * c}", _ends(kind, [1])]
    text += (
        [kept, f"forward_packets {mine} -> {result}@1 over=0"]
        if far
        else [f"reduce_copy_put_packets {own} {up} -> {total} {mine} {result}@1 over=0"]
    )
    text += [f"rank {c} {c} {8 * c}", _ends(kind, (0, 2))]
    text += (
        [kept, f"forward_packets {mine} -> {up}@0 over=0"]
        if far
        else [f"reduce_put_packets {own} {up} -> {total} {up}@0 over=0"]
    )
    text += ["nop", f"forward_packets {result} -> {result}@2 over=1", f"unpack {result} -> {total}"]
    text += [f"rank {c} {c} {8 * c}", _ends(kind, [1])]
    text += (
        [f"copy_packets {own} -> {mine}", f"forward_packets {mine} -> {up}@1 over=0"]
        if far
        else [f"put_packets {own} -> {up}@1 over=0"]
    )
    return ll(parse(lines(text, f"unpack {result} -> {total}")))


def packet_reduce(n: int = 3) -> Program:
    """Packets to rank 0, which sums them; one half of scratch, so senders wait for its begin."""
    peers, over = range(1, n), ",".join(map(str, range(n - 1)))
    text = ["reduce onesided root=0", f"rank 1 1 {n - 1}", _ends("memory", peers)]
    text += [f"relaxed_signal over={over}"]
    text += [f"reduce_packets i0 {' '.join(f's{p - 1}' for p in peers)} -> o0"]
    for p in peers:
        text += [f"rank 1 1 {n - 1}", _ends("memory", [0]), "relaxed_wait over=0", "nop"]
        text += [f"put_packets i0 -> s{p - 1}@0 over=0"]
    return ll(parse(lines(text)), double=False)


# --- switches that copy and add


def fabric_allreduce(n: int = 3, chunks: int = 2, *, in_place: bool = True) -> Program:
    """Rank r has the switch add up chunks r and store the sums everywhere."""
    to, ways = ("i", "i") if in_place else ("o", "i,o")
    text = [f"allreduce onesided places={'in' if in_place else 'out'}"]
    for r in range(n):
        place, via = f"{r * chunks}:{chunks}", "0,0" if in_place else "0,1"
        text += [f"rank {n * chunks} {n * chunks}"]
        text += [_by_switch(r, n, ways, f"fabric_reduce_store i{place} -> {to}{place} via={via}")]
    return parse(lines(text))


def fabric_allgather(n: int = 3, chunks: int = 2) -> Program:
    """Rank r has the switch store its chunks everywhere."""
    text = ["allgather onesided"]
    for r in range(n):
        store = f"fabric_store i0:{chunks} -> o{r * chunks}:{chunks} via=0"
        text += [f"rank {chunks} {n * chunks}", _by_switch(r, n, "o", store)]
    return parse(lines(text))


def _by_switch(r: int, n: int, buffers: str, line: str) -> str:
    """Everybody has begun; the step; everybody is done."""
    group = "/".join(map(str, range(n)))
    ways = ",".join(f"{buffer}:{group}" for buffer in buffers.split(","))
    every = range(n - 1)
    return lines(
        f"{_ends('memory', _others(r, n))} switches={ways}", begin(*every), line, end(*every)
    )


def base(name: str, *options: str) -> Program:
    """A program by its name in rows/bases.txt or here, with options such as `n=3`."""
    blocks = (ROWS / "bases.txt").read_text(encoding="utf-8").split("\n\n")
    texts = dict(block.split("\n", 1) for block in blocks)
    if name in texts:
        return parse(texts[name])
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


def all_good() -> dict[str, Program]:
    """Every program of this module, by a name that says which it is."""
    return {
        "chain_broadcast": chain_broadcast(),
        "ring_allgather": ring_allgather(),
        "ring_allreduce": ring_allreduce(),
        "star_reduce": star_reduce(),
        "direct_reduce_scatter": direct_reduce_scatter(),
        "pipelined_broadcast-memory": pipelined_broadcast(),
        "pipelined_broadcast-port": pipelined_broadcast(kind="port"),
        "direct_allgather-memory": direct_allgather(),
        "direct_allgather-port": direct_allgather(kind="port"),
        "crossed_reduce_scatter": crossed_reduce_scatter(),
        "reading_allreduce": reading_allreduce(),
        "reduce_to_root-memory": reduce_to_root("memory"),
        "reduce_to_root-port": reduce_to_root("port", 3),
        "relay_by_semaphore": relay_by_semaphore(),
        "exchange_by_barrier": exchange_by_barrier(),
        "packet_allreduce": packet_allreduce(),
        "packet_chain-memory": packet_chain(),
        "packet_chain-port": packet_chain("port", 3),
        "packet_reduce": packet_reduce(),
        "fabric_allreduce-in": fabric_allreduce(),
        "fabric_allreduce-out": fabric_allreduce(in_place=False),
        "fabric_allgather": fabric_allgather(),
    }


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
