"""Small programs made by hand, and tools to spoil them.

All are right as they come from here, in every mode that they claim; the tests of the checker spoil
them one piece at a time, and other tests may run or write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from forestcoll.program import (
    Buffer,
    Channel,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    Step,
    Switch,
    ThreadBlock,
)

Kind = Literal["memory", "port"]


def inp(offset: int, count: int = 1, rank: int | None = None) -> Ref:
    """Chunks of an input."""
    return Ref(Buffer.INPUT, offset, count, rank)


def out(offset: int, count: int = 1, rank: int | None = None) -> Ref:
    """Chunks of an output."""
    return Ref(Buffer.OUTPUT, offset, count, rank)


def scr(offset: int, count: int = 1, rank: int | None = None) -> Ref:
    """Chunks of a scratch buffer."""
    return Ref(Buffer.SCRATCH, offset, count, rank)


def do(
    op: Op,
    src: Ref | Sequence[Ref] = (),
    dst: Ref | Sequence[Ref] = (),
    after: Iterable[tuple[int, int]] = (),
    channels: Iterable[int] = (),
) -> Instruction:
    """An instruction with less punctuation."""
    return Instruction(
        op,
        (src,) if isinstance(src, Ref) else tuple(src),
        (dst,) if isinstance(dst, Ref) else tuple(dst),
        tuple(after),
        tuple(channels),
    )


def tb(*steps: Step, recv: int = -1, send: int = -1, channel: int = 0) -> ThreadBlock:
    """A fifo thread block."""
    return ThreadBlock(steps, recv, send, channel)


def otb(channels: Iterable[tuple[int, Kind, int]], *steps: Step) -> ThreadBlock:
    """A onesided thread block; channels as (peer, kind, index)."""
    return ThreadBlock(steps, channels=tuple(Channel(*c) for c in channels))


def rank(
    *blocks: ThreadBlock, i: int, o: int, s: int = 0, semaphores: tuple[int, ...] = ()
) -> RankProgram:
    """A rank with its buffer sizes."""
    return RankProgram(blocks, i, o, s, semaphores)


def program(
    collective: Collective,
    style: Literal["fifo", "onesided"],
    ranks: Iterable[RankProgram],
    modes: str = "both",
    root: int = -1,
) -> Program:
    """A program; `modes` is both, in or out."""
    return Program(
        f"test-{collective.value}",
        collective,
        style,
        tuple(ranks),
        in_place=modes in ("both", "in"),
        out_of_place=modes in ("both", "out"),
        root=root,
    )


# --- fifo


def chain_broadcast(n: int = 3, chunks: int = 2) -> Program:
    """Rank 0 to 1 to 2 ...: one thread block receives, another sends on what it received."""
    ranks = []
    for r in range(n):
        blocks = []
        if r == 0:
            blocks.append(tb(do(Op.COPY, inp(0, chunks), out(0, chunks))))
            blocks.append(tb(*(do(Op.SEND, inp(c)) for c in range(chunks)), send=1))
        else:
            blocks.append(tb(*(do(Op.RECV, (), out(c)) for c in range(chunks)), recv=r - 1))
            if r < n - 1:
                sends = (do(Op.SEND, out(c), after=[(0, c)]) for c in range(chunks))
                blocks.append(tb(*sends, send=r + 1))
        ranks.append(rank(*blocks, i=chunks, o=chunks))
    return program(Collective.BROADCAST, "fifo", ranks, root=0)


def ring_allgather(n: int = 4) -> Program:
    """One thread block a rank: own chunk out first, then pass on what comes."""
    ranks = []
    for r in range(n):
        steps = [do(Op.COPY, inp(0), out(r)), do(Op.SEND, out(r))]
        steps += [do(Op.RECV_COPY_SEND, (), out((r - k) % n)) for k in range(1, n - 1)]
        steps.append(do(Op.RECV, (), out((r + 1) % n)))
        ranks.append(rank(tb(*steps, recv=(r - 1) % n, send=(r + 1) % n), i=1, o=n))
    return program(Collective.ALLGATHER, "fifo", ranks)


def ring_allreduce(n: int = 4) -> Program:
    """Fused ring: partial sums go round once (rrs), results once more (rrcs, rcs)."""
    ranks = []
    for r in range(n):
        steps = [do(Op.COPY, inp(0, n), out(0, n)), do(Op.SEND, out(r))]
        steps += [do(Op.RECV_REDUCE_SEND, out((r - k) % n)) for k in range(1, n - 1)]
        last = out((r + 1) % n)
        steps.append(do(Op.RECV_REDUCE_COPY_SEND, last, last))
        steps += [do(Op.RECV_COPY_SEND, (), out((r - k) % n)) for k in range(n - 2)]
        steps.append(do(Op.RECV, (), out((r + 2) % n)))
        ranks.append(rank(tb(*steps, recv=(r - 1) % n, send=(r + 1) % n), i=n, o=n))
    return program(Collective.ALLREDUCE, "fifo", ranks)


def star_reduce(n: int = 4) -> Program:
    """All to rank 0, a thread block a child; the sums into the output are chained."""
    blocks = [tb(do(Op.COPY, inp(0), out(0)))]
    for k in range(1, n):
        blocks.append(
            tb(
                do(Op.RECV, (), scr(k - 1)),
                do(Op.REDUCE, scr(k - 1), out(0), after=[(k - 1, 0 if k == 1 else 1)]),
                recv=k,
            )
        )
    ranks = [rank(*blocks, i=1, o=1, s=n - 1)]
    ranks += [rank(tb(do(Op.SEND, inp(0)), send=0), i=1, o=1) for _ in range(1, n)]
    return program(Collective.REDUCE, "fifo", ranks, root=0)


def direct_reduce_scatter(n: int = 3, part: int = 2) -> Program:
    """Everyone sends everyone its part; sums are built in scratch and copied out."""
    ranks = []
    for r in range(n):
        own = inp(r * part, part)
        blocks = [tb(do(Op.COPY, own, scr(0, part)))]
        previous = (0, 0)
        for k, peer in enumerate(p for p in range(n) if p != r):
            slot = scr((k + 1) * part, part)
            blocks.append(
                tb(
                    do(Op.SEND, inp(peer * part, part)),
                    do(Op.RECV, (), slot),
                    do(Op.REDUCE, slot, scr(0, part), after=[previous]),
                    recv=peer,
                    send=peer,
                )
            )
            previous = (k + 1, 2)
        # In place the output is the own part of the input: all who read it must be done.
        blocks.append(tb(do(Op.COPY, scr(0, part), out(0, part), after=[previous])))
        ranks.append(rank(*blocks, i=n * part, o=part, s=n * part))
    return program(Collective.REDUCE_SCATTER, "fifo", ranks)


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
    steps: list[dict[tuple[str, int], list[Instruction]]] = [
        {("copy", -1): [do(Op.COPY, inp(0, chunks), out(0, chunks))]} for _ in range(n)
    ]
    last: list[dict[int, tuple[int, int]]] = [
        dict.fromkeys(range(chunks), (0, 0)) for _ in range(n)
    ]
    slots = [0] * n

    def add(r: int, key: tuple[str, int], i: Instruction) -> tuple[int, int]:
        own = steps[r].setdefault(key, [])
        own.append(i)
        return list(steps[r]).index(key), len(own) - 1

    for _, c, down, u, v in sorted(messages):
        sent = add(u, ("send", v), do(Op.SEND, out(c), after=[last[u][c]]))
        if down:
            last[v][c] = add(v, ("recv", u), do(Op.RECV, (), out(c), after=[last[v][c]]))
            continue
        last[u][c] = sent  # what comes back must not overwrite what is still to leave
        slot = scr(slots[v])
        slots[v] += 1
        add(v, ("recv", u), do(Op.RECV, (), slot))
        last[v][c] = add(v, ("recv", u), do(Op.REDUCE, slot, out(c), after=[last[v][c]]))
    ranks = []
    for r in range(n):
        blocks = [
            tb(*own, send=peer if way == "send" else -1, recv=peer if way == "recv" else -1)
            for (way, peer), own in steps[r].items()
        ]
        ranks.append(rank(*blocks, i=chunks, o=chunks, s=slots[r]))
    return program(Collective.ALLREDUCE, "fifo", ranks)


# --- onesided


def handshake(*channels: int) -> tuple[Instruction, ...]:
    """My launch has begun; so has yours."""
    return (
        do(Op.RELAXED_SIGNAL, channels=channels),
        do(Op.RELAXED_WAIT, channels=channels),
        do(Op.NOP),
    )


def farewell(*channels: int) -> tuple[Instruction, ...]:
    """I have read all; so have you."""
    return do(Op.NOP), do(Op.SIGNAL, channels=channels), do(Op.WAIT, channels=channels)


def pipelined_broadcast(n: int = 3, kind: Kind = "memory", chunks: int = 2) -> Program:
    """A chain, slice after slice."""
    ranks = []
    for r in range(n):
        up = [(r - 1, kind, 0)] if r else []
        down = [(r + 1, kind, 0)] if r < n - 1 else []
        every = tuple(range(len(up) + len(down)))
        source = out(0, chunks) if r else inp(0, chunks)
        body: list[Instruction] = []
        if r:
            body += [do(Op.WAIT, channels=[0]), do(Op.NOP)]
        else:
            body += [do(Op.COPY, inp(0, chunks), out(0, chunks))]
        if down:
            put = do(Op.PUT, source, out(0, chunks, r + 1), channels=[every[-1]])
            body += [put, do(Op.NOP), do(Op.SIGNAL, channels=[every[-1]])]
        steps: list[Step] = [
            *handshake(*every),
            Pipeline(tuple(body), chunks, 65536),
            *farewell(*every),
        ]
        ranks.append(rank(otb([*up, *down], *steps), i=chunks, o=chunks))
    return program(Collective.BROADCAST, "onesided", ranks, root=0)


def direct_allgather(n: int = 3, kind: Kind = "memory") -> Program:
    """Everyone puts its chunk into everyone's output, a thread block a peer."""
    ranks = []
    for r in range(n):
        blocks = [otb([], do(Op.COPY, inp(0), out(r)))]
        for peer in (p for p in range(n) if p != r):
            blocks.append(
                otb(
                    [(peer, kind, 0)],
                    *handshake(0),
                    do(Op.PUT, inp(0), out(r, 1, peer), channels=[0]),
                    do(Op.NOP),
                    do(Op.SIGNAL, channels=[0]),
                    do(Op.WAIT, channels=[0]),
                    *(farewell(0) if kind == "port" else ()),
                )
            )
        ranks.append(rank(*blocks, i=1, o=n))
    # ports read the input from where its allocation begins: in place that is another rank's part
    return program(Collective.ALLGATHER, "onesided", ranks, "out" if kind == "port" else "both")


def crossed_reduce_scatter() -> Program:
    """Each of two ranks adds up the other's part and puts it into the other's output.

    Out of place only: a peer's output is sought as far from its allocation's begin as the own.
    """
    ranks = []
    for r in range(2):
        p = 1 - r
        steps = [
            *handshake(0),
            do(Op.READ_REDUCE, [inp(p), inp(p, 1, p)], [scr(0)], channels=[0]),
            do(Op.NOP),
            do(Op.PUT, scr(0), out(0, 1, p), channels=[0]),
            *farewell(0),
        ]
        ranks.append(rank(otb([(p, "memory", 0)], *steps), i=2, o=1, s=1))
    return program(Collective.REDUCE_SCATTER, "onesided", ranks, "out")


def reading_allreduce(n: int = 3) -> Program:
    """Rank r reads chunk r of all inputs, adds them up and puts the sum into all outputs."""
    ranks = []
    for r in range(n):
        peers = [p for p in range(n) if p != r]
        every = tuple(range(n - 1))
        ranks.append(
            rank(
                otb(
                    [(p, "memory", 0) for p in peers],
                    *handshake(*every),
                    do(
                        Op.READ_REDUCE_PUT,
                        [inp(r), *(inp(r, 1, p) for p in peers)],
                        [out(r), *(out(r, 1, p) for p in peers)],
                    ),
                    *farewell(*every),
                ),
                i=n,
                o=n,
            )
        )
    return program(Collective.ALLREDUCE, "onesided", ranks)


def reduce_to_root(kind: Kind = "port", chunks: int = 1) -> Program:
    """Two leaves put into slots of rank 0's scratch, slice by slice; rank 0 adds up."""
    leaves = [
        rank(
            otb(
                [(0, kind, 0)],
                *handshake(0),
                Pipeline(
                    (
                        do(Op.PUT, inp(0, chunks), scr(k * chunks, chunks, 0), channels=[0]),
                        do(Op.NOP),
                        do(Op.SIGNAL, channels=[0]),
                    ),
                    chunks,
                    4096,
                ),
                *farewell(0),
            ),
            i=chunks,
            o=chunks,
        )
        for k in range(2)
    ]
    slots = [scr(k * chunks, chunks) for k in range(2)]
    root = rank(
        otb(
            [(1, kind, 0), (2, kind, 0)],
            *handshake(0, 1),
            Pipeline(
                (
                    do(Op.WAIT, channels=[0, 1]),
                    do(Op.NOP),
                    do(Op.REDUCE_TO, [inp(0, chunks), *slots], out(0, chunks)),
                ),
                chunks,
                4096,
            ),
            *farewell(0, 1),
        ),
        i=chunks,
        o=chunks,
        s=2 * chunks,
    )
    return program(Collective.REDUCE, "onesided", [root, *leaves], root=0)


def relay_by_semaphore(chunks: int = 2) -> Program:
    """Broadcast 0 to 1 to 2; at rank 1 one thread block waits and releases, another passes on."""
    put = do(Op.PUT, inp(0, chunks), out(0, chunks, 1), channels=[0])
    body = (put, do(Op.NOP), do(Op.SIGNAL, channels=[0]))
    copy = otb([], do(Op.COPY, inp(0, chunks), out(0, chunks)))
    first = otb([(1, "memory", 0)], *handshake(0), Pipeline(body, chunks, 512), *farewell(0))
    receive = (
        do(Op.WAIT, channels=[0]),
        do(Op.NOP),
        Instruction(Op.RELEASE, semaphores=(0,)),
    )
    put = do(Op.PUT, out(0, chunks), out(0, chunks, 2), channels=[0])
    passing = (
        Instruction(Op.ACQUIRE, semaphores=(0,)),
        do(Op.NOP),
        put,
        do(Op.NOP),
        do(Op.SIGNAL, channels=[0]),
    )
    middle = [
        otb([(0, "memory", 0)], *handshake(0), Pipeline(receive, chunks, 512), *farewell(0)),
        otb([(2, "memory", 0)], *handshake(0), Pipeline(passing, chunks, 512), *farewell(0)),
    ]
    waits = Pipeline((do(Op.WAIT, channels=[0]),), chunks, 512)
    last = otb([(1, "memory", 0)], *handshake(0), waits, *farewell(0))
    ranks = [
        rank(copy, first, i=chunks, o=chunks),
        rank(*middle, i=chunks, o=chunks, semaphores=(0,)),
        rank(last, i=chunks, o=chunks),
    ]
    return program(Collective.BROADCAST, "onesided", ranks, root=0)


def exchange_by_barrier(parts: int = 2) -> Program:
    """Allreduce of two ranks: each thread block fetches a part; a barrier; then all add up."""
    ranks = []
    for r in range(2):
        barrier = Instruction(Op.BARRIER, ident=0, group=parts)
        blocks = []
        for k in range(parts):
            steps: list[Step] = [*handshake(0)]
            get = do(Op.GET, inp(0, 2, 1 - r), scr(0, 2), channels=[0])
            steps.append(replace(get, part=(k, parts)))
            steps.append(barrier)
            # The other way round: what one thread block fetched, another adds.
            turned = (parts - 1 - k, parts)
            total = do(Op.REDUCE_TO, [inp(0, 2), scr(0, 2)], out(0, 2))
            steps += [do(Op.SIGNAL, channels=[0]), do(Op.WAIT, channels=[0])]
            steps += [barrier, replace(total, part=turned)]
            blocks.append(otb([(1 - r, "memory", k)], *steps))
        ranks.append(rank(*blocks, i=2, o=2, s=2))
    return program(Collective.ALLREDUCE, "onesided", ranks)


# --- packets


def ll(p: Program, *, double: bool = True) -> Program:
    """The program as one of packets."""
    return replace(p, protocol="LL", double_scratch=double)


def packet_allreduce(n: int = 3, chunks: int = 2) -> Program:
    """Everybody sends its part of root r's chunks to r in packets; r sums and sends to everybody.

    A thread block a root, no signal: who has all sums knows that everybody has begun this launch.
    """
    ranks = []
    for r in range(n):
        blocks = []
        for root in range(n):
            own = inp(root * chunks, chunks)
            total = out(root * chunks, chunks)
            if root == r:
                peers = [p for p in range(n) if p != r]
                slots = [scr(k * chunks, chunks) for k in range(n - 1)]
                back = [scr((n - 1) * chunks + _place(r, p) * chunks, chunks, p) for p in peers]
                channels = range(n - 1)
                steps = [do(Op.REDUCE_PUT_PACKETS, (own, *slots), (total, *back), (), channels)]
                ends = [(p, "memory", 0) for p in peers]
            else:
                slot = scr(_place(r, root) * chunks, chunks, root)
                answer = scr((n - 1 + _place(root, r)) * chunks, chunks)
                steps = [
                    do(Op.PUT_PACKETS, own, slot, (), (0,)),
                    do(Op.UNPACK, answer, total),
                ]
                ends = [(root, "memory", 1)]
            blocks.append(otb(ends, *steps))
        ranks.append(rank(*blocks, i=n * chunks, o=n * chunks, s=2 * (n - 1) * chunks))
    return ll(program(Collective.ALLREDUCE, "onesided", ranks))


def _place(source: int, owner: int) -> int:
    """Number of rank `source` among the others of rank `owner`."""
    return source - (source > owner)


def packet_chain(kind: Kind = "memory", chunks: int = 1) -> Program:
    """Allreduce up and down the chain 0 - 1 - 2; over ports packets are forwarded from scratch.

    Scratch: own sums on their way (0), from below or above (1, 2), the result (3).
    """
    c = chunks
    own, total = inp(0, c), out(0, c)
    mine, up, result = scr(0, c), scr(c, c), scr(3 * c, c)
    far = kind == "port"
    leaf = (
        [do(Op.COPY_PACKETS, own, mine), do(Op.FORWARD_PACKETS, mine, scr(c, c, 1), (), (0,))]
        if far
        else [do(Op.PUT_PACKETS, own, scr(c, c, 1), (), (0,))]
    )
    to_root, down = scr(c, c, 0), scr(3 * c, c, 2)
    middle = (
        [
            do(Op.REDUCE_COPY_PACKETS, (own, up), (total, mine)),
            do(Op.FORWARD_PACKETS, mine, to_root, (), (0,)),
        ]
        if far
        else [do(Op.REDUCE_PUT_PACKETS, (own, up), (total, to_root), (), (0,))]
    )
    root = (
        [
            do(Op.REDUCE_COPY_PACKETS, (own, up), (total, mine)),
            do(Op.FORWARD_PACKETS, mine, scr(3 * c, c, 1), (), (0,)),
        ]
        if far
        else [do(Op.REDUCE_COPY_PUT_PACKETS, (own, up), (total, mine, scr(3 * c, c, 1)), (), (0,))]
    )
    ranks = [
        rank(otb([(1, kind, 0)], *root), i=c, o=c, s=8 * c),
        rank(
            otb(
                [(0, kind, 0), (2, kind, 0)],
                *middle,
                do(Op.NOP),
                do(Op.FORWARD_PACKETS, result, down, (), (1,)),
                do(Op.UNPACK, result, total),
            ),
            i=c,
            o=c,
            s=8 * c,
        ),
        rank(otb([(1, kind, 0)], *leaf, do(Op.UNPACK, result, total)), i=c, o=c, s=8 * c),
    ]
    return ll(program(Collective.ALLREDUCE, "onesided", ranks))


def packet_reduce(n: int = 3) -> Program:
    """Packets to rank 0, which sums them; one half of scratch, so senders wait for its begin."""
    peers = range(1, n)
    ends: list[tuple[int, Kind, int]] = [(p, "memory", 0) for p in peers]
    slots = [scr(p - 1) for p in peers]
    begin = do(Op.RELAXED_SIGNAL, (), (), (), range(n - 1))
    root = rank(
        otb(ends, begin, do(Op.REDUCE_PACKETS, (inp(0), *slots), out(0))), i=1, o=1, s=n - 1
    )
    ranks = [root]
    for p in peers:
        steps = [
            do(Op.RELAXED_WAIT, (), (), (), (0,)),
            do(Op.NOP),
            do(Op.PUT_PACKETS, inp(0), scr(p - 1, 1, 0), (), (0,)),
        ]
        ranks.append(rank(otb([(0, "memory", 0)], *steps), i=1, o=1, s=n - 1))
    return ll(program(Collective.REDUCE, "onesided", ranks, root=0), double=False)


# --- switches that copy and add


def fabric_allreduce(n: int = 3, chunks: int = 2, *, in_place: bool = True) -> Program:
    """Rank r has the switch add up chunks r and store the sums everywhere."""
    group = tuple(range(n))
    into = Switch(group, Buffer.INPUT)
    switches = (into, into if in_place else Switch(group, Buffer.OUTPUT))
    at = inp if in_place else out
    ranks = []
    for r in range(n):
        add = Instruction(
            Op.FABRIC_REDUCE_STORE,
            (inp(r * chunks, chunks),),
            (at(r * chunks, chunks),),
            switches=(0, 0 if in_place else 1),
        )
        ranks.append(
            rank(_between_shakes(r, n, switches[: 2 - in_place], add), i=n * chunks, o=n * chunks)
        )
    return program(Collective.ALLREDUCE, "onesided", ranks, "in" if in_place else "out")


def fabric_allgather(n: int = 3, chunks: int = 2) -> Program:
    """Rank r has the switch store its chunks everywhere."""
    ranks = []
    for r in range(n):
        store = Instruction(
            Op.FABRIC_STORE, (inp(0, chunks),), (out(r * chunks, chunks),), switches=(0,)
        )
        switch = Switch(tuple(range(n)), Buffer.OUTPUT)
        ranks.append(rank(_between_shakes(r, n, (switch,), store), i=chunks, o=n * chunks))
    return program(Collective.ALLGATHER, "onesided", ranks)


def _between_shakes(r: int, n: int, switches: tuple[Switch, ...], step: Step) -> ThreadBlock:
    """Everybody has begun; the step; everybody is done."""
    peers = [p for p in range(n) if p != r]
    all_ = range(n - 1)
    block = otb(
        [(p, "memory", 0) for p in peers],
        *handshake(*all_),
        step,
        do(Op.NOP),
        do(Op.SIGNAL, (), (), (), all_),
        do(Op.WAIT, (), (), (), all_),
    )
    return replace(block, switches=switches)


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


# --- spoiling


def with_rank(p: Program, r: int, new: RankProgram) -> Program:
    """The program with rank r's part replaced."""
    return replace(p, ranks=(*p.ranks[:r], new, *p.ranks[r + 1 :]))


def with_block(p: Program, r: int, b: int, new: ThreadBlock) -> Program:
    """The program with a thread block replaced."""
    blocks = p.ranks[r].thread_blocks
    return with_rank(p, r, replace(p.ranks[r], thread_blocks=(*blocks[:b], new, *blocks[b + 1 :])))


def with_steps(p: Program, r: int, b: int, change: Callable[[list[Any]], object]) -> Program:
    """The program after `change` has worked on the step list of a thread block."""
    block = p.ranks[r].thread_blocks[b]
    steps: list[Any] = list(block.steps)
    change(steps)
    return with_block(p, r, b, replace(block, steps=tuple(steps)))


def drop(p: Program, r: int, b: int, s: int) -> Program:
    """The program without a step."""
    return with_steps(p, r, b, lambda steps: steps.pop(s))


def insert(p: Program, r: int, b: int, s: int, new: Step) -> Program:
    """The program with a step more."""
    return with_steps(p, r, b, lambda steps: steps.insert(s, new))


def swap(p: Program, r: int, b: int, s: int, t: int) -> Program:
    """The program with two steps in each other's place."""

    def change(steps: list[Any]) -> None:
        steps[s], steps[t] = steps[t], steps[s]

    return with_steps(p, r, b, change)


def edit(p: Program, r: int, b: int, s: int, **fields: object) -> Program:
    """The program with fields of one step replaced."""

    def change(steps: list[Any]) -> None:
        steps[s] = replace(steps[s], **fields)

    return with_steps(p, r, b, change)


def edit_body(p: Program, r: int, b: int, s: int, change: Callable[[list[Any]], object]) -> Program:
    """The program after `change` has worked on the body of a pipeline."""
    loop = p.ranks[r].thread_blocks[b].steps[s]
    assert isinstance(loop, Pipeline)
    body: list[Any] = list(loop.body)
    change(body)
    return edit(p, r, b, s, body=tuple(body))
