"""Collectives: what every rank has at first and must have at the end, a record each.

All that differs between collectives stands here, once; every other module asks the record. Buffers
consist of equal parts: one, or one for each rank. From `inputs`, `outputs`, `reduces` and `root`
follows what each part of each output must hold (`Collective.origin`):

                    input   output   part p of rank r's output
    allgather       1       n        rank p's input
    reduce-scatter  n       1        part r of all inputs, added up
    allreduce       1       1        all inputs, added up
    broadcast       1       1        the root's input
    reduce          1       1        all inputs, added up, at the root; open elsewhere
    alltoall        n       n        part r of rank p's input
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Literal

from forestcoll.common.errors import PlanError

Phase = Literal["broadcast", "reduce"]
"""Of trees: data flow from the root to all, or are added up from all to the root."""

Parts = Literal["one", "each"]
"""Of a rank's buffer: one part, or one for each rank."""

EVERYONE = -1
"""In place of a source rank: all of them, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a collective is, and what others call it.

    `root`: whether one rank is special, as the source of all data or as the target of all results.
    `phases`: those of the trees that carry it, in order; none: no forest does.
    `others`: how often every rank must send or receive all parts but its own at least, as shares of
    the size; None: the whole of it, once.
    `apart`: torch.distributed calls it with an input and an output, otherwise with one tensor.
    """

    inputs: Parts = "one"
    outputs: Parts = "one"
    phases: tuple[Phase, ...]
    others: int | None = 1
    perf: str  # nccl-tests' program is `<perf>_perf`
    torch: tuple[str, ...]  # functions of torch.distributed, as far as a version has them
    reduces: bool = False
    root: Literal["none", "source", "target"] = "none"
    apart: bool = False
    hooked: bool = True  # MSCCL++'s NCCL shim looks plans up for it

    @property
    def plan_word(self) -> str:
        """In plans of both formats: NCCL's own word."""
        return self.perf.replace("_", "")


class Collective(StrEnum):
    """The collectives, spelled as in forest files and on the command line."""

    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce-scatter"
    ALLREDUCE = "allreduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALLTOALL = "alltoall"

    @property
    def definition(self) -> Definition:
        """All that this module says of it."""
        return DEFINITIONS[self]

    @property
    def reduces(self) -> bool:
        """Whether data is added up on the way."""
        return self.definition.reduces

    @property
    def has_root(self) -> bool:
        """Whether one rank is special (`--root`)."""
        return self.definition.root != "none"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of its trees, in order."""
        return self.definition.phases

    @property
    def two_phases(self) -> bool:
        """Whether its trees first reduce, then broadcast."""
        return len(self.definition.phases) == 2

    @property
    def has_parts(self) -> bool:
        """Whether the data consist of one part for each rank, and not of a single part."""
        return "each" in (self.definition.inputs, self.definition.outputs)

    @property
    def weighable(self) -> bool:
        """Whether forests may give the ranks parts or sums of different size (`--shares`)."""
        return bool(self.phases) and not self.has_root

    @property
    def input_is_part(self) -> bool:
        """Whether a rank's input is but its part of the data (allgather)."""
        return self.has_parts and self.definition.inputs == "one"

    @property
    def output_is_part(self) -> bool:
        """Whether a rank's output is but its part of the data (reduce-scatter)."""
        return self.has_parts and self.definition.outputs == "one"

    @property
    def transposes(self) -> bool:
        """Whether parts change their place: part p of rank r's output is part r of rank p's."""
        return self.definition.inputs == self.definition.outputs == "each"

    def parts(self, n: int) -> int:
        """Equal parts of the data of `n` ranks."""
        return n if self.has_parts else 1

    def input_parts(self, n: int) -> int:
        """Those of a rank's input."""
        return n if self.definition.inputs == "each" else 1

    def output_parts(self, n: int) -> int:
        """Those of a rank's output."""
        return n if self.definition.outputs == "each" else 1

    def chunks(self, n: int, total: int) -> tuple[int, int]:
        """(input chunks, output chunks) of every rank when the whole data has `total` chunks.

        Raises PlanError where `total` is not a multiple of n although the collective deals it out.
        """
        part, rest = divmod(total, self.parts(n))
        if rest:
            raise PlanError(
                f"{self}: {total} chunks cannot be dealt out to {n} ranks evenly; "
                f"the number of chunks must be a multiple of the number of ranks"
            )
        return part * self.input_parts(n), part * self.output_parts(n)

    def origin(self, rank: int, root: int, part: int) -> tuple[int, int] | None:
        """(source rank or EVERYONE, part of its input) of a part of the output of `rank`.

        None where the collective leaves the output open.
        """
        is_ = self.definition
        if is_.root == "target" and rank != root:
            return None
        own = rank if is_.inputs == "each" else 0
        if is_.outputs == "each":
            return part, own
        if is_.reduces:
            return EVERYONE, own
        return root, own

    def bus_factor(self, n: int) -> Fraction:
        """busbw / algbw of nccl-tests: what each of n ranks must send or receive of the size."""
        others = self.definition.others
        return Fraction(1) if others is None else Fraction(others * (n - 1), n)


DEFINITIONS: dict[Collective, Definition] = {
    Collective.ALLGATHER: Definition(
        outputs="each",
        phases=("broadcast",),
        perf="all_gather",
        # all_gather_single: the name from PyTorch 2.13 on
        torch=("all_gather_into_tensor", "all_gather_single"),
        apart=True,
    ),
    Collective.REDUCE_SCATTER: Definition(
        inputs="each",
        phases=("reduce",),
        reduces=True,
        perf="reduce_scatter",
        torch=("reduce_scatter_tensor", "reduce_scatter_single"),
        apart=True,
    ),
    Collective.ALLREDUCE: Definition(
        phases=("reduce", "broadcast"),
        reduces=True,
        others=2,
        perf="all_reduce",
        torch=("all_reduce",),
    ),
    Collective.BROADCAST: Definition(
        phases=("broadcast",),
        root="source",
        others=None,
        perf="broadcast",
        torch=("broadcast",),
    ),
    Collective.REDUCE: Definition(
        phases=("reduce",),
        reduces=True,
        root="target",
        others=None,
        perf="reduce",
        torch=("reduce",),
        hooked=False,
    ),
    Collective.ALLTOALL: Definition(
        inputs="each",
        outputs="each",
        phases=(),
        perf="alltoall",
        torch=("all_to_all_single",),
        apart=True,
        hooked=False,
    ),
}

BY_TREES = tuple(c for c in Collective if c.phases)
"""The collectives that forests carry."""
BY_PLAN_WORD = {c.definition.plan_word: c for c in Collective}
"""The collectives by the word that plans of both formats have for them."""
