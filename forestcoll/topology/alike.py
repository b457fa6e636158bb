"""Alike nodes merged: equal switches that stand as one, until something tells them apart.

A topology file may name indices whose values nothing in it tells apart, the planes of a fabric and
the spines of a plane:

    alike:
      plane: {values: 0..planes-1, when: merge}
      spine: {values: 0..spines-1, when: merge}

A node `plane{plane}.leaf{0..3}` is then one node `plane0..7.leaf0` for all planes, and a link to it
one of as many cables as there would be links. Every GPU is still itself, so the nodes that are
merged form an equitable partition with the ranks alone in their cells: a flow between ranks on the
merged links is one on the expanded links (each has its even share of it), and the other way round.
Whatever follows from flows between ranks is the same.

An edit (`--without plane3.leaf0`) that means some of the merged nodes and not others has the
topology expanded anew, with the values that it names apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeVar

from forestcoll.common.errors import TopologyError
from forestcoll.common.input_limits import NODES, RANGE_VALUES
from forestcoll.topology.arithmetic import Expression, Number, Range, Template, compile_template
from forestcoll.topology.globs import is_glob, matcher

_SEVERAL = re.compile(r"(\d+)(?:(?:\.\.|\+)\d+)+")
Value = TypeVar("Value", bound=int)
Apart = Mapping[str, frozenset[int]]
"""Per index the values that stand alone."""


class Alike(int):
    """Values of an index that stand as one: the first of them, how many, and all as text."""

    size: int
    text: str
    span: range
    gaps: Sequence[int]

    @staticmethod
    def of(values: range, gaps: Sequence[int]) -> Alike:
        """Those of `values` that are not among `gaps`, of which there is one at least."""
        runs, start = [], values.start
        for stop in [*gaps, values.stop]:
            if stop > start:
                runs.append(f"{start}..{stop - 1}" if stop > start + 1 else str(start))
            start = stop + 1
        alike = Alike(runs[0].partition(".")[0])
        alike.span, alike.gaps, alike.text = values, gaps, "+".join(runs)
        alike.size = len(values) - len(gaps)
        return alike

    @property
    def values(self) -> list[int]:
        """All of them, in order."""
        return [v for v in self.span if v not in self.gaps]

    @staticmethod
    def blank(name: str) -> Alike:
        """What stands as `{name}` in text."""
        alike = Alike(0)
        alike.size, alike.text = 1, f"{{{name}}}"
        return alike

    def __str__(self) -> str:
        return self.text


def merge(values: range, apart: Collection[int] | None) -> list[Alike]:
    """The classes of an index's values: each of `apart` (None: each of all) alone, the rest one."""
    size = values.stop - values.start
    if apart is None and size > RANGE_VALUES:
        raise TopologyError(f"an index counts over {size:,} values {RANGE_VALUES.note}")
    lone = sorted(v for v in (values if apart is None else apart) if v in values)
    classes = [Alike.of(range(v, v + 1), ()) for v in lone]
    if len(lone) < size:
        classes.append(Alike.of(values, lone))
    return sorted(classes)


def first_names(nodes: Iterable[str]) -> dict[str, str]:
    """The first id that each merged node stands for -> its own id."""
    named = ((_SEVERAL.sub(r"\1", node), node) for node in nodes)
    return {first: node for first, node in named if first != node}


def apart_error(text: str) -> TopologyError:
    """The error for a merged index in what depends on its value."""
    return TopologyError(
        f"'{text}': an index of 'alike' stands alone in braces of 'src' and 'dst', as nothing may "
        "tell its values apart"
    )


def indices_in(template: Template, merged: Mapping[str, object]) -> list[str]:
    """The merged indices in a template. Raises TopologyError where one is computed with."""
    names: list[str] = []
    for part in template.parts:
        inside = [part.first, part.last] if isinstance(part, Range) else [part]
        for expression in inside:
            if not isinstance(expression, Expression) or expression.names.isdisjoint(merged):
                continue
            if expression.text not in merged or isinstance(part, Range):
                raise apart_error(expression.text)
            names.append(expression.text)
    return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Merged:
    """How a topology was expanded, for who must tell merged nodes apart.

    `expand(apart)` makes it again; `spans`: every index that is merged; `nodes`: the templates that
    name them; `edits`: what it went through since, as arguments of `edit`.
    """

    expand: Callable[[Apart], Any]
    spans: Mapping[str, range]
    nodes: tuple[str, ...]
    values: Mapping[str, Number]
    apart: Apart
    edits: tuple[tuple[Any, ...], ...] = ()

    def tell_apart(self, words: Iterable[str]) -> Merged:
        """The same with all apart that node ids and globs among `words` tell apart."""
        listed = [*self._expand(self.spans.__getitem__)]
        apart = dict(self.apart)
        for word in dict.fromkeys(words):
            means = matcher(word) if is_glob(word) else word.__eq__
            hits = [means(node) for node, _, _ in listed]
            meant: dict[str, set[int]] = {}
            for (_, own, _), hit in zip(listed, hits, strict=True):
                for name, value in own.items() if hit else ():
                    meant.setdefault(name, set()).add(value)
            told = {n: v for n, v in meant.items() if len(v) < len(self.spans[n])}
            cells = [
                (place, tuple((n, v) for n, v in own.items() if v in told.get(n, ())))
                for _, own, place in listed
            ]
            whole = Counter(cells)
            part = Counter(cell for cell, hit in zip(cells, hits, strict=True) if hit)
            if any(whole[cell] != count for cell, count in part.items()):
                told = meant  # no product of values: each of them alone
            for name, values in told.items():
                apart[name] = apart.get(name, frozenset()) | values
        return replace(self, apart=apart)

    def forms(self) -> dict[str, tuple[str, dict[str, Alike]]]:
        """Per merged node its id with indices in braces, "plane{plane}.leaf3", and their values."""
        forms = {place: form for form, _, place in self._expand(lambda n: [Alike.blank(n)])}
        nodes = self._expand(lambda n: merge(self.spans[n], self.apart.get(n, ())))
        return {node: (forms[place], own) for node, own, place in nodes}

    def sizes(self) -> dict[str, int]:
        """Per merged node how many it stands for."""
        return {n: prod(a.size for a in own.values()) for n, (_, own) in self.forms().items()}

    def _expand(
        self, values: Callable[[str], Sequence[Value]]
    ) -> Iterator[tuple[str, dict[str, Value], tuple[int, int]]]:
        """(node id, its merged indices, which template it is of and where in it), if these have
        such values."""
        for t, text in enumerate(self.nodes):
            template = compile_template(text)
            names = indices_in(template, self.spans)
            count = 0
            for chosen in product(*map(values, names)):
                own = dict(zip(names, chosen, strict=True))
                for k, node in enumerate(template.expand({**self.values, **own})):
                    count += 1
                    if count > NODES:
                        raise TopologyError(
                            f"'{text}' stands for more than {NODES:,} nodes {NODES.note}"
                        )
                    yield node, own, (t, k)
