"""Programs run for real in random order: an independent second opinion on the symbolic check.

Nothing here is shared with forestcoll.verify. Values are bags of (launch, rank, chunk, slice);
every thread of a thread block, every proxy of a port channel and every rank's caller moves on its
own, one element at a time, in an order drawn at random.

A race is found whatever the order: every access of a location is an event with a bit of its own,
and whoever does one carries all bits that come before it, as messages, signals, packets and
barriers bring them. Of two accesses of which one writes, the later has the earlier's bit.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from forestcoll.program import (
    PACKETS,
    Buffer,
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    Ref,
    ThreadBlock,
)

Bag = tuple[tuple[object, ...], ...]
Place = tuple[int, str, int]
Slot = tuple[int, int]  # rank, slice of its scratch, both halves counted through
Key = tuple[object, ...]
Task = Callable[[], None]
THREADS = 3
RECEIVES = (
    "recv",
    "recv_copy_send",
    "recv_reduce_send",
    "recv_reduce_copy",
    "recv_reduce_copy_send",
)
SENDS = ("send", "recv_copy_send", "recv_reduce_send", "recv_reduce_copy_send")


class Failed(Exception):
    """The run got stuck or left wrong data."""


class World:
    """Memory and synchronisation of all ranks; actors are generators that yield at every step.

    An actor yields None after it moved, or a function that says whether it could go on.
    """

    def __init__(
        self, program: Program, *, in_place: bool, launches: int, queue: int, seed: int
    ) -> None:
        self.program, self.in_place = program, in_place
        self.launches, self.queue = launches, queue
        self.random = random.Random(seed)
        self.memory: dict[Place, Bag] = {}
        self.packets: dict[Slot, tuple[int, Bag, int]] = {}  # launch that wrote it, data, before
        self.current = 0  # who moves
        self.clocks: list[int] = []  # the events before what each will do next
        self.events = 0
        self.history: dict[object, tuple[list[int], list[int]]] = {}  # last write, reads since
        self.begins = [0] * program.n  # what comes before each rank's launch
        self.tails: dict[Key, tuple[int, object, int]] = {}  # of ports: thread, segment, before
        self.thread_of: dict[Key, int] = {}  # of packets: of an element
        self.same_thread: dict[Key, int] = {}  # what comes before what it does next
        self.garbage = 0
        self.messages: dict[Key, deque[tuple[Bag, int]]] = {}
        self.semaphores: dict[Key, deque[tuple[int, int]]] = defaultdict(deque)  # data, begin
        self.flags: dict[Key, int] = {}
        self.ported: dict[Key, deque[tuple[list[Task], Op, int, tuple[int, object]]]] = {}
        self.arrived: dict[Key, int] = {}
        self.total = max(program.ranks[0].input_chunks, program.ranks[0].output_chunks)
        self.part = self.total // program.n
        loops = any(
            isinstance(s, Pipeline) for r in program.ranks for b in r.thread_blocks for s in b.steps
        )
        self.rounds = 2
        self.grain = math.lcm(2 if loops else 1, *(i.part[1] for *_, i in program.instructions()))
        for r, rank in enumerate(program.ranks):
            for s, value in enumerate(rank.semaphores):
                self.semaphores["own", r, s] = deque([(0, 0)] * max(0, value))

    # --- running

    def run(self) -> None:
        actors: list[Iterator[object]] = [self.caller(r) for r in range(self.program.n)]
        ends = {
            (r, c.peer, c.index)
            for r, rank in enumerate(self.program.ranks)
            for b in rank.thread_blocks
            for c in b.channels
            if c.kind == "port"
        }
        callers = len(actors)
        actors += [self.proxy(end) for end in sorted(ends)]
        alive = set(range(callers))
        waiting: dict[int, object] = {}
        self.spawned = actors
        self.clocks = [0] * len(actors)
        while alive & set(range(callers)):
            choices = [
                a
                for a in range(len(actors))
                if actors[a] is not None and self.ready(waiting.get(a))
            ]
            if not choices:
                raise Failed("stuck")
            self.current = a = self.random.choice(choices)
            for _ in range(self.random.choice((1, 1, 5, 50))):
                if not self.ready(waiting.get(a)):
                    break
                try:
                    waiting[a] = next(actors[a])
                except StopIteration:
                    waiting[a] = lambda: False
                    alive.discard(a)
                    break

    @staticmethod
    def ready(condition: object) -> bool:
        return condition is None or bool(condition())  # type: ignore[operator]

    def spawn(self, actors: list[Iterator[object]]) -> Iterator[object]:
        """Start actors and wait until all have ended."""
        left, end = len(actors), 0

        def counted(actor: Iterator[object]) -> Iterator[object]:
            nonlocal left, end
            yield from actor
            left, end = left - 1, end | self.clocks[self.current]

        self.spawned += [counted(a) for a in actors]
        self.clocks += [self.clocks[self.current]] * len(actors)
        yield lambda: left == 0
        self.learn(end)

    def learn(self, before: int) -> None:
        """All that comes before what has been waited for comes before what is next."""
        self.clocks[self.current] |= before

    def touch(self, place: object, write: bool) -> None:
        """An access, which all that it collides with has to come before."""
        written, reads = self.history.setdefault(place, ([], []))
        before = self.clocks[self.current]
        if any(not before >> event & 1 for event in (written + reads if write else written)):
            raise Failed(f"race: {place}")
        if write:
            self.history[place] = ([self.events], [])
        else:
            reads.append(self.events)
        self.learn(1 << self.events)
        self.events += 1

    # --- memory

    def place(self, rank: int, buffer: Buffer, slice_: int, part: int | None = None) -> Place:
        """Where that is; in place a shorter buffer is the rank's part of the longer, or `part`."""
        if self.in_place and buffer != Buffer.SCRATCH:
            own = (rank if part is None else part) * self.part * self.grain
            sizes = self.program.ranks[rank]
            if buffer == Buffer.INPUT and sizes.input_chunks < sizes.output_chunks:
                return rank, "user", own + slice_
            if buffer == Buffer.OUTPUT and sizes.output_chunks < sizes.input_chunks:
                return rank, "user", own + slice_
            return rank, "user", slice_
        return rank, buffer.value, slice_

    def read(self, place: Place) -> Bag:
        self.touch(place, False)
        if place not in self.memory:
            self.garbage += 1
            self.memory[place] = (("garbage", self.garbage),)
        return self.memory[place]

    def write(self, place: Place, value: Bag) -> None:
        self.touch(place, True)
        self.memory[place] = value

    def trash(self, place: Place) -> None:
        self.garbage += 1
        self.write(place, (("garbage", self.garbage),))

    def places(self, rank: int, ref: Ref, index: int = 0, of: int = 1) -> list[Place]:
        low, length = ref.offset * self.grain, ref.count * self.grain
        cut = range(low + length * index // of, low + length * (index + 1) // of)
        # at a peer all is as far from its allocation's begin as it is at the own rank
        return [
            self.place(rank if ref.rank is None else ref.rank, ref.buffer, s, rank) for s in cut
        ]

    # --- a rank's caller

    def caller(self, rank: int) -> Iterator[object]:
        program = self.program
        for launch in range(self.launches):
            sizes = program.ranks[rank]
            user = [
                self.place(rank, Buffer.OUTPUT, s) for s in range(sizes.output_chunks * self.grain)
            ]
            given = [
                self.place(rank, Buffer.INPUT, s) for s in range(sizes.input_chunks * self.grain)
            ]
            for place in user + given:
                self.trash(place)
            yield None
            inputs = {}
            for s, place in enumerate(given):
                chunk = s // self.grain + (
                    rank * self.part if program.collective is Collective.ALLGATHER else 0
                )
                inputs[place] = ((launch, rank, chunk, s % self.grain),)
                self.write(place, inputs[place])
            self.begins[rank] = self.clocks[self.current]
            yield None
            if program.style == "fifo":
                blocks = [self.fifo(rank, b, t, launch) for b, t in enumerate(sizes.thread_blocks)]
            else:
                blocks = [self.onesided(rank, t, launch) for t in sizes.thread_blocks]
            yield from self.spawn(blocks)
            self.check(rank, launch, user)
            if not self.in_place and any(self.memory[p] != v for p, v in inputs.items()):
                raise Failed(f"rank {rank}: input changed")
            yield None

    def check(self, rank: int, launch: int, user: list[Place]) -> None:
        collective, n = self.program.collective, self.program.n
        if collective is Collective.REDUCE and rank != self.program.root:
            return
        for s, place in enumerate(user):
            chunk, ranks = s // self.grain, list(range(n))
            if collective is Collective.ALLGATHER:
                ranks = [chunk // self.part]
            elif collective is Collective.BROADCAST:
                ranks = [self.program.root]
            elif collective is Collective.REDUCE_SCATTER:
                chunk += rank * self.part
            wanted = tuple((launch, r, chunk, s % self.grain) for r in ranks)
            if tuple(sorted(self.read(place), key=str)) != tuple(sorted(wanted, key=str)):
                raise Failed(f"rank {rank}: {place} holds {self.read(place)}, not {wanted}")

    # --- fifo

    def fifo(self, rank: int, number: int, block: ThreadBlock, launch: int) -> Iterator[object]:
        into: Key = (block.recv, rank, block.channel)
        out: Key = (rank, block.send, block.channel)
        arriving = self.messages.setdefault(into, deque())
        leaving = self.messages.setdefault(out, deque())
        for s, i in enumerate(block.steps):
            assert isinstance(i, Instruction)
            for target in i.after:
                key: Key = (rank, launch, *target)
                yield lambda key=key: key in self.flags
                self.learn(self.flags[key])
            src = self.places(rank, i.src[0]) if i.src else []
            dst = self.places(rank, i.dst[0]) if i.dst else []
            if i.op in RECEIVES or i.op in SENDS:
                for k in range(len(src or dst)):
                    yield (
                        lambda i=i: (
                            (i.op not in RECEIVES or bool(arriving))
                            and (i.op not in SENDS or len(leaving) < self.queue)
                        )
                    )
                    value, before = arriving.popleft() if i.op in RECEIVES else ((), 0)
                    self.learn(before)
                    value += self.read(src[k]) if src else ()
                    if dst:
                        self.write(dst[k], value)
                    if i.op in SENDS:
                        leaving.append((value, self.clocks[self.current]))
            elif i.op is not Op.NOP:
                for task in self.data(rank, i, 0, 1):
                    task()
                    yield None
            self.flags[rank, launch, number, s] = self.clocks[self.current]

    # --- onesided

    def data(self, rank: int, i: Instruction, index: int, of: int) -> list[Task]:
        """The element-wise work of a data instruction, one function an element."""
        src = [self.places(rank, ref, index, of) for ref in i.src]
        dst = [self.places(rank, ref, index, of) for ref in i.dst]
        tasks: list[Task] = []

        def move(place: Place, to: list[Place]) -> Task:
            def task() -> None:
                value = self.read(place)
                for other in to:
                    if other != place:
                        self.write(other, value)

            return task

        def total(places: list[Place], to: list[Place]) -> Task:
            def task() -> None:
                value: Bag = ()
                for place in places:
                    value += self.read(place)
                for other in to:
                    self.write(other, value)

            return task

        if i.op in (Op.COPY, Op.GET, Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
            for k, to in enumerate(dst):
                source = src[0] if len(src) == 1 else src[k]
                tasks += [move(x, [y]) for x, y in zip(source, to, strict=True)]
        else:
            added = [*dst, *src] if i.op is Op.REDUCE else src
            tasks += [total([x[e] for x in added], [x[e] for x in dst]) for e in range(len(dst[0]))]
        return tasks

    def lines(self, block: ThreadBlock) -> Iterator[tuple[Instruction, int, int]]:
        for step in block.steps:
            if isinstance(step, Pipeline):
                for t in range(self.rounds):
                    yield from ((i, t, self.rounds) for i in step.body)
            else:
                yield step, *step.part

    def onesided(self, rank: int, block: ThreadBlock, launch: int) -> Iterator[object]:
        """Segments between thread barriers: in each, every thread works in its own time."""
        threads: list[list[Iterator[object]]] = [[] for _ in range(THREADS)]
        for i, index, of in self.lines(block):
            if i.op in (Op.NOP, Op.BARRIER):
                yield from self.spawn([self.chain(t) for t in threads])
                threads = [[] for _ in range(THREADS)]
                if i.op is Op.BARRIER:
                    key: Key = ("barrier", rank, i.ident)
                    self.arrived[key] = self.arrived.get(key, 0) + 1
                    goal = -(-self.arrived[key] // i.group) * i.group
                    self.flags[key, goal] = (
                        self.flags.get((key, goal), 0) | self.clocks[self.current]
                    )
                    yield lambda key=key, goal=goal: self.arrived[key] >= goal
                    self.learn(self.flags[key, goal])
                continue
            if i.op in PACKETS:
                works = self.packet_work(rank, i, index, of, launch)
                if block.channels and any(block.channels[c].kind == "port" for c in i.channels):
                    for slots, _ in works:
                        self.random.choice(threads).append(self.packet(launch, slots, lambda: None))
                    yield from self.spawn([self.chain(t) for t in threads])
                    threads = [[] for _ in range(THREADS)]
                    for k, c in enumerate(i.channels):
                        tasks = [task for _, task in works[k :: len(i.channels)]]
                        end = (rank, block.channels[c].peer, block.channels[c].index)
                        threads[k % THREADS].append(self.push(end, tasks, i.op, (k, threads)))
                else:
                    plain = i.dst[: PACKETS[i.op].packet_dst]
                    for e, (slots, task) in enumerate(works):
                        same: Key = (rank, id(block), launch, plain[0], e) if plain else ()
                        # an element of what packets bring has one thread, whatever writes it
                        drawn = self.random.randrange(THREADS)
                        thread = self.thread_of.setdefault(same, drawn) if same else drawn
                        threads[thread].append(self.packet(launch, slots, task, same))
                continue
            self.share(rank, block, i, index, of, threads)
        yield from self.spawn([self.chain(t) for t in threads])

    # --- packets

    def slots(self, rank: int, ref: Ref, index: int, of: int, launch: int) -> list[Slot]:
        """Whose scratch it is, the own one says where its second half is taken to begin."""
        second = launch % 2 if self.program.double_scratch else 0
        half = second * self.program.ranks[rank].scratch_chunks * self.grain
        found = self.places(rank, ref, index, of)
        return [(owner, slice_ + half) for owner, _, slice_ in found]

    def packet_work(
        self, rank: int, i: Instruction, index: int, of: int, launch: int
    ) -> list[tuple[list[Slot], Task]]:
        """Element by element the packets that are read, and what is then done with them.

        Operations that only move: element by element, and of each all destinations in turn.
        """
        shape = PACKETS[i.op]
        src = [self.places(rank, ref, index, of) for ref in i.src[: shape.packet_src]]
        into = [self.slots(rank, ref, index, of, launch) for ref in i.src[shape.packet_src :]]
        dst = [self.places(rank, ref, index, of) for ref in i.dst[: shape.packet_dst]]
        out = [self.slots(rank, ref, index, of, launch) for ref in i.dst[shape.packet_dst :]]

        def work(places: list[Place], slots: list[Slot], to: list[Place], on: list[Slot]) -> Task:
            def task() -> None:
                value: Bag = ()
                for place in places:
                    value += self.read(place)
                for slot in slots:
                    self.touch(slot, False)
                    value += self.packets[slot][1]
                for place in to:
                    self.write(place, value)
                for slot in on:
                    self.touch(slot, True)
                    self.packets[slot] = (launch, value, self.clocks[self.current])

            return task

        if i.op is Op.PUT_PACKETS:
            sources = src * len(out) if len(src) == 1 else src
            return [
                ([], work([a], [], [], [b]))
                for places, slots in zip(sources, out, strict=True)
                for a, b in zip(places, slots, strict=True)
            ]
        found = []
        for e in range(len((src or into)[0])):
            slots = [x[e] for x in into]
            if i.op is Op.FORWARD_PACKETS:
                found += [(slots, work([], slots, [], [x[e]])) for x in out]
            else:
                task = work([x[e] for x in src], slots, [x[e] for x in dst], [x[e] for x in out])
                found.append((slots, task))
        return found

    def packet(
        self, launch: int, slots: list[Slot], task: Task, same: Key = ()
    ) -> Iterator[object]:
        yield lambda: all(self.packets.get(slot, (-1,))[0] == launch for slot in slots)
        for slot in slots:
            self.learn(self.packets[slot][2])
        self.learn(self.same_thread.get(same, 0))
        task()
        if same:
            self.same_thread[same] = self.clocks[self.current]

    def chain(self, parts: list[Iterator[object]]) -> Iterator[object]:
        """What a thread does one after the other, which orders nothing: others may do it."""
        begin = end = self.clocks[self.current]
        for part in parts:
            self.clocks[self.current] = begin
            yield from part
            end |= self.clocks[self.current]
        self.clocks[self.current] = end

    def share(
        self,
        rank: int,
        block: ThreadBlock,
        i: Instruction,
        index: int,
        of: int,
        threads: list[list[Iterator[object]]],
    ) -> None:
        ends = [block.channels[c] for c in i.channels]
        puts = i.op in (Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH)
        if puts and any(c.kind == "port" for c in ends):
            for k, c in enumerate(ends):
                source = self.of_port(rank, i.src[0] if len(i.src) == 1 else i.src[k])
                one = Instruction(Op.PUT, (source,), (i.dst[k],))
                tasks = self.data(rank, one, index, of)
                end = (rank, c.peer, c.index)
                threads[k % THREADS].append(self.push(end, tasks, i.op, (k, threads)))
        elif i.src or i.dst:
            if i.switches:
                i = self.without_switches(rank, block, i)
            for task in self.data(rank, i, index, of):
                self.random.choice(threads).append(self.once(task))
        for k, c in enumerate(ends):
            thread = threads[k % THREADS]
            if i.op in (Op.SIGNAL, Op.RELAXED_SIGNAL):
                if c.kind == "port":
                    thread.append(self.push((rank, c.peer, c.index), [], i.op, (k, threads)))
                else:
                    thread.append(self.raise_(rank, i.op, c.peer, rank, c.kind, c.index))
            elif i.op in (Op.WAIT, Op.RELAXED_WAIT):
                thread.append(self.take(i.op, rank, c.peer, c.kind, c.index))
        if i.op is Op.FLUSH:
            for k, c in enumerate(ends or [c for c in block.channels if c.kind == "port"]):
                threads[k % THREADS].append(self.flushed((rank, c.peer, c.index), (k, threads)))
        for k, s in enumerate(i.semaphores):
            if i.op is Op.RELEASE:
                threads[k % THREADS].append(self.raise_(rank, i.op, "own", rank, s))
            else:
                threads[k % THREADS].append(self.take(i.op, "own", rank, s))

    def of_port(self, rank: int, ref: Ref) -> Ref:
        """What a port reads, counted from where the allocation begins, where that matters."""
        sizes = self.program.ranks[rank]
        shorter = Buffer.INPUT if sizes.input_chunks < sizes.output_chunks else Buffer.OUTPUT
        same = sizes.input_chunks == sizes.output_chunks
        if not self.in_place or same or ref.buffer != shorter:
            return ref
        longer = Buffer.OUTPUT if shorter == Buffer.INPUT else Buffer.INPUT
        return Ref(longer, ref.offset, ref.count)

    @staticmethod
    def without_switches(rank: int, block: ThreadBlock, i: Instruction) -> Instruction:
        """What the switches do, as if the rank did it at all ranks of the group by itself."""
        groups = [block.switches[s].ranks for s in i.switches]
        dst = tuple(Ref(i.dst[0].buffer, i.dst[0].offset, i.dst[0].count, r) for r in groups[-1])
        if i.op is Op.FABRIC_STORE:
            return Instruction(Op.PUT, i.src, dst)
        src = tuple(Ref(i.src[0].buffer, i.src[0].offset, i.src[0].count, r) for r in groups[0])
        return Instruction(Op.READ_REDUCE_PUT, src, dst)

    def once(self, task: Task) -> Iterator[object]:
        yield None
        task()

    def raise_(self, rank: int, op: Op, *key: object) -> Iterator[object]:
        yield None
        begin = self.begins[rank]
        data = begin if op is Op.RELAXED_SIGNAL else self.clocks[self.current]
        self.semaphores[key].append((data, begin))

    def take(self, op: Op, *key: object) -> Iterator[object]:
        yield lambda: bool(self.semaphores[key])
        self.learn(self.semaphores[key].popleft()[op is Op.RELAXED_WAIT])

    def tail(self, end: Key, mark: tuple[int, object]) -> int:
        """What a thread may rely on to have gone through a port before."""
        thread, segment, before = self.tails.get(end, (0, None, 0))
        return before if thread == mark[0] or segment is not mark[1] else 0

    def flushed(self, end: Key, mark: tuple[int, object]) -> Iterator[object]:
        yield None
        yield lambda: not self.ported.get(end)
        self.learn(self.tail(end, mark))

    def push(
        self, end: Key, work: list[Task], op: Op, mark: tuple[int, object]
    ) -> Iterator[object]:
        """Hand a put, a signal, or both to the proxy of a port channel."""
        yield None
        queue = self.ported.setdefault(end, deque())
        queue.append((work, op, self.clocks[self.current], mark))
        if op is Op.PUT_SIGNAL_FLUSH:
            yield lambda: not queue
            self.learn(self.tail(end, mark))

    def proxy(self, end: tuple[int, int, int]) -> Iterator[object]:
        rank, peer, number = end
        queue = self.ported.setdefault(end, deque())
        while True:
            yield lambda: bool(queue)
            work, op, before, mark = queue[0]
            self.clocks[self.current] = before | self.tail(end, mark)
            for task in work:
                task()
                yield None
            self.tails[end] = (*mark, self.clocks[self.current])
            if op is not Op.PUT and op not in PACKETS:
                yield from self.raise_(rank, op, peer, rank, "port", number)
            queue.popleft()


def run(program: Program, seed: int, *, launches: int = 3, queue: int = 2) -> None:
    """Run in every mode that the program claims; raises Failed."""
    for claimed, in_place in ((program.out_of_place, False), (program.in_place, True)):
        if claimed:
            World(program, in_place=in_place, launches=launches, queue=queue, seed=seed).run()
