"""Programs for the tests of plan files: a few made by hand, and strategies for random ones.

Random programs are well formed and can be written, but need not compute anything sensible: plan
files must carry them all the same.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from forestcoll.program import (
    BY_TREES,
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
    ThreadBlock,
)

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741


def ring_allgather(n: int = 3, **fields: Any) -> Program:
    """Each rank copies its chunk and passes what comes round the ring."""
    ranks = []
    for r in range(n):
        steps = [Instruction(Op.COPY, (Ref(I, 0, 1),), (Ref(O, r, 1),))]
        steps.append(Instruction(Op.SEND, (Ref(I, 0, 1),)))
        for k in range(1, n - 1):
            steps.append(Instruction(Op.RECV_COPY_SEND, (), (Ref(O, (r - k) % n, 1),)))
        steps.append(Instruction(Op.RECV, (), (Ref(O, (r + 1) % n, 1),)))
        block = ThreadBlock(tuple(steps), recv=(r - 1) % n, send=(r + 1) % n, channel=0)
        ranks.append(RankProgram((block,), 1, n, 0))
    given = {"name": f"ring-{n}", "in_place": False, "out_of_place": True, **fields}
    return Program(collective=Collective.ALLGATHER, style="fifo", ranks=tuple(ranks), **given)


def star_reduce() -> Program:
    """Three ranks: 1 and 2 send to 0, which adds in a third thread block that waits for both."""
    whole = Ref(I, 0, 2)
    root = RankProgram(
        (
            ThreadBlock((Instruction(Op.RECV, (), (Ref(S, 0, 2),)),), recv=1),
            ThreadBlock((Instruction(Op.RECV, (), (Ref(S, 2, 2),)),), recv=2),
            ThreadBlock(
                (
                    Instruction(Op.COPY, (whole,), (Ref(O, 0, 2),)),
                    Instruction(
                        Op.REDUCE,
                        (Ref(S, 0, 2), Ref(S, 2, 2)),
                        (Ref(O, 0, 2),),
                        after=((0, 0), (1, 0)),
                    ),
                )
            ),
        ),
        2,
        2,
        4,
    )
    leaf = RankProgram((ThreadBlock((Instruction(Op.SEND, (whole,)),), send=0),), 2, 2, 0)
    return Program(
        "star",
        Collective.REDUCE,
        "fifo",
        (root, leaf, leaf),
        in_place=False,
        out_of_place=True,
        root=0,
        names=("a", "b", ""),
        min_bytes=1024,
        max_bytes=2**33,
        protocol="LL128",
    )


def chain_broadcast() -> Program:
    """Onesided: 0 puts slices to 1 over memory, 1 puts them on to 2 over a port channel."""
    unit = 65536
    whole = (Ref(I, 0, 2),)
    copy = Instruction(Op.COPY, whole, (Ref(O, 0, 2),))
    sync = Instruction(Op.NOP)
    first = ThreadBlock(
        (
            copy,
            Instruction(Op.RELAXED_WAIT, channels=(0,)),
            Pipeline(
                (
                    Instruction(Op.PUT, whole, (Ref(O, 0, 2, 1),)),
                    sync,
                    Instruction(Op.SIGNAL, channels=(0,)),
                ),
                2,
                unit,
            ),
        ),
        channels=(Channel(1, "memory", 0),),
    )
    middle = ThreadBlock(
        (
            Instruction(Op.RELAXED_SIGNAL, channels=(1,)),
            Pipeline(
                (
                    Instruction(Op.WAIT, channels=(1,)),
                    sync,
                    Instruction(
                        Op.PUT_SIGNAL_FLUSH, (Ref(O, 0, 2),), (Ref(O, 0, 2, 2),), channels=(0,)
                    ),
                ),
                2,
                unit,
            ),
        ),
        channels=(Channel(2, "port", 0), Channel(0, "memory", 0)),
    )
    last = ThreadBlock(
        (Pipeline((Instruction(Op.WAIT, channels=(0,)),), 2, unit),),
        channels=(Channel(1, "port", 0),),
    )
    ranks = tuple(RankProgram((block,), 2, 2, 0) for block in (first, middle, last))
    return Program(
        "chain",
        Collective.BROADCAST,
        "onesided",
        ranks,
        in_place=True,
        out_of_place=True,
        root=0,
        names=("x", "y", "z"),
    )


def pair_allreduce() -> Program:
    """Onesided: both ranks read and add the other's half and write the sum back to it."""
    ranks = []
    for r in range(2):
        half = Ref(I, r, 1)
        reader = ThreadBlock(
            (
                Instruction(Op.SIGNAL, channels=(0, 1)),
                Instruction(Op.WAIT, channels=(1, 0)),
                Instruction(Op.NOP),
                Instruction(
                    Op.READ_REDUCE_PUT,
                    (half, Ref(I, r, 1, 1 - r)),
                    (Ref(O, r, 1), Ref(O, r, 1, 1 - r)),
                    part=(0, 2),
                ),
                Instruction(Op.BARRIER, ident=2, group=2),
                Instruction(Op.RELEASE, semaphores=(1,)),
            ),
            channels=(Channel(1 - r, "memory", 1), Channel(1 - r, "memory", 0)),
        )
        other = ThreadBlock(
            (
                Instruction(Op.BARRIER, ident=2, group=2),
                Instruction(Op.ACQUIRE, semaphores=(1, 0)),
                Instruction(Op.REDUCE_TO, (Ref(S, 0, 1), Ref(S, 1, 1)), (Ref(S, 0, 1),)),
            )
        )
        ranks.append(RankProgram((reader, other), 2, 2, 2, semaphores=(3, 0)))
    return Program(
        "pair", Collective.ALLREDUCE, "onesided", tuple(ranks), in_place=True, out_of_place=False
    )


FIFO = [ring_allgather(), ring_allgather(2, in_place=True, protocol="LL"), star_reduce()]
ONESIDED = [chain_broadcast(), pair_allreduce()]


@st.composite
def headers(draw: st.DrawFn, n: int, style: str) -> tuple[dict[str, Any], int, int]:
    """(fields of a Program, input chunks, output chunks)."""
    collective = draw(st.sampled_from(list(BY_TREES)))
    base = draw(st.integers(1, 3))
    places = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    names = st.text("ab&<\"'é>\t", max_size=6)
    low = draw(st.integers(0, 2**20))
    fields: dict[str, Any] = {
        "name": draw(names),
        "collective": collective,
        "style": style,
        "in_place": places[0],
        "out_of_place": places[1],
        "root": draw(st.integers(0, n - 1)) if collective.rooted else -1,
        "names": tuple(draw(st.lists(names, min_size=n, max_size=n)))
        if draw(st.booleans())
        else (),
        "min_bytes": low,
        "max_bytes": draw(st.one_of(st.just(0), st.integers(low or 1, 2**28))),
    }
    if style == "fifo":
        fields["protocol"] = draw(st.sampled_from(["Simple", "LL", "LL128"]))
    return fields, base * collective.input_parts(n), base * collective.output_parts(n)


def refs(sizes: dict[Buffer, int], count: int, rank: int | None = None) -> st.SearchStrategy[Ref]:
    """A place for `count` chunks."""
    fitting = [buffer for buffer, size in sizes.items() if size >= count]
    return st.sampled_from(fitting).flatmap(
        lambda b: st.integers(0, sizes[b] - count).map(lambda at: Ref(b, at, count, rank))
    )


@st.composite
def fifo_programs(draw: st.DrawFn, fused: bool = True) -> Program:
    """Programs whose messages match, with random operands and dependencies."""
    n = draw(st.integers(1, 4))
    fields, inputs, outputs = draw(headers(n, "fifo"))
    top = min(inputs, outputs, 2)
    sent: dict[tuple[int, int, int], list[int]] = {}
    for i in range(n):
        for j in range(n):
            for c in draw(st.sets(st.integers(0, 2), max_size=2)) if i != j else ():
                sent[i, j, c] = draw(st.lists(st.integers(1, top), max_size=3))
    ranks = []
    for r in range(n):
        scratch = draw(st.integers(0, 4))
        sizes = {I: inputs, O: outputs, S: scratch}
        blocks = [
            draw(fifo_blocks(sizes, sent, peers, c, r, fused))
            for c in range(3)
            for peers in draw(st.permutations(pairings(sent, r, c)))
        ]
        if not blocks:
            blocks = [ThreadBlock((Instruction(Op.COPY, (Ref(I, 0, 1),), (Ref(O, 0, 1),)),))]
        ranks.append(RankProgram(draw(dependencies(blocks)), inputs, outputs, scratch))
    return Program(ranks=tuple(ranks), **fields)


def pairings(sent: dict[tuple[int, int, int], list[int]], r: int, c: int) -> list[tuple[int, int]]:
    """(recv, send) peers for the thread blocks of one rank and channel."""
    comes = [i for i, j, k in sent if j == r and k == c]
    goes = [j for i, j, k in sent if i == r and k == c]
    most = max(len(comes), len(goes))
    fill = [-1] * most
    return list(zip((comes + fill)[:most], (goes + fill)[:most], strict=True))


@st.composite
def fifo_blocks(
    draw: st.DrawFn,
    sizes: dict[Buffer, int],
    sent: dict[tuple[int, int, int], list[int]],
    peers: tuple[int, int],
    channel: int,
    r: int,
    fused: bool,
) -> ThreadBlock:
    """A thread block that takes all messages of its connections, with local steps between."""
    comes = list(sent.get((peers[0], r, channel), ()))
    goes = list(sent.get((r, peers[1], channel), ()))
    steps = []
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, min(sizes[I], sizes[O])))
        dst = (draw(refs(sizes, count)),)
        first = draw(refs(sizes, count))
        if draw(st.booleans()):
            steps.append(Instruction(Op.COPY, (first,), dst))
        else:
            same = {first.buffer: sizes[first.buffer]}
            more = draw(st.lists(refs(same, count), max_size=3))
            steps.append(Instruction(Op.REDUCE, (first, *more), dst))
    while comes or goes:
        both = bool(fused and comes and goes and comes[0] == goes[0])
        receive = both or bool(comes and (not goes or draw(st.booleans())))
        count = comes.pop(0) if receive else goes.pop(0)
        src, dst = (draw(refs(sizes, count)),), (draw(refs(sizes, count)),)
        if both:
            goes.pop(0)
            steps.append(
                draw(
                    st.sampled_from(
                        [
                            Instruction(Op.RECV_COPY_SEND, (), dst),
                            Instruction(Op.RECV_REDUCE_SEND, src),
                            Instruction(Op.RECV_REDUCE_COPY_SEND, src, dst),
                        ]
                    )
                )
            )
        elif receive:
            rrc = Instruction(Op.RECV_REDUCE_COPY, src, dst)
            steps.append(rrc if fused and draw(st.booleans()) else Instruction(Op.RECV, (), dst))
        else:
            steps.append(Instruction(Op.SEND, src))
    return ThreadBlock(tuple(steps), recv=peers[0], send=peers[1], channel=channel)


@st.composite
def dependencies(draw: st.DrawFn, blocks: list[ThreadBlock]) -> tuple[ThreadBlock, ...]:
    """The same thread blocks, some steps waiting for others of the rank."""
    places = [(b, s) for b, block in enumerate(blocks) for s in range(len(block.steps))]
    out = []
    for b, block in enumerate(blocks):
        steps: list[Step] = []
        for s, step in enumerate(block.steps):
            assert isinstance(step, Instruction)
            legal = [p for p in places if p[0] != b or p[1] < s]
            after = draw(st.lists(st.sampled_from(legal), max_size=3)) if legal else []
            steps.append(Instruction(step.op, step.src, step.dst, tuple(after)))
        out.append(ThreadBlock(tuple(steps), block.recv, block.send, block.channel))
    return tuple(out)


@st.composite
def onesided_programs(draw: st.DrawFn) -> Program:
    """Programs with operations of all kinds that MSCCL++ runs."""
    n = draw(st.integers(1, 3))
    fields, inputs, outputs = draw(headers(n, "onesided"))
    sizes = [{I: inputs, O: outputs, S: draw(st.integers(0, 3))} for _ in range(n)]
    ranks = []
    for r in range(n):
        semaphores = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        blocks = [
            draw(onesided_blocks(sizes, r, len(semaphores))) for _ in range(draw(st.integers(1, 3)))
        ]
        ranks.append(RankProgram(tuple(blocks), inputs, outputs, sizes[r][S], semaphores))
    return Program(ranks=tuple(ranks), **fields)


@st.composite
def onesided_blocks(
    draw: st.DrawFn, sizes: list[dict[Buffer, int]], r: int, semaphores: int
) -> ThreadBlock:
    """A thread block with a mixed list of channels."""
    others = [j for j in range(len(sizes)) if j != r]
    kinds = st.sampled_from(["memory", "port"])
    channel = (
        st.builds(Channel, st.sampled_from(others), kinds, st.integers(0, 2)) if others else None
    )
    channels = tuple(draw(st.lists(channel, max_size=5))) if channel is not None else ()
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, 5))):
        count = draw(st.integers(1, min(sizes[r][I], sizes[r][O])))
        one = onesided_steps(sizes, r, channels, semaphores, count)
        if draw(st.integers(0, 3)) == 0:
            body = draw(st.lists(one, min_size=1, max_size=4))
            steps.append(Pipeline(tuple(body), count, 16 * draw(st.integers(2**14, 2**20))))
        else:
            step = draw(one)
            part = (1, 3) if step.src and draw(st.booleans()) else (0, 1)
            steps.append(
                Instruction(
                    step.op,
                    step.src,
                    step.dst,
                    channels=step.channels,
                    semaphores=step.semaphores,
                    ident=step.ident,
                    group=step.group,
                    part=part,
                )
            )
    return ThreadBlock(tuple(steps), channels=channels)


@st.composite
def onesided_steps(
    draw: st.DrawFn,
    sizes: list[dict[Buffer, int]],
    r: int,
    channels: tuple[Channel, ...],
    semaphores: int,
    count: int,
) -> Instruction:
    """One operation; its data operands all cover `count` chunks."""
    choices = [Op.NOP, Op.COPY, Op.REDUCE_TO, Op.BARRIER]
    choices += [Op.ACQUIRE, Op.RELEASE] if semaphores else []
    if channels:
        choices += [Op.SIGNAL, Op.WAIT, Op.RELAXED_SIGNAL, Op.RELAXED_WAIT, Op.PUT]
    if len(sizes) > 1:
        choices += [Op.PUT, Op.GET, Op.READ_REDUCE, Op.READ_REDUCE_PUT, Op.REDUCE_PUT]
    if any(c.kind == "port" for c in channels):
        choices += [Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH]
    op = draw(st.sampled_from(choices))
    local = refs(sizes[r], count)
    if op is Op.NOP:
        return Instruction(op)
    if op is Op.BARRIER:
        return Instruction(op, ident=draw(st.integers(0, 15)), group=1)
    if op in (Op.ACQUIRE, Op.RELEASE):
        ids = draw(st.lists(st.integers(0, semaphores - 1), min_size=1, max_size=3, unique=True))
        return Instruction(op, semaphores=tuple(ids))
    if op is Op.COPY:
        return Instruction(op, (draw(local),), (draw(local),))
    if op is Op.REDUCE_TO:
        return Instruction(op, tuple(draw(st.lists(local, min_size=1, max_size=4))), (draw(local),))
    if op in (Op.SIGNAL, Op.WAIT, Op.RELAXED_SIGNAL, Op.RELAXED_WAIT):
        return Instruction(op, channels=draw(same_kind(channels, 4)))
    if op in (Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
        return draw(puts(sizes, r, channels, count, op))
    remote = st.sampled_from([j for j in range(len(sizes)) if j != r]).flatmap(
        lambda j: refs(sizes[j], count, j)
    )
    if op is Op.GET:
        far = draw(remote)
        return (
            Instruction(op, (far,), (Ref(far.buffer, far.offset, count),))
            if (sizes[r][far.buffer] >= far.offset + count)
            else Instruction(Op.NOP)
        )
    more = st.lists(remote, min_size=1, max_size=3)
    src = (
        draw(local),
        *(draw(more) if op is not Op.REDUCE_PUT else draw(st.lists(local, max_size=2))),
    )
    return Instruction(op, src, (draw(local), *(draw(more) if op is not Op.READ_REDUCE else ())))


@st.composite
def same_kind(draw: st.DrawFn, channels: tuple[Channel, ...], most: int) -> tuple[int, ...]:
    """Some channels of a thread block, all of one kind."""
    kind = draw(st.sampled_from([c.kind for c in channels]))
    own = [k for k, c in enumerate(channels) if c.kind == kind]
    return tuple(draw(st.lists(st.sampled_from(own), min_size=1, max_size=most, unique=True)))


@st.composite
def puts(
    draw: st.DrawFn, sizes: list[dict[Buffer, int]], r: int, channels: tuple[Channel, ...],
    count: int, op: Op,
) -> Instruction:  # fmt: skip
    """A put to up to three places, with one source or one each."""
    usable = tuple(c for c in channels if op is Op.PUT or c.kind == "port")
    if usable and (op is not Op.PUT or draw(st.booleans())):
        ids = draw(same_kind(usable, 3))
        picked = tuple(dict.fromkeys(channels.index(usable[k]) for k in ids))
        peers = [channels[k].peer for k in picked]
    else:
        picked = ()
        other = st.sampled_from([j for j in range(len(sizes)) if j != r])
        peers = draw(st.lists(other, min_size=1, max_size=3))
    dst = tuple(draw(refs(sizes[j], count, j)) for j in peers)
    first = draw(refs(sizes[r], count))
    same = {first.buffer: sizes[r][first.buffer]}
    src = (first, *(draw(refs(same, count)) for _ in dst[1:]))
    if len(set(src)) == 1 or draw(st.booleans()):
        src = src[:1]
    return Instruction(op, src, dst, channels=picked)
