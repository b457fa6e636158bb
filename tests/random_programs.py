"""Random programs that are well formed and can be written, but need not compute anything sensible.

Plan files must carry them all the same. The same number makes the same program.
"""

from __future__ import annotations

import random
from typing import Any

from notation import Tree, build

from forestcoll.program import BY_TREES, Program

Sizes = dict[str, int]


def head(dice: random.Random, n: int, style: str) -> tuple[Tree, Sizes]:
    """Fields of a program, and chunks of a rank's input and output."""
    collective, base = dice.choice(list(BY_TREES)), dice.randint(1, 3)
    low = dice.randint(0, 2**20)
    fields: Tree = {
        "name": word(dice),
        "collective": collective.value,
        "style": style,
        "places": dice.choice(("both", "in", "out")),
        "root": dice.randrange(n) if collective.has_root else -1,
        "names": [word(dice) for _ in range(n)] if dice.random() < 0.5 else [],
        "min_bytes": low,
        "max_bytes": dice.choice((0, dice.randint(low or 1, 2**28))),
        "ranks": [],
    }
    if style == "fifo":
        fields["protocol"] = dice.choice(("Simple", "LL", "LL128"))
    return fields, {
        "i": base * collective.input_parts(n),
        "o": base * collective.output_parts(n),
    }


def word(dice: random.Random) -> str:
    return "".join(dice.choices("ab&<\"'é>\t", k=dice.randint(0, 6)))


def ref(dice: random.Random, sizes: Sizes, count: int, rank: int | None = None) -> str:
    """A place for `count` chunks."""
    buffer = dice.choice([each for each, size in sizes.items() if size >= count])
    at = f"{buffer}{dice.randint(0, sizes[buffer] - count)}:{count}"
    return at if rank is None else f"{at}@{rank}"


def refs(dice: random.Random, sizes: Sizes, count: int, most: int, least: int = 0) -> list[str]:
    """Some places, all in one buffer."""
    first = ref(dice, sizes, count)
    same = {first[0]: sizes[first[0]]}
    return [first, *(ref(dice, same, count) for _ in range(dice.randint(least, most)))]


def fifo_program(dice: random.Random, fused: bool = True) -> Program:
    """Messages match; operands and dependencies are random."""
    n = dice.randint(1, 4)
    fields, user = head(dice, n, "fifo")
    top = min(*user.values(), 2)
    sent = {
        (i, j, c): [dice.randint(1, top) for _ in range(dice.randint(0, 3))]
        for i in range(n)
        for j in range(n)
        if i != j
        for c in dice.sample(range(3), dice.randint(0, 2))
    }
    for r in range(n):
        sizes = user | {"s": dice.randint(0, 4)}
        blocks = []
        for c in range(3):
            comes = [i for i, j, k in sent if (j, k) == (r, c)]
            goes = [j for i, j, k in sent if (i, k) == (r, c)]
            for place in range(max(len(comes), len(goes))):
                ends = [(side + [-1] * 9)[place] for side in (comes, goes)]
                messages = [sent.get((ends[0], r, c), []), sent.get((r, ends[1], c), [])]
                steps = fifo_steps(dice, sizes, *map(list, messages), fused)
                blocks.append({"recv": ends[0], "send": ends[1], "channel": c, "steps": steps})
        dice.shuffle(blocks)
        blocks = blocks or [{"steps": []}]
        if not any(block["steps"] for block in blocks):  # an empty launch fails
            blocks[0]["steps"].append("copy i0 -> o0")
        places = [(b, s) for b, block in enumerate(blocks) for s in range(len(block["steps"]))]
        for b, block in enumerate(blocks):
            for s, line in enumerate(block["steps"]):
                legal = [f"{p[0]}.{p[1]}" for p in places if p[0] != b or p[1] < s]
                after = dice.choices(legal, k=dice.randint(0, 3)) if legal else []
                block["steps"][s] = f"{line} after={','.join(after)}" if after else line
        rank = {"input": sizes["i"], "output": sizes["o"], "scratch": sizes["s"]}
        fields["ranks"].append({**rank, "semaphores": [], "blocks": blocks})
    return build(fields)


def fifo_steps(
    dice: random.Random, sizes: Sizes, comes: list[int], goes: list[int], fused: bool
) -> list[str]:
    """All messages of a thread block's connections, after local steps."""
    steps = []
    for _ in range(dice.randint(0, 3)):
        count = dice.randint(1, min(sizes["i"], sizes["o"]))
        op = dice.choice(("copy", "reduce"))
        src = " ".join(refs(dice, sizes, count, 0 if op == "copy" else 3))
        steps.append(f"{op} {src} -> {ref(dice, sizes, count)}")
    while comes or goes:
        both = bool(fused and comes and goes and comes[0] == goes[0])
        receive = both or bool(comes and (not goes or dice.random() < 0.5))
        count = comes.pop(0) if receive else goes.pop(0)
        src, dst = ref(dice, sizes, count), ref(dice, sizes, count)
        lines = [f"send {src}"] if not receive else [f"recv -> {dst}"]
        if both:
            goes.pop(0)
            lines = [f"recv_copy_send -> {dst}", f"recv_reduce_send {src}"]
            lines += [f"recv_reduce_copy_send {src} -> {dst}"]
        elif receive and fused:
            lines += [f"recv_reduce_copy {src} -> {dst}"]
        steps.append(dice.choice(lines))
    return steps


def onesided_program(dice: random.Random) -> Program:
    """Operations of all kinds that MSCCL++ runs."""
    n = dice.randint(1, 3)
    fields, user = head(dice, n, "onesided")
    sizes = [user | {"s": dice.randint(0, 3)} for _ in range(n)]
    for r, own in enumerate(sizes):
        semaphores = [dice.randint(0, 5) for _ in range(dice.randint(0, 3))]
        rank = {"input": own["i"], "output": own["o"], "scratch": own["s"]}
        blocks = [onesided_block(dice, sizes, r, semaphores) for _ in range(dice.randint(1, 3))]
        fields["ranks"].append({**rank, "semaphores": semaphores, "blocks": blocks})
    return build(fields)


def onesided_block(dice: random.Random, sizes: list[Sizes], r: int, semaphores: list[int]) -> Tree:
    """A thread block with a mixed list of channels."""
    peers = [p for p in range(len(sizes)) if p != r]
    count = dice.randint(0, 5) if peers else 0
    ends = [
        (dice.choice(("memory", "port")), dice.choice(peers), dice.randint(0, 2))
        for _ in range(count)
    ]
    steps: list[Any] = []
    for _ in range(dice.randint(0, 5)):
        count = dice.randint(1, min(sizes[r]["i"], sizes[r]["o"]))
        lines = [
            onesided_step(dice, sizes, r, ends, len(semaphores), count)
            for _ in range(dice.randint(1, 4))
        ]
        if dice.random() < 0.25:
            unit = 16 * dice.randint(2**14, 2**20)
            steps.append({"chunks": count, "unit": unit, "steps": lines})
        else:
            source = lines[0].split(" -> ")[0].count(":")
            steps.append(lines[0] + " part=1/3" * (source > 0 and dice.random() < 0.5))
    return {"channels": [f"{kind}:{p}:{k}" for kind, p, k in ends], "steps": steps}


def onesided_step(
    dice: random.Random,
    sizes: list[Sizes],
    r: int,
    ends: list[tuple[str, int, int]],
    semaphores: int,
    count: int,
) -> str:
    """One operation; its operands all cover `count` chunks."""
    peers, own = [p for p in range(len(sizes)) if p != r], sizes[r]
    ops = ["nop", "copy", "reduce_to", "barrier"] + ["acquire", "release"] * bool(semaphores)
    ops += ["signal", "wait", "relaxed_signal", "relaxed_wait", "put"] * bool(ends)
    ops += ["put", "get", "read_reduce", "read_reduce_put", "reduce_put"] * bool(peers)
    ports = any(kind == "port" for kind, *_ in ends)
    op = dice.choice(ops + ["put_signal", "put_signal_flush"] * ports)
    local = ref(dice, own, count)

    def far(least: int = 1) -> str:
        owners = dice.choices(peers, k=dice.randint(least, 3))
        return " ".join(ref(dice, sizes[p], count, p) for p in owners)

    if op in ("copy", "reduce_to"):
        more = [ref(dice, own, count) for _ in range(dice.randint(0, 3 * (op != "copy")))]
        return f"{op} {' '.join([local, *more])} -> {ref(dice, own, count)}"
    if op == "barrier":
        return f"barrier at={dice.randint(0, 15)}/1"
    if op in ("acquire", "release"):
        return f"{op} sem={some(dice, range(semaphores), 3)}"
    if op.startswith("put"):
        return put(dice, sizes, r, ends, count, op)
    if op.endswith(("signal", "wait")):
        return f"{op} over={some(dice, same_kind(dice, ends), 4)}"
    if op == "get":
        source = ref(dice, sizes[peers[0]], count, peers[0])
        mine = source.split("@")[0]
        offset = int(mine[1:].split(":")[0])
        return f"get {source} -> {mine}" if own[mine[0]] >= offset + count else "nop"
    if op == "read_reduce":
        return f"{op} {local} {far()} -> {ref(dice, own, count)}"
    if op == "read_reduce_put":
        return f"{op} {local} {far()} -> {ref(dice, own, count)} {far()}"
    if op == "reduce_put":
        return f"{op} {local} {ref(dice, own, count)} -> {ref(dice, own, count)} {far()}"
    return "nop"


def some(dice: random.Random, numbers: Any, most: int) -> str:
    """Some different ones of the numbers."""
    few = dice.sample(list(numbers), min(len(numbers), dice.randint(1, most)))
    return ",".join(map(str, few))


def same_kind(
    dice: random.Random, ends: list[tuple[str, int, int]], kinds: tuple[str, ...] = ()
) -> list[int]:
    """The channels of one kind."""
    kind = dice.choice([end[0] for end in ends if not kinds or end[0] in kinds])
    return [k for k, end in enumerate(ends) if end[0] == kind]


def put(
    dice: random.Random,
    sizes: list[Sizes],
    r: int,
    ends: list[tuple[str, int, int]],
    count: int,
    op: str,
) -> str:
    """A put to up to three places, with one source or one each."""
    own, over = sizes[r], ""
    peers = [p for p in range(len(sizes)) if p != r]
    owners = dice.choices(peers, k=dice.randint(1, 3))
    if ends and (op != "put" or dice.random() < 0.5):
        usable = same_kind(dice, ends, ("port",) if op != "put" else ())
        chosen = {ends[k]: k for k in dice.sample(usable, min(len(usable), dice.randint(1, 3)))}
        owners, over = [end[1] for end in chosen], f" over={','.join(map(str, chosen.values()))}"
    dst = [ref(dice, sizes[p], count, p) for p in owners]
    src = refs(dice, own, count, len(dst) - 1, len(dst) - 1)
    if len(set(src)) == 1 or dice.random() < 0.5:
        src = src[:1]
    return f"{op} {' '.join(src)} -> {' '.join(dst)}{over}"
