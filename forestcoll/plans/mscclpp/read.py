"""From an MSCCL++ execution plan to the Program that the runtime runs, with all that is wrong.

`read` is the one reading, for `loads` and for the linter: the head, the ranks' lists, their thread
blocks (ops.py reads what is in them), and whether all of it fits together. The loader takes numbers
as indices without a look: here every one is checked (microsoft/mscclpp, execution_plan.cc).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from forestcoll.common.errors import PlanError
from forestcoll.common.input_limits import BLOCKS, CHUNKS, RANKS
from forestcoll.plans.findings import Findings, FirstError
from forestcoll.plans.mscclpp.ops import Block, OpReader, Plan, Rank, Remote
from forestcoll.plans.mscclpp.shapes import ACCESS, KINDS, NO_LIMIT, OWN, PLAN, Object, Own, parse
from forestcoll.plans.mscclpp.write import (
    ALIGNMENT,
    MAX_INDEX,
    MAX_REMOTE,
    check_halves,
    largest_size,
)
from forestcoll.plans.rules import (
    MAX_BYTES,
    OTHER_COLLECTIVES,
    admit,
    group_fault,
    read_word,
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

_SETTINGS = ("buffer_alignment", "num_threads_per_block")


def loads(text: str, source: str) -> Program:
    """The Program in an execution plan's text; `source` names it in errors.

    Reads plans of the MSCCL++ DSL too. `Program.extra["notes"]` says, a line each, what the runtime
    does differently from what the plan says. UnsupportedError for reused resources, packets through
    switches, and two halves of scratch without packets; PlanError for what is wrong.
    """
    out = FirstError(source)
    reader = _Reader(MSCCLPP, out, MSCCLPP.thread_blocks, None)
    program = admit(reader.read(text), out)
    try:
        check_halves(program)
    except PlanError as error:
        out.remark(f"the runtime cannot run it: {error}")
    # The format has no way to say "no limit"; all that the device can count means just that,
    # unless the file adds that the number is meant.
    limited = program.max_bytes < largest_size(program)
    if not limited and reader.own.get("max_bytes") != program.max_bytes:
        counts = check(program)
        check.keep(program := replace(program, max_bytes=0), counts)
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
        self.top = Object({}, "the plan", {}, out, PLAN)
        self.own: Object = Own({}, "forestcoll", {}, out, OWN["forestcoll"].of)

    def read(self, text: str) -> Program | None:
        """All of the file."""
        top = parse(text, self.out)
        if top is None:
            return None
        if "gpus" not in top:
            words, rule = "no 'gpus', so it is no MSCCL++ plan", "MPP-MISSING"
            for key, kind in (("trees", "forest"), ("routes", "routes")):
                if key in top:
                    words, rule = f"{words}; this looks like a {kind} file", "MPP-SOURCE"
            self.out.refuse(rule, words)
            return None
        self.top.values = top
        self.read_head()
        gpus, plan = self.top.entries("gpus"), self.plan
        if isinstance(top["gpus"], list) and not 1 <= len(gpus) <= RANKS:
            words = f"gpus lists {len(gpus)} ranks, not 1 to {RANKS} {RANKS.note}"
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
        low, high = self.top.get("min_message_size"), self.top.get("max_message_size")
        if low is not None and high is not None:
            self.check_sizes(low, high)
        return self.make(blocks, low or 0, high or 0)

    def make(self, blocks: list[tuple[ThreadBlock, ...]], low: int, high: int) -> Program | None:
        """The Program of what was read, or None where none holds it."""
        plan, top, out = self.plan, self.top, self.out
        collective = BY_PLAN_WORD.get(plan.word, Collective.ALLREDUCE)
        root = -1
        if collective.has_root:
            root = self.own.get("root") if "root" in self.own else out.missing_root("the plan")
        if not out.held:
            return None
        ranks = tuple(
            RankProgram(own, rank.chunks["i"], rank.chunks["o"], rank.chunks["s"],
                        tuple(rank.semaphores))
            for own, rank in zip(blocks, plan.ranks, strict=True)
        )  # fmt: skip
        packets = plan.packets and any(
            i.op in PACKETS
            for rank in ranks for block in rank.thread_blocks for _, i in block.instructions()
        )  # fmt: skip
        if plan.packets and not packets:
            out.remark("protocol 'LL' without packets: the runtime does the same as for 'Simple'")
        double = self.halve(ranks, packets)
        flags = self.read_places()
        if not out.held:
            return None
        own_name = self.own.get("name")
        return Program(
            name=top.values["name"] if own_name is None else own_name,
            collective=collective,
            style="onesided",
            ranks=ranks,
            in_place=flags[0],
            out_of_place=flags[1],
            root=root,
            names=tuple(self.own.get("names")),
            min_bytes=low,
            max_bytes=min(high, MAX_BYTES),
            protocol="LL" if packets else "Simple",
            double_scratch=double,
            extra={key: str(top.get(key)) for key in _SETTINGS}
            | {"format": "mscclpp-json"}
            | ({"sums": self.own.get("sums")} if "sums" in self.own else {}),
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
        top, out, plan = self.top, self.out, self.plan
        for key in ("name", "inplace", "num_threads_per_block"):
            top.get(key)
        plan.double = top.get("use_double_scratch_buffer")
        plan.reuse = top.get("reuse_resources")
        known = {*BY_PLAN_WORD, *OTHER_COLLECTIVES}
        plan.word = read_word(top, "collective", "MPP-COLLECTIVE", known, self.told)
        if plan.reuse:
            out.add("MPP-REUSE", "reuse_resources is true")
            out.lack("reuse_resources (a scratch buffer of fixed size, shared between plans) is "
                     "not supported; set it false")  # fmt: skip
        plan.packets = top.get("protocol") == "LL"
        alignment = top.get("buffer_alignment") or ALIGNMENT
        plan.alignment = ALIGNMENT if alignment % ALIGNMENT else alignment
        self.remark()

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
        own = Own(self.top.values, "the plan", {}, self.out, OWN).child("forestcoll")
        if own is None:
            return
        self.own = own
        names, root = own.get("names"), own.get("root")
        if "names" in own and len(names) != n:
            own.refuse("RUN-REFUSED", f"{own.where} has {len(names)} names for {n} ranks")
        rooted = BY_PLAN_WORD.get(self.plan.word, Collective.ALLREDUCE).has_root
        if rooted and root is not None and not 0 <= root < n:
            words = f"{own.where} has root {root}; it must lie between 0 and {n - 1}"
            own.refuse("RUN-REFUSED", words)
        own.get("max_bytes")

    def read_places(self) -> tuple[bool, bool]:
        """Whether the plan is for calls in place, and out of place."""
        plan, own = self.top.values["inplace"], self.own
        inside = own.get("in_place")
        if inside is None:
            return plan, not plan
        flags = inside, own.get("out_of_place")
        if not flags[0 if plan else 1]:
            words = f"{own.where} contradicts the plan's inplace: {str(plan).lower()}"
            own.refuse("RUN-REFUSED", words)
        return flags

    def check_sizes(self, low: int, high: int) -> None:
        """Whether any size is served, and whether all that are served are right."""
        plan, out = self.plan, self.out
        if high < low:
            words = f"min_message_size {low} is above max_message_size {high}"
            out.refuse("MPP-SIZE-RANGE", words)
        halves = (2 if plan.packets else 1) * (2 if plan.double else 1)
        counts = [
            n * (halves if k == "s" else 1) for rank in plan.ranks for k, n in rank.chunks.items()
        ]
        total = max((rank.chunks.get(k, 0) for rank in plan.ranks for k in ("i", "o")), default=0)
        if not total or high < low:
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

    def read_rank(self, r: int, gpu: Object, n: int) -> Rank:
        """A rank's sizes and lists."""
        rank = Rank()
        check_number(gpu, r, "MPP-RANKS")
        for key in ("input_chunks", "output_chunks", "scratch_chunks"):
            count = gpu.get(key)
            if count is None:
                continue
            if count > CHUNKS:
                gpu.refuse("RUN-REFUSED", f"{key} is {count}; at most {CHUNKS} {CHUNKS.note}")
            rank.chunks[key[0]] = count
        self.read_channels(r, gpu, n, rank)
        self.read_remotes(r, gpu, n, rank)
        rank.semaphores = [one.get("init_value") for one in gpu.entries("semaphores")]
        return rank

    def read_channels(self, r: int, gpu: Object, n: int, rank: Rank) -> None:
        """The rank's channels in order, by type; the k-th to one peer has number k."""
        seen: Counter[tuple[str, int]] = Counter()
        for entry in gpu.entries("channels"):
            word = entry.get("channel_type")
            if word is None:
                rank.broken = True
            elif word == "switch":
                self.read_switch(r, entry, n, rank)
            for peer in entry.get("connected_to") if word in KINDS[:2] else ():
                self.check_peer(entry, "leads to", peer, r, n)
                index = seen[word, peer]
                if index > MAX_INDEX:
                    words = f"more than {MAX_INDEX + 1} {word} channels to rank {peer}"
                    entry.refuse("RUN-REFUSED", words)
                seen[word, peer] += 1
                rank.channels[word].append(Channel(peer, word, index))

    def check_peer(self, entry: Object, how: str, peer: int, r: int, n: int) -> bool:
        """Whether the plan has such another rank."""
        if 0 <= peer < n and peer != r:
            return True
        note = entry.fault if peer == r else entry.refuse
        note("MPP-PEER", f"{entry.where} {how} rank {peer}")
        return False

    def read_switch(self, r: int, entry: Object, n: int, rank: Rank) -> None:
        """Switch channels, one a group; ranks may list a group in any order."""
        letter = entry.get("buffer_type")
        for group in entry.entries("rank_groups"):
            group.where = entry.where
            ranks = group.get("ranks")
            group.get("size")
            far = any(not 0 <= x < n for x in ranks)
            if far or r not in ranks or len(set(ranks)) < max(len(ranks), 2):
                note = entry.refuse if far else entry.fault
                note("MPP-SWITCH-GROUP", f"{entry.where} joins ranks {ranks[:16]}")
            rank.switches.append((letter or "", tuple(sorted(set(ranks)))))

    def read_remotes(self, r: int, gpu: Object, n: int, rank: Rank) -> None:
        """The buffers of others that the rank reaches."""
        for entry in gpu.entries("remote_buffers"):
            peer, letter = entry.get("rank"), entry.get("type")
            if peer is not None and not self.check_peer(entry, "lies at", peer, r, n):
                peer = None
            words = entry.get("access_channel_types")
            for word in words:
                if word not in KINDS[:2]:
                    entry.judge("access_channel_types", ACCESS, word)
            rank.remotes.append((peer, letter, frozenset(words)))

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
        counts = Counter(
            (word, r, channel.peer)
            for r, rank in enumerate(self.plan.ranks)
            for word, channels in rank.channels.items()
            for channel in channels
        )
        for (word, r, peer), count in sorted(counts.items()):
            back = counts[word, peer, r]
            if count > back and 0 <= peer < len(self.plan.ranks):
                words = f"{count} {word} channels lead to rank {peer}, but {back} back"
                self.out.add("MPP-IDLE-CHANNEL", words, rank=r)

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
        names, machine = self.own.get("names"), self.own.get("name") or ""
        n = len(plan.ranks)
        if not names or len(names) != n:
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
        fault = group_fault(self.target, names, far, machine)
        if fault is not None:
            out.add(fault[0], fault[1], rank=fault[2])
        elif far:
            host = min(host_of(machine) or spread.per_node, spread.per_node)
            most = 1 + max(r % host for r in far)
            out.add("MPP-HCA", f"ports of {most} rank{'s' * (most > 1)} a node lead to others")

    # --- thread blocks ----------------------------------------------------------------------------

    def read_blocks(self, r: int, gpu: Object, ops: OpReader) -> tuple[ThreadBlock, ...]:
        """The rank's thread blocks, as far as they can be held."""
        out, rank, entries = self.out, self.plan.ranks[r], gpu.entries("threadblocks")
        if "threadblocks" in gpu and not entries:
            gpu.add("MPP-TB-NONE", "it has no thread block")
        if len(entries) > BLOCKS:
            gpu.refuse("RUN-REFUSED", f"{len(entries)} thread blocks {BLOCKS.note}")
        if self.sms is not None and len(entries) > self.sms:
            words = f"{len(entries)} thread blocks; the GPU is taken to have {self.sms} SMs"
            gpu.add("MPP-TB-SMS", words)
        blocks = []
        for b, entry in enumerate(entries):
            entry.at = {"rank": r, "block": b}
            check_number(entry, b, "MPP-TB-ID")
            block = self.read_lists(entry, rank)
            steps = ops.read(r, entry, block)
            switches = [rank.switches[k] for k in block.own["switch"] if k is not None]
            if out.held:
                ways = tuple(Switch(ranks, Buffer(letter)) for letter, ranks in switches)
                blocks.append(ThreadBlock(steps, channels=tuple(block.channels), switches=ways))
        return tuple(blocks)

    def read_lists(self, entry: Object, rank: Rank) -> Block:
        """The lists of a thread block that its operations count in."""
        block = Block()
        for item in entry.entries("channels"):
            word = item.get("channel_type")
            if word not in KINDS:
                block.broken = True
                continue
            item.get("buff")
            self.read_numbers(item, word, rank, block)
        for word, own in block.own.items():
            if len(own) > self.target.channels:
                entry.add("MPP-TB-CHANNELS", f"{len(own)} {word} channels")
        self.read_refs(entry, rank, block)
        return block

    def read_numbers(self, item: Object, word: str, rank: Rank, block: Block) -> None:
        """Channels of a type that the thread block names."""
        channels: list[Any] = rank.switches if word == "switch" else rank.channels[word]
        for number in item.get("channel_ids"):
            held = block.own["switch"] if word == "switch" else block.channels
            if not 0 <= number < len(channels):
                if not rank.broken:
                    words = f"{word} channel {number}; the rank has {len(channels)}"
                    item.refuse("MPP-TB-CHANNEL-ID", words)
                block.own[word].append(None)
                continue
            if (number if word == "switch" else channels[number]) in held:
                item.add("MPP-CHANNEL-TWICE", f"{word} channel {number} stands twice")
            block.own[word].append(number if word == "switch" else len(block.channels))
            if word != "switch":
                block.channels.append(channels[number])

    def read_refs(self, entry: Object, rank: Rank, block: Block) -> None:
        """The remote buffers that the thread block names."""
        for item in entry.entries("remote_buffer_refs"):
            word = item.get("access_channel_type")
            if word not in KINDS[:2]:
                block.broken = True
                continue
            for number in item.get("remote_buffer_ids"):
                place: Remote = None, None
                words = f"{item.where} names remote buffer {number}"
                if not 0 <= number < len(rank.remotes):
                    item.refuse("MPP-REMOTE-ID", f"{words}; the rank has {len(rank.remotes)}")
                else:
                    peer, letter, kinds = rank.remotes[number]
                    place = peer, letter
                    if word not in kinds:
                        item.refuse(
                            "MPP-REMOTE-ACCESS", f"{words}, which is not accessed by {word}"
                        )
                block.remotes[word].append(place)
        for word, refs in block.remotes.items():
            if len(refs) > MAX_REMOTE:
                entry.add("MPP-TB-REMOTES", f"{len(refs)} remote buffers by {word}")


def check_number(entry: Object, place: int, rule: str) -> None:
    """Whether an object says the place in the list that it has."""
    number = entry.get("id")
    if number not in (None, place):
        entry.refuse(rule, f"{entry.where} has id {number}")


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
        for _, i in block.instructions()
        for ref in (*i.src, *i.dst)
    )
