"""Good MSCCL XML plans spoilt in one way each: the change, the rule that is broken, and where.

A change edits the element tree, or the text where it is about what only the hand-written parsers
see. Places are (rank, thread block, step), as far as the finding has to know them.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import programs

from forestcoll import plans
from forestcoll.program import Program

BASES: dict[str, Callable[[], Program]] = {
    "ring": lambda: programs.ring_allreduce(4),  # fused steps, one thread block a rank
    "star": lambda: programs.star_reduce(4),  # s, r, re, cpy; dependencies
    "scatter": programs.direct_reduce_scatter,  # through scratch, counts of 2
    "chain": programs.chain_broadcast,  # two messages on each connection
    "gather": lambda: programs.ring_allgather(4),
}

Change = Callable[[str], str]


@dataclass(frozen=True)
class Mutation:
    """One way to spoil a plan."""

    name: str
    base: str
    change: Change
    rule: str
    at: tuple[int, ...] = ()
    target: str | None = None


def write(algo: ET.Element) -> str:
    """One line a tag, as the loaders want it."""
    lines: list[str] = []

    def put(element: ET.Element, depth: int) -> None:
        attributes = "".join(f' {key}="{value}"' for key, value in element.attrib.items())
        end = ">" if len(element) else "/>"
        lines.append(f"{'  ' * depth}<{element.tag}{attributes}{end}")
        for child in element:
            put(child, depth + 1)
        if len(element):
            lines.append(f"{'  ' * depth}</{element.tag}>")

    put(algo, 0)
    return "\n".join(lines) + "\n"


def tree(edit: Callable[[ET.Element], object]) -> Change:
    """A change of the element tree."""

    def change(text: str) -> str:
        algo = ET.fromstring(text)
        edit(algo)
        return write(algo)

    return change


def set_all(element: ET.Element, values: dict[str, object]) -> None:
    for key, value in values.items():
        if value is None:
            del element.attrib[key]
        else:
            element.set(key, str(value))


def algo(**values: object) -> Change:
    """Attributes of <algo>; None deletes."""
    return tree(lambda top: set_all(top, values))


def gpu(r: int, **values: object) -> Change:
    return tree(lambda top: set_all(top[r], values))


def tb(r: int, b: int, **values: object) -> Change:
    return tree(lambda top: set_all(top[r][b], values))


def step(r: int, b: int, s: int, /, **values: object) -> Change:
    return tree(lambda top: set_all(top[r][b][s], values))


def text(old: str, new: str) -> Change:
    """The first `old` in the text becomes `new`."""

    def change(whole: str) -> str:
        assert old in whole, old
        return whole.replace(old, new, 1)

    return change


def drop(r: int, b: int, s: int) -> Change:
    """The step gone, the rest numbered anew; dependencies on later ones of its block follow."""

    def edit(top: ET.Element) -> None:
        block = top[r][b]
        block.remove(block[s])
        for k, one in enumerate(block):
            one.set("s", str(k))
        for other in top[r].iter("step"):
            if int(other.get("depid", -1)) == b and int(other.get("deps", -1)) > s:
                other.set("deps", str(int(other.get("deps", 0)) - 1))

    return tree(edit)


def swap(r: int, b: int, s: int, t: int) -> Change:
    """Two steps change places, numbers stay in order."""

    def edit(top: ET.Element) -> None:
        block = top[r][b]
        one, other = dict(block[s].attrib), dict(block[t].attrib)
        one["s"], other["s"] = other["s"], one["s"]
        block[s].attrib, block[t].attrib = other, one

    return tree(edit)


def insert(r: int, b: int, s: int, /, **values: object) -> Change:
    """A step before step s: a copy of it with other values; the rest numbered anew."""

    def edit(top: ET.Element) -> None:
        block = top[r][b]
        new = ET.Element("step", dict(block[min(s, len(block) - 1)].attrib))
        set_all(new, values)
        block.insert(s, new)
        for k, one in enumerate(block):
            one.set("s", str(k))

    return tree(edit)


def many(*changes: Change) -> Change:
    """One after the other."""

    def change(whole: str) -> str:
        for one in changes:
            whole = one(whole)
        return whole

    return change


def copies_of_block(r: int, b: int, count: int) -> Change:
    """The rank gets `count` more thread blocks that only copy, on channels of their own."""

    def edit(top: ET.Element) -> None:
        for k in range(count):
            new = ET.SubElement(top[r], "tb", {"id": "0", "send": "-1", "recv": "-1", "chan": "0"})
            new.set("id", str(len(top[r]) - 1))
            ET.SubElement(new, "step", {
                "s": "0", "type": "cpy", "srcbuf": "s", "srcoff": str(k % 3), "dstbuf": "s",
                "dstoff": str(k % 3), "cnt": "1", "depid": "-1", "deps": "-1", "hasdep": "0",
            })  # fmt: skip

    return tree(edit)


def long_block(r: int, b: int, count: int) -> Change:
    """`count` steps more that copy a chunk of the output onto itself."""
    return long_blocks(r, (b,), count)


def long_blocks(r: int, blocks: Iterable[int], count: int) -> Change:
    """The same in each of these thread blocks."""

    def edit(top: ET.Element) -> None:
        for block, _ in product([top[r][b] for b in blocks], range(count)):
            ET.SubElement(block, "step", {
                "s": str(len(block)), "type": "cpy", "srcbuf": "o", "srcoff": "0",
                "dstbuf": "o", "dstoff": "0", "cnt": "1", "depid": "-1", "deps": "-1",
                "hasdep": "0",
            })  # fmt: skip

    return tree(edit)


TEXT = [
    Mutation("prolog", "ring", lambda t: '<?xml version="1.0"?>\n' + t, "XML-PROLOG"),
    Mutation("doctype", "ring", lambda t: "<!DOCTYPE algo>\n" + t, "XML-PROLOG"),
    Mutation("byte-order-mark", "ring", lambda t: "\ufeff" + t, "XML-TEXT"),
    Mutation("tab-between-tags", "ring", text("  <gpu", "\t<gpu"), "XML-WHITESPACE"),
    Mutation("tab-in-tag", "ring", text(' srcbuf="i"', '\tsrcbuf="i"'), "XML-TAG"),
    Mutation("line-break-in-tag", "ring", text(' srcbuf="i"', '\n srcbuf="i"'), "XML-TAG"),
    Mutation("single-quotes", "ring", text('type="cpy"', "type='cpy'"), "XML-TAG"),
    Mutation("space-at-equals", "ring", text('type="cpy"', 'type = "cpy"'), "XML-TAG"),
    Mutation("space-in-closing-tag", "ring", text("</gpu>", "</gpu >"), "XML-TAG"),
    Mutation("entity", "ring", text('type="cpy"', 'type="cp&#121;"'), "XML-TAG"),
    Mutation("bare-ampersand", "ring", text('coll="all', 'coll="all&'), "XML-COLLECTIVE"),
    Mutation("no-break-space", "ring", text("  <gpu", "\xa0 <gpu"), "XML-WHITESPACE"),
    Mutation("em-space", "ring", text("\n  <gpu", "\u2003\n  <gpu"), "XML-WHITESPACE"),
    Mutation("line-separator", "ring", text("\n  <gpu", "\u2028  <gpu"), "XML-WHITESPACE"),
    Mutation("ideographic-space", "ring", text("</gpu>", "</gpu>\u3000"), "XML-WHITESPACE"),
    Mutation("two-spaces", "ring", text(' srcbuf="i"', '  srcbuf="i"'), "XML-SPACES"),
    Mutation("text-between-tags", "ring", text("  <gpu", "hello <gpu"), "XML-TEXT"),
    Mutation("truncated", "ring", lambda t: t[: len(t) // 2], "XML-SYNTAX"),
    Mutation("last-tag-gone", "ring", lambda t: t.replace("</algo>", ""), "XML-SYNTAX"),
    Mutation("quote-lost", "ring", text('type="cpy"', 'type="cpy'), "XML-SYNTAX"),
    Mutation("attribute-twice", "ring", text('cnt="4"', 'cnt="4" cnt="4"'), "XML-SYNTAX"),
    Mutation("other-outermost", "ring", lambda t: t.replace("algo", "graphs"), "XML-ROOT-ELEMENT"),
    Mutation("long-value", "ring", algo(name="x" * 300), "XML-VALUE-LENGTH"),
    Mutation("long-name", "ring", text("<algo ", f'<algo {"x" * 256}="1" '), "XML-VALUE-LENGTH"),
    Mutation("long-tag", "ring", text("  <gpu", f"  <{'x' * 256}/>\n  <gpu"), "XML-VALUE-LENGTH"),
    Mutation("comment-of-a-value", "ring", text("  <gpu", "<!--chan=0-->\n  <gpu"),
             "XML-COMMENT"),
    Mutation("endless-word-in-comment", "ring", text("<algo", f"<!--{'-' * 300}> -->\n<algo"),
             "XML-COMMENT"),
    Mutation(
        "17-attributes", "ring",
        tree(lambda a: [a.set(f"extra{k}", "1") for k in range(9)]), "XML-ATTRIBUTES",
    ),
    Mutation("unknown-element", "ring",
             tree(lambda a: ET.SubElement(a, "link")), "XML-ELEMENT"),
    Mutation("tb-outside-gpu", "ring",
             tree(lambda a: a.append(a[0][0])), "XML-ELEMENT"),
]  # fmt: skip

HEAD = [
    Mutation("too-many-rounds", "ring", algo(proto="LL"), "XML-ROUNDS"),
    Mutation("more-rounds-than-counted", "ring", algo(proto="LL", maxBytes=str(2**34)),
             "XML-ROUNDS"),
    Mutation("no-minBytes", "ring", algo(minBytes=None), "XML-MISSING"),
    Mutation("no-maxBytes", "ring", algo(maxBytes=None), "XML-MISSING"),
    Mutation("no-outofplace", "ring", algo(outofplace=None), "XML-MISSING"),
    Mutation("no-nchannels", "ring", algo(nchannels=None), "XML-MISSING"),
    Mutation("no-proto", "ring", algo(proto=None), "XML-MISSING"),
    Mutation("no-coll", "ring", algo(coll=None), "XML-MISSING"),
    Mutation("no-ngpus", "ring", algo(ngpus=None), "XML-MISSING"),
    Mutation("reduce_scatter", "scatter", algo(coll="reduce_scatter"), "XML-COLLECTIVE"),
    Mutation("custom", "ring", algo(coll="custom"), "XML-COLLECTIVE"),
    Mutation("collective-misspelt", "ring", algo(coll="allreduec"), "XML-COLLECTIVE"),
    Mutation("other-collective", "ring", algo(coll="broadcast"), "RUN-WRONG-RESULT"),
    Mutation("proto-lower-case", "ring", algo(proto="simple"), "XML-PROTOCOL"),
    Mutation("no-chunks", "ring", algo(nchunksperloop=0), "XML-CHUNKS-ZERO"),
    Mutation("negative-chunks", "ring", algo(nchunksperloop=-4), "XML-CHUNKS-ZERO"),
    Mutation("fewer-chunks", "ring", algo(nchunksperloop=3), "XML-BOUNDS"),
    Mutation("more-chunks", "ring", algo(nchunksperloop=5), "RUN-WRONG-RESULT"),
    Mutation("odd-chunks", "scatter", algo(nchunksperloop=7), "XML-CHUNKS-SHARE"),
    Mutation("min-over-max", "ring", algo(minBytes=4096, maxBytes=1024), "XML-SIZE-RANGE"),
    Mutation("negative-min", "ring", algo(minBytes=-1), "XML-SIZE-RANGE"),
    Mutation("huge-max", "ring", algo(maxBytes=2**63), "XML-SIZE-RANGE"),
    Mutation("no-place", "ring", algo(inplace=0, outofplace=0), "XML-PLACES"),
    Mutation("broadcast-in-place-alone", "chain", algo(outofplace=0), "XML-PLACES-ROOTED"),
    Mutation("place-2", "ring", algo(inplace=2), "XML-FLAG"),
    Mutation("too-many-ranks", "ring", algo(ngpus=5), "XML-GPU-MISSING", (4,)),
    Mutation("too-few-ranks", "ring", algo(ngpus=3), "XML-GPU-ID"),
    Mutation("no-ranks", "ring", algo(ngpus=0), "XML-NGPUS"),
    Mutation("nchannels-0", "ring", algo(nchannels=0), "XML-NCHANNELS"),
    Mutation("nchannels-40", "ring", algo(nchannels=40), "XML-NCHANNELS", (), "msccl"),
    Mutation("nchannels-spare", "ring", algo(nchannels=8), "XML-NCHANNELS-SPARE"),
    Mutation("octal", "ring", algo(nchunksperloop="04"), "XML-OCTAL"),
    Mutation("octal-8", "ring", algo(nchunksperloop="08"), "XML-NUMBER"),
    Mutation("word-for-number", "ring", algo(nchunksperloop="four"), "XML-NUMBER"),
    Mutation("other-root", "chain", algo(root=1), "RUN-WRONG-RESULT"),
    Mutation("gpu-twice", "ring", gpu(1, id=0), "XML-GPU-ID", (0,)),
    Mutation("gpu-gone", "ring", tree(lambda a: a.remove(a[2])), "XML-GPU-MISSING", (2,)),
    Mutation("gpu-without-id", "ring", gpu(1, id=None), "XML-MISSING"),
    Mutation("gpu-empty", "ring", tree(lambda a: a[1].remove(a[1][0])), "XML-GPU-MISSING", (1,)),
    Mutation("i-chunks-more", "ring", gpu(1, i_chunks=9), "XML-GPU-CHUNKS", (1,)),
    Mutation("o-chunks-fewer", "ring", gpu(1, o_chunks=2), "XML-BOUNDS", (1, 0)),
    Mutation("s-chunks-negative", "ring", gpu(2, s_chunks=-1), "XML-CHUNKS-NEGATIVE", (2,)),
    Mutation("s-chunks-fewer", "scatter", gpu(2, s_chunks=5), "XML-BOUNDS", (2, 2, 1)),
    Mutation("no-s_chunks", "scatter", gpu(0, s_chunks=None), "XML-MISSING", (0,)),
]  # fmt: skip

BLOCKS = [
    Mutation("tb-id-gap", "star", tb(0, 3, id=4), "XML-TB-ID", (0, 4)),
    Mutation("tb-id-twice", "star", tb(0, 3, id=2), "XML-TB-ID", (0, 2)),
    Mutation("tb-id-negative", "star", tb(0, 3, id=-1), "XML-TB-ID", (0,)),
    Mutation("tb-without-chan", "star", tb(0, 1, chan=None), "XML-MISSING", (0, 1)),
    Mutation("peer-outside", "ring", tb(0, 0, send=7), "XML-PEER", (0, 0)),
    Mutation("peer-itself", "ring", tb(0, 0, send=0), "XML-PEER", (0, 0)),
    Mutation("peer-below", "ring", tb(0, 0, recv=-2), "XML-PEER", (0, 0)),
    Mutation("peer-wrong", "ring", tb(0, 0, send=2), "XML-PARTNER", (0, 0)),
    Mutation("peer-missing", "star", tb(1, 0, send=-1), "XML-DIRECTION", (1, 0, 0)),
    Mutation("recv-missing", "star", tb(0, 2, recv=-1), "XML-DIRECTION", (0, 2, 0)),
    Mutation("peer-idle", "star", tb(0, 0, recv=1, chan=1), "XML-PEER-IDLE", (0, 0)),
    Mutation("channel-wrong", "star", many(tb(1, 0, chan=1), algo(nchannels=2)),
             "XML-PARTNER", (1, 0)),
    Mutation("channel-beyond-nchannels", "star", tb(1, 0, chan=1), "XML-CHANNEL", (1, 0)),
    Mutation("channel-32", "star", tb(1, 0, chan=32), "XML-CHANNEL", (1, 0), "msccl"),
    Mutation("channel-negative", "star", tb(1, 0, chan=-1), "XML-CHANNEL", (1, 0)),
    Mutation("connection-shared", "star", tb(0, 2, recv=1), "XML-CONNECTION-SHARED", (0, 2)),
    Mutation("tb-empty", "star", tree(lambda a: ET.SubElement(
        a[1], "tb", {"id": "1", "send": "-1", "recv": "-1", "chan": "0"})),
        "XML-TB-EMPTY", (1, 1)),
    Mutation("64-blocks-for-rccl", "star", copies_of_block(0, 0, 61), "RCCL-TB-COUNT", (0,),
             "rccl"),
    Mutation("more-blocks-than-sms", "star", copies_of_block(0, 0, 105), "XML-TB-SMS", (0,),
             "msccl"),
    Mutation("1025-blocks", "star", copies_of_block(0, 0, 1021), "XML-TB-COUNT", (0,), "msccl"),
    Mutation("65-steps", "ring", long_block(1, 0, 57), "XML-STEP-COUNT", (1, 0)),
    Mutation("4096-elements", "star", many(
        copies_of_block(0, 0, 64), long_blocks(0, range(4, 68), 63)), "XML-NODES", (0,), "msccl"),
]  # fmt: skip

STEPS = [
    Mutation("type-copy", "ring", step(0, 0, 0, type="copy"), "XML-STEP-TYPE", (0, 0, 0)),
    Mutation("type-ra", "star", step(0, 1, 1, type="ra"), "XML-STEP-TYPE", (0, 1, 1)),
    Mutation("type-gone", "star", step(0, 1, 1, type=None), "XML-MISSING", (0, 1)),
    Mutation("fused-for-rccl", "ring", lambda t: t, "RCCL-FUSED", (0, 0, 2), "rccl"),
    Mutation("buffer-letter", "ring", step(0, 0, 0, srcbuf="x"), "XML-BUFFER", (0, 0, 0)),
    Mutation("buffer-upper-case", "ring", step(0, 0, 0, srcbuf="I"), "XML-BUFFER", (0, 0, 0)),
    Mutation("buffer-wrong", "ring", step(0, 0, 0, srcbuf="o"), "RUN-WRONG-SUM", (1, 0, 2)),
    Mutation("scratch-for-output", "star", step(0, 1, 1, dstbuf="s"), "RUN-WRONG-SUM", (0, 1, 1)),
    Mutation("offset-plus-1", "star", step(0, 1, 0, dstoff=1), "RUN-RACE", (0, 2, 0)),
    Mutation("offset-beyond", "ring", step(2, 0, 4, dstoff=4), "XML-BOUNDS", (2, 0, 4)),
    Mutation("offset-minus-1", "ring", step(2, 0, 4, srcoff=-1), "XML-BOUNDS", (2, 0, 4)),
    Mutation("offset-and-count-beyond", "ring", step(2, 0, 0, srcoff=1), "XML-BOUNDS", (2, 0, 0)),
    Mutation("offset-of-rrc-unchecked", "ring",
             step(2, 0, 7, type="rrc", dstoff=4), "XML-BOUNDS", (2, 0, 7)),
    Mutation("offset-of-another-chunk", "ring", step(1, 0, 4, srcoff=0), "RUN-WRONG-SUM"),
    Mutation("count-0", "ring", step(2, 0, 1, cnt=0), "XML-COUNT", (2, 0, 1)),
    Mutation("count-negative", "ring", step(2, 0, 1, cnt=-1), "XML-COUNT", (2, 0, 1)),
    Mutation("count-72", "ring", step(2, 0, 0, cnt=72), "XML-COUNT", (2, 0, 0)),
    Mutation("count-plus-1", "scatter", step(0, 1, 1, cnt=3), "XML-MESSAGE-LENGTH", (0, 1, 1)),
    Mutation("count-beyond", "scatter", step(0, 2, 1, cnt=3), "XML-BOUNDS", (0, 2, 1)),
    Mutation("count-of-the-sender", "scatter", step(1, 1, 0, cnt=1),
             "XML-MESSAGE-LENGTH", (0, 1, 1)),
    Mutation("count-fewer-copied", "scatter", step(1, 3, 0, cnt=1), "RUN-WRONG-RESULT", (1,)),
    Mutation("number-twice", "star", step(0, 1, 1, s=0), "XML-STEP-NUMBER", (0, 1, 1)),
    Mutation("number-64", "ring", step(0, 0, 7, s=64), "XML-STEP-NUMBER", (0, 0, 7)),
    Mutation("number-negative", "ring", step(0, 0, 7, s=-1), "XML-STEP-NUMBER", (0, 0, 7)),
    Mutation("send-gone", "ring", drop(1, 0, 1), "XML-MESSAGE-LOST"),
    Mutation("receive-gone", "ring", drop(1, 0, 7), "XML-MESSAGE-LOST", (0,)),
    Mutation("send-twice", "star", insert(1, 0, 0), "XML-MESSAGE-LOST", (1, 0, 1)),
    Mutation("copy-gone", "ring", drop(3, 0, 0), "RUN-WRONG-SUM", (3, 0, 1)),
    Mutation("reduction-gone", "star", step(0, 2, 1, type="cpy"), "RUN-WRONG-RESULT", (0,)),
    Mutation("reduction-twice", "star",
             many(step(0, 2, 1, hasdep=0), insert(0, 2, 2, depid=-1, deps=-1, hasdep=1),
                  step(0, 3, 1, deps=2)), "RUN-WRONG-SUM", (0, 2, 1)),
    Mutation("steps-swapped", "ring", swap(0, 0, 1, 2), "RUN-WRONG-SUM", (1, 0, 2)),
    Mutation("receive-before-send-everywhere", "ring",
             many(*(swap(r, 0, 1, 7) for r in range(4))), "RUN-DEADLOCK"),
    Mutation("messages-swapped", "chain", swap(1, 0, 0, 1), "RUN-RACE", (1, 1, 0)),
    Mutation("hasdep-2", "star", step(0, 0, 0, hasdep=2), "XML-FLAG", (0, 0, 0)),
    Mutation("hasdep-gone", "star", step(0, 0, 0, hasdep=0), "XML-DEP-FLAG", (0, 0, 0)),
    Mutation("hasdep-later", "chain", step(1, 0, 0, hasdep=0), "XML-DEP-LATE", (1, 0, 0)),
    Mutation("dependency-gone", "star", step(0, 2, 1, depid=-1, deps=-1), "RUN-RACE", (0, 2, 1)),
    Mutation("dependency-half-gone", "star", step(0, 2, 1, depid=-1), "XML-DEP-HALF", (0, 2, 1)),
    Mutation("dependency-on-no-block", "star", step(0, 2, 1, depid=9), "XML-DEP", (0, 2, 1)),
    Mutation("dependency-on-no-step", "star", step(0, 2, 1, deps=5), "XML-DEP", (0, 2, 1)),
    Mutation("dependency-on-step-minus-1", "star", step(0, 2, 1, deps=-1), "XML-DEP", (0, 2, 1)),
    Mutation("dependency-on-itself", "star", step(0, 2, 1, depid=2), "XML-DEP", (0, 2, 1)),
    Mutation("dependency-too-early", "star", step(0, 2, 1, depid=0, deps=0), "RUN-RACE", (0,)),
    Mutation("dependency-circle", "star",
             many(step(0, 1, 1, depid=3, deps=1), step(0, 3, 1, hasdep=1)), "RUN-DEADLOCK", (0,)),
    Mutation("dependency-wraps", "star", many(copies_of_block(0, 0, 130), tree(lambda a: (
        set_all(a[0][130][0], {"hasdep": 1}),
        set_all(a[0][131][0], {"depid": 130, "deps": 0})))), "XML-DEP-WRAP", (0, 131, 0), "msccl"),
    Mutation("nop-for-nothing", "star", insert(0, 1, 1, type="nop", depid=-1, deps=-1, hasdep=0),
             "XML-NOP-EMPTY", (0, 1, 1)),
    Mutation("nop-before-step-without-dependency", "star",
             insert(0, 1, 0, type="nop", depid=0, deps=0), "XML-NOP-BARE", (0, 1, 1)),
    Mutation("nop-at-the-end", "star", insert(0, 3, 2, type="nop", depid=1, deps=1),
             "XML-NOP-TAIL", (0, 3, 2)),
    Mutation("re-of-other-count-joined", "scatter",
             insert(1, 2, 3, cnt=1, srcoff=1, depid=-1, deps=-1), "RUN-WRONG-SUM"),
    Mutation("re-joined-with-other-count", "scatter",
             many(step(1, 2, 2, hasdep=0), insert(1, 2, 3, cnt=1, depid=-1, deps=-1, hasdep=1),
                  step(1, 3, 0, deps=3)), "XML-RE-COUNT", (1, 2, 3)),
    Mutation("re-joined-behind-the-sixteenth", "scatter", many(*(
        insert(1, 2, 3, depid=-1, deps=-1, hasdep=0) for _ in range(32))),
        "XML-RE-JOINED", (1, 2), "msccl"),
    Mutation("number-huge", "ring", step(0, 0, 1, srcoff=10**18), "XML-BOUNDS", (0, 0, 1)),
    Mutation("number-with-point", "ring", step(0, 0, 1, srcoff="1.0"), "XML-NUMBER", (0, 0)),
    Mutation("number-empty", "ring", step(0, 0, 1, cnt=""), "XML-NUMBER", (0, 0)),
    Mutation("offset-over-16-bits", "ring", many(
        algo(nchunksperloop=40000), *(gpu(r, i_chunks=40000, o_chunks=40000) for r in range(4)),
        step(0, 0, 1, srcoff=39000)), "XML-OFFSET-16", (0, 0, 1)),
    Mutation("copy-gone-out-of-place", "gather", drop(1, 0, 0), "RUN-WRONG-RESULT"),
]  # fmt: skip

MUTATIONS = TEXT + HEAD + BLOCKS + STEPS


def base_text(name: str) -> str:
    """The good plan."""
    return plans.dumps(BASES[name](), "msccl-xml")
