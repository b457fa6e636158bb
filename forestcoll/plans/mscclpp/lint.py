"""Rules of an MSCCL++ plan but for its operations: head, ranks, channels, thread blocks."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.plans.findings import At, Findings
from forestcoll.plans.mscclpp.ops import lint_operations
from forestcoll.plans.mscclpp.rules import ALIGNMENT, MAX_REMOTE
from forestcoll.plans.mscclpp.text import Access, parse
from forestcoll.plans.mscclpp.values import Block, Plan, Rank
from forestcoll.plans.rules import (
    OLD_WORDS,
    OTHER_COLLECTIVES,
    group_fault,
)
from forestcoll.program import BY_PLAN_WORD, Collective
from forestcoll.program.rank_placement import places
from forestcoll.program.sizes import Sizes
from forestcoll.program.targets import Target, host_of

NO_LIMIT = 2**64 - 1
KINDS = ("memory", "port", "switch")


def lint(text: str, target: Target, sms: int, collective: Collective | None, out: Findings) -> None:
    """Note everything in the file that the loader refuses, misreads or does not survive."""
    top = parse(text, lambda rule, words, line: out.add(rule, words, line=line))
    if top is None:
        return
    if "gpus" not in top:
        hint = "; this looks like a forest file" if "trees" in top else ""
        out.add("MPP-MISSING", f"no 'gpus', so it is no MSCCL++ plan{hint}")
        return
    access = Access(out)
    plan = Plan()
    _read_head(top, collective, plan, access)
    gpus = access.objects(top, "gpus", "the plan", {})
    if not gpus and isinstance(top["gpus"], list):
        out.add("MPP-RANKS", "gpus is empty")
    for r, gpu in enumerate(gpus):
        plan.ranks.append(_read_rank(r, gpu, len(gpus), access))
    _check_chunks(plan, out)
    _check_pairs(plan, out)
    _check_switches(plan, out)
    _check_scratch(plan, out)
    _check_nodes(top, plan, target, out)
    for r, gpu in enumerate(gpus):
        _lint_blocks(r, gpu, plan, target, sms, access)
    _check_sizes(top, plan, access)


def _read_head(
    top: dict[str, Any], collective: Collective | None, plan: Plan, access: Access
) -> None:
    out, where = access.out, "the plan"
    at: At = {}
    access.text(top, "name", where, at)
    access.flag(top, "inplace", where, at)
    for key in ("reuse_resources", "use_double_scratch_buffer"):
        if key in top:
            access.flag(top, key, where, at)
    plan.double = top.get("use_double_scratch_buffer") is True
    plan.reuse = top.get("reuse_resources") is True
    if plan.reuse:
        out.add("MPP-REUSE", "reuse_resources is true")
    word = access.text(top, "collective", where, at) or ""
    known = word in BY_PLAN_WORD or word in OTHER_COLLECTIVES
    if word and not known:
        said = OLD_WORDS.get(word)
        hint = f"; the runtime says {said!r}" if said else did_you_mean(word[:40], BY_PLAN_WORD)
        out.add("MPP-COLLECTIVE", f"collective is {word[:40]!r}{hint}")
    plan.word = collective.definition.plan_word if collective else OLD_WORDS.get(word, word)
    protocol = access.text(top, "protocol", where, at)
    plan.packets = protocol == "LL"
    if protocol not in (None, "Simple", "LL"):
        out.add("MPP-PROTOCOL", f"protocol is {protocol[:40]!r}")
    _check_settings(top, plan, access)
    _remark(plan, out)


def _check_settings(top: dict[str, Any], plan: Plan, access: Access) -> None:
    out, where = access.out, "the plan"
    at: At = {}
    alignment = access.optional(top, "buffer_alignment", ALIGNMENT, where, at)
    if alignment < 1 or alignment % ALIGNMENT:
        out.add("MPP-ALIGNMENT", f"buffer_alignment is {alignment}")
        alignment = ALIGNMENT
    plan.alignment = alignment
    threads = access.optional(top, "num_threads_per_block", 1024, where, at)
    if not 32 <= threads <= 1024 or threads % 32:
        out.add("MPP-THREADS", f"num_threads_per_block is {threads}")


def _remark(plan: Plan, out: Findings) -> None:
    collective = BY_PLAN_WORD.get(plan.word)
    if collective is None:
        return
    if plan.packets:
        out.add("MPP-PACKET-COUNT", "protocol is LL")
    if collective.reduces:
        out.add("MPP-SUM", f"{plan.word} adds up")
    if collective.rooted:
        out.add("MPP-ROOT-IGNORED", f"a {plan.word} with any root would use this plan")
    if not collective.definition.hooked:
        out.add("MPP-UNHOOKED", f"{plan.word}")


def _check_chunks(plan: Plan, out: Findings) -> None:
    """Chunk counts: alike at all ranks, and as the collective has them."""
    collective = BY_PLAN_WORD.get(plan.word)
    first: tuple[int, int] | None = None
    for r, rank in enumerate(plan.ranks):
        if "i" not in rank.chunks or "o" not in rank.chunks:
            continue
        shape = rank.chunks["i"], rank.chunks["o"]
        first = first or shape
        if shape != first:
            out.add("MPP-CHUNKS", f"{shape[0]} input and {shape[1]} output chunks; other ranks "
                    f"have {first[0]} and {first[1]}", rank=r)  # fmt: skip
        elif collective is not None:
            try:
                fine = collective.chunks(len(plan.ranks), max(shape)) == shape
            except PlanError:
                fine = False
            if not fine:
                out.add("MPP-CHUNKS", f"{shape[0]} input and {shape[1]} output chunks do not make "
                        f"a {plan.word} over {len(plan.ranks)} ranks", rank=r)  # fmt: skip


def _check_sizes(top: dict[str, Any], plan: Plan, access: Access) -> None:
    """Whether any size is served, and whether all that are served are right."""
    out = access.out
    at: At = {}
    low = access.optional(top, "min_message_size", 0, "the plan", at)
    high = access.optional(top, "max_message_size", NO_LIMIT, "the plan", at)
    if not 0 <= low < 2**31:
        out.add("MPP-MIN-SIZE", f"min_message_size is {low}")
    if high < 0 or high < low:
        out.add("MPP-SIZE-RANGE", f"min_message_size {low} is above max_message_size {high}")
        return
    halves = (2 if plan.packets else 1) * (2 if plan.double else 1)
    counts = [
        n * (halves if k == "s" else 1) for rank in plan.ranks for k, n in rank.chunks.items()
    ]
    total = max((rank.chunks.get(k, 0) for rank in plan.ranks for k in ("i", "o")), default=0)
    if not total or not plan.ranks:
        return
    step = total * plan.alignment
    # The loader compares the input's size, but for allgather the output's; both are `total` chunks
    # for every collective but reduce-scatter in other words: nccl-tests' size.
    if high // step * step < max(low, step):
        out.add("MPP-SIZE-RANGE", f"no multiple of {step} bytes lies in {low} to {high}")
    sizes = Sizes("onesided", 1, total, plan.alignment)
    out.add("MPP-SIZES", f"it serves {sizes.words()}")
    chunk = (2**32 - 1) // max(counts)
    for rounds, unit in plan.pipelines:
        chunk = min(chunk, (2**16 - 1) * unit // rounds)
    largest = chunk // plan.alignment * plan.alignment * total
    if high // step * step > largest:  # the largest size that it serves
        given = "max_message_size" in top and high != NO_LIMIT
        out.add("MPP-4GIB" if given else "MPP-NO-MAX", f"right up to {largest} bytes, but "
                f"{f'max_message_size is {high}' if given else 'no limit is set'}")  # fmt: skip


# --- ranks ----------------------------------------------------------------------------------------


def _read_rank(r: int, gpu: dict[str, Any], n: int, access: Access) -> Rank:
    out, where = access.out, f"gpus[{r}]"
    at: At = {"rank": r}
    rank = Rank()
    number = access.integer(gpu, "id", where, at)
    if number is not None and number != r:
        out.add("MPP-RANKS", f"gpus[{r}] has id {number}", rank=r)
    for key, letter, least in (
        ("input_chunks", "i", 1),
        ("output_chunks", "o", 1),
        ("scratch_chunks", "s", 0),
    ):
        count = access.integer(gpu, key, where, at)
        if count is None:
            continue
        if count < least or count >= 2**31:
            rule = "MPP-CHUNKS-ZERO" if least and count < 1 else "MPP-CHUNKS"
            out.add(rule, f"{key} is {count}", rank=r)
        else:
            rank.chunks[letter] = count
    _read_channels(r, gpu, n, rank, access)
    _read_remotes(r, gpu, n, rank, access)
    if "semaphores" in gpu:
        for k, entry in enumerate(access.objects(gpu, "semaphores", where, at)):
            value = access.integer(entry, "init_value", f"semaphores[{k}]", at)
            if value is not None and not 0 <= value < 2**31:
                out.add("MPP-SEMAPHORE-INIT", f"semaphore {k} starts at {value}", rank=r)
            rank.semaphores += 1
    return rank


def _read_channels(r: int, gpu: dict[str, Any], n: int, rank: Rank, access: Access) -> None:
    out = access.out
    at: At = {"rank": r}
    for k, entry in enumerate(access.objects(gpu, "channels", f"gpus[{r}]", at)):
        where = f"channels[{k}]"
        word = access.text(entry, "channel_type", where, at)
        if word not in KINDS:
            if word is not None:
                out.add("MPP-CHANNEL-TYPE", f"{where} is of type {word[:40]!r}", rank=r)
            rank.broken = True
        elif word == "switch":
            _read_switch(r, entry, where, n, rank, access)
        else:
            for peer in access.integers(entry, "connected_to", where, at):
                if not 0 <= peer < n or peer == r:
                    out.add("MPP-PEER", f"{where} leads to rank {peer}", rank=r)
                rank.channels[word].append(peer)


def _read_switch(
    r: int, entry: dict[str, Any], where: str, n: int, rank: Rank, access: Access
) -> None:
    out = access.out
    at: At = {"rank": r}
    letter = access.text(entry, "buffer_type", where, at)
    if letter is not None and letter not in ("i", "o", "s"):
        out.add("MPP-BUFFER-TYPE", f"{where} is on buffer {letter[:40]!r}", rank=r)
    for group in access.objects(entry, "rank_groups", where, at):
        ranks = access.integers(group, "ranks", where, at)
        size = access.integer(group, "size", where, at)
        wrong = [x for x in ranks if not 0 <= x < n]
        if wrong or r not in ranks or len(set(ranks)) < max(len(ranks), 2):
            out.add("MPP-SWITCH-GROUP", f"{where} joins ranks {ranks[:16]}", rank=r)
        if size is not None and size < 1:
            out.add("MPP-SWITCH-GROUP", f"{where} covers {size} chunks", rank=r)
        rank.switches.append((letter or "", frozenset(ranks)))


def _read_remotes(r: int, gpu: dict[str, Any], n: int, rank: Rank, access: Access) -> None:
    out = access.out
    at: At = {"rank": r}
    for k, entry in enumerate(access.objects(gpu, "remote_buffers", f"gpus[{r}]", at)):
        where = f"remote_buffers[{k}]"
        peer = access.integer(entry, "rank", where, at)
        letter = access.text(entry, "type", where, at)
        if peer is not None and (not 0 <= peer < n or peer == r):
            out.add("MPP-PEER", f"{where} lies at rank {peer}", rank=r)
            peer = None
        if letter is not None and letter not in ("i", "o", "s"):
            out.add("MPP-BUFFER-TYPE", f"{where} is of type {letter[:40]!r}", rank=r)
            letter = None
        words = entry.get("access_channel_types")
        if not isinstance(words, list):
            rule = "MPP-TYPE" if "access_channel_types" in entry else "MPP-MISSING"
            out.add(rule, f"{where} has no list access_channel_types", rank=r)
            words = []
        for word in words:
            if word not in KINDS[:2]:
                out.add("MPP-CHANNEL-TYPE", f"{where} is accessed by {str(word)[:40]!r}", rank=r)
        kinds = frozenset(word for word in words if isinstance(word, str))
        rank.remotes.append((peer, letter, kinds))


def _check_pairs(plan: Plan, out: Findings) -> None:
    """As many channels of a type lead from i to j as from j to i."""
    n = len(plan.ranks)
    counts: dict[tuple[str, int, int], int] = {}
    for r, rank in enumerate(plan.ranks):
        for word in ("memory", "port"):
            for peer in rank.channels[word]:
                counts[word, r, peer] = counts.get((word, r, peer), 0) + 1
    for (word, r, peer), count in sorted(counts.items()):
        back = counts.get((word, peer, r), 0)
        if count > back and 0 <= peer < n:
            out.add("MPP-IDLE-CHANNEL", f"{count} {word} channels lead to rank {peer}, but {back} "
                    f"back", rank=r)  # fmt: skip


def _check_switches(plan: Plan, out: Findings) -> None:
    """Ranks set their switch channels up one after the other, each with the whole group."""
    lists = [rank.switches for rank in plan.ranks]
    for r, own in enumerate(lists):
        peers = sorted({p for _, group in own for p in group if r < p < len(lists)})
        for peer in peers:
            if lists[peer] == own:
                continue
            mine = [one for one in own if peer in one[1]]
            other = [one for one in lists[peer] if r in one[1]]
            for k, (one, two) in enumerate(zip_longest(mine, other)):
                if one != two:
                    out.add("MPP-SWITCH-ORDER", f"switch channel {k} of those with rank {peer} is "
                            f"{_named(one)} here, {_named(two)} there", rank=r)  # fmt: skip
                    break


def _check_scratch(plan: Plan, out: Findings) -> None:
    """Remote scratch that the runtime has its owner register is there."""
    for r, rank in enumerate(plan.ranks):
        for k, (peer, letter, _) in enumerate(rank.remotes):
            if peer is not None and letter == "s" and not plan.ranks[peer].chunks.get("s", 1):
                out.add("MPP-REMOTE-EMPTY", f"remote_buffers[{k}] is scratch of rank {peer}, which "
                        "has none", rank=r)  # fmt: skip


def _check_nodes(top: dict[str, Any], plan: Plan, target: Target, out: Findings) -> None:
    """Where the ranks' names say which node holds them: may they be there, are ports where needed.

    What is wrong with the names themselves, which the runtime does not read, a reader says.
    """
    own = top.get("forestcoll")
    names, machine = (own.get("names"), own.get("name")) if isinstance(own, dict) else (None, None)
    n = len(plan.ranks)
    if not isinstance(names, list) or len(names) != n or not all(isinstance(x, str) for x in names):
        return
    spread = places(names, n)
    of = [place.node for place in spread.places]
    far = set()
    for r, rank in enumerate(plan.ranks):
        if any(0 <= p < n and of[p] != of[r] for p in rank.channels["port"]):
            far.add(r)
        reached = {p for p, _, kinds in rank.remotes if p is not None and "memory" in kinds}
        reached.update(rank.channels["memory"], *(group for _, group in rank.switches))
        for peer in sorted(reached):
            if 0 <= peer < n and of[peer] != of[r]:
                ends = f"{names[r][:40]} to {names[peer][:40]}"
                out.add("MPP-MEMORY-FAR", f"to rank {peer} ({ends})", rank=r)
    machine = machine if isinstance(machine, str) else ""
    fault = group_fault(target, names, far, machine)
    if fault is not None:
        out.add(fault[0], fault[1], rank=fault[2])
    elif far:
        host = min(host_of(machine) or spread.per_node, spread.per_node)
        most = 1 + max(r % host for r in far)
        out.add("MPP-HCA", f"ports of {most} ranks a node lead to others")


def _named(switch: tuple[str, frozenset[int]] | None) -> str:
    if switch is None:
        return "none"
    ranks = sorted(switch[1])
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"buffer {switch[0]!r} of ranks {shown}"


# --- thread blocks --------------------------------------------------------------------------------


def _lint_blocks(
    r: int, gpu: dict[str, Any], plan: Plan, target: Target, sms: int, access: Access
) -> None:
    out = access.out
    at: At = {"rank": r}
    entries = access.objects(gpu, "threadblocks", f"gpus[{r}]", at)
    if "threadblocks" in gpu and not entries:
        out.add("MPP-TB-NONE", "it has no thread block", rank=r)
    if len(entries) > sms:
        out.add("MPP-TB-SMS", f"{len(entries)} thread blocks; the GPU is taken to have {sms} SMs",
                rank=r)  # fmt: skip
    for b, entry in enumerate(entries):
        number = access.integer(entry, "id", f"threadblocks[{b}]", {**at, "block": b})
        if number is not None and number != b:
            out.add("MPP-TB-ID", f"threadblocks[{b}] has id {number}", rank=r, block=b)
        block = _read_block(r, b, entry, plan.ranks[r], target, access)
        lint_operations(r, b, entry, block, plan, target, access)


def _read_block(
    r: int, b: int, entry: dict[str, Any], rank: Rank, target: Target, access: Access
) -> Block:
    out = access.out
    at: At = {"rank": r, "block": b}
    block = Block()
    for k, item in enumerate(access.objects(entry, "channels", f"threadblocks[{b}]", at)):
        where = f"channels[{k}]"
        word = access.text(item, "channel_type", where, at)
        if word is not None and word not in KINDS:
            out.add("MPP-CHANNEL-TYPE", f"{where} is of type {word[:40]!r}", **at)
        if word not in KINDS:
            block.broken = True
            continue
        letter = access.text(item, "buff", where, at) if "buff" in item else None
        if letter is not None and letter not in ("i", "o", "s"):
            out.add("MPP-BUFFER-TYPE", f"{where} is on buffer {letter[:40]!r}", **at)
        known = rank.switches if word == "switch" else rank.channels[word]
        for number in access.integers(item, "channel_ids", where, at):
            fine = 0 <= number < len(known)
            if not fine and not rank.broken:
                out.add("MPP-TB-CHANNEL-ID", f"{word} channel {number}; the rank has {len(known)}",
                        **at)  # fmt: skip
            block.channels[word].append(number if fine else None)
    for word, ids in block.channels.items():
        if len(ids) > target.channels:
            out.add("MPP-TB-CHANNELS", f"{len(ids)} {word} channels", **at)
        if len(set(ids) - {None}) < len([i for i in ids if i is not None]):
            twice = next(i for i in ids if ids.count(i) > 1)
            out.add("MPP-CHANNEL-TWICE", f"{word} channel {twice} stands twice", **at)
    if "remote_buffer_refs" in entry:
        _read_refs(entry, rank, block, at, access)
    return block


def _read_refs(entry: dict[str, Any], rank: Rank, block: Block, at: At, access: Access) -> None:
    out = access.out
    for k, item in enumerate(access.objects(entry, "remote_buffer_refs", "the thread block", at)):
        where = f"remote_buffer_refs[{k}]"
        word = access.text(item, "access_channel_type", where, at)
        if word not in KINDS[:2]:
            if word is not None:
                out.add("MPP-CHANNEL-TYPE", f"{where} is accessed by {word[:40]!r}", **at)
            block.broken = True
            continue
        for number in access.integers(item, "remote_buffer_ids", where, at):
            if not 0 <= number < len(rank.remotes):
                out.add("MPP-REMOTE-ID", f"{where} names remote buffer {number}; the rank has "
                        f"{len(rank.remotes)}", **at)  # fmt: skip
                block.remotes[word].append((None, None))
                continue
            peer, letter, kinds = rank.remotes[number]
            if word not in kinds:
                out.add("MPP-REMOTE-ACCESS", f"{where} names remote buffer {number}, which is not "
                        f"accessed by {word}", **at)  # fmt: skip
            block.remotes[word].append((peer, letter))
    for word, found in block.remotes.items():
        if len(found) > MAX_REMOTE:
            out.add("MPP-TB-REMOTES", f"{len(found)} remote buffers by {word}", **at)
