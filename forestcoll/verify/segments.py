"""Segment lists walked: what switches do with an address by the tables that they were given.

A switch looks for the longest prefix. uN, its own number behind the block: the numbers move up by
one, and it looks again. uA, its own number and a local one: they move up by two, and the packet
goes out at that port. Else a static route to a neighbour. A host takes the outer header off where
only its number for that is left. Tables are read from SONiC's CONFIG_DB or FRR's configuration; who
is at a port stands in DEVICE_NEIGHBOR. All addresses are walked at once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain
from socket import AF_INET6, inet_pton
from struct import unpack
from typing import Any

import numpy as np

from forestcoll.common.errors import PlanError
from forestcoll.schedule.routes import CARRIED

Array = np.ndarray[Any, np.dtype[np.int64]]
BLOCK = 0xFCBBBB
"""What blocks begin with: 24 bits. Eight more name the plane."""
PLANE = "{plane}"
STEPS = 16


@cache
def block(plane: int | str) -> str:
    """The first 32 bits of a plane's addresses."""
    last = plane if isinstance(plane, str) else f"{plane:02x}"
    return f"{BLOCK >> 8:x}:{BLOCK & 255:x}{last}"


def address(plane: int | str, segments: tuple[int, ...]) -> str:
    """An address that carries these segments; `plane` may be text that stands for it."""
    return f"{block(plane)}:{tail(segments)}"


@lru_cache(maxsize=1 << 20)
def tail(segments: tuple[int, ...]) -> str:
    """What stands behind the block."""
    rest = "" if len(segments) == CARRIED else "::"
    return ":".join([f"{segment:x}" for segment in segments]) + rest


@dataclass(slots=True)
class Table:
    """What a switch does by (plane, number, local number or 0): the port that a packet goes out at
    and the address there, none for its own number; `neighbours`: port -> who is there."""

    entries: dict[tuple[int, int, int], tuple[str, str]] = field(default_factory=dict)
    neighbours: dict[str, str] = field(default_factory=dict)

    def add(self, prefix: str, action: str, port: str = "", to: str = "") -> None:
        """A segment or a route (action ""). Raises PlanError."""
        address, _, length = prefix.partition("/")
        plane, words = numbers(address)
        if any(words[int(length) // 16 - 2 :]) or length not in ("48", "64"):
            raise PlanError(f"{prefix}: no number behind a block of 32 bits")
        if (action, length) not in (("uN", "48"), ("uA", "64"), ("", "48")):
            raise PlanError(f"{prefix}: {action or 'a route'} is not followed here")
        if self.entries.setdefault((plane, words[0], words[1]), (port, to)) != (port, to):
            raise PlanError(f"{prefix}: stands for two things")


def numbers(address: str) -> tuple[int, list[int]]:
    """(plane, the six numbers) of an address. Raises PlanError."""
    try:
        high, low, *words = unpack(">8H", inet_pton(AF_INET6, address))
    except OSError:
        raise PlanError(f"{address}: no address of IPv6") from None
    if high << 8 | low >> 8 != BLOCK:
        raise PlanError(f"{address}: not in the blocks {BLOCK >> 8:x}:{BLOCK & 255:x}00::/24")
    return low & 255, words


def read_sonic(text: str) -> Table:
    """The table of a CONFIG_DB."""
    stated, table = json.loads(text), Table()
    locators = {}
    for name, entry in stated["SRV6_MY_LOCATORS"].items():
        plane, words = numbers(entry["prefix"])
        locators[name] = plane, words[0]
    for key, entry in stated["SRV6_MY_SIDS"].items():
        locator, _, prefix = key.partition("|")
        plane, words = numbers(prefix.partition("/")[0])
        if (plane, words[0]) != locators.get(locator):
            raise PlanError(f"{key}: not of the locator's prefix")
        table.add(prefix, entry["action"], entry.get("interface", ""), entry.get("adj", ""))
    for key, entry in stated["STATIC_ROUTE"].items():
        table.add(key.partition("|")[2], "", entry["ifname"], entry["nexthop"])
    table.neighbours = {port: entry["name"] for port, entry in stated["DEVICE_NEIGHBOR"].items()}
    ports = {key.partition("|")[0] for key in stated["INTERFACE"]}
    lost = {port for port, _ in table.entries.values() if port}
    lost -= ports & table.neighbours.keys()
    if lost:
        raise PlanError(f"{min(lost)}: no such interface")
    return table


_SID = re.compile(r"sid (\S+) locator \S+ behavior (uN|uA interface (\S+) nexthop (\S+))$")
_ROUTE = re.compile(r"ipv6 route (\S+) (\S+) (\S+)$")


def read_frr(text: str) -> Table:
    """The table of FRR's configuration; neighbours are not in it."""
    table = Table()
    for line in map(str.strip, text.splitlines()):
        if sid := _SID.match(line):
            table.add(sid[1], sid[2][:2], sid[3] or "", sid[4] or "")
        elif route := _ROUTE.match(line):
            table.add(route[1], "", route[3], route[2])
    return table


@dataclass(frozen=True, slots=True)
class Walked:
    """`hops`: (from, to) -> weight that went there; `addresses`: how many were walked, by the
    tables of so many `switches`."""

    hops: dict[tuple[str, str], int]
    addresses: int
    switches: int


def walk(
    tables: Mapping[str, Table],
    paths: Sequence[Sequence[str]],
    addresses: Sequence[str],
    planes: Sequence[Sequence[int]],
    weights: Sequence[int],
    last: int,
) -> Walked:
    """Walks every address from its path's first node, a host's; it must come off at the last one.

    `PLANE` in an address stands for each of its `planes`, in which it has `weights` each. `last`:
    the number at which hosts take the header off. Raises PlanError for the first that goes astray,
    or names a switch twice.
    """
    lookup = _Lookup(tables)
    words = np.array([_words(text) for text in addresses], np.int64).reshape(-1, CARRIED)
    path = np.repeat(np.arange(len(words)), [*map(len, planes)])
    plane = np.array([*chain.from_iterable(planes)], np.int64)

    def check(astray: Array, why: str) -> None:
        if len(astray):
            k = int(path[astray[0]])
            text = addresses[k].replace(PLANE, f"{plane[astray[0]]:02x}")
            raise PlanError(f"{text} from {paths[k][0]} to {paths[k][-1]}: {why}")

    ordered = np.sort(words, 1)
    twice = ((np.diff(ordered) == 0) & (ordered[:, 1:] > 0)).any(1)
    check(np.flatnonzero(twice[path]), "names a segment twice")
    lengths = (words > 0).sum(1)
    words = np.pad(words, ((0, 0), (0, 2)))
    at = np.array([lookup.places.get(nodes[0], -1) for nodes in paths], np.int64)[path]
    goal = np.array([lookup.places.get(nodes[-1], -2) for nodes in paths], np.int64)[path]
    carried, cursor = np.array(weights, np.int64)[path], np.zeros(len(path), np.int64)
    entry = lookup.find(at, plane)
    check(np.flatnonzero(entry < 0), "no switch of the plane is linked to it")
    rows = np.arange(len(path))
    at = lookup.go(entry, carried)
    for _ in range(STEPS):
        rows = rows[at[rows] < len(tables)]
        if not len(rows):
            break
        here, place = at[rows], np.minimum(cursor[rows], CARRIED)
        word, after = words[path[rows], place], words[path[rows], place + 1]
        entry, crosses = np.full(len(rows), -1), np.flatnonzero(after >= lookup.least)
        own = here[crosses], plane[rows[crosses]], word[crosses], after[crosses]
        entry[crosses] = lookup.find(*own)
        shift, other = np.where(entry >= 0, 2, 0), np.flatnonzero(entry < 0)
        entry[other] = lookup.find(here[other], plane[rows[other]], word[other])
        lost = int(entry.argmin())
        if entry[lost] < 0:
            name = [*lookup.places][here[lost]]
            check(rows[[lost]], f"{name} has no entry for {word[lost]:x}")
        to = lookup.go(entry, carried[rows])
        shift[to == here] = 1
        at[rows], cursor[rows] = to, cursor[rows] + shift
    wrong = (at != goal) | (cursor != lengths[path] - 1)
    wrong |= words[path, np.minimum(cursor, CARRIED)] != last
    check(np.flatnonzero(wrong), "does not come off there")
    return Walked(lookup.hops(), len(at), len(tables))


def _words(text: str) -> list[int]:
    if PLANE not in text:
        raise PlanError(f"{text}: {PLANE} stands for no plane there")
    return numbers(text.replace(PLANE, "00"))[1]


class _Lookup:
    """All tables as sorted numbers: of place, plane, number and local number where to go; a switch
    that goes to itself takes its own number off. `least`: of the local numbers."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self.places = {name: i for i, name in enumerate(tables)}
        entries = {1 << 62: -1}  # behind all that is looked for
        local = {key[2] for table in tables.values() for key in table.entries} - {0}
        for name, table in tables.items():
            at = self.places[name]
            to = {
                p: self.places.setdefault(n, len(self.places)) for p, n in table.neighbours.items()
            }
            hosts = [host for host in to.values() if host >= len(tables)]
            for (plane, word, number), (port, _) in table.entries.items():
                key = ((at << 8 | plane) << 16 | word) << 16 | number
                entries[key] = to[port] if port else at
                if not port:
                    entries |= {(host << 8 | plane) << 32: at for host in hosts}
        self.least = min(local, default=1 << 16)
        self._keys = np.array(sorted(entries), np.int64)
        self._to = np.array([entries[key] for key in self._keys.tolist()], np.int64)
        self._loads = np.zeros(len(entries), np.int64)

    def find(self, at: Array, plane: Array, word: Array | int = 0, local: Array | int = 0) -> Array:
        """The entry for each, -1 where there is none."""
        code = ((at << 8 | plane) << 16 | word) << 16 | local
        entry = np.searchsorted(self._keys, code)
        return np.where(self._keys[entry] == code, entry, -1)

    def go(self, entry: Array, weight: Array) -> Array:
        """Where these entries lead, loaded with so much."""
        np.add.at(self._loads, entry, weight)
        return self._to[entry]

    def hops(self) -> dict[tuple[str, str], int]:
        """What went from each place to each other one."""
        names, hops = [*self.places], Counter[tuple[str, str]]()
        used = np.flatnonzero(self._loads)
        columns = (self._keys[used] >> 40, self._to[used], self._loads[used])
        for here, there, load in zip(*(column.tolist() for column in columns), strict=True):
            if here != there:
                hops[names[here], names[there]] += load
        return dict(hops)
