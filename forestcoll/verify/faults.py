"""What a proof has found wrong, in words: deadlocks, races, wrong sums and wrong results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forestcoll.common.errors import PlanError
from forestcoll.program import Buffer, Program
from forestcoll.program.chunks import BUFFER_NAMES, ChunkCounts
from forestcoll.program.program import where
from forestcoll.verify.columns import BUFFERS

if TYPE_CHECKING:
    from forestcoll.verify._machine import Event, Location, Mode, Place, Proof, Value

MESSAGE, SPACE, STEP, SIGNAL, SEMAPHORE, BARRIER, PACKETS = range(7)
"""What a thread block may wait for, as runs.hpp counts them."""
LONGEST_CIRCLE = 12
"""Thread blocks of a deadlock that are named."""


def list_ranks(ranks: list[int], limit: int = 8) -> str:
    """Returns the first of the ranks, separated by commas, and how many there are."""
    text = ", ".join(map(str, ranks[:limit]))
    return text if len(ranks) <= limit else f"{text}, ... ({len(ranks)} ranks)"


class Faults:
    """Words for the places, chunks and values of one program."""

    def __init__(self, program: Program, sizes: ChunkCounts) -> None:
        self.program, self.sizes = program, sizes

    # --- places and values

    def where(self, place: Place) -> str:
        """Returns an instruction's place: `rank 0, thread block 1, step 2 (recv)`."""
        rank, block, number, at = place
        step = self.program.ranks[rank].thread_blocks[block].steps[number]
        return where(rank, block, number, step.body[at].op)

    def event(self, event: Event) -> str:
        """Returns the place of an event, or whose caller it is."""
        launch, place = event
        if len(place) > 1:
            return self.where(place)
        when = "before its first launch" if launch == 0 else "between two launches"
        return f"rank {place[0]}'s caller {when}"

    def chunk(self, location: Location) -> str:
        """Returns a chunk of a buffer: `chunk 3 of rank 1's output`."""
        rank, buffer, chunk = location
        if BUFFERS[buffer] is Buffer.SCRATCH and self.program.double_scratch:
            half, chunk = divmod(chunk, self.sizes.scratch[rank])
            return f"packet chunk {chunk} of half {half} of rank {rank}'s scratch"
        return f"chunk {chunk} of rank {rank}'s {BUFFER_NAMES[BUFFERS[buffer]]}"

    def value(self, value: Value) -> str:
        """Returns a value: `chunk 2 of rank 1's input`, `chunk 2 added up over ranks 0, 1`."""
        if value is None:
            return "nothing defined"
        chunk, ranks = value
        if len(ranks) > 1:
            return f"chunk {chunk} added up over ranks {list_ranks(ranks)}"
        if self.program.collective.input_is_part:
            chunk -= ranks[0] * self.sizes.part
        return f"chunk {chunk} of rank {ranks[0]}'s input"

    # --- what stops a run

    def raise_stop(self, proof: Proof, queue: int | None) -> None:
        """PlanError where the run was not made, or where thread blocks wait for each other."""
        if "twice" in proof:
            place, earlier, location = proof["twice"]
            raise PlanError(
                f"{self.where(place)} and {self.where(earlier)} both write packets to "
                f"{self.chunk(location)} in one launch: who reads the first would take it for the "
                "second",
                rule="RUN-PACKETS-TWICE",
                at=place[:3],
            )
        if "stuck" in proof:
            raise self._deadlock(proof, queue)

    def _deadlock(self, proof: Proof, queue: int | None) -> PlanError:
        """Returns the circle of who waits for whom."""
        places: dict[int, Place] = {}
        follows: dict[int, int] = {}
        needs: dict[int, str] = {}
        full = set()
        for block, place, kind, of, on, _ in proof["stuck"]:
            places[block], follows[block] = place, on
            needs[block] = self._need(kind, of, on)
            if kind == SPACE:
                full.add(block)
        for block, _, _, _, on, rank in proof["stuck"]:
            if on >= 0 and on not in places:  # it has ended; somebody holds up its rank
                needs[block] += ", whose launch is not over"
                follows[block] = next((b for b, at in places.items() if at[0] == rank), -1)
        path = [min(places)]
        while (following := follows[path[-1]]) in places:
            if following in path:
                path = path[path.index(following) :]
                break
            path.append(following)
        links = [f"{self.where(places[b])} {needs[b]}" for b in path[:LONGEST_CIRCLE]]
        if len(path) > LONGEST_CIRCLE:
            links.append(f"... ({len(path)} thread blocks)")
        closing = "; and so round again" if follows[path[-1]] == path[0] else ""
        messages = f"{queue} message{'s' * (queue != 1)}"
        advice = f" (a connection holds {messages}: one of them must receive first)"
        return PlanError(
            f"deadlock: {'; '.join(links)}{closing}{advice if full & {*path} else ''}",
            rule="RUN-DEADLOCK",
            at=places[path[0]][:3],
        )

    def _need(self, kind: int, of: int | Place | Location, on: int) -> str:
        if kind == STEP and isinstance(of, tuple):
            return f"comes after {self.where(of)}"
        if kind == PACKETS and isinstance(of, tuple):
            rank, buffer, chunk = of
            lost = ", which nobody writes" if on < 0 else ""
            return f"waits for packets in {self.chunk((rank, buffer, chunk))}{lost}"
        return {
            MESSAGE: f"waits for a message of rank {of}",
            SPACE: f"cannot send, its queue to rank {of} is full",
            SIGNAL: f"waits for a signal of rank {of}",
            SEMAPHORE: f"waits for semaphore {of}",
            BARRIER: f"waits at barrier {of}",
        }[kind]

    # --- what a run shows

    def of_mode(self, mode: Mode) -> Iterator[PlanError]:
        """Yields what is wrong in one mode: races first, for wrong data may be but their effect."""
        name = "in place" if mode["in_place"] else "out of place"
        if "overlap" in mode:
            place, location = mode["overlap"]
            yield PlanError(
                f"{self.where(place)}: two of its operands meet in {self.chunk(location)} but are "
                f"not the same chunks ({name}); they must be equal or apart",
                rule="RUN-OVERLAP",
                at=place[:3],
            )
            return
        for race in mode["races"]:
            yield self._race(*race, name)
        if "sum" in mode:
            event, x, y, alike, twice = mode["sum"]
            if x is None or y is None:
                text = f"adds something undefined to {self.value(x or y)}"
            elif not alike:
                text = f"adds {self.value(x)} to {self.value(y)}: different chunks"
            else:
                text = f"adds {self.value(x)} to {self.value(y)}: rank {twice[0]} would count twice"
            yield PlanError(
                f"{self.event(event)}: {text} ({name})", rule="RUN-WRONG-SUM", at=event[1]
            )
        for rank, buffer, chunk, holds, needs, writer in mode["results"]:
            of = BUFFERS[buffer]
            by = "nothing writes it" if writer is None else f"last written by {self.event(writer)}"
            rule = "it must stay" if of is Buffer.INPUT else "it should hold"
            yield PlanError(
                f"wrong result: chunk {chunk} of rank {rank}'s {BUFFER_NAMES[of]} holds "
                f"{self.value(holds)} at the end, {rule} {self.value(needs)}; {by} ({name})",
                rule="RUN-WRONG-RESULT",
                at=(rank,) if writer is None else writer[1],
            )

    def _race(self, a: Event, b: Event, location: Location, mode: str) -> PlanError:
        """Returns the race of two events: who, where, and what would order them."""
        place = self.chunk(location)
        for caller, other in ((a, b), (b, a)):
            if len(caller[1]) > 1:
                continue
            rank = caller[1][0]
            if other[0] >= caller[0]:
                text = (
                    f"{self.event(other)} uses {place} while that may still belong to "
                    f"{self.event(caller)}; wait for a signal (relaxed will do) that rank {rank} "
                    "gives in the same launch, and a nop, before it"
                )
            else:
                text = (
                    f"{self.event(other)} may still use {place} when rank {rank}'s launch is "
                    f"over and its caller changes it; before its launch ends, let rank {rank} wait "
                    "for a signal that comes after that (or flush its own port's put)"
                )
            return PlanError(f"race: {text} ({mode})", rule="RUN-RACE-CALLER", at=other[1])
        if a[1][:2] == b[1][:2] and a[0] == b[0]:
            hint = "put a nop between them (and a flush after a port's put)"
        elif self.program.style == "fifo":
            hint = "make one of them come after the other ('after')"
        else:
            hint = "let one wait (wait, nop) for a signal given after the other (nop, signal)"
        again = " of the next launch" if b[0] > a[0] else ""
        return PlanError(
            f"race: {self.event(a)} and {self.event(b)}{again} both use {place}, at least one "
            f"writes it, and nothing orders them; {hint} ({mode})",
            rule="RUN-RACE-LAUNCHES" if again else "RUN-RACE",
            at=b[1],
            other=a[1],
        )
