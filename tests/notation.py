"""Programs as text, one line a step, and as trees that edits.py changes.

    reduce fifo root=0               collective, style, fields of the Program; places=both, in, out
    rank 1 1 3                       chunks of input, output and scratch; semaphores=0,0
    block recv=1                     send=, channel=; channels=memory:1:0,port:2:0 (peer, number);
                                     switches=i:0/1/2 (buffer, ranks)
    recv -> s0                       operation, sources -> destinations; `i0:2@1`: two chunks from
    reduce s0 -> o0 after=0.0        chunk 0 on of rank 1's input
    loop 2 65536                     a pipeline: chunks, bytes of a unit; its body follows, with `-`
    - put i0:2 -> o0:2@1 over=0      over=CHANNELS, sem=SEMAPHORES, at=BARRIER/GROUP, part=0/2,
                                     via=SWITCHES

Of a tree, the steps are the lines, and all else has its name: `1.0.recv`, `1.0.3.unit`.
"""

from __future__ import annotations

import random
import re
from typing import Any

from edits import change, places_of

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

Tree = dict[str, Any]
REF = re.compile(r"([ios])(-?\d+)(?::(-?\d+))?(?:@(-?\d+))?")
PLACES = {"both": (True, True), "in": (True, False), "out": (False, True), "none": (False, False)}


def tree(text: str) -> Tree:
    """The tree of a program's text."""
    head, *lines = (line.strip() for line in text.splitlines() if not re.match(r"\s*(#|$)", line))
    collective, style, *words = head.split()
    whole: Tree = {"collective": collective, "style": style, "ranks": [], **_fields(words)}
    steps: list[Any] = []
    for line in lines:
        word, *words = line.split()
        if word == "rank":
            chunks = dict(zip(("input", "output", "scratch"), map(int, words), strict=False))
            more = _fields(words[3:])
            whole["ranks"].append({"scratch": 0, "semaphores": [], "blocks": [], **chunks, **more})
        elif word == "block":
            steps = []
            whole["ranks"][-1]["blocks"].append({"steps": steps, **_fields(words)})
        elif word == "loop":
            steps.append({"chunks": int(words[0]), "unit": int(words[1]), "steps": []})
        elif word == "-":
            steps[-1]["steps"].append(line[2:])
        else:
            steps.append(line)
    return whole


def _fields(words: list[str]) -> Tree:
    """`a=1`, `b=0,2` as numbers, lists (of what is many) and words."""
    found: Tree = {}
    for word in words:
        name, _, text = word.partition("=")
        many = name in ("semaphores", "channels", "switches", "names")
        parts = [int(each) if re.fullmatch(r"-?\d+", each) else each for each in text.split(",")]
        found[name] = parts if many else parts[0]
    return found


def build(whole: Tree) -> Program:
    """The program of a tree."""
    fields = {key: value for key, value in whole.items() if key not in ("ranks", "places")}
    in_place, out_of_place = PLACES[whole.get("places", "both")]
    fields |= {"names": tuple(fields.get("names", ())), "in_place": in_place}
    fields |= {"collective": Collective(fields["collective"]), "out_of_place": out_of_place}
    fields["double_scratch"] = bool(fields.get("double_scratch"))
    ranks = [
        RankProgram(
            tuple(map(_block, rank["blocks"])),
            *(rank[name] for name in ("input", "output", "scratch")),
            tuple(rank["semaphores"]),
        )
        for rank in whole["ranks"]
    ]
    return Program(**{"name": f"test-{whole['collective']}", **fields, "ranks": tuple(ranks)})


def _block(block: Tree) -> ThreadBlock:
    ends = [end.split(":") for end in block.get("channels", ())]
    ways = [way.split(":") for way in block.get("switches", ())]
    return ThreadBlock(
        tuple(map(step, block["steps"])),
        *(block.get(name, usual) for name, usual in (("recv", -1), ("send", -1), ("channel", 0))),
        channels=tuple(Channel(int(peer), kind, int(n)) for kind, peer, n in ends),  # type: ignore[arg-type]
        switches=tuple(
            Switch(tuple(map(int, ranks.split("/"))), Buffer(buffer)) for buffer, ranks in ways
        ),
    )


def step(line: str | Tree) -> Step:
    """A line of a thread block, or a pipeline."""
    if isinstance(line, dict):
        body = tuple(instruction(each) for each in line["steps"])
        return Pipeline(body, line["chunks"], line["unit"])
    return instruction(line)


def instruction(line: str) -> Instruction:
    """A line as an instruction."""
    op, *words = line.split()
    refs: tuple[list[Ref], list[Ref]] = ([], [])
    side, found = 0, dict[str, str]()
    for word in words:
        if match := REF.fullmatch(word):
            buffer, offset, count, rank = match.groups()
            owner = None if rank is None else int(rank)
            refs[side].append(Ref(Buffer(buffer), int(offset), int(count or 1), owner))
        elif word == "->":
            side = 1
        else:
            name, _, found[name] = word.partition("=")
    many = {key: tuple(map(int, re.findall(r"-?\d+", text))) for key, text in found.items()}
    after = many.get("after", ())
    ident, group = many.get("at", (0, 0))
    return Instruction(
        Op(op),
        tuple(refs[0]),
        tuple(refs[1]),
        tuple(zip(after[::2], after[1::2], strict=True)),
        many.get("over", ()),
        many.get("sem", ()),
        ident,
        group,
        many.get("part", (0, 1)),  # type: ignore[arg-type]
        many.get("via", ()),
    )


def parse(text: str, *edits: str) -> Program:
    """The program of a text, after edits of its tree."""
    return spoilt(tree(text), edits)


def spoilt(whole: Tree, edits: Any) -> Program:
    """The program of a tree after edits."""
    for edit in edits:
        change(whole, edit)
    return build(whole)


def tree_of(program: Program) -> Tree:
    """The tree of a program."""
    places = {flags: word for word, flags in PLACES.items()}
    fields = {
        name: getattr(program, name)
        for name in ("name", "style", "root", "protocol", "min_bytes", "max_bytes")
    }
    return fields | {
        "collective": program.collective.value,
        "places": places[program.in_place, program.out_of_place],
        "names": list(program.names),
        "double_scratch": program.double_scratch,
        "ranks": [
            {
                "input": rank.input_chunks,
                "output": rank.output_chunks,
                "scratch": rank.scratch_chunks,
                "semaphores": list(rank.semaphores),
                "blocks": [
                    {
                        "recv": block.recv,
                        "send": block.send,
                        "channel": block.channel,
                        "channels": [f"{c.kind}:{c.peer}:{c.index}" for c in block.channels],
                        "switches": [
                            f"{s.buffer}:{'/'.join(map(str, s.ranks))}" for s in block.switches
                        ],
                        "steps": [
                            {
                                "chunks": each.chunks,
                                "unit": each.unit_bytes,
                                "steps": list(map(line_of, each.body)),
                            }
                            if isinstance(each, Pipeline)
                            else line_of(each)
                            for each in block.steps
                        ],
                    }
                    for block in rank.thread_blocks
                ],
            }
            for rank in program.ranks
        ],
    }


def move_line(line: str, chunks: int) -> str:
    """A line on inputs and outputs so many chunks further."""
    return re.sub(r"(?<=\b[io])\d+", lambda m: str(int(m[0]) + chunks), line)


def line_of(i: Instruction) -> str:
    """An instruction as a line."""
    refs = [
        [
            f"{x.buffer}{x.offset}:{x.count}" + (f"@{x.rank}" if x.rank is not None else "")
            for x in side
        ]
        for side in (i.src, i.dst)
    ]
    many = {"over": i.channels, "sem": i.semaphores, "via": i.switches}
    words = [f"{name}={','.join(map(str, ids))}" for name, ids in many.items() if ids]
    words += [f"after={','.join(f'{b}.{s}' for b, s in i.after)}"] if i.after else []
    words += [f"at={i.ident}/{i.group}"] if i.group or i.ident else []
    words += [f"part={i.part[0]}/{i.part[1]}"] if i.part != (0, 1) else []
    return " ".join([i.op.value, *refs[0], "->", *refs[1], *words])


# --- at random

LIKE = {
    "signal": "relaxed_signal",
    "wait": "relaxed_wait",
    "relaxed_signal": "signal",
    "relaxed_wait": "wait",
    "recv_copy_send": "recv",
    "recv": "recv_copy_send",
    "put": "put_signal",
    "put_signal": "put_signal_flush",
    "copy": "reduce",
    "reduce": "copy",
    "recv_reduce_copy_send": "recv_reduce_copy",
    "reduce_to": "reduce",
    "flush": "nop",
    "barrier": "nop",
}
WILD = (-(10**20), -2, -1, 0, 1, 2, 3, 7, 64, 10**9, 10**20)


def slip(whole: Tree, dice: random.Random) -> None:
    """One or two small changes, as a programmer's; often at all ranks alike, to stay balanced."""
    for _ in range(dice.choice((1, 1, 2))):
        ranks = whole["ranks"]
        chosen = dice.randrange(len(ranks))
        b, everywhere, state = dice.randrange(9), dice.random() < 0.4, dice.getstate()
        for rank in ranks if everywhere else ranks[chosen : chosen + 1]:
            dice.setstate(state)  # the same change again
            if rank["blocks"]:
                _slip_steps(rank["blocks"][b % len(rank["blocks"])]["steps"], dice)


def _slip_steps(steps: list[Any], dice: random.Random) -> None:
    """Drop, double, swap or alter one of the steps."""
    if not steps:
        return
    k, j, act = dice.randrange(len(steps)), dice.randrange(len(steps)), dice.randrange(6)
    if act == 0:
        del steps[k]
    elif act == 1:
        steps.insert(j, steps[k])
    elif act == 2:
        steps[j], steps[k] = steps[k], steps[j]
    elif isinstance(steps[k], str):
        steps[k] = slip_line(steps[k], dice)
    else:
        steps[k] = {**steps[k], "steps": list(steps[k]["steps"])}
        _slip_steps(steps[k]["steps"], dice)


def slip_line(line: str, dice: random.Random) -> str:
    """Another operation, a field less, or another place."""
    words, act = line.split(), dice.randrange(6)
    fields = [k for k, word in enumerate(words) if "=" in word]
    refs = [k for k, word in enumerate(words) if REF.fullmatch(word)]
    if act == 0:
        words[0] = LIKE.get(words[0], words[0])
    elif act < 3 and fields:
        del words[dice.choice(fields)]
    elif refs:
        k = dice.choice(refs)
        buffer, rest = words[k][0], words[k][1:]
        ends, other, up = dice.randrange(3), dice.choice("ios"), dice.choice((-1, 1))
        if ends == 0:
            buffer = other
        else:
            offset, _, count = rest.partition("@")[0].partition(":")
            low, many = int(offset) + up * (ends == 1), int(count or 1) + up * (ends == 2)
            owner = rest.partition("@")[1:]
            rest = f"{max(0, low)}:{max(1, many)}{''.join(owner)}"
        words[k] = buffer + rest
    return " ".join(words)


def wild(whole: Tree, dice: random.Random) -> None:
    """Nonsense: any number anywhere, any operation, operands on the other side."""
    places = [(at, key) for at, key in places_of(whole) if type(at[key]) in (int, str)]
    holder, key = dice.choice(
        [place for place in places if place[1] not in ("style", "collective")]
    )
    text, act = str(holder[key]), dice.randrange(5)
    numbers = list(re.finditer(r"-?\d+", text))
    if isinstance(holder[key], int):
        holder[key] = dice.choice(WILD)
    elif text.split()[0] not in set(Op) or (act > 1 and numbers):
        if numbers:
            low, high = dice.choice(numbers).span()
            holder[key] = f"{text[:low]}{dice.choice(WILD)}{text[high:]}"
    elif act == 0:
        holder[key] = " ".join([dice.choice(list(Op)), *text.split()[1:]])
    else:
        op, *words = text.split()
        dice.shuffle(words)
        holder[key] = " ".join([op, *words])
