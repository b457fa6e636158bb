"""What both plan formats ask of a Program, and the words in which they refuse one.

`check_header` returns the number of chunks of the whole data. The other checks return nothing and
raise PlanError with rank, thread block and step. Writers use them with a target's limits, readers
to make sure that what a file says can be held in a Program without surprises for later stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from forestcoll.common.errors import PlanError, did_you_mean
from forestcoll.common.input_limits import RANKS
from forestcoll.plans.findings import Entry, FirstError
from forestcoll.plans.rule_catalogue import RULES
from forestcoll.program import BY_PLAN_WORD, Collective, Program
from forestcoll.program.check import check
from forestcoll.program.rank_placement import places
from forestcoll.program.targets import Target, host_of

# Bounds for reading: far above every real plan, low enough that nonsense costs neither time nor
# memory. They bound the sum of all instructions, not what one thread block may hold.
MAX_BYTES = 2**63 - 1  # sizes are signed 64-bit numbers in the runtimes

# Seen in files of older tools; no current runtime knows these spellings.
OLD_WORDS = {"reduce_scatter": "reducescatter", "reduce-scatter": "reducescatter"}
# Known to the runtimes, but not collectives of this package.
OTHER_COLLECTIVES = frozenset(
    ("alltoall", "alltoallv", "gather", "scatter", "send", "recv", "sendrecv", "custom", "test")
) - set(BY_PLAN_WORD)


def read_word(
    entry: Entry, key: str, rule: str, known: Collection[str], told: Collective | None
) -> str:
    """The word for the collective in a file, as current runtimes spell it.

    `known`: the words that they take; `told`: the collective, whatever the file says.
    """
    if told is not None and key not in entry:
        entry.add(entry.missing, entry.lack(key))
        return told.definition.plan_word
    word = entry.get(key) or ""
    said = OLD_WORDS.get(word)
    if word and word not in known:
        hint = f"; the loaders say {said!r}" if said else did_you_mean(word[:40], known)
        held = said or told or word in OTHER_COLLECTIVES
        entry.tell("add" if held else "refuse", rule, f"{key} is {word[:40]!r}{hint}")
    if told is not None:
        return told.definition.plan_word
    if word in OTHER_COLLECTIVES:
        entry.out.other(word, f"{key} {word!r} is not supported; the collectives are "
                        f"{', '.join(BY_PLAN_WORD)}", **entry.at)  # fmt: skip
    return said or word


def check_header(program: Program) -> int:
    """The number of chunks of the whole data; PlanError where no plan holds the program.

    Beyond what `check` asks, a plan has a root, all buffers, and a size in 64 bits.
    """
    n, root = program.n, program.root
    counts = check(program)
    if n > RANKS:
        raise PlanError(f"a plan needs 1 to {RANKS} ranks; this program has {n}")
    if program.protocol not in ("Simple", "LL", "LL128"):
        raise PlanError(f"protocol {program.protocol!r}; protocols are Simple, LL and LL128")
    rooted = program.collective.has_root
    if rooted and not 0 <= root < n:
        raise PlanError(f"{program.collective} needs a root between 0 and {n - 1}; it is {root}")
    if not rooted and root != -1:
        raise PlanError(f"{program.collective} has no root, but the program says {root}")
    low, high = program.min_bytes, program.max_bytes
    if max(low, high) > MAX_BYTES:
        raise PlanError(f"min_bytes {low} and max_bytes {high} must lie between 0 and 2^63 - 1")
    first = program.ranks[0]
    if not first.input_chunks or not first.output_chunks:
        raise PlanError(
            f"rank 0: {first.input_chunks} input and {first.output_chunks} output chunks; both "
            "need at least one"
        )
    return counts.total


def admit(program: Program | None, out: FirstError) -> Program:
    """What a reading gave, once it is right in itself; PlanError with the file's name."""
    assert program is not None  # else the reading raised
    try:
        check_header(program)
    except PlanError as error:
        raise PlanError(f"{out.source}: {error}") from None
    return program


def group_fault(
    target: Target, names: Sequence[str], far: Collection[int], machine: str
) -> tuple[str, str, int] | None:
    """(rule, words, rank or -1) where the runtime refuses or misreads how nodes hold the ranks.

    `names`: of the ranks; without them nothing is known. `far`: ranks with ports to other nodes.
    `machine`: the topology's name. A node is a box: a host, or the hosts that one NVLink joins.
    """
    spread = places(names, len(names))
    if not target.nics or len(spread.nodes) < 2:
        return None
    of = [place.node for place in spread.places]
    if not spread.per_node:
        unlike = {count: node for node, count in reversed(Counter(of).items())}
        held = [f"{node[:40] or 'none'} {count}" for count, node in reversed(unlike.items())][:4]
        return "MPP-NODES", f"nodes hold different numbers of ranks: {', '.join(held)}", -1
    if not spread.in_order:
        first = next(r for r, node in enumerate(of) if node != of[r - r % spread.per_node])
        own, other = (names[r][:40] for r in (first, first - first % spread.per_node))
        return "MPP-NODES", f"rank {first}, {own}, is among the ranks of {other}", first
    host = min(host_of(machine) or spread.per_node, spread.per_node)
    beyond = sorted(r for r in far if r % host >= target.nics)
    if not beyond:
        return None
    words = f"{host} ranks a node, and {len(beyond)} not among the first {target.nics} of theirs "
    return "MPP-NICS", f"{words}have ports to other nodes, first {names[beyond[0]][:40]}", beyond[0]


def check_group(target: Target, names: Sequence[str], far: Collection[int], machine: str) -> None:
    """PlanError, with a way out, where `group_fault` finds one."""
    fault = group_fault(target, names, far, machine)
    if fault is not None:
        rule = RULES[fault[0]]
        raise PlanError(f"{machine}: {fault[1]}; what {target.name} asks: {rule.what}; {rule.cure}")
