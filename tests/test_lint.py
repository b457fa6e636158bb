"""The linter: what it takes, what it says and how, foreign plans, several launches, any bytes."""

from __future__ import annotations

import ast
import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lint_mutations_json as spoil_json
import lint_mutations_xml as spoil_xml
import programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import any_json, any_text, any_xml

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.plans.findings import LISTED, LISTED_OF_A_RULE, Findings, report
from forestcoll.plans.lint import RULES, Report, Told, lint
from forestcoll.program import Buffer, Collective, Instruction, Op, Ref
from forestcoll.ui import cli
from forestcoll.verify import verify

ROOT = Path(__file__).parents[1]
XML = {name: spoil_xml.base_text(name) for name in spoil_xml.BASES}
JSON = {name: spoil_json.base_text(name) for name in spoil_json.BASES}


def rules_of(found: Report) -> set[str]:
    return {finding.rule for finding in found.findings}


# --- what the loaders take ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a<b>c", "a&lt;b<c>d", "a & b &foo; &#0; &#x110000;", "a\nb\tc", "x'y", "a\1b", "<!--", "a=b"],
)
def test_a_value_holds_anything_but_double_quotes(name: str) -> None:
    """The parsers take it to end at the next one (msccl_parser.cc:26-52)."""
    found = lint(XML["ring"].replace('name="test-allreduce"', f'name="{name}"'), "p")
    assert found.ok, found.findings
    assert not found.counts["warning"]
    assert found.verified is not None


def test_values_that_would_end_a_tag_do_not_hide_what_is_wrong() -> None:
    spoilt = XML["ring"].replace('name="test-allreduce"', 'name="a>b<c"')
    wrong = spoilt.replace('type="cpy"', 'type="cpx"', 1)
    assert "XML-STEP-TYPE" in rules_of(lint(wrong, "p"))


def test_double_scratch_without_packets_is_no_fault_where_nobody_reaches_it() -> None:
    for name in ("direct", "reading"):
        plan = json.loads(JSON[name]) | {"use_double_scratch_buffer": True}
        found = lint(json.dumps(plan), "p")
        assert found.ok, found.findings
    plan = json.loads(JSON["slots"]) | {"use_double_scratch_buffer": True}
    assert "MPP-DOUBLE-SCRATCH" in rules_of(lint(json.dumps(plan), "p"))


def test_a_largest_size_is_looked_at_in_steps_of_what_is_served() -> None:
    """Bytes up to 4 GiB that are no multiple of all chunks are never asked for."""
    plan = json.loads(JSON["direct"])
    plan.pop("forestcoll", None)
    step = plan["gpus"][0]["output_chunks"] * 16
    served = (2**32 - 1) // step * step
    for high, fine in ((served, True), (served + step - 1, True), (served + step, False)):
        found = lint(json.dumps(plan | {"max_message_size": high}), "p")
        assert ("MPP-4GIB" not in rules_of(found)) is fine, (high, found.findings)


# --- targets --------------------------------------------------------------------------------------


def test_target_is_guessed_from_the_file() -> None:
    assert (lint(XML["ring"], "p").target, lint(XML["ring"], "p").guessed) == ("msccl", True)
    assert lint(XML["star"], "p").target == "rccl"  # s, r, re, cpy: both run it
    assert lint(JSON["chain"], "p").target == "mscclpp"
    assert lint(XML["star"], "p", "msccl").guessed is False
    wide = spoil_xml.copies_of_block(0, 0, 70)(XML["star"])
    assert lint(wide, "p").target == "msccl"


def test_a_target_of_the_other_format_is_refused() -> None:
    with pytest.raises(PlanError, match="p: is msccl-xml; target mscclpp reads mscclpp-json"):
        lint(XML["ring"], "p", "mscclpp")
    with pytest.raises(PlanError, match="p: the file is empty"):
        lint("", "p")


def test_sms_follow_from_the_name_or_are_told() -> None:
    wide = spoil_xml.copies_of_block(0, 0, 110)(XML["star"])
    assert "XML-TB-SMS" in rules_of(lint(wide, "p", "msccl"))
    assert "XML-TB-SMS" not in rules_of(lint(wide, "p", "msccl", sms=132))
    named = wide.replace('name="test-reduce"', 'name="dgx-h100-1"')
    assert "XML-TB-SMS" not in rules_of(lint(named, "p", "msccl"))


# --- what is said ---------------------------------------------------------------------------------


def test_all_findings_are_listed_with_place_and_cure() -> None:
    text = XML["star"]
    for change in (
        spoil_xml.step(0, 1, 0, dstoff=9),
        spoil_xml.step(0, 2, 1, depid=9),
        spoil_xml.algo(minBytes=None),
        spoil_xml.tb(1, 0, chan=4),
    ):
        text = change(text)
    found = lint(text, "p")
    assert {"XML-BOUNDS", "XML-DEP", "XML-MISSING", "XML-CHANNEL"} <= rules_of(found)
    bounds = next(f for f in found.findings if f.rule == "XML-BOUNDS")
    assert (bounds.rank, bounds.block, bounds.step, bounds.line) == (0, 1, 0, 7)
    assert str(bounds) == (
        "error XML-BOUNDS at line 7, rank 0, thread block 1, step 0: dst of r: chunks 9 to 9 of "
        "buffer 's', which holds 3; correct offset or cnt, or enlarge the buffer"
    )
    assert [f.severity for f in found.findings] == sorted(
        [f.severity for f in found.findings], key=("error", "warning", "note").index
    )
    assert found.counts["error"] == sum(f.severity == "error" for f in found.findings)
    assert "RUN-SKIPPED" in rules_of(found)


def test_lists_are_bounded_and_the_rest_counted() -> None:
    found = lint(XML["ring"].replace('cnt="1"', 'cnt="0"'), "p")
    listed = [f for f in found.findings if f.rule == "XML-COUNT"]
    assert len(listed) == LISTED_OF_A_RULE
    assert found.counts["error"] == 28
    assert found.more == 28 - LISTED_OF_A_RULE
    out = Findings()
    names = [name for name, rule in RULES.items() if rule.severity == "error"]
    for name in names:
        for k in range(LISTED_OF_A_RULE):
            out.add(name, "text", rank=k)
    many = report(out, "p", "msccl", False, 2)
    assert len(many.findings) == LISTED
    assert many.more == len(names) * LISTED_OF_A_RULE - LISTED


def test_the_same_finding_counts_once() -> None:
    out = Findings()
    for _ in range(3):
        out.add("XML-DEP", "text", rank=1, block=2, step=3)
    assert out.errors == 1


def test_every_rule_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert page.count("\n| `") == len(RULES)


def test_every_rule_is_used_and_every_name_is_a_rule() -> None:
    """Names in the code are rules, and no rule is one that nothing can break."""
    words: set[str] = set()
    for folder in ("plans", "program", "verify"):
        for path in (ROOT / "forestcoll" / folder).rglob("*.py"):
            if path.name == "catalogue.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    words.add(node.value)
                if isinstance(node, ast.keyword) and node.arg == "rule":
                    for value in ast.walk(node.value):
                        if isinstance(value, ast.Constant):
                            assert value.value in RULES, (path, value.value)
    assert set(RULES) <= words


# --- the rules that no mutation breaks ------------------------------------------------------------


def test_notes_say_what_a_plan_serves() -> None:
    chain = lint(XML["chain"], "p")
    assert rules_of(chain) == {"XML-SIZES", "XML-ROOT-IGNORED", "XML-PROXY-STEPS"}
    text = next(f.text for f in chain.findings if f.rule == "XML-SIZES")
    assert text == "it serves multiples of 8 bytes of float32: 2 elements of any type"
    slots = lint(JSON["slots"], "p")
    assert rules_of(slots) == {"MPP-SIZES", "MPP-SUM", "MPP-ROOT-IGNORED", "MPP-UNHOOKED"}
    more = spoil_xml.gpu(0, s_chunks=9)(XML["star"])
    assert "XML-SCRATCH-SPARE" in rules_of(lint(more, "p"))
    flag = spoil_xml.step(0, 3, 1, hasdep=1)(XML["star"])
    assert "XML-FLAG-SPARE" in rules_of(lint(flag, "p"))


def test_notes_say_what_the_machine_needs() -> None:
    far = {"names": ["a/gpu0", "a/gpu1", "b/gpu0", "b/gpu1"]}
    chain = plans.dumps(programs.pipelined_broadcast(4, "port"), "mscclpp-json")
    assert "MPP-HCA" not in rules_of(lint(chain, "p"))
    between = lint(spoil_json.edit(lambda p: p["forestcoll"].update(far))(chain), "p")
    assert between.ok
    text = next(f.text for f in between.findings if f.rule == "MPP-HCA")
    assert text == "ports of 2 ranks a node lead to others"  # rank 1 and rank 2
    assert "MPP-PACKET-COUNT" in rules_of(lint(JSON["packets"], "p"))
    assert "MPP-PACKET-COUNT" not in rules_of(lint(JSON["reading"], "p"))
    lines = lint(spoil_xml.algo(proto="LL128")(XML["ring"]), "p")
    assert lines.ok
    assert "XML-LL128" in rules_of(lines)
    assert "XML-LL128" not in rules_of(lint(XML["ring"], "p"))


@pytest.mark.parametrize(("children", "severity"), [(15, {}), (16, {"msccl": "error"})])
def test_neighbouring_reductions_are_joined_by_fifteen(
    children: int, severity: dict[str, str]
) -> None:
    """The sixteenth would be the seventeenth operand, the place itself, which is left out."""
    do, tb, scr = programs.do, programs.tb, programs.scr
    every = [(b, 0) for b in range(children + 1)]
    sums = [do(Op.REDUCE, scr(0), programs.out(0), after=every)]
    sums += [do(Op.REDUCE, scr(k), programs.out(0)) for k in range(1, children)]
    blocks = [tb(do(Op.COPY, programs.inp(0), programs.out(0)))]
    blocks += [tb(do(Op.RECV, (), scr(k)), recv=k + 1) for k in range(children)]
    root = programs.rank(*blocks, tb(*sums), i=1, o=1, s=children)
    leaf = programs.rank(tb(do(Op.SEND, programs.inp(0)), send=0), i=1, o=1)
    made = programs.program(Collective.REDUCE, "fifo", [root, *[leaf] * children], root=0)
    written = plans.dumps(made, "msccl-xml")  # which parts them all
    assert "XML-RE-JOINED" not in rules_of(lint(written, "p"))
    text = re.sub(r'(type="re"[^>]* hasdep=)"1"', r'\1"0"', written)
    for target in ("msccl", "rccl"):
        found = lint(text, "p", target)
        assert found.verified is not None
        said = [(f.severity, f.step) for f in found.findings if f.rule == "XML-RE-JOINED"]
        wanted = severity.get(target, "warning")
        assert said == ([(wanted, children + children - 1)] if severity else []), target


def blocks_with(channel: int, count: int) -> Callable[[ET.Element], None]:
    """Rank 0 gets `count` thread blocks that receive on one channel from other ranks."""

    def edit(top: ET.Element) -> None:
        for k in range(count):
            new = ET.SubElement(top[0], "tb", {"id": str(len(top[0])), "send": "-1"})
            new.set("recv", str(1 + k % 3))
            new.set("chan", str(channel))

    return edit


def test_channels_serve_32_thread_blocks() -> None:
    text = spoil_xml.many(
        spoil_xml.algo(nchannels=2), spoil_xml.tree(blocks_with(1, 33))
    )(XML["star"])  # fmt: skip
    found = lint(text, "p", "msccl")
    assert {"XML-CHANNEL-LOAD", "XML-CONNECTION-SHARED", "XML-TB-EMPTY"} <= rules_of(found)


def test_elements_have_1024_children() -> None:
    text = spoil_xml.long_block(1, 0, 1020)(XML["ring"])
    assert {"XML-CHILDREN", "XML-STEP-COUNT"} <= rules_of(lint(text, "p", "msccl"))


def test_17_remote_buffers() -> None:
    def edit(plan: dict[str, Any]) -> None:
        entry = plan["gpus"][0]
        entry["remote_buffers"] *= 17
        entry["threadblocks"][0]["remote_buffer_refs"][0]["remote_buffer_ids"] = list(range(17))

    assert "MPP-TB-REMOTES" in rules_of(lint(spoil_json.edit(edit)(JSON["chain"]), "p"))


def test_switch_channels() -> None:
    def edit(plan: dict[str, Any]) -> None:
        entry = plan["gpus"][0]
        group = {"size": 2, "ranks": [0, 9]}
        entry["channels"].append(
            {"channel_type": "switch", "buffer_type": "x", "rank_groups": [group]}
        )
        block = entry["threadblocks"][0]
        block["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        for number in (0, 1):
            end = {"switch_channel_id": number, "index": 0, "size": 2}
            block["ops"].append(
                {"name": "glres", "channel_type": "switch", "src_buff": [end], "dst_buff": [end]}
            )

    found = rules_of(lint(spoil_json.edit(edit)(JSON["chain"]), "p"))
    assert {"MPP-SWITCH-GROUP", "MPP-BUFFER-TYPE", "MPP-SWITCH-ID", "MPP-SWITCH"} <= found


def test_packets_in_the_wrong_place() -> None:
    over_port = {"name": "ppkt", "channel_type": "port", "channel_ids": [], "src_buff": [],
                 "dst_buff": []}  # fmt: skip
    put = spoil_json.ops(0, 0, lambda ops: ops.append(over_port))
    assert "MPP-PACKET-PORT" in rules_of(lint(put(JSON["packets"]), "p"))

    def wrap(ops: list[dict[str, Any]]) -> None:
        count = ops[0]["src_buff"][0]["size"]
        context = {"unit_size": 16, "num_chunks": count}
        ops[0] = {"name": "pipeline", "iter_context": context, "ops": [ops[0]]}

    assert "MPP-PIPE-PACKETS" in rules_of(lint(spoil_json.ops(0, 0, wrap)(JSON["packets"]), "p"))

    def plain(plan: dict[str, Any]) -> None:
        for entry in plan["gpus"]:
            for remote in entry["remote_buffers"]:
                remote["type"] = "o"

    assert "MPP-PACKET-SCRATCH" in rules_of(lint(spoil_json.edit(plain)(JSON["packets"]), "p"))


def test_packets_twice_in_a_slot() -> None:
    again = spoil_json.ops(0, 0, lambda ops: ops.insert(1, ops[0]))
    assert "RUN-PACKETS-TWICE" in rules_of(lint(again(JSON["packets"]), "p"))


def test_operands_that_overlap() -> None:
    move = Instruction(Op.COPY, (Ref(Buffer.OUTPUT, 0, 2),), (Ref(Buffer.OUTPUT, 1, 2),))
    made = programs.ring_allreduce(4)
    first = made.ranks[0]
    block = first.thread_blocks[0]
    block = replace(block, steps=(*block.steps, move))
    spoilt = replace(
        made, ranks=(replace(first, thread_blocks=(block,)), *made.ranks[1:]), name="overlap"
    )
    found = lint(plans.dumps(spoilt, "msccl-xml"), "p")
    assert "RUN-OVERLAP" in rules_of(found)


def test_a_race_with_the_next_launch() -> None:
    """Two leaves put into slots of rank 0, which adds them up; nobody waits before the next one."""
    made = programs.reduce_to_root("memory")
    cut = tuple(
        replace(rank, thread_blocks=(replace(block, steps=block.steps[3:4]),))
        for rank in made.ranks
        for block in rank.thread_blocks
    )
    found = lint(plans.dumps(replace(made, ranks=cut), "mscclpp-json"), "p")
    assert "RUN-RACE-LAUNCHES" in rules_of(found)
    place = next(f for f in found.findings if f.rule == "RUN-RACE-LAUNCHES")
    assert "of the next launch" in place.text
    assert (place.rank, place.block, place.step) == (1, 0, 0)


def test_fixed_scratch_is_followed_as_a_long_one() -> None:
    reuse = spoil_json.top(reuse_resources=True)
    found = lint(reuse(JSON["chain"]), "p")
    assert found.ok
    assert {"MPP-REUSE", "RUN-PARTLY-FOLLOWED"} <= rules_of(found)
    assert found.verified is None  # not all of it
    spoilt = spoil_json.drop_inner(1, 0, 3, 1)(JSON["chain"])
    assert "RUN-RACE-NOP" in rules_of(lint(reuse(spoilt), "p"))


def packets_by_switch(n: int = 13, slot: int | None = None) -> dict[str, Any]:
    """An allgather: a rank packs its chunk, and has the switch store the packets everywhere."""
    gpus = []
    for r in range(n):
        own = {"type": "s", "index": r, "size": 1}
        out = {"switch_channel_id": 0, "index": r if slot is None else slot, "size": 1}
        ops: list[dict[str, Any]] = [
            {"name": "cpkt", "src_buff": [{"type": "i", "index": 0, "size": 1}], "dst_buff": [own]},
            {"name": "gstorepkt", "channel_type": "switch", "src_buff": [own], "dst_buff": [out]},
        ]
        ops += [
            {
                "name": "upkt",
                "src_buff": [{"type": "s", "index": k, "size": 1}],
                "dst_buff": [{"type": "o", "index": k, "size": 1}],
            }
            for k in range(n)
        ]
        channel = {
            "channel_type": "switch",
            "buffer_type": "s",
            "rank_groups": [{"size": n, "ranks": list(range(n))}],
        }
        block = {
            "id": 0,
            "ops": ops,
            "channels": [{"channel_type": "switch", "channel_ids": [0]}],
            "remote_buffer_refs": [],
        }
        gpus.append(
            {
                "id": r,
                "input_chunks": 1,
                "output_chunks": n,
                "scratch_chunks": n,
                "threadblocks": [block],
                "channels": [channel],
                "remote_buffers": [],
                "semaphores": [],
            }
        )
    return {
        "name": "packets by switch",
        "collective": "allgather",
        "protocol": "LL",
        "inplace": False,
        "reuse_resources": False,
        "use_double_scratch_buffer": True,
        "buffer_alignment": 16,
        "num_threads_per_block": 256,
        "min_message_size": 0,
        "max_message_size": 2**20,
        "gpus": gpus,
    }


def test_packets_through_a_switch_are_followed() -> None:
    found = lint(json.dumps(packets_by_switch()), "p")
    assert found.ok, found.findings
    assert {"MPP-SWITCH", "RUN-PARTLY-FOLLOWED"} <= rules_of(found)
    (place,) = [f.text for f in found.findings if f.rule == "RUN-PARTLY-FOLLOWED"]
    assert place == "gstorepkt was followed as an rppkt to every other rank of the group"


def test_packets_through_a_switch_that_are_wrong() -> None:
    plan = packets_by_switch()
    ops = plan["gpus"][2]["threadblocks"][0]["ops"]
    ops[3]["dst_buff"], ops[4]["dst_buff"] = ops[4]["dst_buff"], ops[3]["dst_buff"]
    found = lint(json.dumps(plan), "p")
    assert "RUN-WRONG-RESULT" in rules_of(found)
    plan = packets_by_switch()
    plan["gpus"][2]["threadblocks"][0]["ops"][0] = {"name": "nop"}
    found = lint(json.dumps(plan), "p")
    assert "RUN-DEADLOCK" in rules_of(found)


def test_packets_put_over_ports() -> None:
    """As MSCCL++'s own plans do it: right where all plans of the process share one scratch."""
    text = plans.dumps(programs.packet_chain("port"), "mscclpp-json")

    def edit(plan: dict[str, Any]) -> None:
        plan["reuse_resources"] = True
        for gpu in plan["gpus"]:
            for block in gpu["threadblocks"]:
                for op in block["ops"]:
                    if op["name"] == "rppkt" and op["channel_type"] == "port":
                        op["name"] = "ppkt"
                        op["src_buff"] *= len(op["dst_buff"])

    reuse = spoil_json.edit(edit)(text)
    found = lint(reuse, "p")
    assert found.ok, found.findings
    assert {"MPP-PACKET-PORT", "MPP-REUSE", "RUN-PARTLY-FOLLOWED"} <= rules_of(found)
    alone = lint(spoil_json.top(reuse_resources=False)(reuse), "p")
    assert not alone.ok
    (first, *_) = (f.text for f in alone.findings if f.rule == "MPP-PACKET-PORT")
    assert first.endswith("(ppkt) over a port sends memory of the first plan that a process ran")


def test_what_cannot_be_followed_says_so() -> None:
    found = lint(json.dumps(packets_by_switch(slot=1)), "p")
    assert "RUN-UNFOLLOWED" in rules_of(found)
    assert not found.ok
    assert found.verified is None


def test_root_is_found_and_can_be_told() -> None:
    text = XML["chain"].replace(' root="0"', "")
    found = lint(text, "p")
    assert found.ok
    assert next(f.text for f in found.findings if f.rule == "RUN-ROOT") == "the root is rank 0"
    assert "RUN-WRONG-RESULT" in rules_of(lint(text, "p", told=Told(root=1)))


def test_place_can_be_told() -> None:
    text = XML["ring"].replace('outofplace="1"', 'outofplace="0"')
    text = spoil_xml.tree(lambda top: [block.remove(block[0]) for g in top for block in g])(text)
    text = spoil_xml.tree(
        lambda top: [s.set("s", str(k)) for g in top for b in g for k, s in enumerate(b)]
    )(text)
    assert lint(text, "p").ok  # in place nothing has to be copied
    found = lint(text, "p", told=Told(place="both"))
    assert not found.ok
    assert any(f.rule.startswith("RUN-WRONG") for f in found.findings)


def test_collective_can_be_told() -> None:
    text = XML["ring"].replace('coll="allreduce"', 'coll="custom"')
    found = lint(text, "p")
    assert {"XML-COLLECTIVE", "RUN-DATA-UNFOLLOWED"} <= rules_of(found)
    assert found.verified is None
    told = lint(text, "p", told=Told(collective=Collective.ALLREDUCE))
    assert rules_of(told) == {"XML-COLLECTIVE", "XML-SIZES"}
    assert told.verified is not None


def test_flushes_that_nothing_needs_are_a_warning() -> None:
    extra = spoil_json.ops(
        0, 0, lambda ops: ops.insert(4, {"name": "flush", "channel_type": "port",
                                         "channel_ids": [0]}))  # fmt: skip
    found = lint(extra(JSON["port"]), "p")
    assert found.ok
    assert [f.severity for f in found.findings if f.rule == "MPP-FLUSH"] == ["warning"]


# --- foreign plans: the same shapes, written here -------------------------------------------------

TOOLS = """<algo name="allpairs" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="1">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="3" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="4" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="1">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="1" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="3" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="4" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""  # noqa: E501


def test_a_plan_as_msccl_tools_writes_them() -> None:
    """In place only, one buffer of size 0, and three attributes short: right, but never loaded."""
    found = lint(TOOLS, "p")
    missing = sorted(f.text for f in found.findings if f.rule == "XML-MISSING")
    assert missing == [f"<algo> has no {key}" for key in ("maxBytes", "minBytes", "outofplace")]
    assert rules_of(found) == {"XML-MISSING", "XML-SIZES"}
    assert found.verified is not None
    assert found.verified.modes == ("in-place",)


def test_a_plan_as_rccl_ships_them() -> None:
    text = TOOLS.replace('inplace="1"', 'inplace="1" outofplace="0" minBytes="0" maxBytes="9216"')
    text = "<!-- Copyright -->\n<!-- License -->\n" + text
    found = lint(text, "p", "rccl")
    assert rules_of(found) == {"XML-SIZES"}
    spoilt = text.replace('type="re"', 'type="rrc"', 1)
    assert {"RCCL-FUSED", "XML-MESSAGE-LOST"} <= rules_of(lint(spoilt, "p", "rccl"))


def test_a_plan_as_taccl_writes_them() -> None:
    """An XML prolog, the old word for the collective, thread counts that nobody reads."""
    text = '<?xml version="1.0" ?>\n' + XML["scatter"].replace(
        'coll="reducescatter"', 'coll="reduce_scatter" nthreads="512"'
    )
    found = lint(text, "p")
    assert rules_of(found) == {"XML-PROLOG", "XML-COLLECTIVE", "XML-SIZES"}
    assert found.verified is not None  # cured of the two, it does its work
    hint = next(f.text for f in found.findings if f.rule == "XML-COLLECTIVE")
    assert hint == "coll is 'reduce_scatter'; the loaders say 'reducescatter'"


def test_queues_are_as_long_as_the_runtime_has_them() -> None:
    """Both send three messages before they receive: Simple holds two, LL eight."""

    def edit(top: ET.Element) -> None:
        top.set("nchunksperloop", "6")
        for gpu in top:
            for key in ("i_chunks", "o_chunks"):
                gpu.set(key, "6")
            block = gpu[0]
            mine = 3 * int(gpu.get("id", "0"))
            steps = [("s", mine + k) for k in range(3)] + [("r", 3 - mine + k) for k in range(3)]
            own = dict(block[0].attrib)
            block[:] = []
            for s, (kind, chunk) in enumerate(steps):
                one = ET.SubElement(block, "step", own)
                spoil_xml.set_all(one, {"s": s, "type": kind, "srcbuf": "i", "dstbuf": "i",
                                        "srcoff": chunk, "dstoff": chunk})  # fmt: skip

    text = TOOLS.replace('inplace="1"', 'inplace="1" outofplace="0" minBytes="0" maxBytes="0"')
    text = spoil_xml.tree(edit)(text.replace('s_chunks="1"', 's_chunks="0"'))
    told = Told(collective=Collective.ALLREDUCE)
    assert "RUN-DEADLOCK" not in rules_of(lint(text, "p", told=told))
    simple = text.replace('proto="LL"', 'proto="Simple"')
    assert "RUN-DEADLOCK" in rules_of(lint(simple, "p", told=told))


def test_a_plan_as_the_dsl_writes_them() -> None:
    """No field of ours, unknown fields, no upper size, one flag for the place."""
    plan = json.loads(JSON["barrier"])
    del plan["forestcoll"], plan["max_message_size"]
    for entry in plan["gpus"]:
        for block in entry["threadblocks"]:
            for op in block["ops"]:
                if op["name"] == "re":
                    op["reduce_op"] = "sum"
    found = lint(json.dumps(plan), "p")
    assert rules_of(found) == {"MPP-NO-MAX", "MPP-SUM", "MPP-SIZES"}
    assert found.verified is not None
    assert found.verified.modes == ("in-place",)


def test_packets_need_no_channels_over_memory() -> None:
    plan = json.loads(JSON["packets"])
    for entry in plan["gpus"]:
        for block in entry["threadblocks"]:
            for op in block["ops"]:
                op.pop("channel_ids", None)
    found = lint(json.dumps(plan), "p")
    assert found.ok, found.findings
    assert found.verified is not None


# --- launch after launch --------------------------------------------------------------------------


@pytest.mark.parametrize("name", JSON)
def test_three_launches_find_what_two_do(name: str) -> None:
    for mutation in spoil_json.MUTATIONS:
        if mutation.base == name and mutation.rule.startswith("RUN-"):
            text = mutation.change(JSON[name])
            two, three = lint(text, "p", launches=2), lint(text, "p", launches=3)
            assert rules_of(two) == rules_of(three), mutation.name
    assert lint(JSON[name], "p", launches=3).ok


# --- threads of a block ---------------------------------------------------------------------------


def twice_signalled(kind: str, *between: Instruction, second: tuple[int, ...] = (1, 0)) -> str:
    """An allgather of two ranks, each signalling on channel 0 in two operations."""
    ranks = []
    for r in (0, 1):
        steps = (
            *programs.handshake(0, 1),
            programs.do(Op.PUT, programs.inp(0), programs.out(r, 1, 1 - r), channels=[0]),
            programs.do(Op.COPY, programs.inp(0), programs.out(r)),
            programs.do(Op.NOP),
            programs.do(Op.SIGNAL, channels=[0]),
            *between,
            programs.do(Op.SIGNAL, channels=second),
            programs.do(Op.WAIT, channels=[0]),
            programs.do(Op.WAIT, channels=second),
        )
        block = programs.otb([(1 - r, kind, 0), (1 - r, kind, 1)], *steps)  # type: ignore[list-item]
        ranks.append(programs.rank(block, i=1, o=2))
    return plans.dumps(programs.program(Collective.ALLGATHER, "onesided", ranks), "mscclpp-json")


def test_two_threads_signal_on_one_channel() -> None:
    """Up to v0.8.0 each stores what it has counted to, and the older store may come last.

    (microsoft/mscclpp v0.8.0, semaphore_device.hpp:84-98; one atomic addition since 4f3638b6.)
    """
    found = lint(twice_signalled("memory"), "p")
    errors = [(f.rule, f.rank, f.block, f.step) for f in found.findings if f.severity == "error"]
    assert errors == [("MPP-SIGNAL-THREADS", r, 0, 7) for r in (0, 1)]
    words = "thread 1 signals on channel 0, as thread 0 does in operation 6"
    assert words in str(found.findings[0])
    assert found.verified is not None


@pytest.mark.parametrize(
    "text",
    [
        twice_signalled("memory", programs.do(Op.NOP)),
        twice_signalled("memory", second=(0, 1)),
        twice_signalled("port"),
    ],
    ids=["a barrier between", "the same thread", "a port's queue"],
)
def test_one_thread_or_a_barrier_is_right(text: str) -> None:
    assert "MPP-SIGNAL-THREADS" not in rules_of(lint(text, "p"))


# --- the command line -----------------------------------------------------------------------------


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def test_verify_lists_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.msccl.xml", tmp_path / "bad.msccl.xml"
    good.write_text(XML["star"])
    bad.write_text(spoil_xml.step(0, 1, 0, dstoff=9)(XML["star"]))
    assert run("verify", str(good), str(bad)) == 1
    out, err = capsys.readouterr()
    assert f"{good}: ok\n" in out
    assert "target rccl (guessed from the file; --target says otherwise): fits" in out
    assert f"{bad}: 1 error, " in out
    assert "\n  error XML-BOUNDS at line 7, rank 0, thread block 1, step 0: " in out
    assert err.count("\n") == 1
    assert err.startswith(f"forestcoll: error: {bad}:7: XML-BOUNDS at line 7, rank 0")


def test_the_proof_comes_first_where_only_selecting_attributes_lack(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the first MSCCL's tools wrote them: three of today's attributes are not there."""
    path = tmp_path / "p.msccl.xml"
    lacking = re.sub(r' (minBytes|maxBytes|outofplace)="\d*"', "", XML["ring"])
    path.write_text(lacking)
    assert run("verify", "--place", "both", str(path)) == 1
    out, err = capsys.readouterr()
    title, what, proof, _, *findings = out.splitlines()
    assert title.startswith(f"{path}: the algorithm is right, but 3 errors, ")
    assert what.startswith("  allreduce, 4 ranks, ")
    assert proof.startswith("  every output chunk is right, out-of-place and in-place; ")
    missing = [line for line in findings if line.startswith("  error XML-MISSING at line 1: ")]
    assert [line.split("no ")[1] for line in missing] == [
        "minBytes; add it",
        "maxBytes; add it",
        "outofplace; add it",
    ]
    assert "XML-MISSING" in err
    assert run("verify", "--json", str(path)) == 1
    [entry] = json.loads(capsys.readouterr().out)
    assert not entry["ok"]
    assert "every output chunk is right" in entry["proven"][1]

    path.write_text(lacking.replace('type="rrs"', 'type="rrcs"', 1).replace("rrcs", "rcs", 1))
    assert run("verify", str(path)) == 1
    out, _ = capsys.readouterr()
    assert "is right" not in out
    assert "  error RUN-WRONG-" in out


def test_verify_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.msccl.xml"
    path.write_text(spoil_xml.step(0, 1, 0, dstoff=9)(XML["star"]))
    assert run("verify", "--json", "--target", "rccl", str(path)) == 1
    [entry] = json.loads(capsys.readouterr().out)
    assert (entry["ok"], entry["target"], entry["target_guessed"]) == (False, "rccl", False)
    assert entry["counts"]["error"] == 1
    first = entry["findings"][0]
    assert {k: first[k] for k in ("rule", "severity", "rank", "thread_block", "step", "line")} == {
        "rule": "XML-BOUNDS", "severity": "error", "rank": 0, "thread_block": 1, "step": 0,
        "line": 7,
    }  # fmt: skip
    assert first["cure"]


def test_verify_takes_what_the_file_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "p.msccl.xml"
    path.write_text(XML["chain"].replace(' root="0"', ""))
    assert run("verify", str(path)) == 0
    assert run("verify", str(path), "--root", "1") == 1
    assert run("verify", str(path), "--collective", "allreduce") == 1
    assert run("verify", str(path), "--target", "mscclpp") == 1
    assert run("verify", str(path), "--place", "in", "--sms", "1") == 1


def test_plans_that_answer_the_same_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stored(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    ring = XML["ring"]
    first = stored("a.msccl.xml", ring.replace('maxBytes="0"', 'maxBytes="4096"'))
    second = stored("b.msccl.xml", ring.replace('minBytes="0"', 'minBytes="4096"'))
    stored("c.msccl.xml", ring.replace('minBytes="0"', 'minBytes="8192"').replace(
        'outofplace="1"', 'outofplace="0"'))  # fmt: skip
    stored("d.msccl.xml", XML["star"])
    assert run("verify", "--target", "msccl", str(tmp_path)) == 0  # all in it
    said = capsys.readouterr().out
    assert (
        f"warning: {first} and {second}: both answer in-place and out-of-place calls of allreduce "
        "over 4 ranks of 4096 to 4096 bytes; the runtime takes whichever it finds first\n"
    ) in said
    assert "both answer in-place calls of allreduce over 4 ranks from 8192 bytes" in said
    assert said.count("both answer") == 2
    assert run("verify", "--target", "msccl", "--json", str(tmp_path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0]["clashes"] == [second]
    assert [len(entry.get("clashes", ())) for entry in found] == [1, 2, 1, 0]
    assert run("verify", first, second) == 0  # for runtimes that nobody named
    assert "both answer" not in capsys.readouterr().out


def test_an_empty_directory_is_no_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", "--target", "rccl", str(tmp_path)) == 1
    assert "index" in capsys.readouterr().err


def test_forests_have_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x.forest.json")
    assert run("synthesize", "-t", "ring", "-c", "allgather", "-o", path) == 0
    assert run("verify", path) == 0
    capsys.readouterr()
    assert run("verify", path, "--target", "rccl") == 1
    assert "a forest; --target and the like are for plans" in capsys.readouterr().err


# --- our own plans --------------------------------------------------------------------------------


# Those of the other machines are what test_execute_catalog.py lints, byte by byte.
GOLDENS = sorted(
    path
    for machine in ("dgx-a100-1", "dgx-a100-2", "mi250-1")
    for path in (ROOT / "schedules" / machine).glob("*.m*")
    if path.stat().st_size < 400_000
)


@pytest.mark.parametrize("path", GOLDENS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_goldens_fit(path: Path) -> None:
    found = lint(path.read_text(encoding="utf-8"), path.name)
    assert [str(f) for f in found.findings if f.severity != "note"] == []


# --- any bytes ------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**64), st.sampled_from([*XML, *(f"{name}.json" for name in JSON)]))
def test_whatever_a_reader_or_the_proof_refuses_lint_refuses(seed: int, name: str) -> None:
    """And it never crashes."""
    dice = random.Random(seed)
    text = XML[name] if name in XML else JSON[name.removesuffix(".json")]
    change = any_text if dice.random() < 0.2 else any_xml if name in XML else any_json
    spoilt = change(text, dice)
    try:
        found = lint(spoilt, "p")
    except PlanError:
        return  # no plan at all
    assert not found.ok or "RUN-DATA-UNFOLLOWED" in rules_of(found) or proven(spoilt)


def proven(text: str) -> bool:
    """Whether a reader takes the plan and it is right."""
    try:
        verify(plans.loads(text, "p"))
    except (PlanError, UnsupportedError):
        return False
    return True
