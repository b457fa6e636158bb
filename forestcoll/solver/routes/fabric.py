"""The switches of a fabric one by one: planes, numbers for segments, ports.

A fabric is all switches that are in no box. Its connected parts are planes; where a topology has
equal ones merged, the indices that all nodes of a part have in common (`plane`) tell planes apart,
the others (`spine`, `core`) switches of a plane. A form is a node's id with such indices in braces.

Numbers come from the whole fabric, before anything fails, so that they stay when something does.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import permutations, product

from forestcoll.common.errors import UnsupportedError
from forestcoll.graph.symmetry.group import DisjointSets
from forestcoll.topology import Topology
from forestcoll.topology.alike import Alike

FIRST_SEGMENT = 0x100
LOCAL_SEGMENTS = 0xE000
"""Where numbers of local segments begin: those below are global."""
DECAPSULATION = 0xF000
"""The local segment at which a host takes the outer header off."""
MOST_PLANES = 256
Values = Mapping[str, int]
NONE: Values = {}


Forms = Mapping[str, tuple[str, dict[str, Alike]]]
"""Per node of a topology its form and the values that it stands for."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Switches of one form: the values in the whole fabric of the indices that tell planes apart,
    and of those that tell switches of a plane apart."""

    plane: int  # the number of the first one's plane
    first: int  # and its segment number
    outer: dict[str, range]
    inner: dict[str, range]


@dataclass
class Fabric:
    """The fabric of `whole`, of which `left` is left; both unexpanded. See the module."""

    whole: Topology
    left: Topology
    kinds: dict[str, Kind] = field(default_factory=dict)  # by form
    form: Forms = field(default_factory=dict)
    _forms: Forms = field(default_factory=dict)
    _ports: dict[str, dict[str, int]] = field(default_factory=dict)  # form -> other end -> port

    def __post_init__(self) -> None:
        self.form, self._forms = _forms(self.left), _forms(self.whole)
        if not self._forms:
            raise UnsupportedError(
                f"'{self.whole.name}' has no switch outside of boxes to route over"
            )
        place = {node: i for i, node in enumerate(self._forms)}
        sets = DisjointSets(len(place))
        for link in self.whole.links:
            if link.src in place and link.dst in place:
                sets.join(place[link.src], place[link.dst])
        parts = defaultdict[int, list[str]](list)
        for node, root in zip(place, sets.roots(), strict=True):
            parts[root].append(node)
        planes = 0
        for nodes in parts.values():
            planes += self._number(planes, nodes)
        if planes > MOST_PLANES:
            raise UnsupportedError(f"{planes} planes: their blocks of addresses are {MOST_PLANES}")
        self._number_ports()

    def _number(self, plane: int, nodes: Sequence[str]) -> int:
        """Numbers the switches of a part from `plane` on; how many planes it is."""
        spans = {} if self.whole.merged is None else self.whole.merged.spans
        forms = [self._forms[node] for node in nodes]
        outer = {n: spans[n] for n in forms[0][1] if all(n in own for _, own in forms)}
        segment = FIRST_SEGMENT
        for form, own in forms:
            inner = {name: spans[name] for name in own if name not in outer}
            self.kinds[form] = Kind(plane, segment, outer, inner)
            segment += math.prod(map(len, inner.values()))
        if segment > LOCAL_SEGMENTS:
            raise UnsupportedError(
                f"{segment - FIRST_SEGMENT:,} switches of a plane: global segments have "
                f"{LOCAL_SEGMENTS - FIRST_SEGMENT:,} numbers"
            )
        return math.prod(map(len, outer.values()))

    def _number_ports(self) -> None:
        """Ports of every form: to hosts first, then to switches, in the order of the links."""
        forms, count = self._forms, Counter[str]()
        links = [
            ends for link in self.whole.links for ends in permutations((link.src, link.dst), 2)
        ]
        for near, far in sorted(links, key=lambda ends: ends[1] in forms):
            if near in forms:
                form, other = forms[near][0], forms[far][0] if far in forms else far
                ports = self._ports.setdefault(form, {})
                if other not in ports:
                    ports[other] = count[form]
                    count[form] += math.prod(map(len, self._apart(form, other).values()))

    def _apart(self, form: str, other: str) -> dict[str, range]:
        """What tells nodes of form `other` apart that a switch of `form` has links to: no hosts."""
        if other not in self.kinds:
            return {}
        here, inner = self.kinds[form], self.kinds[other].inner
        return {n: s for n, s in inner.items() if n not in here.inner and n not in here.outer}

    def plane(self, form: str, values: Values) -> int:
        """The number of the plane of a switch."""
        kind = self.kinds[form]
        return kind.plane + _place(values, kind.outer)

    def segment(self, form: str, values: Values) -> int:
        """The number of a switch in its plane."""
        kind = self.kinds[form]
        return kind.first + _place(values, kind.inner)

    def planes_of(self, node: str) -> list[int]:
        """The planes that a node of `left` stands for."""
        form, _ = self.form[node]
        return sorted({self.plane(form, values) for values in self.values(node)})

    def values(self, node: str, fixed: Values = NONE) -> Iterator[dict[str, int]]:
        """The values of each switch that a node of `left` stands for, those with `fixed` ones."""
        return _each(self.form[node][1], fixed)

    @cached_property
    def switches(self) -> dict[str, tuple[str, dict[str, int]]]:
        """Form and values of every switch of the whole fabric, by id."""
        return {
            form.format(**values): (form, values)
            for form, own in self._forms.values()
            for values in _each(own)
        }

    @cached_property
    def nodes(self) -> dict[str, str]:
        """The node of `left` that stands for each switch, by the switch's id."""
        return {
            form.format(**values): node
            for node, (form, _) in self.form.items()
            for values in self.values(node)
        }

    @cached_property
    def plane_values(self) -> dict[int, dict[str, int]]:
        """Of each plane of the whole fabric the values of the indices that tell planes apart."""
        return {
            self.plane(form, values): {name: values[name] for name in self.kinds[form].outer}
            for form, values in self.switches.values()
        }

    def port(self, form: str, other: str, values: Values) -> int:
        """The port of a switch to a host's node, or to the switch of form `other`, `values`."""
        return self._ports[form][other] + _place(values, self._apart(form, other))

    @cached_property
    def links(self) -> dict[tuple[str, str], Fraction]:
        """Per pair of nodes of `left` with a switch among them GB/s of one of their links."""
        links = {}
        for ends, rate in self.left.rates().items():
            owns = [self.form[end][1] for end in ends if end in self.form]
            if owns:
                links[ends] = rate / math.prod(a.size for a in (owns[0] | owns[-1]).values())
        return links


def _place(values: Values, span: Mapping[str, range]) -> int:
    """Which of all combinations of values it is."""
    place = 0
    for name, values_of in span.items():
        place = place * len(values_of) + values[name] - values_of.start
    return place


def _each(own: Mapping[str, Alike], fixed: Values = NONE) -> Iterator[dict[str, int]]:
    """All combinations of the values of these indices, those with `fixed` ones."""
    listed = [[v for v in alike.values if v == fixed.get(n, v)] for n, alike in own.items()]
    for chosen in product(*listed):
        yield dict(zip(own, chosen, strict=True))


def _forms(topology: Topology) -> Forms:
    """Per switch outside of boxes its form and the values that it stands for."""
    merged = {} if topology.merged is None else topology.merged.forms()
    return {
        node: merged.get(node, (node, {}))
        for node, about in topology.nodes.items()
        if about.kind == "switch" and "/" not in node
    }
