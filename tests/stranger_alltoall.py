"""A stranger's checker of all-to-all files: the file and the standard library, nothing else.

`python tests/stranger_alltoall.py FILE` prints the algbw that is reached, and the bound.
"""

from __future__ import annotations

import heapq
import json
import math
import sys
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import Any


def judge(data: dict[str, Any]) -> tuple[Fraction, Fraction]:
    """(algbw that is reached, algbw that nothing beats) in GB/s; AssertionError if it is wrong."""
    links = [(k["src"], k["dst"]) for k in data["topology"]["links"]]
    width = [Fraction(k["bandwidth"]) for k in data["topology"]["links"]]
    number = {pair: e for e, pair in enumerate(links)}
    assert len(number) == len(links)
    ranks, gpus = data["ranks"], {n["id"] for n in data["topology"]["nodes"] if n["kind"] == "gpu"}
    assert len(set(ranks)) == len(ranks)
    assert set(ranks) <= gpus
    sent, scale = demands(data)
    generators = [
        {n["id"]: image.get(n["id"], n["id"]) for n in data["topology"]["nodes"]}
        for image in data.get("symmetry", {}).get("generators", [])
    ]
    for image in generators:  # links go to links as wide, demands to demands
        assert sorted(image) == sorted(image.values())
        assert all(width[number[image[u], image[v]]] == width[number[u, v]] for u, v in links)
        assert all((image[v] in gpus) == (v in gpus) for v in image)
        assert all(sent.get((image[s], image[t])) == amount for (s, t), amount in sent.items())
    theta = Fraction(data["theta"])
    if "routes" in data:
        judge_routes(data, dict(zip(links, width, strict=True)), theta)
    else:
        judge_flows(data, links, width, generators, sent)
    lengths = dict(zip(links, data["bound"]["lengths"], strict=True))
    assert all(isinstance(length, int) and length >= 0 for length in lengths.values())
    least = sum(
        (
            sent[s, t] * far
            for s in ranks
            for t, far in dijkstra(data, lengths, s)
            if (s, t) in sent
        ),
        0,
    )
    bound = sum(w * lengths[pair] for w, pair in zip(width, links, strict=True)) / least
    assert theta <= bound
    assert Fraction(data["algbw"]) == theta * scale
    assert Fraction(data["bound"]["algbw"]) == bound * scale
    return theta * scale, bound * scale


def judge_flows(
    data: dict[str, Any],
    links: list[tuple[str, str]],
    width: list[Fraction],
    generators: list[dict[str, str]],
    sent: dict[tuple[str, str], int],
) -> None:
    """Every rank gets theta times what it is sent, and the average over alike links fits them."""
    ranks, theta = data["ranks"], Fraction(data["theta"])
    rank_orbit = orbits(ranks, [image.__getitem__ for image in generators])
    link_orbit = orbits(
        links,
        [lambda k, i=image: (i[k[0]], i[k[1]]) for image in generators],  # type: ignore[misc]
    )
    load: dict[Any, Fraction] = defaultdict(Fraction)
    seen = set()
    for flow in data["flows"]:
        source = flow["source"]
        seen.add(rank_orbit[source])
        images = sum(rank_orbit[r] == rank_orbit[source] for r in ranks)
        surplus: dict[str, Fraction] = defaultdict(Fraction)
        for e, text in zip(flow["links"], flow["amounts"], strict=True):
            u, v = links[e]
            amount = Fraction(text)
            assert amount > 0
            assert not {u, v} & barred(data, source)
            surplus[u] -= amount
            surplus[v] += amount
            load[link_orbit[u, v]] += images * amount
        for node in set(surplus) | set(ranks):
            assert node == source or surplus[node] == theta * sent.get((source, node), 0)
    assert seen == set(rank_orbit.values())
    room: dict[Any, Fraction] = defaultdict(Fraction)
    for pair, bandwidth in zip(links, width, strict=True):
        room[link_orbit[pair]] += bandwidth
    assert all(load[orbit] <= room[orbit] for orbit in load)


def judge_routes(
    data: dict[str, Any], width: dict[tuple[str, str], Fraction], theta: Fraction
) -> None:
    """All images of all paths, written out: every pair has its units, and theta follows."""
    routes, ranks = data["routes"], data["ranks"]
    nodes = [node["id"] for node in data["topology"]["nodes"]]
    found = {tuple(nodes)}
    queue = list(found)
    for element in queue:  # the whole group, as the images of the nodes in their order
        for image in routes.get("symmetry", {}).get("generators", []):
            assert all(width[image.get(u, u), image.get(v, v)] == w for (u, v), w in width.items())
            other = tuple(image.get(v, v) for v in element)
            if other not in found:
                found.add(other)
                queue.append(other)
    have: dict[tuple[str, str], int] = defaultdict(int)
    load: dict[tuple[str, str], int] = defaultdict(int)
    place = {v: i for i, v in enumerate(nodes)}
    for route in routes["paths"]:
        assert len(set(route["path"])) == len(route["path"])
        for path in {tuple(element[place[v]] for v in route["path"]) for element in queue}:
            have[path[0], path[-1]] += route["units"]
            for hop in pairwise(path):
                load[hop] += route["units"]
    assert have == {(s, t): routes["units"] for s in ranks for t in ranks if s != t}
    assert theta == routes["units"] / max(count / width[hop] for hop, count in load.items())


def demands(data: dict[str, Any]) -> tuple[dict[tuple[str, str], int], int]:
    """(what each rank sends to each, the send buffer in the same unit)."""
    ranks = data["ranks"]
    if data["collective"] == "alltoallv":
        rows = data["matrix"]
        table = {(s, t): rows[i][j] for i, s in enumerate(ranks) for j, t in enumerate(ranks)}
        return {p: a for p, a in table.items() if a and p[0] != p[1]}, max(map(sum, rows))
    groups = data.get("groups") or [ranks]
    scale = math.lcm(*map(len, groups))
    return {(s, t): scale // len(g) for g in groups for s in g for t in g if s != t}, scale


def barred(data: dict[str, Any], source: str) -> set[str]:
    """GPUs that pass nothing of `source` on."""
    groups = data.get("groups") or []
    return {r for g in groups for r in g if source not in g} if data.get("closed") else set()


def orbits(members: list[Any], images: list[Any]) -> dict[Any, Any]:
    """The first member of each one's orbit."""
    first: dict[Any, Any] = {}
    for member in members:
        queue = [member] if member not in first else []
        for one in queue:
            if one not in first:
                first[one] = member
                queue += [image(one) for image in images]
    return first


def dijkstra(
    data: dict[str, Any], lengths: dict[tuple[str, str], int], source: str
) -> list[tuple[str, int]]:
    """Shortest distances from `source`."""
    near = defaultdict(list)
    closed = barred(data, source)
    for (u, v), length in lengths.items():
        if v not in closed:
            near[u].append((v, length))
    far: dict[str, int] = {}
    heap = [(0, source)]
    while heap:
        d, u = heapq.heappop(heap)
        if u not in far:
            far[u] = d
            for v, length in near[u]:
                heapq.heappush(heap, (d + length, v))
    return list(far.items())


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stream:
        print(*judge(json.load(stream)))
