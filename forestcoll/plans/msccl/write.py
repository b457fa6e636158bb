"""MSCCL XML: `dumps` writes the subset that every current parser reads the same way, `loads` reads.

The XML is read by a hand-written parser in the runtimes (Azure/msccl-executor-nccl, ROCm/rccl), so
the writer keeps to: no prolog, one line a tag, one space between attributes, double quotes, no tab.
What a step type means, and every limit, is the runtimes'; docs/plans.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator

from forestcoll.common.errors import PlanError
from forestcoll.plans.msccl.rules import (
    check_limits,
    check_structure,
    flags_of,
    lines_of,
)
from forestcoll.plans.rules import check_header
from forestcoll.program import (
    OPERATIONS,
    Buffer,
    Instruction,
    Program,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.program.targets import Target

# What the parser itself can hold; a target narrows it to what runs on its devices.
FORMAT_LIMITS = Target("MSCCL XML", "msccl-xml", "fifo", 1024, 64, 32, 71, 128, True)
MAX_NAME = 99  # bytes of the algo's name
MAX_VALUE = 255  # bytes of any attribute value: the parsers' buffers, which they do not guard
_NO_CHARS = frozenset((0xFFFE, 0xFFFF))  # the two that XML 1.0 forbids beside controls


def dumps(program: Program, target: Target | None = None, *, in_place: bool | None = None) -> str:
    """The plan as XML text, ending in a newline; `loads` gives back an equal Program.

    A plan serves all calls that the program is right for: `in_place` chooses nothing here.
    Raises PlanError, naming limit, figure, rank and thread block, for what the loaders would refuse
    or silently run as something else: on `target`, or on the widest parser where it is None.
    """
    del in_place
    limits = FORMAT_LIMITS if target is None else target
    if limits.format != "msccl-xml":
        raise PlanError(f"target {limits.name} reads {limits.format}, not MSCCL XML")
    total = check_header(program)
    check_structure(program)
    check_limits(program, limits)
    lines = [_algo(program, total)]
    words: Words = {}
    for r, rank in enumerate(program.ranks):
        name = ""
        if program.names:
            name = f' name="{_quote(program.names[r], MAX_VALUE, f"rank {r}")}"'
        lines.append(
            f'  <gpu id="{r}" i_chunks="{rank.input_chunks}" o_chunks="{rank.output_chunks}" '
            f's_chunks="{rank.scratch_chunks}"{name}>'
        )
        lines.extend(_rank(rank, words))
        lines.append("  </gpu>")
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _algo(program: Program, total: int) -> str:
    channels = 1 + max(block.channel for rank in program.ranks for block in rank.thread_blocks)
    attributes = {
        "name": _quote(program.name, MAX_NAME, "the plan"),
        "proto": program.protocol,
        "nchannels": channels,
        "nchunksperloop": total,
        "ngpus": program.n,
        "coll": program.collective.definition.plan_word,
        "inplace": int(program.in_place),
        "outofplace": int(program.out_of_place),
        "minBytes": program.min_bytes,
        "maxBytes": program.max_bytes,
        "redop": "sum",
    }
    if program.collective.has_root:
        attributes["root"] = program.root
    if "sums" in program.extra:
        attributes["sums"] = program.extra["sums"]
    return "<algo " + " ".join(f'{key}="{value}"' for key, value in attributes.items()) + ">"


Words = dict[tuple[object, ...], str]
"""What lines say of operation and operands, which many steps share."""


def _rank(rank: RankProgram, words: Words) -> Iterator[str]:
    flags = flags_of(rank)
    numbers = [_numbers(block) for block in rank.thread_blocks]
    for b, block in enumerate(rank.thread_blocks):
        tag = f'    <tb id="{b}" send="{block.send}" recv="{block.recv}" chan="{block.channel}"'
        if not block.steps:
            yield tag + "/>"
            continue
        yield tag + ">"
        for s, step in enumerate(block.steps):
            assert isinstance(step, Instruction)  # check_structure saw to it
            waits = [(other, numbers[other][t]) for other, t in step.after]
            yield from _step(step, numbers[b][s], waits, s in flags[b], words)
        yield "    </tb>"


def _numbers(block: ThreadBlock) -> list[int]:
    """Per step, the number of its last XML line: the one that others wait for."""
    numbers: list[int] = []
    last = -1
    for step in block.steps:
        assert isinstance(step, Instruction)
        last += lines_of(step)
        numbers.append(last)
    return numbers


def _step(
    step: Instruction, last: int, waits: list[tuple[int, int]], flagged: bool, words: Words
) -> Iterator[str]:
    """The lines of one instruction: nops for all waits but one, then the operation."""
    number = last - lines_of(step) + 1
    for block, s in waits[:-1]:
        what = _words("nop", _IDLE, _IDLE)
        yield f'      <step s="{number}" {what} depid="{block}" deps="{s}" hasdep="0"/>'
        number += 1
    block, s = waits[-1] if waits else (-1, -1)
    for source in step.src or step.dst:
        key = step.op, id(source), id(step.dst)
        what = words.get(key, "")
        if not what:
            # A side that the operation does not use repeats the other one: always a legal place.
            target = step.dst[0] if step.dst else source
            words[key] = what = _words(OPERATIONS[step.op].xml, source, target)
        flag = int(flagged and number == last)
        yield f'      <step s="{number}" {what} depid="{block}" deps="{s}" hasdep="{flag}"/>'
        number, block, s = number + 1, -1, -1


_IDLE = Ref(Buffer.INPUT, 0, 1)


def _words(word: str, src: Ref, dst: Ref) -> str:
    return (
        f'type="{word}" srcbuf="{src.buffer.value}" srcoff="{src.offset}" '
        f'dstbuf="{dst.buffer.value}" dstoff="{dst.offset}" cnt="{src.count}"'
    )


def _quote(text: str, limit: int, what: str) -> str:
    """`text` as an attribute value of plain ASCII without quotes, signs of tags or line breaks."""
    out = []
    for char in text:
        code = ord(char)
        if (code < 32 and char not in "\t\n\r") or 0xD800 <= code <= 0xDFFF or code in _NO_CHARS:
            raise PlanError(f"{what}: the name {text!r} has a character that XML cannot hold")
        plain = 32 <= code < 127 and char not in "\"&<>'"
        out.append(char if plain else f"&#{code};")
    value = "".join(out)
    if len(value) > limit:
        raise PlanError(
            f"{what}: the name {text!r} takes {len(value)} bytes as XML; the limit is {limit}"
        )
    return value
