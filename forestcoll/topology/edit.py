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
from itertools import chain, islice

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.topology import Link, Node, Topology, exact, show
from forestcoll.topology.alike import first_names
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
    merged = topology.merged
    if merged is None:
        return _apply(topology, without, scale)
    patterns = [*without, *(change.pattern for change in scale)]
    ends = (end for text in patterns for src, dst, _ in _cuts(text) for end in (src, dst))
    told = merged.tell_apart([*patterns, *ends])
    if told.apart != merged.apart:  # what was done before is done again
        topology = told.expand(told.apart)
        for before in merged.edits:
            topology = _apply(topology, *before)
    done = replace(told, edits=(*merged.edits, (tuple(without), tuple(scale))))
    return replace(_apply(topology, without, scale), merged=done)


def take_apart(topology: Topology) -> Topology:
    """The same with every node that it has merged by itself."""
    merged = topology.merged
    if merged is None:
        return topology
    whole: Topology = merged.expand({name: frozenset(span) for name, span in merged.spans.items()})
    for before in merged.edits:
        whole = _apply(whole, *before)
    return whole


def _apply(topology: Topology, without: Sequence[str], scale: Sequence[Scale]) -> Topology:
    """`edit` where each node stands for itself."""
    edited = _Edited(topology)
    for pattern in without:
        gone, arcs = edited.find(pattern)
        edited.scale(arcs, Fraction(0))
        for node in gone:
            del edited.nodes[node]
    if not any(node.kind == "gpu" for node in edited.nodes.values()):
        raise TopologyError(f"topology '{topology.name}': no GPU is left without {_few(without)}")
    for change in scale:
        _, arcs = edited.find(change.pattern)
        if not arcs:
            raise TopologyError(f"'{change.pattern}' names no link of '{topology.name}' to scale")
        edited.scale(arcs, change.factor)
    words = [f"without {', '.join(without)}"] if without else []
    words += [f"{change.pattern} at {show(change.factor)} of its bandwidth" for change in scale]
    # the old name, what was done to it, and six letters that follow from what is different
    gone = [node for node in topology.nodes if node not in edited.nodes]
    changed = sorted(
        f"{i} {[(*link.directions(), str(link.bandwidth), link.count) for link in links]}"
        for i, links in edited.changed.items()
        if links != (topology.links[i],)
    )
    suffix = f"-without-{len(without)}" if without else ""
    suffix += f"-scaled-{len(scale)}" if scale else ""
    suffix += "-" + hashlib.sha256("\n".join([*gone, *changed]).encode()).hexdigest()[:6]
    return Topology(
        name=topology.name[: NAME_LIMIT - len(suffix)] + suffix,
        nodes=edited.nodes,
        links=edited.links,
        adapters=topology.adapters,
        notes=(*topology.notes, *words),
    )


class _Edited:
    """A topology under change; links are looked up by their ends, of which no pass is needed."""

    def __init__(self, topology: Topology) -> None:
        self.name, self.nodes, self.before = topology.name, dict(topology.nodes), topology.links
        self.called = {} if topology.merged is None else first_names(self.nodes)
        self.changed: dict[int, tuple[Link, ...]] = {}  # what link i has become: none, one or two
        self.at: dict[str, list[int]] = {node: [] for node in self.nodes}
        for i, link in enumerate(topology.links):
            self.at[link.src].append(i)
            self.at[link.dst].append(i)

    @property
    def links(self) -> tuple[Link, ...]:
        """All that is left, in order."""
        left: list[tuple[Link, ...]] = list(zip(self.before, strict=True))
        for i, links in self.changed.items():
            left[i] = links
        return tuple(chain.from_iterable(left))

    def now(self, i: int) -> tuple[Link, ...]:
        """What is left of link i."""
        return self.changed.get(i, (self.before[i],))

    def touching(self, nodes: Iterable[str]) -> dict[Arc, None]:
        """The directed links from and to these nodes, in order."""
        numbers = sorted({i for node in nodes for i in self.at[node]})
        return dict.fromkeys(
            ends for i in numbers for link in self.now(i) for ends in link.directions()
        )

    def find(self, pattern: str) -> tuple[list[str], set[Arc]]:
        """(nodes that `pattern` names, the directed links that it names or that touch those)."""
        named = self.matching(pattern)
        readings: list[tuple[str, set[Arc]]] = []
        # An id that is there is meant, whatever else its "-" could stand for.
        if pattern not in self.nodes:
            for src, dst, oneway in _cuts(pattern):
                links_named = self.between(self.matching(src), self.matching(dst), oneway)
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
            return list(named), set(self.touching(named))
        raise TopologyError(_say_why(pattern, self.nodes, self.name))

    def matching(self, pattern: str) -> dict[str, None]:
        """The nodes that an id or a glob names; merged nodes by the first that they stand for."""
        nodes = _find_nodes(pattern, self.nodes)
        if self.called and is_glob(pattern) and pattern not in self.nodes:
            means = matcher(pattern)
            nodes |= {node: None for first, node in self.called.items() if means(first)}
        return nodes

    def between(self, sources: dict[str, None], targets: dict[str, None], oneway: bool) -> set[Arc]:
        """The directed links from a source to a target, and those back unless `oneway`."""
        if not sources or not targets:
            return set()
        few = min((sources, targets), key=lambda side: sum(len(self.at[node]) for node in side))
        return {
            (src, dst)
            for src, dst in self.touching(few)
            if (src in sources and dst in targets)
            or (not oneway and dst in sources and src in targets)
        }

    def scale(self, arcs: set[Arc], factor: Fraction) -> None:
        """Links that run along `arcs` times `factor`; 0 leaves them out."""
        numbers = {i for ends in arcs for i in min((self.at[node] for node in ends), key=len)}
        for i in numbers:
            now = self.now(i)
            if any(ends in arcs for link in now for ends in link.directions()):
                self.changed[i] = tuple(_scale(now, arcs, factor))


# ---------------------------------------------------------------------------------- patterns


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
