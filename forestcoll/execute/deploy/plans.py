"""Plan files as a deployment sees them: read, proven right, and what they serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from forestcoll import plans
from forestcoll.common.errors import ForestCollError, PlanError
from forestcoll.common.input_limits import PLAN_BYTES
from forestcoll.common.text_file import read_text
from forestcoll.program import Buffer, Program
from forestcoll.program.sizes import Sizes

CHECKED_BYTES = 16 << 20
"""Size with which a deployment tries a plan, or the nearest one that the plan serves."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan file. Sizes are nccl-tests' sizes, in bytes."""

    source: str  # where it was read
    text: str = field(repr=False)
    format: plans.Format
    program: Program
    name: str  # as the runtime knows it
    in_place: bool  # calls that the file is offered for
    out_of_place: bool

    @property
    def max_bytes(self) -> int:
        """The largest size that the plan is right for; 0: there is none.

        What the device can count ends every plan, whether the file says so or not.
        """
        largest: int = plans.home_of(self.format).largest_size(self.program)
        told = self.program.max_bytes
        return min(told or largest, largest or told)

    @property
    def sizes(self) -> Sizes:
        """The sizes that the plan serves."""
        return Sizes.of(self.program)

    @property
    def multiple(self) -> int:
        """Bytes that sizes are multiples of; for XML those of float32, with which it is checked."""
        return self.sizes.multiple()

    @property
    def check_size(self) -> int:
        """A size that the plan serves, near `CHECKED_BYTES`. PlanError if it serves none."""
        low = max(self.program.min_bytes, 1)
        high = self.max_bytes or 2**62
        size = min(max(CHECKED_BYTES, low), high) // self.multiple * self.multiple
        if size < low:
            size = -(-low // self.multiple) * self.multiple
        if size > high:
            raise PlanError(
                f"{self.source}: serves no size: {self.sizes.words()} from {low} to "
                f"{high} do not exist"
            )
        return size

    def uses(self, kind: str) -> bool:
        """Whether the plan has channels of a kind: switch (NVLS: it copies or adds), port."""
        return f'"channel_type": "{kind}"' in self.text


def read(
    paths: Sequence[Path], format: plans.Format | None, target: str | None
) -> tuple[Plan, ...]:
    """The plans in the files, and of that format in the directories, in order.

    Each is proven right, and to be what `target` takes.

    Directories with all below them, so plan sets too. Without a format a directory gives every
    schedule once, as XML where it has both.

    Raises PlanError or UnsupportedError, with the file: unreadable, no plan, wrong, or none at all.
    """
    listed = tuple(_plan(path, format, target) for path in _files(paths, format))
    if not listed:
        where = ", ".join(str(p) for p in paths)
        raise PlanError(f"{where}: no {format or 'plan'} file here")
    return listed


def _files(paths: Sequence[Path], format: plans.Format | None) -> list[Path]:
    files: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            files[path] = None
            continue
        inside: dict[str, Path] = {}
        suffixes = [form.suffix for name, form in plans.FORMATS.items() if format in (name, None)]
        for file in plan_files(path, suffixes, False):
            suffix = next(s for s in (*suffixes, file.suffix) if file.name.endswith(s))
            inside.setdefault(file.name.removesuffix(suffix), file)
        files |= dict.fromkeys(inside[stem] for stem in sorted(inside))
    return list(files)


def plan_files(directory: Path, suffixes: Sequence[str], forests: bool) -> list[Path]:
    """The plans in a directory and below: suffix by suffix, as ours end.

    Where there is none, whatever ends as files of those formats do: other tools' plans, and our
    `forests` only if they will do.
    """
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and (forests or not path.name.endswith(".forest.json"))
    )
    for ends in (suffixes, [Path(suffix).suffix for suffix in suffixes]):
        plan_paths = [file for end in ends for file in files if file.name.endswith(end)]
        if plan_paths:
            return plan_paths
    return []


def _plan(path: Path, format: plans.Format | None, target: str | None) -> Plan:
    from forestcoll.verify import verify

    source, text = str(path), read_text(path, PLAN_BYTES, PlanError)
    told = plans.detect(text, source)
    if format is not None and told != format:
        raise PlanError(f"{source}: is {told}, this runtime reads {format}")
    if target is not None:
        return offer(source, text, told, _judge(text, source, target))
    program = plans.loads(text, source)
    try:
        verify(program)
    except ForestCollError as error:
        raise type(error)(f"{source}: {error}") from None
    return offer(source, text, told, program)


def offer(source: str, text: str, format: plans.Format, program: Program) -> Plan:
    """The plan that a file holds: `program` is what its `text` was read as."""
    return Plan(source, text, format, program, *plans.home_of(format).offer(text, program))


def _judge(text: str, source: str, target: str) -> Program:
    """The program of a plan's text; PlanError with the first thing that `target` would not take."""
    from forestcoll.plans.lint import lint

    told = lint(text, source, target)
    if told.program is None or told.verified is None:
        program = plans.loads(text, source)  # which says what cannot be read
    else:
        program = told.program
    if not told.ok:
        first = next(f for f in told.findings if f.severity == "error")
        raise PlanError(
            f"{source}: {first} (forestcoll verify --target {target} lists all there is)"
        )
    return program


def clashes(listed: Sequence[Plan]) -> list[tuple[Plan, Plan]]:
    """Pairs of plans that would both answer some call: the runtime takes the first it finds."""
    pairs, no_end = [], 2**63
    for one, other in combinations(listed, 2):
        a, b = one.program, other.program
        ends = min(one.max_bytes or no_end, other.max_bytes or no_end)
        if (
            (a.collective, a.n) == (b.collective, b.n)
            and max(a.min_bytes, b.min_bytes) <= ends
            and ((one.in_place and other.in_place) or (one.out_of_place and other.out_of_place))
        ):
            pairs.append((one, other))
    return pairs


def namesakes(listed: Sequence[Plan]) -> list[tuple[Plan, Plan]]:
    """Pairs of plans that a runtime takes for one: it keeps what it has set up by a plan's name."""
    first: dict[str, Plan] = {}
    return [
        (first[plan.name], plan)
        for plan in listed
        if plans.FORMATS[plan.format].by_name and first.setdefault(plan.name, plan) is not plan
    ]


def channels(plan: Plan) -> int:
    """Channel numbers of a fifo plan."""
    blocks = [b for r in plan.program.ranks for b in r.thread_blocks]
    return max((b.channel + 1 for b in blocks if b.recv >= 0 or b.send >= 0), default=0)


def reads_input_remotely(plan: Plan) -> bool:
    """Whether a rank reads or writes a peer's input or output: zero copy between GPUs."""
    return any(
        ref.rank is not None and ref.buffer is not Buffer.SCRATCH
        for _, _, _, instruction in plan.program.instructions()
        for ref in (*instruction.src, *instruction.dst)
    )


def read_by_ports(plan: Plan) -> list[str]:
    """The user buffers ("input", "output") that ports read: from where their allocations begin."""
    program = plan.program
    buffers = {
        ref.buffer
        for r, b, _, instruction in program.instructions()
        if program.ranks[r].thread_blocks[b].reads_by_port(instruction)
        for ref in instruction.src
    }
    words = {Buffer.INPUT: "input", Buffer.OUTPUT: "output"}
    return [word for buffer, word in words.items() if buffer in buffers]
