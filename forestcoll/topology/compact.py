"""The compact form, expanded: boxes, ranges and loops become plain nodes and links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice, product
from math import prod
from typing import NamedTuple

from forestcoll.common.errors import TopologyError, did_you_mean
from forestcoll.common.input_limits import EXPRESSION_STEPS, LINKS, LOOP_INDICES, LOOP_ROUNDS, NODES
from forestcoll.topology.alike import Alike, Apart, apart_error, indices_in, merge
from forestcoll.topology.arithmetic import (
    Expression,
    Number,
    Range,
    Template,
    compile_expression,
    compile_range,
    compile_template,
)
from forestcoll.topology.model import (
    RULES,
    Link,
    LinkRule,
    Node,
    check_id,
    check_ids,
    check_sizes,
    copies,
    unknown_node,
)
from forestcoll.topology.numbers import bandwidth, exact, has_unit, show
from forestcoll.topology.parameters import may_name
from forestcoll.topology.source import Place, Table, Text, Value, located

NODE_KEYS = ("kind", "multicast", "aggregation", "when")
STEPS_OF_LINK = 5  # of an expression, that take as long as a link with nothing to compute
STEPS_OF_NODE = 20
LINK_KEYS = ("src", "dst", "bandwidth", "latency", "count", "oneway", "rule", "for", "when")
_PLAIN = re.compile(r"[+-]?(?:\.?(?:inf|infinity|nan)|[0-9.]+(?:[eE][+-]?[0-9]+)?)", re.IGNORECASE)


class Expansion:
    """Collects the nodes and links of a file as its sections are expanded into them."""

    def __init__(self, values: dict[str, Number]) -> None:
        self.values = values
        self.nodes: dict[str, Node] = {}
        self.lines: dict[str, int] = {}
        self.links: list[Link] = []
        self.likes: dict[tuple[object, ...], Link] = {}  # one validated link of each look
        self.steps = 0
        self.computed = 0
        # fractions take some five times as long as whole numbers
        self.dear = 1 if all(isinstance(value, int) for value in values.values()) else 5
        self.spans: dict[str, range] = {}  # of indices whose values are merged
        self.alike: dict[str, list[Alike]] = {}
        self.merged_nodes: list[str] = []  # the templates that name them

    def merge(self, value: Value | None, apart: Apart) -> None:
        """Reads `alike:`, indices whose values are one but for those `apart`."""
        for name, entry in value.as_table("alike").items.items() if value is not None else ():
            table, what = entry.as_table(f"alike: {name[:60]}"), f"alike: {name[:60]}"
            table.check_keys(what, ("values", "when"), needed=("values",))
            if not may_name(name) or name in self.values:
                raise table.error(f"{what}: cannot name an index")
            text = table.items["values"].as_text(what)
            with located(text, what):
                span = compile_range(text.text).values(self.values)
                when = table.items.get("when")
                merged = when is None or self.flag(when, f"{what}: when", self.values)
                self.alike[name] = merge(span, apart.get(name, ()) if merged else None)
                if merged:
                    self.spans[name] = span

    def compute(self, steps: int) -> None:
        """So many more steps of expressions are about to be taken, or names of nodes made."""
        self.computed += steps * self.dear
        if self.computed > EXPRESSION_STEPS:
            raise TopologyError(
                f"expressions take more than {EXPRESSION_STEPS:,} steps {EXPRESSION_STEPS.note}: "
                "make loops shorter, or compute less in them"
            )

    def step(self, rounds: int = 1) -> None:
        """One more round of a loop, or several: also loops that make nothing must end."""
        self.steps += rounds
        if self.steps > LOOP_ROUNDS:
            raise TopologyError(
                f"loops go round more than {LOOP_ROUNDS:,} times {LOOP_ROUNDS.note}"
            )

    def boxes(self, value: Value) -> None:
        """Repeats the template of `boxes:` under box0/, box1/, ..."""
        table = value.as_table("boxes")
        table.check_keys("boxes", ("count", "nodes", "links"), needed=("count", "nodes"))
        count_text = table.items["count"].as_text("boxes: count")
        with located(count_text, "boxes: count"):
            count = compile_expression(count_text.text).integer(self.values)
            if count < 1:
                raise TopologyError(f"{count} boxes; at least 1 is needed")
            if count > NODES:
                raise TopologyError(f"{count:,} boxes are more than {NODES:,} nodes {NODES.note}")
        nodes = table.items["nodes"].as_table("boxes: nodes")
        if not nodes.items:
            raise nodes.error("boxes: nodes is empty")
        links = self.link_templates(table.items.get("links"), "boxes: links")
        each = 1 if _mentions(table, "box") else count  # boxes that are like the first
        for i in range(0, count, each):
            self.add_nodes(nodes, f"box{i}/", {**self.values, "box": i})
        with located(nodes, "boxes: nodes"):
            self.repeat_nodes(each)
        for i in range(0, count, each):
            for template in links:
                self.add_link(template, f"box{i}/", {**self.values, "box": i})
        with located(table, "boxes: links"):
            self.repeat_links(each)

    def repeat_nodes(self, count: int) -> None:
        """The nodes of box 0, which are all there are, in `count` boxes."""
        if count == 1:
            return
        check_sizes(len(self.nodes) * count, 0)
        ends = [name.removeprefix("box0/") for name in self.nodes]
        kinds, lines = list(self.nodes.values()), list(self.lines.values())
        check_ids([f"box{count - 1}/{end}" for end in ends])
        for i in range(1, count):
            names = [f"box{i}/{end}" for end in ends]
            self.nodes.update(zip(names, kinds, strict=True))
            self.lines.update(zip(names, lines, strict=True))

    def repeat_links(self, count: int) -> None:
        """The links of box 0, which are all there are, in `count` boxes."""
        if count == 1 or not self.links:
            return
        check_sizes(0, len(self.links) * count)
        names, size = list(self.nodes), len(self.nodes) // count
        number = {name: i for i, name in enumerate(names[:size])}
        boxes = [names[at : at + size] for at in range(size, len(names), size)]
        src = [number[link.src] for link in self.links]
        dst = [number[link.dst] for link in self.links]
        ends = ([box[i] for box in boxes for i in side] for side in (src, dst))
        self.links += copies(self.links, *ends)

    def add_nodes(self, table: Table, prefix: str, names: Mapping[str, Number]) -> None:
        """Expands one `nodes:` section."""
        for key, entry in table.items.items():
            place, what = table.key(key), f"nodes: '{key[:60]}'"
            with located(place, what):
                template = compile_template(key)
                self.compute(STEPS_OF_NODE + template.cost)
            fields = entry.as_table(what)
            fields.check_keys(what, NODE_KEYS, needed=("kind",))
            kind = fields.items["kind"].as_text(f"{what}: kind")
            if kind.text not in ("gpu", "switch"):
                hint = did_you_mean(kind.text, ("gpu", "switch")) or "; it is 'gpu' or 'switch'"
                raise kind.error(f"{what}: unknown kind '{kind.text[:40]}'{hint}")
            flags = {
                key: self.flag(fields.items[key], f"{what}: {key}", names)
                for key in ("multicast", "aggregation", "when")
                if key in fields.items
            }
            if not flags.pop("when", True):
                continue
            with located(place, what):
                node = Node("gpu" if kind.text == "gpu" else "switch", **flags)
                merged = indices_in(template, self.alike)
                if not self.spans.keys().isdisjoint(merged):
                    self.merged_nodes.append(key)
                choices = product(*(self.alike[index] for index in merged))
                bound = ({**names, **dict(zip(merged, each, strict=True))} for each in choices)
                for name in chain.from_iterable(map(template.expand, bound)):
                    self.step()
                    name = prefix + name
                    check_id(name)
                    if name in self.nodes:
                        raise TopologyError(
                            f"node '{name}' is there already, from line {self.lines[name]}"
                        )
                    self.nodes[name] = node
                    self.lines[name] = place.line
                    check_sizes(len(self.nodes), 0)

    def flag(self, value: Value, what: str, names: Mapping[str, Number]) -> bool:
        """`true`, `false`, or an expression that is 1 or 0."""
        text = value.as_text(what)
        if text.text.lower() in ("true", "false"):
            return text.text.lower() == "true"
        with located(text, what):
            try:
                expression = compile_expression(text.text)
                self.compute(expression.cost)
                number = expression.value(names)
            except TopologyError as error:
                raise TopologyError(f"{error}; or write true or false") from None
            if number not in (0, 1):
                raise TopologyError(f"'{text.text}' is {number}, neither true (1) nor false (0)")
            return bool(number)

    def link_templates(self, value: Value | None, what: str) -> list[_LinkTemplate]:
        """The entries of one `links:` section, checked and compiled."""
        if value is None:
            return []
        return [
            _LinkTemplate.read(entry, f"{what}[{i}]", self)
            for i, entry in enumerate(value.as_list(what))
        ]

    def add_link(self, template: _LinkTemplate, prefix: str, names: Mapping[str, Number]) -> None:
        """Expands one entry of a `links:` section."""
        with located(template.place, template.what):
            if not template.loops and template.when is None:
                self.step()
                self.compute(template.cost)
                self.join(template, prefix, names)
                return
            for bound in self.rounds(template, dict(names), 0):
                self.compute(template.cost_of_round)
                if template.when is None or template.when.value(bound):
                    self.compute(template.cost)
                    self.join(template, prefix, bound)

    def rounds(
        self, template: _LinkTemplate, names: dict[str, Number], depth: int
    ) -> Iterator[dict[str, Number]]:
        """`names` with every combination of the loop indices, in order."""
        if depth == len(template.loops):
            self.step()
            yield names
            return
        index, span = template.loops[depth]
        self.compute(span.cost)
        for value in span.values(names):
            names[index] = value
            self.step()
            yield from self.rounds(template, names, depth + 1)

    def join(self, template: _LinkTemplate, prefix: str, names: Mapping[str, Number]) -> None:
        """Links every node that `src` stands for with every one that `dst` stands for."""
        rate = template.bandwidth.value(names)
        latency = None if template.latency is None else template.latency.value(names)
        count = 1 if template.count is None else template.count.integer(names)
        count *= prod(v.size for v in names.values() if isinstance(v, Alike))
        sources = self.names(prefix, template.src, names)
        targets = self.names(prefix, template.dst, names)
        for end in chain(sources[:1], targets, sources[1:] if targets else ()):
            if end not in self.nodes:
                raise TopologyError(unknown_node(end, self.nodes))
        pairs = len(sources) * len(targets)
        self.step(pairs)
        check_sizes(0, len(self.links) + pairs)
        if pairs == 0:
            return
        look = (rate, latency, count, template.oneway, template.rule)
        like = self.likes.get(look)
        if like is None:
            exactly = None if latency is None else Fraction(latency)
            how = Fraction(rate), exactly, count, template.oneway, template.rule
            like = Link(sources[0], targets[0], *how)
            self.likes[look] = like
        if pairs == 1:
            self.links.append(like.between(sources[0], targets[0]))
        else:
            ends = [src for src in sources for _ in targets], targets * len(sources)
            self.links += copies([like], *ends)

    def names(self, prefix: str, template: Template, names: Mapping[str, Number]) -> list[str]:
        """The node ids that a template stands for; never many more than there may be links."""
        ids = [prefix + name for name in islice(template.expand(names), LINKS + 1)]
        if len(ids) != 1:
            self.compute(len(ids))
        return ids


def _mentions(value: Value, name: str) -> bool:
    """Whether `name` stands as a word in some text of `value`, or is a key there."""
    if isinstance(value, Text):
        return re.search(rf"\b{name}\b", value.text) is not None
    if isinstance(value, Table):
        keys = any(re.search(rf"\b{name}\b", key) for key in value.items)
        return keys or any(_mentions(item, name) for item in value.items.values())
    return any(_mentions(item, name) for item in value.as_list(""))


class _Classes(NamedTuple):
    """What a link's template loops over for a merged index."""

    classes: list[Alike]
    cost: int = 1

    def values(self, names: Mapping[str, Number]) -> list[Alike]:
        return self.classes


@dataclass(frozen=True, slots=True)
class _LinkTemplate:
    place: Place
    what: str
    src: Template
    dst: Template
    bandwidth: Expression
    latency: Expression | None
    count: Expression | None
    oneway: bool
    rule: LinkRule | None
    loops: tuple[tuple[str, Range | _Classes], ...]
    when: Expression | None
    cost: int  # steps of what is computed for a link
    cost_of_round: int  # of what says whether there is one

    @staticmethod
    def read(value: Value, what: str, expansion: Expansion) -> _LinkTemplate:
        table = value.as_table(what)
        table.check_keys(what, LINK_KEYS, needed=("src", "dst", "bandwidth"))

        def expression(key: str) -> Expression | None:
            text = table.text(key, what)
            if text is None:
                return None
            with located(text, f"{what}: {key}"):
                if key != "bandwidth" and has_unit(text.text):
                    raise TopologyError(f"'{text.text[:40]}' is a bandwidth; a number goes here")
                number = _number(text.text)
                for name in number.names & expansion.alike.keys():
                    raise apart_error(name)
                return number

        def template(key: str) -> Template:
            text = table.items[key].as_text(f"{what}: {key}")
            with located(text, f"{what}: {key}"):
                return compile_template(text.text)

        rate = expression("bandwidth")
        assert rate is not None  # `keys` has seen it
        oneway = table.items.get("oneway")
        ends, when = (template("src"), template("dst")), expression("when")
        latency, count = expression("latency"), expression("count")
        computed = (*ends, rate, latency, count)
        loops: list[tuple[str, Range | _Classes]] = [
            *_loops(table.items.get("for"), what, expansion)
        ]
        with located(table, what):
            merged = dict.fromkeys(n for end in ends for n in indices_in(end, expansion.alike))
        loops += [(name, _Classes(expansion.alike[name])) for name in merged]
        return _LinkTemplate(
            place=table,
            what=what,
            src=ends[0],
            dst=ends[1],
            bandwidth=rate,
            latency=latency,
            count=count,
            oneway=oneway is not None
            and expansion.flag(oneway, f"{what}: oneway", expansion.values),
            rule=_rule(table.text("rule", what), what),
            loops=tuple(loops),
            when=when,
            cost=STEPS_OF_LINK + sum(each.cost for each in computed if each is not None),
            cost_of_round=1 if when is None else 1 + when.cost,
        )


def _rule(text: Text | None, what: str) -> LinkRule | None:
    if text is None:
        return None
    rule_named = next((rule for rule in RULES if rule == text.text), None)
    if rule_named is None:
        words = [rule for rule in RULES if rule]
        hint = did_you_mean(text.text, words) or f"; it is {', '.join(words[:-1])} or {words[-1]}"
        raise text.error(f"{what}: unknown rule '{text.text[:40]}'{hint}")
    return rule_named


def _loops(value: Value | None, what: str, expansion: Expansion) -> tuple[tuple[str, Range], ...]:
    if value is None:
        return ()
    table = value.as_table(f"{what}: for")
    if len(table.items) > LOOP_INDICES:
        raise table.error(f"{what}: for: more than {LOOP_INDICES} indices {LOOP_INDICES.note}")
    loops: list[tuple[str, Range]] = []
    for index, entry in table.items.items():
        if not may_name(index):
            raise table.key(index).error(f"{what}: for: '{index[:60]}' cannot name an index")
        if index in expansion.values or index in expansion.alike:
            raise table.key(index).error(f"{what}: for: '{index}' is a parameter already")
        text = entry.as_text(f"{what}: for: {index}")
        with located(text, f"{what}: for: {index}"):
            loops.append((index, compile_range(text.text)))
    return tuple(loops)


@lru_cache(maxsize=4096)
def _number(text: str) -> Expression:
    """An expression; what looks like a plain number is checked as one, for its better message."""
    if has_unit(text):
        text = show(bandwidth(text))
    if _PLAIN.fullmatch(text.strip()):
        exact(text)
    return compile_expression(text)
