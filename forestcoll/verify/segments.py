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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from socket import AF_INET6, inet_pton
from struct import unpack
from typing import Any

import numpy as np

from forestcoll.common.errors import PlanError

Array = np.ndarray[Any, np.dtype[np.int64]]
BLOCK = 0xFCBBBB
"""What blocks begin with: 24 bits. Eight more name the plane."""
CARRIED = 6
"""Numbers that an address holds behind its block."""
PLANE = "{plane}"
WORDS = CARRIED + 1  # numbers behind the block, and a 0 to see where they end
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
    """What a switch does: by (plane, number) its own ones, routes to ports, by (plane, number,
    local number) ports to hosts; `neighbours`: port -> who is there."""

    own: set[tuple[int, int]] = field(default_factory=set)
    cross: dict[tuple[int, int, int], tuple[str, str]] = field(default_factory=dict)
    routes: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    neighbours: dict[str, str] = field(default_factory=dict)

    def add(self, prefix: str, action: str, port: str = "", to: str = "") -> None:
        """A segment or a route (action ""). Raises PlanError."""
        address, _, length = prefix.partition("/")
        plane, words = numbers(address)
        if any(words[int(length) // 16 - 2 :]) or length not in ("48", "64"):
            raise PlanError(f"{prefix}: no number behind a block of 32 bits")
        if action == "uN" and length == "48":
            self.own.add((plane, words[0]))
        elif action == "uA" and length == "64":
            self.cross[plane, words[0], words[1]] = port, to
        elif not action and length == "48":
            self.routes[plane, words[0]] = port, to
        else:
            raise PlanError(f"{prefix}: {action or 'a route'} is not followed here")


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
    used = {port for port, _ in [*table.cross.values(), *table.routes.values()]}
    if not used <= ports & table.neighbours.keys():
        raise PlanError(f"{min(used - (ports & table.neighbours.keys()))}: no such interface")
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
    """`hops`: (from, to) -> weight that went there; `addresses`: how many were walked."""

    hops: dict[tuple[str, str], int]
    addresses: int


def walk(
    tables: Mapping[str, Table],
    starts: Sequence[str],
    addresses: Sequence[str],
    ends: Sequence[str],
    weights: Sequence[int],
    last: int,
) -> Walked:
    """Walks every address from the host's node in `starts`; it must come off at that in `ends`.

    `last`: the number at which hosts take the header off. Raises PlanError for the first that goes
    astray, or names a switch twice.
    """
    places = {name: i for i, name in enumerate(tables)}
    for table in tables.values():
        for name in table.neighbours.values():
            places.setdefault(name, len(places))
    lookup = _Lookup(tables, places)
    read: dict[str, tuple[int, list[int]]] = {}
    for text in addresses:
        if text not in read:
            read[text] = numbers(text)
    plane = np.array([read[text][0] for text in addresses], np.int64)
    words = np.array([[*read[text][1], 0] for text in addresses], np.int64).reshape(-1, WORDS)

    def astray(rows: Array, why: str) -> PlanError:
        k = int(rows[0])
        return PlanError(f"{addresses[k]} from {starts[k]} to {ends[k]}: {why}")

    sorted_words = np.sort(words, 1)
    twice = (sorted_words[:, 1:] == sorted_words[:, :-1]) & (sorted_words[:, 1:] > 0)
    if twice.any():
        raise astray(np.flatnonzero(twice.any(1)), "names a segment twice")
    at = np.array([places.get(name, -1) for name in starts], np.int64)
    goal = np.array([places.get(name, -2) for name in ends], np.int64)
    rows, carried = np.arange(len(at)), np.array(weights, np.int64)
    hops: list[tuple[Array, Array]] = []

    def go(moving: Array, to: Array) -> None:
        hops.append((at[moving] * len(places) + to, carried[moving]))
        at[moving] = to

    first = lookup.leaf(at, plane)
    if (first < 0).any():
        raise astray(np.flatnonzero(first < 0), "no switch of the plane is linked to it")
    go(rows, first)
    for _ in range(STEPS):
        rows = rows[at[rows] < len(tables)]
        if not len(rows):
            break
        here, p, w = at[rows], plane[rows], words[rows]
        out, onward = lookup.cross(here, p, w), lookup.route(here, p, w)
        own = lookup.own(here, p, w) >= 0
        lost = (out < 0) & ~own & (onward < 0)
        if lost.any():
            name = [*places][int(here[lost][0])]
            raise astray(rows[lost], f"{name} has no entry for {w[lost][0][0]:x}")
        for mine, shift in ((out >= 0, 2), ((out < 0) & own, 1)):
            words[rows[mine]] = np.pad(w[mine][:, shift:], ((0, 0), (0, shift)))
        moving = (out >= 0) | ~own
        go(rows[moving], np.where(out >= 0, out, onward)[moving])
    wrong = (at != goal) | (words[:, 0] != last) | words[:, 1:].any(1)
    if wrong.any():
        raise astray(np.flatnonzero(wrong), "does not come off there")
    return Walked(_sum(hops, [*places]), len(at))


def _sum(hops: list[tuple[Array, Array]], names: list[str]) -> dict[tuple[str, str], int]:
    code, weight = (np.concatenate(column) for column in zip(*hops, strict=True))
    order = np.argsort(code, kind="stable")
    code, weight = code[order], weight[order]
    first = np.flatnonzero(np.r_[True, code[1:] != code[:-1]])
    sums = np.add.reduceat(weight, first).tolist()
    return {
        (names[c // len(names)], names[c % len(names)]): s
        for c, s in zip(code[first].tolist(), sums, strict=True)
    }


class _Lookup:
    """All tables as sorted numbers."""

    def __init__(self, tables: Mapping[str, Table], places: Mapping[str, int]) -> None:
        own, cross, routes, attached = {}, {}, {}, {}
        for name, table in tables.items():
            at = places[name]
            for plane, word in table.own:
                own[(at << 8 | plane) << 16 | word] = 0
                for neighbour in table.neighbours.values():
                    attached[places[neighbour] << 8 | plane] = at
            for (plane, word, local), (port, _) in table.cross.items():
                to = places[table.neighbours[port]]
                cross[((at << 8 | plane) << 16 | word) << 16 | local] = to
            for (plane, word), (port, _) in table.routes.items():
                routes[(at << 8 | plane) << 16 | word] = places[table.neighbours[port]]
        self._own, self._cross, self._routes, self._attached = (
            (np.array(sorted(each), np.int64), np.array([each[k] for k in sorted(each)], np.int64))
            for each in (own, cross, routes, attached)
        )

    @staticmethod
    def _find(table: tuple[Array, Array], code: Array) -> Array:
        keys, values = table
        if not len(keys):
            return np.full(len(code), -1, np.int64)
        at = np.minimum(np.searchsorted(keys, code), len(keys) - 1)
        return np.where(keys[at] == code, values[at], -1)

    def leaf(self, at: Array, plane: Array) -> Array:
        """The switch of the plane that a host's node is linked to."""
        return self._find(self._attached, at << 8 | plane)

    def own(self, at: Array, plane: Array, words: Array) -> Array:
        """0 where the first number is the switch's own, else -1."""
        return self._find(self._own, (at << 8 | plane) << 16 | words[:, 0])

    def route(self, at: Array, plane: Array, words: Array) -> Array:
        """The neighbour whose number is the first."""
        return self._find(self._routes, (at << 8 | plane) << 16 | words[:, 0])

    def cross(self, at: Array, plane: Array, words: Array) -> Array:
        """The host's node at the port that the first two numbers name."""
        code = ((at << 8 | plane) << 16 | words[:, 0]) << 16 | words[:, 1]
        return self._find(self._cross, code)
