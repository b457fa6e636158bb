"""Plan files as plays for judges of time, read without the project's readers and Programs.

A play is a list of actors, each a list of lines, everything unrolled:

    ["take", counter]                       wait for one in the counter, and take it
    ["give", counter, after]                one more in it, so many microseconds from now
    ["send", route, bytes, counter or -1]   a transfer, until it is over; a delay of the route later
                                            there is one more in the counter
    ["start", route, bytes, after, tail]    a transfer that begins `after` microseconds from now and
                                            ends `tail` after its last byte
    ["join"]                                the end of all that was started

`links` are (bytes a microsecond, whether it leaves a box); a route is a list of links, `delays` how
long each takes, with a signal. A counter has one taker.
"""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

Line = list[Any]
HOLDS = {
    "Simple": (2 << 20, 2, 2, 1.0),
    "LL": (32 << 10, 8, 1, 2.0),
    "LL128": (576_000, 8, 1, 16 / 15),
}
"""Bytes of a message, messages of a connection, parts of a message, bytes on a link for one."""
RCCL_HOLDS = HOLDS | {"LL": (16 << 10, 8, 1, 2.0), "LL128": (50_176, 8, 1, 8 / 7)}
"""The same on AMD's GPUs."""


class Play:
    def __init__(self, forest: dict[str, Any], latency: float = 0.0, signal: float = 0.0) -> None:
        self.latency, self.signal = latency, signal  # of each link, and of a signal beyond them
        self.ranks: list[str] = forest["ranks"]
        number = {name: rank for rank, name in enumerate(self.ranks)}
        self.links: list[tuple[float, bool]] = []
        ids: dict[tuple[str, str], int] = {}
        for link in forest["topology"]["links"]:
            ids[link["src"], link["dst"]] = len(self.links)
            rate = float(Fraction(link["bandwidth"])) * 1000
            self.links.append((rate, self.box(link["src"]) != self.box(link["dst"])))
        self.ways: dict[tuple[int, int], list[int]] = {}
        for tree in forest["trees"]:
            for path in tree["edges"]:
                for way in (path, path[::-1]):
                    ends = number[way[0]], number[way[-1]]
                    steps = list(pairwise(way))
                    if ends not in self.ways and all(step in ids for step in steps):
                        self.ways[ends] = [ids[step] for step in steps]
        self.routes: list[list[int]] = []
        self.actors: list[list[Line]] = []
        self.counters: list[int] = []
        self._routes: dict[tuple[int, int], int] = {}

    def box(self, name: str) -> str:
        return name.rpartition("/")[0]

    def far(self, a: int, b: int) -> bool:
        return self.box(self.ranks[a]) != self.box(self.ranks[b])

    def actor(self) -> list[Line]:
        self.actors.append([])
        return self.actors[-1]

    def counter(self, value: int = 0) -> int:
        self.counters.append(value)
        return len(self.counters) - 1

    def route(self, a: int, b: int) -> int:
        if (a, b) not in self._routes:
            self._routes[a, b] = len(self.routes)
            self.routes.append(self.ways[a, b])
        return self._routes[a, b]

    def hops(self, a: int, b: int) -> float:
        """Microseconds that a byte takes from one rank to another."""
        return self.latency * len(self.ways[a, b])

    def told(self, a: int, b: int) -> float:
        """The same for a signal."""
        return self.hops(a, b) + self.signal

    @property
    def delays(self) -> list[float]:
        return [self.latency * len(route) + self.signal for route in self.routes]

    @property
    def transfers(self) -> int:
        return sum(line[0] in ("send", "start") for actor in self.actors for line in actor)

    def json(self) -> str:
        names = ("links", "routes", "delays", "actors", "counters")
        return json.dumps({name: getattr(self, name) for name in names})


def read(plan: Path, size: int, latency: float = 0.0, signal: float = 0.0) -> Play:
    """The play of a plan file of `synthesize`, with its forest beside it, for `size` bytes."""
    stem = plan.name.removesuffix(".msccl.xml").removesuffix(".mscclpp.json")
    play = Play(json.loads(plan.with_name(f"{stem}.forest.json").read_text()), latency, signal)
    if plan.suffix == ".xml":
        _Xml(play, ET.fromstring(plan.read_text()), size).read()
    else:
        _Json(play, json.loads(plan.read_text()), size).read()
    return play


class _Xml:
    """MSCCL XML: the lists of thread blocks, over and over, message part by message part."""

    def __init__(self, play: Play, algo: ET.Element, size: int) -> None:
        self.play, self.algo = play, algo
        holds = RCCL_HOLDS if algo.attrib["name"].startswith("mi") else HOLDS
        message, slots, self.parts, self.wire = holds[algo.attrib["proto"]]
        chunk = size / int(algo.attrib["nchunksperloop"])
        self.rounds = max(1, math.ceil(chunk / message))
        self.most = max(1, int(message / chunk)) if self.rounds == 1 else 1
        self.slices = [min(message, chunk - k * message) for k in range(self.rounds)]
        self.room = slots * self.parts
        self.queues: dict[tuple[int, int, int], dict[str, int]] = {}
        self.proxies: dict[tuple[int, int, int], list[Line]] = {}

    def queue(self, key: tuple[int, int, int]) -> dict[str, int]:
        if key not in self.queues:
            counter = self.play.counter
            self.queues[key] = {"free": counter(self.room), "here": counter()}
            if self.play.far(key[0], key[1]):
                self.queues[key] |= {"staged": counter(), "room": counter(self.room)}
                self.proxies[key] = self.play.actor()
        return self.queues[key]

    def read(self) -> None:
        for gpu in self.algo:
            rank = int(gpu.attrib["id"])
            blocks = [[step.attrib for step in tb] for tb in gpu]
            # nop steps carry the dependencies of what follows; each has a counter of its own
            edges: dict[tuple[int, int], list[int]] = defaultdict(list)
            needs: dict[tuple[int, int], int] = {}
            for b, steps in enumerate(blocks):
                for s, step in enumerate(steps):
                    if int(step["depid"]) >= 0:
                        needs[b, s] = self.play.counter()
                        edges[int(step["depid"]), int(step["deps"])].append(needs[b, s])
            for b, tb in enumerate(gpu):
                actor = self.play.actor()
                for part in self.slices:
                    for s, step in enumerate(blocks[b]):
                        if (b, s) in needs:
                            actor.append(["take", needs[b, s]])
                        self.step(actor, rank, tb.attrib, step, part)
                        actor += [["give", counter, 0.0] for counter in edges[b, s]]

    def step(
        self, actor: list[Line], rank: int, tb: dict[str, str], step: dict[str, str], part: float
    ) -> None:
        kind, channel = step["type"], int(tb["chan"])
        takes, sends = (
            kind in ("r", "rcs", "rrs", "rrc", "rrcs"),
            kind in ("s", "rcs", "rrs", "rrcs"),
        )
        if not takes and not sends:
            return
        into = self.queue((int(tb["recv"]), rank, channel)) if takes else None
        key = (rank, int(tb["send"]), channel)
        out = self.queue(key) if sends else None
        left = int(step["cnt"])
        while left > 0:
            chunks = min(left, self.most)
            left -= chunks
            for _ in range(self.parts):
                if into is not None:
                    actor.append(["take", into["here"]])
                if out is not None:
                    actor.append(["take", out["free"]])
                    bytes_ = chunks * part * self.wire / self.parts
                    send = ["send", self.play.route(*key[:2]), bytes_, out["here"]]
                    if "staged" in out:
                        actor.append(["give", out["staged"], 0.0])
                        self.proxies[key] += [["take", out["staged"]], ["take", out["room"]], send]
                        self.proxies[key].append(["give", out["free"], 0.0])
                    else:
                        actor.append(send)
                if into is not None:
                    back = self.play.told(rank, int(tb["recv"]))
                    actor.append(["give", into.get("room", into["free"]), back])


class _Json:
    """MSCCL++ JSON: pipelines unrolled; ports by proxies."""

    def __init__(self, play: Play, plan: dict[str, Any], size: int) -> None:
        self.play, self.plan = play, plan
        gpu = plan["gpus"][0]
        self.chunk = size / max(gpu["input_chunks"], gpu["output_chunks"])
        self.signals: dict[tuple[int, int, str, int], int] = {}

    def signal(self, rank: int, peer: int, kind: str, index: int) -> int:
        """The counter of signals at `rank`'s end of a channel."""
        key = (rank, peer, kind, index)
        if key not in self.signals:
            self.signals[key] = self.play.counter()
        return self.signals[key]

    def read(self) -> None:
        for gpu in self.plan["gpus"]:
            ends: dict[str, list[tuple[int, int]]] = {}
            for entry in gpu["channels"]:
                met: dict[int, int] = defaultdict(int)
                for peer in entry["connected_to"]:
                    ends.setdefault(entry["channel_type"], []).append((peer, met[peer]))
                    met[peer] += 1
            semaphores = [self.play.counter(s["init_value"]) for s in gpu.get("semaphores", ())]
            for tb in gpu["threadblocks"]:
                _Block(self, gpu, tb, ends, semaphores).read()


class _Block:
    def __init__(
        self,
        all_: _Json,
        gpu: dict[str, Any],
        tb: dict[str, Any],
        ends: dict[str, list[tuple[int, int]]],
        semaphores: list[int],
    ) -> None:
        self.all, self.play, self.rank, self.tb = all_, all_.play, gpu["id"], tb
        self.semaphores = semaphores
        self.actor = self.play.actor()
        self.mine = {
            entry["channel_type"]: [ends[entry["channel_type"]][i] for i in entry["channel_ids"]]
            for entry in tb["channels"]
        }
        self.buffers = {
            entry["access_channel_type"]: [
                gpu["remote_buffers"][i]["rank"] for i in entry["remote_buffer_ids"]
            ]
            for entry in tb.get("remote_buffer_refs", ())
        }
        self.ports: dict[int, tuple[list[Line], int]] = {}

    def read(self) -> None:
        for op in self.tb["ops"]:
            if op["name"] != "pipeline":
                self.op(op, None)
                continue
            unit = op["iter_context"]["unit_size"]
            whole = op["iter_context"]["num_chunks"] * self.all.chunk
            for begin in range(0, math.ceil(whole), unit):
                for inner in op["ops"]:
                    self.op(inner, min(unit, whole - begin))

    def channels(self, op: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
        for c in op["channel_ids"]:
            yield (c, *self.mine[op["channel_type"]][c])

    def asked(self, c: int) -> list[Line]:
        """The lines of port `c`'s proxy, which is told to go on."""
        if c not in self.ports:
            self.ports[c] = self.play.actor(), self.play.counter()
        lines, counter = self.ports[c]
        self.actor.append(["give", counter, 0.0])
        lines.append(["take", counter])
        return lines

    def op(self, op: dict[str, Any], size: float | None) -> None:
        name = op["name"]
        if name in ("signal", "rlxsignal", "put", "pws"):
            moves = [s["size"] for s in op["dst_buff"]] if name in ("put", "pws") else []
            for place, (c, peer, index) in enumerate(self.channels(op)):
                told = self.all.signal(peer, self.rank, op["channel_type"], index)
                lines = self.asked(c) if op["channel_type"] == "port" else self.actor
                if moves:
                    bytes_ = size if size is not None else moves[place] * self.all.chunk
                    lines.append(["send", self.play.route(self.rank, peer), bytes_, -1])
                if name == "pws":
                    lines = self.asked(c)
                if name != "put":
                    lines.append(["give", told, self.play.told(self.rank, peer)])
        elif name in ("wait", "rlxwait"):
            for _, peer, index in self.channels(op):
                counter = self.all.signal(self.rank, peer, op["channel_type"], index)
                self.actor.append(["take", counter])
        elif name in ("sem_acquire", "sem_release"):
            word = "take" if name == "sem_acquire" else "give"
            after = [] if word == "take" else [0.0]
            self.actor += [[word, self.semaphores[i], *after] for i in op["semaphore_ids"]]
        elif name in ("rre", "rres", "res"):
            answered = 0.0  # when the first bytes of all that is read are here
            for field, inward in (("src_buff", True), ("dst_buff", False)):
                for buff in op[field]:
                    if "buffer_id" not in buff:
                        continue
                    peer = self.buffers["memory"][buff["buffer_id"]]
                    ends = (peer, self.rank) if inward else (self.rank, peer)
                    bytes_ = size if size is not None else buff["size"] * self.all.chunk
                    asked, tail = self.play.hops(*ends[::-1]), self.play.hops(*ends)
                    if inward:
                        answered = max(answered, asked + tail)
                    times = [asked, tail] if inward else [answered, tail + self.play.signal]
                    self.actor.append(["start", self.play.route(*ends), bytes_, *times])
            self.actor.append(["join"])
        else:
            assert name in ("nop", "copy", "re"), name
