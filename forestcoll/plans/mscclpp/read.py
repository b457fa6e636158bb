"""From an MSCCL++ execution plan to the Program that the runtime runs, with all that is wrong.

`read` is the one reading, for `loads` and for the linter: the head, the ranks' lists, their thread
blocks (ops.py reads what is in them), and whether all of it fits together. The loader takes numbers
as indices without a look: here every one is checked (microsoft/mscclpp, execution_plan.cc).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final, Literal, cast

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.common.input_limits import BLOCKS, CHUNKS, RANKS
from forestcoll.plans.findings import Findings, FirstError
from forestcoll.plans.mscclpp.ops import BUFFERS, Block, OpReader, Plan, Rank
from forestcoll.plans.mscclpp.rules import (
    ALIGNMENT,
    MAX_INDEX,
    MAX_REMOTE,
    body_of,
    check_halves,
    largest_size,
)
from forestcoll.plans.mscclpp.text import Entry, kind, parse
from forestcoll.plans.rules import (
    MAX_BYTES,
    OLD_WORDS,
    OTHER_COLLECTIVES,
    check_header,
    group_fault,
)
from forestcoll.program import (
    BY_PLAN_WORD,
    PACKETS,
    Buffer,
    Channel,
    Collective,
    Program,
    RankProgram,
    Switch,
    ThreadBlock,
)
from forestcoll.program.check import check
from forestcoll.program.rank_placement import places
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import MSCCLPP, Target, host_of

NO_LIMIT: Final = 2**64 - 1
KINDS: Final = ("memory", "port", "switch")
_SETTINGS: Final = (("buffer_alignment", ALIGNMENT), ("num_threads_per_block", 1024))
_OWN: Final[dict[str, type]] = {
    "name": str, "in_place": bool, "out_of_place": bool, "root": int, "names": list,
    "max_bytes": int,
}  # fmt: skip
"""What only this package writes and reads, in `forestcoll`."""


def loads(text: str, source: str) -> Program:
    """The Program in an execution plan's text; `source` names it in errors.

    Reads plans of the MSCCL++ DSL too. `Program.extra["notes"]` says, a line each, what the runtime
    does differently from what the plan says. UnsupportedError for reused resources, packets through
    switches, and two halves of scratch without packets; PlanError for what is wrong.
    """
    out = FirstError(source)
    reader = _Reader(MSCCLPP, out, MSCCLPP.thread_blocks, None)
    program = reader.read(text)
    assert program is not None  # else it raised
    try:
        check_header(program)
        check(program)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    try:
        check_halves(program)
    except PlanError as error:
        out.remark(f"the runtime cannot run it: {error}")
    # The format has no way to say "no limit"; all that the device can count means just that,
    # unless the file adds that the number is meant.
    limited = program.max_bytes < largest_size(program)
    if not limited and reader.own.get("max_bytes") != program.max_bytes:
        program = replace(program, max_bytes=0)
    return out.sign(program)


def read(
    text: str,
    target: Target,
    out: Findings,
    *,
    sms: int | None = None,
    collective: Collective | None = None,
) -> Program | None:
    """The Program in the text, or None where no Program can hold it; `out` hears what is wrong.

    `sms`: thread blocks that run at once, where that is to be looked at; `collective` stands in for
    what the file says. The root is -1 where it is needed and not said.
    """
    return _Reader(target, out, sms, collective).read(text)


class _Reader:
    """Reads one file; `out` hears what is wrong."""

    def __init__(
        self, target: Target, out: Findings, sms: int | None, collective: Collective | None
    ) -> None:
        self.target, self.out, self.sms, self.told = target, out, sms, collective
        self.plan = Plan()
        self.top: dict[str, Any] = {}
        self.entry = Entry({}, "the plan", {}, out)
        self.own: dict[str, Any] = {}

    def read(self, text: str) -> Program | None:
        """All of the file."""
        top = parse(text, self.out)
        if top is None:
            return None
        if "gpus" not in top:
            hint = "; this looks like a forest file" if "trees" in top else ""
            self.out.refuse("MPP-MISSING", f"no 'gpus', so it is no MSCCL++ plan{hint}")
            return None
        self.top = self.entry.values = top
        self.read_head()
        gpus, plan = self.entry.entries("gpus"), self.plan
        if isinstance(top["gpus"], list) and not 1 <= len(gpus) <= RANKS:
            words = "gpus is empty" if not gpus else f"gpus lists {len(gpus)} {RANKS.note}"
            self.out.refuse("MPP-RANKS", words)
            gpus = gpus[:RANKS]
        self.read_own(len(gpus))
        for r, gpu in enumerate(gpus):
            gpu.at = {"rank": r}
            plan.ranks.append(self.read_rank(r, gpu, len(gpus)))
        self.check_chunks()
        self.check_pairs()
        self.check_switches()
        self.check_scratch()
        self.check_nodes()
        ops = OpReader(plan, self.target, self.out)
        blocks = [self.read_blocks(r, gpu, ops) for r, gpu in enumerate(gpus)]
        low, high = self.read_sizes()
        self.check_sizes(low, high)
        return self.make(blocks, low, high)

    def make(self, blocks: list[tuple[ThreadBlock, ...]], low: int, high: int) -> Program | None:
        """The Program of what was read, or None where none holds it."""
        plan, top, out = self.plan, self.top, self.out
        collective = BY_PLAN_WORD.get(plan.word, Collective.ALLREDUCE)
        root = -1
        if collective.has_root:
            root = self.own["root"] if "root" in self.own else out.missing_root("the plan")
        if not out.held:
            return None
        ranks = tuple(
            RankProgram(own, rank.chunks["i"], rank.chunks["o"], rank.chunks["s"],
                        tuple(rank.semaphores))
            for own, rank in zip(blocks, plan.ranks, strict=True)
        )  # fmt: skip
        packets = plan.packets and any(
            i.op in PACKETS
            for rank in ranks for block in rank.thread_blocks for s in block.steps
            for i in body_of(s)
        )  # fmt: skip
        if plan.packets and not packets:
            out.remark("protocol 'LL' without packets: the runtime does the same as for 'Simple'")
        double = self.halve(ranks, packets)
        flags = self.read_places()
        if not out.held:
            return None
        own_name = self.own.get("name")
        return Program(
            name=top["name"] if own_name is None else own_name,
            collective=collective,
            style="onesided",
            ranks=ranks,
            in_place=flags[0],
            out_of_place=flags[1],
            root=root,
            names=tuple(self.own.get("names", ())),
            min_bytes=low,
            max_bytes=min(high, MAX_BYTES),
            protocol="LL" if packets else "Simple",
            double_scratch=double,
            extra={key: str(top.get(key, usual)) for key, usual in _SETTINGS}
            | {"format": "mscclpp-json"},
        )

    def halve(self, ranks: tuple[RankProgram, ...], packets: bool) -> bool:
        """Whether scratch has two halves that are taken by turns.

        Without packets a rank's own operations take turns, but those that reach another's memory do
        not (execution_kernel.hpp:46-56, 160): no difference where nobody reaches another's scratch.
        """
        if not self.plan.double or packets:
            return self.plan.double
        if not self.plan.packets and any(map(_reaches_scratch, ranks)):
            self.out.lack("use_double_scratch_buffer (two halves of scratch, taken by turns) is "
                          "not supported without packets (protocol 'LL'): puts ignore the halves; "
                          "set it false")  # fmt: skip
        elif not self.plan.packets:
            self.out.remark("use_double_scratch_buffer: it doubles scratch, which nothing needs")
        return False

    # --- the head ---------------------------------------------------------------------------------

    def read_head(self) -> None:
        """What stands before the ranks."""
        top, out, plan, entry = self.top, self.out, self.plan, self.entry
        entry.text("name")
        entry.flag("inplace")
        for key in ("reuse_resources", "use_double_scratch_buffer"):
            if key in top:
                entry.flag(key)
        plan.double = top.get("use_double_scratch_buffer") is True
        plan.reuse = top.get("reuse_resources") is True
        self.read_word()
        if plan.reuse:
            out.add("MPP-REUSE", "reuse_resources is true")
            out.lack("reuse_resources (a scratch buffer of fixed size, shared between plans) is "
                     "not supported; set it false")  # fmt: skip
        protocol = entry.text("protocol")
        plan.packets = protocol == "LL"
        if protocol not in (None, "Simple", "LL"):
            out.add("MPP-PROTOCOL", f"protocol is {protocol[:40]!r}")
        alignment, threads = (entry.optional(key, usual) for key, usual in _SETTINGS)
        if alignment < 1 or alignment % ALIGNMENT:
            note = out.add if 1 <= alignment <= 2**20 else out.refuse
            note("MPP-ALIGNMENT", f"buffer_alignment is {alignment}")
            alignment = ALIGNMENT
        plan.alignment = alignment
        if not 32 <= threads <= 1024 or threads % 32:
            note = out.add if 1 <= threads <= 2**20 else out.refuse
            note("MPP-THREADS", f"num_threads_per_block is {threads}")
        self.remark()

    def read_word(self) -> None:
        """The word for the collective, as current runtimes spell it."""
        out, told = self.out, self.told
        word = self.entry.text("collective") or ""
        if word and word not in BY_PLAN_WORD and word not in OTHER_COLLECTIVES:
            said = OLD_WORDS.get(word)
            hint = f"; the runtime says {said!r}" if said else did_you_mean(word[:40], BY_PLAN_WORD)
            note = out.add if said or told else out.refuse
            note("MPP-COLLECTIVE", f"collective is {word[:40]!r}{hint}")
        elif word in OTHER_COLLECTIVES and told is None:
            out.other(word, f"collective {word!r} is not supported; the collectives are "
                      f"{', '.join(BY_PLAN_WORD)}")  # fmt: skip
        self.plan.word = told.definition.plan_word if told else OLD_WORDS.get(word, word)

    def remark(self) -> None:
        """What is worth knowing although nothing is wrong."""
        plan, out = self.plan, self.out
        collective = BY_PLAN_WORD.get(plan.word)
        if collective is None:
            return
        if plan.packets:
            out.add("MPP-PACKET-COUNT", "protocol is LL")
        if collective.reduces:
            out.add("MPP-SUM", f"{plan.word} adds up")
        if collective.has_root:
            out.add("MPP-ROOT-IGNORED", f"a {plan.word} with any root would use this plan")
        if not collective.definition.hooked:
            out.add("MPP-UNHOOKED", f"{plan.word}")

    def read_own(self, n: int) -> None:
        """What only this package reads: of the types that it writes."""
        own, out = self.top.get("forestcoll"), self.out
        if "forestcoll" not in self.top:
            return
        if not isinstance(own, dict):
            out.refuse("RUN-REFUSED", f"forestcoll is {kind(own)}; it must be an object")
            return
        for key, wanted in _OWN.items():
            if key in own and type(own[key]) is not wanted:
                out.refuse("RUN-REFUSED", f"forestcoll, {key} is {kind(own[key])}")
        names, root, most = own.get("names"), own.get("root"), own.get("max_bytes", 0)
        if isinstance(names, list) and len(names) != n:
            out.refuse("RUN-REFUSED", f"forestcoll, names: {len(names)} names for {n} ranks")
        elif isinstance(names, list) and not all(isinstance(name, str) for name in names):
            out.refuse("RUN-REFUSED", "forestcoll, names: a name is a string")
        rooted = BY_PLAN_WORD.get(self.plan.word, Collective.ALLREDUCE).has_root
        if rooted and type(root) is int and not 0 <= root < n:
            words = f"forestcoll, root {root} is out of range; it must lie between 0 and {n - 1}"
            out.refuse("RUN-REFUSED", words)
        if type(most) is int and not 0 <= most <= MAX_BYTES:
            out.refuse("RUN-REFUSED", f"forestcoll, max_bytes {most} is out of range")
        self.own = own

    def read_places(self) -> tuple[bool, bool]:
        """Whether the plan is for calls in place, and out of place."""
        plan, own = self.top["inplace"], self.own
        if "in_place" not in own:
            return plan, not plan
        flags = own["in_place"], own.get("out_of_place", False)
        if "out_of_place" not in own:
            self.out.refuse("RUN-REFUSED", "forestcoll has no 'out_of_place'")
        elif not flags[0 if plan else 1]:
            words = f"forestcoll contradicts the plan's inplace: {str(plan).lower()}"
            self.out.refuse("RUN-REFUSED", words)
        return flags

    def read_sizes(self) -> tuple[int, int]:
        """The smallest and the largest size that the plan is for."""
        out = self.out
        low = self.entry.optional("min_message_size", 0)
        high = self.entry.optional("max_message_size", NO_LIMIT)
        if not 0 <= low < 2**31:
            note = out.add if 0 <= low <= MAX_BYTES else out.refuse
            note("MPP-MIN-SIZE", f"min_message_size is {low}")
        if high < 0 or high < low:
            words = f"min_message_size {low} is above max_message_size {high}"
            out.refuse("MPP-SIZE-RANGE", words)
        elif not 1 <= high <= NO_LIMIT:
            words = f"max_message_size {high} serves no size; leave it out for no limit"
            out.refuse("MPP-SIZE-RANGE", words)
        return low, high

    def check_sizes(self, low: int, high: int) -> None:
        """Whether any size is served, and whether all that are served are right."""
        plan, out = self.plan, self.out
        halves = (2 if plan.packets else 1) * (2 if plan.double else 1)
        counts = [
            n * (halves if k == "s" else 1) for rank in plan.ranks for k, n in rank.chunks.items()
        ]
        total = max((rank.chunks.get(k, 0) for rank in plan.ranks for k in ("i", "o")), default=0)
        if not total or high < low or high < 1:
            return
        step = total * plan.alignment
        # The loader compares the input's size, but for allgather the output's; both are `total`
        # chunks for every collective but reduce-scatter in other words: nccl-tests' size.
        if high // step * step < max(low, step):
            out.add("MPP-SIZE-RANGE", f"no multiple of {step} bytes lies in {low} to {high}")
        sizes = Sizes("onesided", 1, total, plan.alignment)
        out.add("MPP-SIZES", f"it serves {sizes.words()}")
        chunk = (2**32 - 1) // max(counts)
        for rounds, unit in plan.pipelines:
            chunk = min(chunk, (2**16 - 1) * unit // rounds)
        largest = chunk // plan.alignment * plan.alignment * total
        if high // step * step > largest:  # the largest size that it serves
            stated = "max_message_size" in self.top and high != NO_LIMIT
            limit = f"max_message_size is {high}" if stated else "no limit is set"
            out.add("MPP-4GIB" if stated else "MPP-NO-MAX", f"right up to {largest} bytes, but "
                    f"{limit}")  # fmt: skip

    # --- ranks ------------------------------------------------------------------------------------

    def read_rank(self, r: int, gpu: Entry, n: int) -> Rank:
        """A rank's sizes and lists."""
        out, at, rank = self.out, gpu.at, Rank()
        number = gpu.integer("id")
        if number is not None and number != r:
            out.refuse("MPP-RANKS", f"gpus[{r}] has id {number}", **at)
        for key, least in (("input_chunks", 1), ("output_chunks", 1), ("scratch_chunks", 0)):
            count = gpu.integer(key)
            if count is None:
                continue
            if count < least or count >= 2**31:
                rule = "MPP-CHUNKS-ZERO" if least and count < 1 else "MPP-CHUNKS"
                out.refuse(rule, f"{key} is {count}", **at)
                continue
            if count > CHUNKS:
                out.refuse("RUN-REFUSED", f"{key} is {count}; at most {CHUNKS} {CHUNKS.note}", **at)
            rank.chunks[key[0]] = count
        self.read_channels(r, gpu, n, rank)
        self.read_remotes(r, gpu, n, rank)
        for k, entry in enumerate(gpu.entries("semaphores") if "semaphores" in gpu else ()):
            value = entry.integer("init_value")
            if value is not None and not 0 <= value < 2**31:
                note = out.add if -(2**31) <= value < 2**31 else out.refuse
                note("MPP-SEMAPHORE-INIT", f"semaphore {k} starts at {value}", **at)
            rank.semaphores.append(value or 0)
        return rank

    def read_channels(self, r: int, gpu: Entry, n: int, rank: Rank) -> None:
        """The rank's channels in order, by type; the k-th to one peer has number k."""
        out, at = self.out, gpu.at
        seen: dict[tuple[str, int], int] = {}
        for entry in gpu.entries("channels"):
            where, word = entry.where, entry.text("channel_type")
            if word not in KINDS:
                if word is not None:
                    out.refuse("MPP-CHANNEL-TYPE", f"{where} is of type {word[:40]!r}", **at)
                rank.broken = True
            elif word == "switch":
                self.read_switch(r, entry, n, rank)
            else:
                for peer in entry.integers("connected_to"):
                    if not 0 <= peer < n or peer == r:
                        note = out.fault if peer == r else out.refuse
                        note("MPP-PEER", f"{where} leads to rank {peer}", **at)
                    index = seen.get((word, peer), 0)
                    if index > MAX_INDEX:
                        words = f"more than {MAX_INDEX + 1} {word} channels to rank {peer}"
                        out.refuse("RUN-REFUSED", words, **at)
                    seen[word, peer] = index + 1
                    over = cast("Literal['memory', 'port']", word)
                    rank.channels[word].append(Channel(peer, over, index))

    def read_switch(self, r: int, entry: Entry, n: int, rank: Rank) -> None:
        """Switch channels, one a group; ranks may list a group in any order."""
        out, at, where = self.out, entry.at, entry.where
        letter = entry.text("buffer_type")
        if letter is not None and letter not in BUFFERS:
            out.refuse("MPP-BUFFER-TYPE", f"{where} is on buffer {letter[:40]!r}", **at)
        for values in entry.objects("rank_groups"):
            group = Entry(values, where, at, out)
            ranks, size = group.integers("ranks"), group.integer("size")
            far = any(not 0 <= x < n for x in ranks)
            if far or r not in ranks or len(set(ranks)) < max(len(ranks), 2):
                note = out.refuse if far else out.fault
                note("MPP-SWITCH-GROUP", f"{where} joins ranks {ranks[:16]}", **at)
            if size is not None and size < 1:
                out.add("MPP-SWITCH-GROUP", f"{where} covers {size} chunks", **at)
            rank.switches.append((letter or "", tuple(sorted(set(ranks)))))

    def read_remotes(self, r: int, gpu: Entry, n: int, rank: Rank) -> None:
        """The buffers of others that the rank reaches."""
        out, at = self.out, gpu.at
        for entry in gpu.entries("remote_buffers"):
            where, peer, letter = entry.where, entry.integer("rank"), entry.text("type")
            if peer is not None and (not 0 <= peer < n or peer == r):
                note = out.fault if peer == r else out.refuse
                note("MPP-PEER", f"{where} lies at rank {peer}", **at)
                peer = None
            if letter is not None and letter not in BUFFERS:
                out.refuse("MPP-BUFFER-TYPE", f"{where} is of type {letter[:40]!r}", **at)
                letter = None
            words = entry.values.get("access_channel_types")
            if not isinstance(words, list):
                rule = "MPP-TYPE" if "access_channel_types" in entry else "MPP-MISSING"
                out.refuse(rule, f"{where} has no list access_channel_types", **at)
                words = []
            for word in words:
                if word not in KINDS[:2]:
                    note = out.add if word in ("switch", "none") else out.refuse
                    note("MPP-CHANNEL-TYPE", f"{where} is accessed by {str(word)[:40]!r}", **at)
            kinds = frozenset(word for word in words if isinstance(word, str))
            rank.remotes.append((peer, letter, kinds))

    # --- all ranks together -----------------------------------------------------------------------

    def check_chunks(self) -> None:
        """Chunk counts: alike at all ranks, and as the collective has them."""
        plan, out = self.plan, self.out
        collective = BY_PLAN_WORD.get(plan.word)
        first: tuple[int, int] | None = None
        for r, rank in enumerate(plan.ranks):
            if "i" not in rank.chunks or "o" not in rank.chunks:
                continue
            shape = rank.chunks["i"], rank.chunks["o"]
            first = first or shape
            if shape != first:
                out.fault("MPP-CHUNKS", f"{shape[0]} input and {shape[1]} output chunks; other "
                          f"ranks have {first[0]} and {first[1]}", rank=r)  # fmt: skip
            elif collective is not None:
                try:
                    fine = collective.chunks(len(plan.ranks), max(shape)) == shape
                except PlanError:
                    fine = False
                if not fine:
                    out.fault("MPP-CHUNKS", f"{shape[0]} input and {shape[1]} output chunks do not "
                              f"make a {plan.word} over {len(plan.ranks)} ranks",
                              rank=r)  # fmt: skip

    def check_pairs(self) -> None:
        """As many channels of a type lead from i to j as from j to i."""
        n = len(self.plan.ranks)
        counts: dict[tuple[str, int, int], int] = {}
        for r, rank in enumerate(self.plan.ranks):
            for word in ("memory", "port"):
                for channel in rank.channels[word]:
                    key = word, r, channel.peer
                    counts[key] = counts.get(key, 0) + 1
        for (word, r, peer), count in sorted(counts.items()):
            back = counts.get((word, peer, r), 0)
            if count > back and 0 <= peer < n:
                self.out.add("MPP-IDLE-CHANNEL", f"{count} {word} channels lead to rank {peer}, "
                             f"but {back} back", rank=r)  # fmt: skip

    def check_switches(self) -> None:
        """Ranks set their switch channels up one after the other, each with the whole group."""
        lists = [rank.switches for rank in self.plan.ranks]
        for r, own in enumerate(lists):
            peers = sorted({p for _, group in own for p in group if r < p < len(lists)})
            for peer in peers:
                if lists[peer] == own:
                    continue
                mine = [one for one in own if peer in one[1]]
                other = [one for one in lists[peer] if r in one[1]]
                for k, (one, two) in enumerate(zip_longest(mine, other)):
                    if one != two:
                        self.out.add("MPP-SWITCH-ORDER", f"switch channel {k} of those with rank "
                                     f"{peer} is {_switch(one)} here, {_switch(two)} there",
                                     rank=r)  # fmt: skip
                        break

    def check_scratch(self) -> None:
        """Remote scratch that the runtime has its owner register is there."""
        for r, rank in enumerate(self.plan.ranks):
            for k, (peer, letter, _) in enumerate(rank.remotes):
                if (
                    peer is not None
                    and letter == "s"
                    and not self.plan.ranks[peer].chunks.get("s", 1)
                ):
                    self.out.add("MPP-REMOTE-EMPTY", f"remote_buffers[{k}] is scratch of rank "
                                 f"{peer}, which has none", rank=r)  # fmt: skip

    def check_nodes(self) -> None:
        """Where the ranks' names say which node holds them: may they be there, with their ports.

        What is wrong with the names themselves, which the runtime does not read, `read_own` says.
        """
        out, plan = self.out, self.plan
        names, machine = self.own.get("names"), self.own.get("name")
        n = len(plan.ranks)
        if (
            not isinstance(names, list)
            or len(names) != n
            or not all(isinstance(x, str) for x in names)
        ):
            return
        spread = places(names, n)
        of = [place.node for place in spread.places]
        far = set()
        for r, rank in enumerate(plan.ranks):
            peers = {word: {c.peer for c in channels} for word, channels in rank.channels.items()}
            if any(0 <= p < n and of[p] != of[r] for p in peers["port"]):
                far.add(r)
            reached = {p for p, _, kinds in rank.remotes if p is not None and "memory" in kinds}
            reached.update(peers["memory"], *(group for _, group in rank.switches))
            for peer in sorted(reached):
                if 0 <= peer < n and of[peer] != of[r]:
                    ends = f"{names[r][:40]} to {names[peer][:40]}"
                    out.add("MPP-MEMORY-FAR", f"to rank {peer} ({ends})", rank=r)
        machine = machine if isinstance(machine, str) else ""
        fault = group_fault(self.target, names, far, machine)
        if fault is not None:
            out.add(fault[0], fault[1], rank=fault[2])
        elif far:
            host = min(host_of(machine) or spread.per_node, spread.per_node)
            most = 1 + max(r % host for r in far)
            out.add("MPP-HCA", f"ports of {most} ranks a node lead to others")

    # --- thread blocks ----------------------------------------------------------------------------

    def read_blocks(self, r: int, gpu: Entry, ops: OpReader) -> tuple[ThreadBlock, ...]:
        """The rank's thread blocks, as far as they can be held."""
        out, at, entries = self.out, gpu.at, gpu.entries("threadblocks")
        if "threadblocks" in gpu and not entries:
            out.add("MPP-TB-NONE", "it has no thread block", **at)
        if len(entries) > BLOCKS:
            words = f"{len(entries)} thread blocks {BLOCKS.note}"
            out.refuse("RUN-REFUSED", words, **at)
        if self.sms is not None and len(entries) > self.sms:
            out.add("MPP-TB-SMS", f"{len(entries)} thread blocks; the GPU is taken to have "
                    f"{self.sms} SMs", **at)  # fmt: skip
        blocks = []
        for b, entry in enumerate(entries):
            entry.at = {"rank": r, "block": b}
            number = entry.integer("id")
            if number is not None and number != b:
                out.refuse("MPP-TB-ID", f"{entry.where} has id {number}", **entry.at)
            block = self.read_lists(entry, self.plan.ranks[r])
            steps = ops.read(r, b, entry, block)
            switches = [
                self.plan.ranks[r].switches[k] for k in block.own["switch"] if k is not None
            ]
            if out.held:
                ways = tuple(Switch(ranks, Buffer(letter)) for letter, ranks in switches)
                blocks.append(ThreadBlock(steps, channels=tuple(block.channels), switches=ways))
        return tuple(blocks)

    def read_lists(self, entry: Entry, rank: Rank) -> Block:
        """The lists of a thread block that its operations count in."""
        out, at, block = self.out, entry.at, Block()
        for item in entry.entries("channels"):
            where, word = item.where, item.text("channel_type")
            if word is not None and word not in KINDS:
                note = out.add if word == "none" else out.refuse
                note("MPP-CHANNEL-TYPE", f"{where} is of type {word[:40]!r}", **at)
            if word is None or word not in KINDS:
                block.broken = True
                continue
            letter = item.text("buff") if "buff" in item else None
            if letter is not None and letter not in BUFFERS:
                out.add("MPP-BUFFER-TYPE", f"{where} is on buffer {letter[:40]!r}", **at)
            self.read_numbers(item, word, rank, block)
        for word, ids in block.ids.items():
            if len(ids) > self.target.channels:
                out.add("MPP-TB-CHANNELS", f"{len(ids)} {word} channels", **at)
            numbers = [i for i, own in zip(ids, block.own[word], strict=True) if own is not None]
            if len(set(numbers)) < len(numbers):
                twice = next(i for i in numbers if numbers.count(i) > 1)
                out.add("MPP-CHANNEL-TWICE", f"{word} channel {twice} stands twice", **at)
        if "remote_buffer_refs" in entry:
            self.read_refs(entry, rank, block)
        return block

    def read_numbers(self, item: Entry, word: str, rank: Rank, block: Block) -> None:
        """Channels of a type that the thread block names."""
        channels: list[Any] = rank.switches if word == "switch" else rank.channels[word]
        for number in item.integers("channel_ids"):
            block.ids[word].append(number)
            if not 0 <= number < len(channels):
                if not rank.broken:
                    words = f"{word} channel {number}; the rank has {len(channels)}"
                    self.out.refuse("MPP-TB-CHANNEL-ID", words, **item.at)
                block.own[word].append(None)
            elif word == "switch":
                block.own[word].append(number)
            else:
                block.own[word].append(len(block.channels))
                block.channels.append(channels[number])

    def read_refs(self, entry: Entry, rank: Rank, block: Block) -> None:
        """The remote buffers that the thread block names."""
        out, at = self.out, entry.at
        for item in Entry(entry.values, "the thread block", at, out).entries("remote_buffer_refs"):
            where, word = item.where, item.text("access_channel_type")
            if word is None or word not in KINDS[:2]:
                if word is not None:
                    note = out.add if word in ("switch", "none") else out.refuse
                    note("MPP-CHANNEL-TYPE", f"{where} is accessed by {word[:40]!r}", **at)
                block.broken = True
                continue
            for number in item.integers("remote_buffer_ids"):
                if not 0 <= number < len(rank.remotes):
                    out.refuse("MPP-REMOTE-ID", f"{where} names remote buffer {number}; the rank "
                               f"has {len(rank.remotes)}", **at)  # fmt: skip
                    block.remotes[word].append((None, None))
                    continue
                peer, letter, kinds = rank.remotes[number]
                if word not in kinds:
                    out.refuse("MPP-REMOTE-ACCESS", f"{where} names remote buffer {number}, which "
                               f"is not accessed by {word}", **at)  # fmt: skip
                block.remotes[word].append((peer, letter))
        for word, refs in block.remotes.items():
            if len(refs) > MAX_REMOTE:
                out.add("MPP-TB-REMOTES", f"{len(refs)} remote buffers by {word}", **at)


def _switch(switch: tuple[str, tuple[int, ...]] | None) -> str:
    if switch is None:
        return "none"
    ranks = switch[1]
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"buffer {switch[0]!r} of ranks {shown}"


def _reaches_scratch(rank: RankProgram) -> bool:
    """Whether an operation of the rank reads or writes another's scratch, or a switch's."""
    return any(
        ref.buffer is Buffer.SCRATCH and (ref.rank is not None or i.switches)
        for block in rank.thread_blocks
        for step in block.steps
        for i in body_of(step)
        for ref in (*i.src, *i.dst)
    )
