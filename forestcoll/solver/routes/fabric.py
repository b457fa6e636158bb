"""The switches of a fabric one by one: planes, numbers for segments, ports.

A fabric is all switches that are in no box. Its connected parts are planes; where a topology has
equal ones merged, the indices that all nodes of a part have in common (`plane`) tell planes apart,
the others (`spine`, `core`) switches of a plane. A form is a node's id with such indices in braces.

Numbers come from the whole fabric, before anything fails, so that they stay when something does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

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


Forms = Mapping[str, tuple[str, Mapping[str, Alike]]]
"""Per node of a topology its form and the values that it stands for."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Switches of one form: the values in the whole fabric of the indices that tell planes apart,
    and of those that tell switches of a plane apart."""

    plane: int  # the number of the first one's plane
    first: int  # and its segment number
    outer: dict[str, range]
    inner: dict[str, range]

    def segment(self, values: Values) -> int:
        """The number of the switch with these values, in its plane."""
        return self.first + _place(values, self.inner)


@dataclass(slots=True)
class Fabric:
    """The fabric of `whole`, of which `left` is left; both unexpanded. See the module."""

    whole: Topology
    left: Topology
    kinds: dict[str, Kind] = field(default_factory=dict)  # by form
    form: Forms = field(default_factory=dict)
    _forms: Forms = field(default_factory=dict)
    _ports: dict[str, dict[str, int]] = field(default_factory=dict)  # form -> other end -> port
    _copies: dict[tuple[str, str], int] = field(default_factory=dict)

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
        parts: dict[int, list[str]] = {}
        for node, root in zip(place, sets.roots(), strict=True):
            parts.setdefault(root, []).append(node)
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
        forms, switches = self._forms, list[tuple[str, str]]()
        for link in self.whole.links:
            for near, far in ((link.src, link.dst), (link.dst, link.src)):
                if near not in forms:
                    continue
                form = forms[near][0]
                ports = self._ports.setdefault(form, {})
                if far in forms:
                    switches.append((form, forms[far][0]))
                else:
                    ports.setdefault(far, len(ports))
        count = {form: len(ports) for form, ports in self._ports.items()}
        for form, other in switches:
            if other not in self._ports[form]:
                self._ports[form][other] = count[form]
                count[form] += math.prod(map(len, self._apart(form, other).values()))

    def _apart(self, form: str, other: str) -> dict[str, range]:
        """What tells switches of form `other` apart that one of `form` has links to."""
        here = self.kinds[form]
        inner = self.kinds[other].inner.items()
        return {n: span for n, span in inner if n not in here.inner and n not in here.outer}

    def plane(self, form: str, values: Values) -> int:
        """The number of the plane of a switch."""
        kind = self.kinds[form]
        return kind.plane + _place(values, kind.outer)

    def planes_of(self, node: str) -> list[int]:
        """The planes that a node of `left` stands for."""
        form, own = self.form[node]
        listed = {name: own[name].values for name in self.kinds[form].outer}
        return [self.plane(form, values) for values in _each(listed)]

    def values(self, node: str, fixed: Values = NONE) -> Iterator[dict[str, int]]:
        """The values of each switch that a node of `left` stands for, those with `fixed` ones."""
        own = self.form[node][1]
        listed = {name: alike.values for name, alike in own.items()}
        for name in fixed.keys() & own.keys():
            listed[name] = [fixed[name]] if fixed[name] in listed[name] else []
        return _each(listed)

    def switches(self) -> dict[str, tuple[str, dict[str, int]]]:
        """Form and values of every switch of the whole fabric, by id."""
        return {
            form.format(**values): (form, values)
            for form, own in self._forms.values()
            for values in _each({name: alike.values for name, alike in own.items()})
        }

    def nodes(self) -> dict[str, str]:
        """The node of `left` that stands for each switch, by the switch's id."""
        return {
            form.format(**values): node
            for node, (form, _) in self.form.items()
            for values in self.values(node)
        }

    def plane_values(self) -> dict[int, dict[str, int]]:
        """Of each plane of the whole fabric the values of the indices that tell planes apart."""
        return {
            self.plane(form, values): {name: values[name] for name in self.kinds[form].outer}
            for form, values in self.switches().values()
        }

    def port(self, form: str, other: str, values: Values) -> int:
        """The port of a switch to a host's node, or to the switch of form `other`, `values`."""
        port = self._ports[form][other]
        if other in self.kinds:
            port += _place(values, self._apart(form, other))
        return port

    @property
    def copies(self) -> dict[tuple[str, str], int]:
        """Per pair of nodes of `left` with a switch among them: of how many links theirs is one."""
        if not self._copies:
            for ends in self.left.rates():
                owns = [self.form[end][1] for end in ends if end in self.form]
                if owns:
                    alike = {**owns[0], **owns[-1]}
                    self._copies[ends] = math.prod(each.size for each in alike.values())
        return self._copies


def _place(values: Values, span: Mapping[str, range]) -> int:
    """Which of all combinations of values it is."""
    place = 0
    for name, values_of in span.items():
        place = place * len(values_of) + values[name] - values_of.start
    return place


def _each(listed: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """All combinations of the values of these indices."""
    for chosen in product(*listed.values()):
        yield dict(zip(listed, chosen, strict=True))


def _forms(topology: Topology) -> Forms:
    """Per switch outside of boxes its form and the values that it stands for."""
    merged = {} if topology.merged is None else topology.merged.forms()
    return {
        node: merged.get(node, (node, {}))
        for node, about in topology.nodes.items()
        if about.kind == "switch" and "/" not in node
    }
