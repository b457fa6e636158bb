"""Links down or slowed: a topology in, the same topology with these changes out.

A pattern says which links are meant:

    box0/gpu3                   a node: all links at it (`without` takes the node away as well)
    box0/gpu3-box0/nvswitch     the links between two nodes, both ways; also written a<->b
    box0/gpu3->box0/nvswitch    one way only
    box*/gpu0-fabric            "*", "?" and "[...]" match in either place, "/" included

Node ids may hold "-" themselves: every place where a pattern could be cut is tried, and one that
can be read in two ways is refused (a<->b is never in doubt). Parallel links go and stay together;
one of eighteen cables down is `scale` by 17/18.

The result has a name of its own, since files are named by it: `dgx-a100-2-without-1-9f31c2`. The
number counts the patterns, the letters follow from what was changed and by how much.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.topology import Link, Node, Topology, exact, show
from forestcoll.topology.globs import is_glob, matcher

NAME_LIMIT = 100
"""Characters that the name of a topology may have."""

Arc = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Scale:
    """All links that `pattern` names become `factor` times as fast."""

    pattern: str
    factor: Fraction


def parse_scale(text: str) -> Scale:
    """`LINK=FACTOR`: "box0/gpu3-fabric=0.5", "box0/gpu3->fabric=1/3". Raises `TopologyError`."""
    pattern, equals, number = text.rpartition("=")
    if not equals or not pattern.strip() or not number.strip():
        raise TopologyError(
            f"'{text}' is not of the form LINK=FACTOR, such as box0/gpu0-fabric=0.5"
        )
    try:
        factor = exact(number.strip())
    except TopologyError as error:
        raise TopologyError(f"scale '{text}': {error}") from None
    if factor <= 0:
        raise TopologyError(
            f"scale '{text}': the factor must be more than 0; a link that is down is left out with "
            f"--without '{pattern.strip()}'"
        )
    return Scale(pattern.strip(), factor)


def edit(topology: Topology, without: Sequence[str] = (), scale: Sequence[Scale] = ()) -> Topology:
    """`topology` without some nodes and links, then with some links slowed (or sped up).

    Where nothing is asked for, the topology itself. Raises `TopologyError` for a pattern that
    matches nothing (naming the nearest), that can be read in two ways, and when no GPU is left.
    """
    if not without and not scale:
        return topology
    nodes, links = dict(topology.nodes), list(topology.links)
    for pattern in without:
        gone, arcs = _matches(pattern, nodes, links, topology.name)
        links = _scale(links, arcs, Fraction(0))
        for node in gone:
            del nodes[node]
    if not any(node.kind == "gpu" for node in nodes.values()):
        raise TopologyError(f"topology '{topology.name}': no GPU is left without {_few(without)}")
    for change in scale:
        _, arcs = _matches(change.pattern, nodes, links, topology.name)
        if not arcs:
            raise TopologyError(f"'{change.pattern}' names no link of '{topology.name}' to scale")
        links = _scale(links, arcs, change.factor)
    words = [f"without {', '.join(without)}"] if without else []
    words += [f"{change.pattern} at {show(change.factor)} of its bandwidth" for change in scale]
    return Topology(
        name=_name(topology, nodes, links, len(without), len(scale)),
        nodes=nodes,
        links=tuple(links),
        adapters=topology.adapters,
        notes=(*topology.notes, *words),
    )


# ---------------------------------------------------------------------------------- patterns


def _matches(
    pattern: str, nodes: dict[str, Node], links: Sequence[Link], name: str
) -> tuple[list[str], set[Arc]]:
    """(the nodes that `pattern` names, the directed links that it names or that touch those)."""
    arcs = dict.fromkeys(ends for link in links for ends in link.directions())
    named = _find_nodes(pattern, nodes)
    readings: list[tuple[str, set[Arc]]] = []
    # An id that is there is meant, whatever else its "-" could stand for.
    if pattern not in nodes:
        for src, dst, oneway in _cuts(pattern):
            links_named = _between(_find_nodes(src, nodes), _find_nodes(dst, nodes), arcs, oneway)
            if links_named:
                readings.append((f"{src}{'->' if oneway else '<->'}{dst}", links_named))
    if named and readings:
        readings.insert(0, (f"nodes {_few(sorted(named))}", set()))
    if len(readings) > 1:
        raise TopologyError(
            f"'{pattern}' can be read as {' or as '.join(text for text, _ in readings)}; "
            "write a<->b for the links between two nodes"
        )
    if readings:
        return [], readings[0][1]
    if named:
        return list(named), {arc for arc in arcs if arc[0] in named or arc[1] in named}
    raise TopologyError(_say_why(pattern, nodes, name))


def _cuts(pattern: str) -> Iterator[tuple[str, str, bool]]:
    """(from, to, one way only): every way to read `pattern` as two ends of a link."""
    for arrow, oneway in (("<->", False), ("->", True)):
        src, separator, dst = pattern.rpartition(arrow)
        if separator:
            if src and dst:
                yield src, dst, oneway
            return
    for i, letter in enumerate(pattern):
        if letter == "-" and 0 < i < len(pattern) - 1:
            yield pattern[:i], pattern[i + 1 :], False


def _find_nodes(pattern: str, nodes: dict[str, Node]) -> dict[str, None]:
    """The nodes that an id or a glob names, in their order."""
    if pattern in nodes:
        return {pattern: None}
    if not is_glob(pattern):
        return {}
    return dict.fromkeys(filter(matcher(pattern), nodes))


def _between(
    sources: dict[str, None], targets: dict[str, None], arcs: dict[Arc, None], oneway: bool
) -> set[Arc]:
    """The directed links from a source to a target, and those back unless `oneway`."""
    if not sources or not targets:
        return set()
    links = {arc for arc in arcs if arc[0] in sources and arc[1] in targets}
    if not oneway:
        links |= {arc for arc in arcs if arc[1] in sources and arc[0] in targets}
    return links


def _say_why(pattern: str, nodes: dict[str, Node], name: str) -> str:
    """Why a pattern matches nothing: which end is unknown, or that no link joins the two."""
    names = list(islice(nodes, 5_000))  # comparing with every name of a huge one helps nobody
    cuts = list(_cuts(pattern))
    for src, dst, oneway in cuts:
        left, right = _find_nodes(src, nodes), _find_nodes(dst, nodes)
        if left and right:
            if not oneway:
                return f"no link of '{name}' joins '{src}' and '{dst}'"
            return f"no link of '{name}' leads from '{src}' to '{dst}'"
    for src, dst, _ in cuts:
        for end, other in ((src, dst), (dst, src)):
            if not _find_nodes(end, nodes) and _find_nodes(other, nodes):
                return f"'{pattern}': {_say_unknown(end, names, name)}"
    if len(cuts) == 1:
        return f"'{pattern}': {_say_unknown(cuts[0][0], names, name)}"
    return _say_unknown(pattern, names, name)


def _say_unknown(word: str, names: list[str], name: str) -> str:
    if is_glob(word):
        return f"no node of '{name}' matches '{word}'; they are called {_few(names)}"
    hint = did_you_mean(word, names)
    return f"'{name}' has no node '{word}'{hint or f'; its nodes are {_few(names)}'}"


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return shown + (", ..." if len(names) > 3 else "")


# ----------------------------------------------------------------------------------- changes


def _scale(links: Iterable[Link], arcs: set[Arc], factor: Fraction) -> list[Link]:
    """`links`, those that run along `arcs` times `factor`; 0 leaves them out."""
    out: list[Link] = []
    for link in links:
        changed = [ends in arcs for ends in link.directions()]
        if not any(changed):
            out.append(link)
        elif all(changed):
            if factor:
                out.append(replace(link, bandwidth=link.bandwidth * factor))
        else:  # one direction of two
            for (src, dst), hit in zip(link.directions(), changed, strict=True):
                bandwidth = link.bandwidth * factor if hit else link.bandwidth
                if bandwidth:
                    one = replace(link, src=src, dst=dst, bandwidth=bandwidth, oneway=True)
                    out.append(one)
    return out


def _name(
    before: Topology, nodes: dict[str, Node], links: Sequence[Link], without: int, scale: int
) -> str:
    """The old name, what was done to it, and six letters that follow from the result."""
    whole = "\n".join(
        [
            *nodes,
            *sorted(
                f"{src} {dst} {link.bandwidth} {link.count} {link.latency}"
                for link in links
                for src, dst in link.directions()
            ),
        ]
    )
    digest = hashlib.sha256(whole.encode()).hexdigest()[:6]
    words = [f"without-{without}"] if without else []
    words += [f"scaled-{scale}"] if scale else []
    suffix = f"-{'-'.join(words)}-{digest}"
    return before.name[: NAME_LIMIT - len(suffix)] + suffix
