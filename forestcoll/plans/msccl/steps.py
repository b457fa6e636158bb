"""The steps of MSCCL XML thread blocks: types, buffers and bounds, and what waits for what.

What the runtimes make of them (Azure/msccl-executor-nccl, msccl_parser.cc:470-660 and
msccl_kernel.cu): steps run in document order; a dependency means a position in that order; nops
hand their dependency to the next real step; neighbouring `re` on one place become one; a step
without `hasdep` raises no flag, so whoever waits for it waits for the next flag of that thread
block.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forestcoll.plans.findings import LARGE, At, Findings, Verb
from forestcoll.plans.msccl.text import BUFFERS, Element
from forestcoll.plans.msccl.write import MAX_FUSED, MAX_OFFSET
from forestcoll.program import (
    BY_XML,
    FUSED,
    OPERATIONS,
    RECEIVES,
    SENDS,
    Instruction,
    Op,
    Ref,
)
from forestcoll.program.targets import Target

SENDING = frozenset(word for word, op in BY_XML.items() if op in SENDS)
RECEIVING = frozenset(word for word, op in BY_XML.items() if op in RECEIVES)
CHECKED = {
    "s": "s", "rrs": "s", "r": "d", "rcs": "d", "rrcs": "sd", "cpy": "sd", "re": "sd",
}  # fmt: skip
"""Sides that the loader looks at, and only at the offset (msccl_parser.cc 270-288)."""
MAX_WAITED_FOR = 127
MAX_JOINED = 15  # re, and the place itself: operands of one addition
_WORDS = ("type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "hasdep")
_NUMBERS = ("s", "depid", "deps")


class Buffers(NamedTuple):
    """Chunks of a rank's buffers by letter; what is not known is absent.

    The loaders check offsets against what the gpu says, but a chunk has the size that
    nchunksperloop gives it: that is where memory ends.
    """

    told: dict[str, int]
    real: dict[str, int]

    def key(self) -> tuple[object, ...]:
        """Equal for buffers of equal sizes."""
        return tuple(self.told.items()), tuple(self.real.items())


_Fault = tuple[str, str, str]
"""A breach: what `Findings` does with it, its rule, its text."""


@dataclass(slots=True, eq=False)
class Look:
    """What the words of a step say, wherever it stands; equal steps share one.

    `instruction` is what runs where nothing is waited for, None for a nop or where it is unknown.
    """

    type: str
    count: int | None
    flag: bool  # hasdep
    place: tuple[object, ...]  # dstbuf, dstoff, srcbuf: what neighbouring `re` must share
    instruction: Instruction | None = None
    reach: tuple[tuple[str, int], ...] = ()  # chunks of buffers that it touches
    faults: list[_Fault] = field(default_factory=list)
    nop: bool = False
    reduces: bool = False  # it is an `re`


class _Words(Element):
    """A step's words: what is wrong with them is written down, to be said wherever they stand."""

    __slots__ = ("faults",)

    def __init__(self, out: Findings) -> None:
        super().__init__("step", -1, {}, out)
        self.faults: list[_Fault] = []

    def tell(self, verb: Verb, rule: str, words: str) -> None:
        self.faults.append((verb, rule, words))


class Lane:
    """A thread block's steps, and what each waits for."""

    __slots__ = ("_flags", "_lasts", "_places", "_steps", "looks", "nops", "odd", "tag", "waits")

    def __init__(self, tag: Element) -> None:
        self.tag = tag
        self.looks: list[Look] = []
        self.waits: dict[int, tuple[int | None, int | None]] = {}  # step -> depid, deps
        self.odd: tuple[int, int] | None = None  # the first step whose s is not its position
        self.nops = False
        self._places: list[int | None] = []
        self._steps: list[tuple[Instruction, list[tuple[int, int]]]] = []
        self._lasts: list[int] = []  # of each device step: the position of its flag
        self._flags: list[bool] = []  # whether it raises it

    def at(self, k: int) -> At:
        """The place of a step."""
        return {**self.tag.at, "step": k, "line": self.tag.steps[k][0]}

    def bare(self, k: int) -> bool:
        """Whether a step waits for nothing."""
        return k not in self.waits or self.waits[k][0] == -1

    def positions(self) -> list[int | None]:
        """Where each step stands in the device's count; None: dropped."""
        if not self._places:
            count = 0
            for k, look in enumerate(self.looks):
                dropped = look.nop and self.bare(k)
                self._places.append(None if dropped else count)
                count += not dropped
        return self._places

    def build(self) -> None:
        """Make the device's steps, in order, as the loader would."""
        steps, lasts, flags = self._steps, self._lasts, self._flags
        position = -1
        none: list[tuple[int, int]] = []
        waits = none  # of nops, for the next real step
        for k, look in enumerate(self.looks):
            instruction, wait = look.instruction, self.waits.get(k)
            if wait is not None and wait[0] is not None and wait[0] >= 0:
                waits = [*waits, (wait[0], wait[1] or 0)]
            elif look.nop:
                continue
            position += 1
            if instruction is None:
                continue
            if look.reduces and not waits and steps and not flags[-1]:
                joined = _join(steps[-1][0], instruction)
                if joined is not None:
                    steps[-1] = joined, steps[-1][1]
                    lasts[-1], flags[-1] = position, look.flag
                    continue
            steps.append((instruction, waits))
            lasts.append(position)
            flags.append(look.flag)
            waits = none

    def steps(self, lanes: dict[int, Lane]) -> tuple[Instruction, ...]:
        """What the thread block runs, once all lanes of its rank are built."""
        return tuple([
            step if not waits else Instruction(step.op, step.src, step.dst, tuple(
                [(other, lanes[other].flag(position)) for other, position in waits]
            ))
            for step, waits in self._steps
        ])  # fmt: skip

    def flag(self, position: int) -> int:
        """The device step whose flag ends a wait for a position."""
        step = bisect_left(self._lasts, position)
        return self._flags.index(True, step)


def _join(first: Instruction, second: Instruction) -> Instruction | None:
    """The one step that the loader makes of a reduction and the `re` behind it, or None."""
    if first.op is not Op.REDUCE or first.dst != second.dst or len(first.src) == MAX_FUSED:
        return None
    if first.src[0].buffer is not second.src[0].buffer:
        return None
    return Instruction(first.op, first.src + second.src, first.dst)


class LaneReader:
    """Reads the steps of a file's thread blocks; `out` hears what is wrong."""

    def __init__(self, target: Target, out: Findings) -> None:
        self.target, self.out, self.words = target, out, _Words(out)
        self.known: dict[object, dict[tuple[str, ...], Look]] = {}
        self.refs: dict[tuple[str, int, int], Ref] = {}

    def read(
        self,
        tag: Element,
        recv: int | None,
        send: int | None,
        buffers: Buffers,
        reach: dict[str, int],
    ) -> Lane:
        """The steps of a thread block, each checked for itself; `reach` grows by what they use."""
        if len(tag.steps) > self.target.steps:
            tag.add("XML-STEP-COUNT", f"{len(tag.steps)} steps")
        no_peers = frozenset(key for key, peer in (("recv", recv), ("send", send)) if peer == -1)
        lists = self.known.setdefault((buffers.key(), no_peers), {})
        lane = Lane(tag)
        looks, waits = lane.looks, lane.waits
        for k, row in enumerate(tag.steps):
            s: int | None
            depid: int | None
            deps: int | None
            words: tuple[Any, ...]
            if len(row) == 5:
                _, words, s, depid, deps = row
            else:
                step = Element("step", *row, self.out)
                step.at = lane.at(k)
                words = tuple([row[1].get(word) for word in _WORDS])
                s, depid, deps = map(step.get, _NUMBERS)
            look = lists.get(words)
            if look is None:
                given = dict(zip(_WORDS, words, strict=True)) if len(row) == 5 else row[1]
                look = self.look(given, no_peers, buffers)
                if None not in words:
                    lists[words] = look
            if look.faults:
                self.say(look, lane.at(k))
            looks.append(look)
            if depid != -1 or deps != -1:
                waits[k] = depid, deps
            if s != k and s is not None and lane.odd is None:
                lane.odd = k, s
        for look in set(looks):
            lane.nops |= look.nop
            for letter, end in look.reach:
                reach[letter] = max(end, reach.get(letter, 0))
        return lane

    def say(self, look: Look, at: At) -> None:
        """Say of a step what is wrong with its words."""
        for verb, rule, text in look.faults:
            if rule:
                getattr(self.out, verb)(rule, text, **at)
            else:
                self.out.lack(text, **at)

    def look(self, attributes: dict[str, str], no_peers: frozenset[str], buffers: Buffers) -> Look:
        """What the words of a step say."""
        step = self.words
        step.values, step.faults = attributes, []
        if step.values.get("type") == "ra":
            step.tell("add", "", "type 'ra' is an operation of the first MSCCL only; no current "
                      "runtime has it, and neither has this version")  # fmt: skip
        values = {key: step.get(key) for key in _WORDS}
        kind, count, flag = values["type"], values["cnt"], values["hasdep"]
        place = (values["dstbuf"], values["dstoff"], values["srcbuf"])
        look = Look(kind or "", count, flag == 1, place, faults=step.faults, nop=kind == "nop",
                    reduces=kind == "re")  # fmt: skip
        op = BY_XML.get(look.type)
        if op in FUSED and not self.target.fused:
            step.add("RCCL-FUSED", f"{kind} is refused at the first call")
        for key, ops in (("send", SENDING), ("recv", RECEIVING)):
            if kind in ops and key in no_peers:
                step.fault("XML-DIRECTION", f"{kind}, but {key} of the thread block is -1")
        if op is not None:
            self.look_at_data(look, op, step, values, buffers)
        return look

    def look_at_data(
        self, look: Look, op: Op, step: _Words, values: dict[str, Any], buffers: Buffers
    ) -> None:
        """The operands of a step: their count and bounds."""
        row, length = OPERATIONS[op], look.count
        if length is None or not 1 <= length <= self.target.count:
            if length is not None:
                step.tell("refuse" if length < 1 else "add", "XML-COUNT", f"cnt is {length}")
            length = 1
        sides: list[tuple[Ref, ...]] = []
        for side, used in (("src", row.src[1]), ("dst", row.dst[1])):
            letter, offset = values[f"{side}buf"], values[f"{side}off"]
            if not used or letter is None or offset is None:
                sides.append(())
                continue
            real, told = buffers.real.get(letter, LARGE), buffers.told.get(letter, LARGE)
            where = f"{side} of {look.type}:"
            if offset < 0:
                step.refuse("XML-BOUNDS", f"{where} offset {offset}")
            elif offset + length > real:
                words = f"{where} chunks {offset} to {offset + length - 1} of buffer {letter!r}"
                step.fault("XML-BOUNDS", f"{words}, which holds {real}")
            elif offset >= told and side[0] in CHECKED.get(look.type, ""):
                words = f"{where} offset {offset}, but the gpu says that buffer {letter!r} holds "
                step.add("XML-BOUNDS", f"{words}{told}: refused")
            elif offset > MAX_OFFSET:
                words = f"{side}off is {offset}; 16 bits hold {MAX_OFFSET}"
                step.add("XML-OFFSET-16", words)
            look.reach += ((letter, offset + length),)
            key = letter, offset, look.count or 0
            sides.append((self.refs.setdefault(key, Ref(BUFFERS[letter], *key[1:])),))
        look.instruction = Instruction(op, sides[0], sides[1])

    # --- what waits for what ----------------------------------------------------------------------

    def check(self, lanes: dict[int, Lane]) -> None:
        """Dependencies of all thread blocks of a rank: targets, flags, nops, and numbering."""
        wanted: dict[int, set[int]] = {}  # thread block -> positions that others wait for
        for b, lane in sorted(lanes.items()):
            for k in lane.waits:
                self.check_wait(b, k, lanes, wanted)
            if lane.nops:
                self.check_nops(lane)
            self.check_joined(lane)
        if self.out.held:
            for lane in lanes.values():
                lane.build()
        for b, lane in sorted(lanes.items()):
            if lane.odd is not None:  # the rest of the thread block is off by as much
                k, s = lane.odd
                serious = b in wanted or not 0 <= s < 64
                self.out.add("XML-STEP-NUMBER", f"s is {s} at position {k}", **lane.at(k),
                             severity="error" if serious else "warning")  # fmt: skip
            self.check_flags(lane, wanted.get(b, set()))

    def check_wait(
        self, b: int, k: int, lanes: dict[int, Lane], wanted: dict[int, set[int]]
    ) -> None:
        """Whether a step waits for one that there is; `wanted` grows by it."""
        lane, out = lanes[b], self.out
        other, position = lane.waits[k]
        if other is None or position is None:
            return
        at = lane.at(k)
        if other == -1:
            out.add("XML-DEP-HALF", f"deps is {position}, but depid -1: it waits for nothing",
                    **at)  # fmt: skip
            return
        if other not in lanes:
            out.refuse("XML-DEP", f"depid is {other}; the rank has thread blocks 0 to "
                       f"{len(lanes) - 1}", **at)  # fmt: skip
            return
        if other > MAX_WAITED_FOR:
            out.add("XML-DEP-WRAP", f"it waits for thread block {other}, which becomes "
                    f"{other - 256} on the device", **at)  # fmt: skip
        places = lanes[other].positions()
        count = len(places) - places.count(None)
        if not 0 <= position < count:
            out.refuse("XML-DEP", f"deps is {position}, but thread block {other} has {count} steps",
                       **at)  # fmt: skip
        elif other == b and (places[k] or 0) <= position:
            out.refuse("XML-DEP", f"it waits for step {position} of its own thread block, which "
                      f"does not come before it", **at)  # fmt: skip
        else:
            wanted.setdefault(other, set()).add(position)

    def check_nops(self, lane: Lane) -> None:
        """What nops wait for reaches a step."""
        waiting: int | None = None  # a nop whose dependency the next step has to carry on
        last = max((k for k, look in enumerate(lane.looks) if not look.nop), default=-1)
        for k, look in enumerate(lane.looks):
            at = lane.at(k)
            bare = lane.bare(k)
            if look.nop:
                if bare:
                    self.out.add("XML-NOP-EMPTY", "a nop that waits for nothing", **at,
                                 severity="error" if k < last else "warning")  # fmt: skip
                elif waiting is None:
                    waiting = k
            elif waiting is not None:
                if bare:
                    self.out.refuse("XML-NOP-BARE", f"{look.type} waits for nothing, though the "
                                    f"nop before it does", **at)  # fmt: skip
                waiting = None
        if waiting is not None:
            self.out.add("XML-NOP-TAIL", "no step follows this nop", **lane.at(waiting))

    def check_joined(self, lane: Lane) -> None:
        """Reductions that the loader joins: it parts them at the sixteenth of a thread block."""
        before: Look | None = None  # the `re` that the next one is joined to
        joined = total = 0
        if sum([look.reduces for look in lane.looks]) < 2:
            return
        for k, look in enumerate(lane.looks):
            if look.nop:
                continue
            if not look.reduces:
                before = None
                continue
            at = lane.at(k)
            join = before is not None and before.place == look.place and lane.bare(k)
            joined = joined + 1 if join else 1
            total += 1
            if join and before is not None and before.count != look.count:
                self.out.refuse("XML-RE-COUNT", f"re of {look.count} chunks after re of "
                                f"{before.count} on the same place", **at)  # fmt: skip
            if joined == MAX_JOINED + 1:
                self.out.add("XML-RE-JOINED", f"it is number {joined} of neighbouring re on one "
                             f"place", **at,
                             severity="error" if self.target.fused else "warning")  # fmt: skip
            before = None if look.flag or total == MAX_JOINED + 1 else look

    def check_flags(self, lane: Lane, wanted: set[int]) -> None:
        """Whether those steps raise flags that others wait for, and they alone."""
        looks = lane.looks
        if not wanted and not any(look.flag for look in looks):
            return
        places = lane.positions()
        # the loader looks at no hasdep of a nop (msccl_parser.cc:645-649)
        raised = {place: k for k, place in enumerate(places)
                  if place is not None and looks[k].flag and not looks[k].nop}  # fmt: skip
        late, top = sorted(wanted - raised.keys()), max(raised, default=-1)
        for position in late:
            k = places.index(position)
            at = lane.at(k)
            if position < top:
                self.out.add("XML-DEP-LATE", "others wait for it, but hasdep is 0", **at)
            else:
                self.out.refuse("XML-DEP-FLAG", "others wait for it, but neither it nor a later "
                                "step has hasdep 1: they wait for ever", **at)  # fmt: skip
        for place, k in raised.items():
            apart = k + 1 < len(looks) and looks[k].reduces and looks[k + 1].reduces
            if place not in wanted and not apart and not (late and late[0] < place):
                self.out.add("XML-FLAG-SPARE", "nobody waits for its flag", **lane.at(k))
