"""MSCCL XML: what is written is what the runtimes read, and what is read is what they would run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import plan_programs as made
import pytest
from hypothesis import HealthCheck, given, settings
from plan_programs import I, O, S

from forestcoll import plans
from forestcoll.common.errors import PlanError, UnsupportedError
from forestcoll.common.input_limits import Limit
from forestcoll.plans import msccl
from forestcoll.program import (
    Collective,
    Instruction,
    Op,
    Pipeline,
    Program,
    RankProgram,
    Ref,
    ThreadBlock,
)
from forestcoll.program.targets import MSCCL, MSCCLPP, RCCL

RANDOM = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


class Strict:
    """Reads as the runtimes' hand-written parser does, and refuses what it cannot read."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tree = self.element()
        assert self.tree is not None
        while self.at < len(text):
            assert text[self.at] in " \n\r"
            self.at += 1

    def element(self) -> tuple[str, dict[str, str], list[Any]] | None:
        """The next element, or None at a closing tag."""
        while self.text[self.at] in " \n\r":
            self.at += 1
        assert self.text[self.at] == "<", "only tags, and no tab between them"
        end = self.at
        while not (self.text[end] == ">" and self.text.count('"', self.at, end) % 2 == 0):
            end += 1
        tag = self.text[self.at + 1 : end]
        self.at = end + 1
        assert "\n" not in tag
        assert "\t" not in tag
        if tag.startswith("/"):
            return None
        single = tag.endswith("/")
        name, *rest = re.split(r' (?=[A-Za-z_]+=")', tag.removesuffix("/"))
        attributes = {}
        for piece in rest:
            key, value = re.fullmatch(r'([A-Za-z_]+)="([^"]*)"', piece).groups()  # type: ignore[union-attr]
            assert len(value) <= 255
            attributes[key] = value
        assert len(rest) == len(attributes) <= 16
        children = []
        while not single:
            child = self.element()
            if child is None:
                break
            children.append(child)
        return name, attributes, children


def check_safe_subset(text: str, program: Program) -> None:
    """The rules that make a file read the same way by every current parser."""
    assert text.startswith("<algo ")
    assert text.endswith("</algo>\n")
    assert text.isascii()
    name, algo, gpus = Strict(text).tree  # type: ignore[misc]
    assert name == "algo"
    required = "nchunksperloop nchannels ngpus proto coll minBytes maxBytes inplace outofplace name"
    assert set(required.split()) | {"redop"} <= set(algo)
    assert len(algo["name"]) < 100
    assert algo["coll"] in ("reduce", "broadcast", "allreduce", "reducescatter", "allgather")
    assert [int(gpu[1]["id"]) for gpu in gpus] == list(range(int(algo["ngpus"])))
    total = int(algo["nchunksperloop"])
    n = int(algo["ngpus"])
    shares = {"allgather": (total // n, total), "reducescatter": (total, total // n)}
    for _, gpu, blocks in gpus:
        chunks = {key: int(gpu[f"{key}_chunks"]) for key in "ios"}
        assert (chunks["i"], chunks["o"]) == shares.get(algo["coll"], (total, total))
        assert [int(block[1]["id"]) for block in blocks] == list(range(len(blocks)))
        used = [
            (direction, block[1][direction], block[1]["chan"])
            for block in blocks
            for direction in ("send", "recv")
            if block[1][direction] != "-1"
        ]
        assert len(used) == len(set(used))
        flags, waits = set(), set()
        for b, (_, block, steps) in enumerate(blocks):
            assert 0 <= int(block["chan"]) < int(algo["nchannels"]) <= 32
            assert [int(step[1]["s"]) for step in steps] == list(range(len(steps)))
            assert len(steps) <= 64
            before = None
            for s, (_, step, inner) in enumerate(steps):
                assert not inner
                assert 1 <= int(step["cnt"]) <= 71
                for side in ("src", "dst"):
                    offset = int(step[f"{side}off"])
                    assert 0 <= offset < 2**15
                    assert offset + int(step["cnt"]) <= chunks[step[f"{side}buf"]]
                waits.add((int(step["depid"]), int(step["deps"])))
                flags |= {(b, s)} if step["hasdep"] == "1" else set()
                if step["type"] == "nop":
                    assert int(step["depid"]) >= 0
                    assert step["hasdep"] == "0"
                elif before is not None and before["type"] == "nop":
                    assert int(step["depid"]) >= 0
                before = step
            assert before is None or before["type"] != "nop"
        waits.discard((-1, -1))
        assert waits <= flags
        for b, s in flags - waits:  # only to keep two reduces apart
            pair = [blocks[b][2][s][1], blocks[b][2][s + 1][1]]
            assert [step["type"] for step in pair] == ["re", "re"]
    assert program.n == n


@pytest.mark.parametrize("program", made.FIFO, ids=lambda p: p.name)
def test_written_and_read_back_is_equal(program: Program) -> None:
    for target in (None, MSCCL):
        text = msccl.dumps(program, target)
        back = plans.loads(text, "t")
        assert back == program
        assert back.extra == {"format": "msccl-xml"}
        check_safe_subset(text, program)


@RANDOM
@given(made.fifo_programs())
def test_random_programs_survive_and_stay_in_the_safe_subset(program: Program) -> None:
    text = msccl.dumps(program)
    assert msccl.loads(text, "t") == program
    assert "notes" not in msccl.loads(text, "t").extra
    assert msccl.dumps(msccl.loads(text, "t")) == text
    check_safe_subset(text, program)


@settings(RANDOM, max_examples=20)
@given(made.fifo_programs(fused=False))
def test_lowered_programs_go_to_rccl(program: Program) -> None:
    assert msccl.loads(msccl.dumps(program, RCCL), "t") == program


def test_the_text_of_a_small_plan() -> None:
    text = msccl.dumps(made.star_reduce())
    assert text.splitlines()[:10] == [
        '<algo name="star" proto="LL128" nchannels="1" nchunksperloop="2" ngpus="3" coll="reduce" '
        'inplace="0" outofplace="1" minBytes="1024" maxBytes="8589934592" redop="sum" root="0">',
        '  <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="4" name="a">',
        '    <tb id="0" send="-1" recv="1" chan="0">',
        '      <step s="0" type="r" srcbuf="s" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" '
        'deps="-1" hasdep="1"/>',
        "    </tb>",
        '    <tb id="1" send="-1" recv="2" chan="0">',
        '      <step s="0" type="r" srcbuf="s" srcoff="2" dstbuf="s" dstoff="2" cnt="2" depid="-1" '
        'deps="-1" hasdep="1"/>',
        "    </tb>",
        '    <tb id="2" send="-1" recv="-1" chan="0">',
        '      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" '
        'depid="-1" deps="-1" hasdep="0"/>',
    ]
    assert re.findall(
        r's="(\d)" type="(nop|re)".*depid="(\S+)" deps="(\S+)" hasdep="(\d)"', text
    ) == [
        ("1", "nop", "0", "0", "0"),
        ("2", "re", "1", "0", "0"),
        ("3", "re", "-1", "-1", "0"),
    ]


def test_neighbouring_reduces_are_kept_apart_by_a_flag() -> None:
    first = Instruction(Op.REDUCE, (Ref(S, 0, 2), Ref(S, 2, 2)), (Ref(O, 0, 2),))
    second = Instruction(Op.REDUCE, (Ref(S, 4, 1),), (Ref(O, 0, 1),))
    program = local(first, second, second)
    text = msccl.dumps(program)
    assert re.findall(r'type="re".*hasdep="(\d)"', text) == ["0", "1", "1", "0"]
    assert msccl.loads(text, "t") == program


def local(*steps: Instruction, chunks: int = 4, scratch: int = 8, **fields: Any) -> Program:
    """A program of one rank with one thread block."""
    rank = RankProgram((ThreadBlock(steps),), chunks, chunks, scratch)
    given = {"in_place": True, "out_of_place": True, **fields}
    return Program("p", Collective.ALLREDUCE, "fifo", (rank,), **given)


COPY = Instruction(Op.COPY, (Ref(I, 0, 1),), (Ref(O, 0, 1),))


def blocks(*given: ThreadBlock, chunks: int = 4, scratch: int = 0) -> Program:
    """A program of one rank."""
    rank = RankProgram(given, chunks, chunks, scratch)
    return Program("p", Collective.ALLREDUCE, "fifo", (rank,), True, True)


def pair(*given: ThreadBlock) -> Program:
    """Rank 0 has the given thread blocks, rank 1 receives on channel 0 twice."""
    get = Instruction(Op.RECV, (), (Ref(O, 0, 1),))
    peer = RankProgram((ThreadBlock((get, get), recv=0),), 4, 4, 0)
    ranks = (RankProgram(given, 4, 4, 0), peer)
    return Program("p", Collective.ALLREDUCE, "fifo", ranks, True, True)


SEND = Instruction(Op.SEND, (Ref(I, 0, 1),))
BIG = local(Instruction(Op.COPY, (Ref(I, 32768, 1),), (Ref(O, 0, 1),)), chunks=32800)
REFUSED = [
    (local(*[COPY] * 65), None, "rank 0, thread block 0: 65 steps in XML .*holds 64"),
    (
        local(*[COPY] * 62, replace(COPY, after=((0, 0), (0, 1), (0, 2)))),
        None,
        "65 steps in XML \\(nops for dependencies counted\\)",
    ),
    (blocks(*[ThreadBlock((COPY,))] * 109), MSCCL, "109 thread blocks; msccl holds 108"),
    (blocks(*[ThreadBlock((COPY,))] * 65), RCCL, "65 thread blocks; rccl holds 64"),
    (
        blocks(
            *[ThreadBlock((COPY,))] * 128,
            ThreadBlock((COPY, COPY)),
            ThreadBlock((replace(COPY, after=((128, 0),)),)),
        ),
        None,
        "thread block 129, step 0: waits for thread block 128; .* 0 to 127",
    ),
    (blocks(*[ThreadBlock((COPY,) * 60)] * 70), None, "4272 XML elements .*hold 4095"),
    (blocks(), None, "rank 0 has no thread block"),
    (blocks(ThreadBlock((COPY,), channel=32)), None, "channel 32; .* 0 to 31"),
    (blocks(ThreadBlock((COPY,), channel=-1)), None, "channel -1"),
    (
        local(Instruction(Op.COPY, (Ref(I, 0, 72),), (Ref(O, 0, 72),)), chunks=80),
        None,
        "72 chunks in one step; .* holds 71",
    ),
    (BIG, None, "chunk offset 32768; .*16 bits"),
    (
        local(replace(COPY, src=(Ref(I, 2, 2),))),
        None,
        "operands of 2 and 1 chunks",
    ),
    (
        local(replace(COPY, src=(Ref(I, 4, 1),))),
        None,
        "1 chunks at offset 4 of rank 0's input",
    ),
    (
        local(replace(COPY, src=(Ref(I, -1, 1),))),
        None,
        "1 chunks at offset -1 of rank 0's input",
    ),
    (local(replace(COPY, src=(Ref(I, 0, 0),), dst=(Ref(O, 0, 0),))), None, "0 chunks"),
    (
        local(replace(COPY, src=(Ref(I, 0, 1, 0),))),
        None,
        "a buffer of rank 0",
    ),
    (local(replace(COPY, src=())), None, "0 sources; it takes at least 1 sources"),
    (
        local(replace(COPY, after=((0, 0),))),
        None,
        "comes after step 0 of its own thread block",
    ),
    (
        local(COPY, replace(COPY, after=((1, 0),))),
        None,
        "comes after thread block 1",
    ),
    (
        local(COPY, replace(COPY, after=((0, 2),))),
        None,
        "comes after step 2 of thread block 0",
    ),
    (local(COPY, Instruction(Op.NOP, after=((0, 0),))), None, "put what it waits for into `after`"),
    (
        local(replace(COPY, part=(0, 2))),
        None,
        "only onesided data instructions",
    ),
    (local(Instruction(Op.PUT, COPY.src, COPY.dst)), None, "no operation of fifo programs"),
    (
        local(Instruction(Op.REDUCE, (Ref(I, 0, 1), Ref(S, 0, 1)), (Ref(O, 0, 1),))),
        None,
        "lie in one buffer",
    ),
    (
        local(Instruction(Op.REDUCE, (Ref(I, 0, 1),) * 17, (Ref(O, 0, 1),))),
        None,
        "reduce has 17 sources and 1 destinations",
    ),
    (local(SEND), None, "its thread block has no send peer"),
    (local(Instruction(Op.RECV, (), (Ref(O, 0, 1),))), None, "no recv peer"),
    (blocks(ThreadBlock((COPY,), send=0)), None, "sends to rank 0"),
    (blocks(ThreadBlock((COPY,), send=1)), None, "sends to rank 1"),
    (
        pair(ThreadBlock((SEND,), send=1), ThreadBlock((SEND,), send=1)),
        None,
        "thread block 1: thread block 0 already has the send connection with rank 1 on channel 0",
    ),
    (pair(ThreadBlock((SEND,), send=1)), None, "rank 0 to rank 1 on channel 0: 1 messages .* 2"),
    (
        pair(ThreadBlock((SEND, Instruction(Op.SEND, (Ref(I, 0, 2),))), send=1)),
        None,
        "message 1 is sent with 2 chunks but received with 1",
    ),
    (
        pair(ThreadBlock((SEND, SEND), send=1, channel=1)),
        None,
        "rank 0 to rank 1 on channel 0: 0 messages are sent and 2 received",
    ),
    (made.ring_allgather(), RCCL, "rank 0, thread block 0, step 2: rccl does not run recv_copy"),
    (made.ring_allgather(), MSCCLPP, "mscclpp reads mscclpp-json"),
    (made.chain_broadcast(), None, "holds fifo programs"),
    (
        replace(
            local(COPY), ranks=(RankProgram((ThreadBlock((Pipeline((COPY,), 1, 16),)),), 4, 4, 0),)
        ),
        None,
        "a pipeline in a fifo program, whose whole list is repeated anyway",
    ),
    (local(COPY, in_place=False, out_of_place=False), None, "neither in-place nor out-of-place"),
    (local(COPY, root=0), None, "allreduce has no root"),
    (replace(made.star_reduce(), root=3), None, "needs a root between 0 and 2; it is 3"),
    (replace(made.star_reduce(), names=("a",)), None, "1 names for 3 ranks"),
    (replace(made.star_reduce(), names=("a" * 256, "", "")), None, "256 bytes as XML; .* 255"),
    (local(COPY, min_bytes=9, max_bytes=8), None, "min_bytes 9 is larger than max_bytes 8"),
    (local(COPY, max_bytes=2**63), None, "between 0 and 2\\^63 - 1"),
    (replace(local(COPY), name="n" * 100), None, "takes 100 bytes as XML; the limit is 99"),
    (replace(local(COPY), name="a\0"), None, "a character that XML cannot hold"),
    (replace(local(COPY), protocol="SIMPLE"), None, "protocols are Simple, LL and LL128"),
    (replace(local(COPY), ranks=()), None, "1 to 16384 ranks; this program has 0"),
    (
        replace(local(COPY), ranks=(RankProgram((ThreadBlock((COPY,)),), 4, 3, 0),)),
        None,
        "needs 4 input and 4 output chunks, but the program has 4 and 3",
    ),
]


@pytest.mark.parametrize(("program", "target", "message"), REFUSED)
def test_dumps_refuses_what_the_loaders_would_break(
    program: Program, target: Any, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        msccl.dumps(program, target)


def test_dumps_refuses_more_thread_blocks_on_a_channel_than_the_loader_counts() -> None:
    n = 35
    ranks = [RankProgram(tuple(ThreadBlock((SEND,), send=p) for p in range(1, n)), 4, 4, 0)]
    get = ThreadBlock((Instruction(Op.RECV, (), (Ref(O, 0, 1),)),), recv=0)
    ranks += [RankProgram((get,), 4, 4, 0)] * (n - 1)
    program = Program("p", Collective.ALLREDUCE, "fifo", tuple(ranks), True, True)
    with pytest.raises(PlanError, match="block 32: channel 0 already serves 32 thread blocks"):
        msccl.dumps(program)


# Reading ------------------------------------------------------------------------------------------

ALGO = (
    'name="x" proto="Simple" nchannels="2" nchunksperloop="4" ngpus="1" coll="allreduce" '
    'inplace="1" outofplace="1" minBytes="0" maxBytes="0"'
)
GPU = 'id="0" i_chunks="4" o_chunks="4" s_chunks="4"'


def step(**changes: object) -> str:
    """One <step>; attributes as keywords, None leaves one out."""
    given = {
        "s": 0, "type": "cpy", "srcbuf": "i", "srcoff": 0, "dstbuf": "o", "dstoff": 0, "cnt": 1,
        "depid": -1, "deps": -1, "hasdep": 0, **changes,
    }  # fmt: skip
    return "<step " + " ".join(f'{k}="{v}"' for k, v in given.items() if v is not None) + "/>"


def tb(*steps: str, b: object = 0, send: object = -1, recv: object = -1, chan: object = 0) -> str:
    """One <tb>."""
    return (
        f'<tb id="{b}" send="{send}" recv="{recv}" chan="{chan}">\n' + "\n".join(steps) + "\n</tb>"
    )


def plan(*tbs: str, algo: str = ALGO, gpu: str = GPU) -> str:
    """A plan of one rank."""
    return f"<algo {algo}>\n<gpu {gpu}>\n" + "\n".join(tbs) + "\n</gpu>\n</algo>\n"


def steps_of(text: str) -> list[tuple[Op, list[int], tuple[tuple[int, int], ...]]]:
    """(op, source offsets, after) of all steps of rank 0."""
    program = msccl.loads(text, "t")
    return [
        (s.op, [ref.offset for ref in s.src], s.after)
        for block in program.ranks[0].thread_blocks
        for s in block.steps
        if isinstance(s, Instruction)
    ]


def test_document_order_is_execution_order() -> None:
    text = plan(tb(step(s=1, srcoff=1), step(s=0, srcoff=2), step(s=0, srcoff=3)))
    assert [offsets for _, offsets, _ in steps_of(text)] == [[1], [2], [3]]
    assert "s is 1 at position 0; s counts" in msccl.loads(text, "t").extra["notes"]


def test_nops_fold_into_the_next_step_and_count_as_steps() -> None:
    text = plan(
        tb(step(hasdep=1), step(s=1, srcoff=1, hasdep=1)),
        tb(
            step(type="nop", depid=0, deps=0),
            step(s=1, srcoff=2, depid=0, deps=1, hasdep=1),
            b=1,
        ),
        tb(step(depid=1, deps=1), step(s=1, depid=1, deps=0), b=2),
    )
    after = [waits for _, _, waits in steps_of(text)]
    assert after == [(), (), ((0, 0), (0, 1)), ((1, 0),), ((1, 0),)]


def test_neighbouring_re_are_one_reduce_unless_a_flag_or_a_wait_is_between() -> None:
    def re_(s: int, srcoff: int, **changes: object) -> str:
        return step(**{"s": s, "type": "re", "srcbuf": "s", "srcoff": srcoff, **changes})

    text = plan(
        tb(
            re_(0, 0),
            re_(1, 1),
            re_(2, 2, hasdep=1),
            re_(3, 3),
            re_(4, 0, dstoff=1),
            re_(5, 1, dstoff=1, depid=1, deps=0),
            re_(6, 2, dstoff=1, srcbuf="i"),
        ),
        tb(step(hasdep=1), step(s=1, depid=0, deps=1), b=1),
    )
    got = steps_of(text)
    assert [offsets for _, offsets, _ in got] == [[0, 1, 2], [3], [0], [1], [2], [0], [0]]
    assert got[-1][2] == ((0, 0),)  # step 1 of the file is part of the first reduce


def test_unused_sides_may_be_minus_one() -> None:
    text = plan(
        tb(
            step(type="s", dstoff=-1),
            step(s=1, type="r", srcoff=-1, dstoff=1),
            step(s=2, type="rcs", srcoff=-1, dstoff=2),
            step(s=3, type="rrs", srcoff=3, dstoff=-1),
            send=1,
            recv=1,
        ),
        algo=ALGO.replace('ngpus="1"', 'ngpus="2"'),
    )
    block = msccl.loads(text, "t").ranks[0].thread_blocks[0]
    assert block.steps == (
        Instruction(Op.SEND, (Ref(I, 0, 1),)),
        Instruction(Op.RECV, (), (Ref(O, 1, 1),)),
        Instruction(Op.RECV_COPY_SEND, (), (Ref(O, 2, 1),)),
        Instruction(Op.RECV_REDUCE_SEND, (Ref(I, 3, 1),)),
    )


GOOD = plan(tb(step()))
LENIENT = [
    (
        plan(tb(step()), algo=ALGO.replace("allreduce", "reduce_scatter")),
        "line 1: coll is 'reduce_scatter'",
    ),
    ('<?xml version="1.0"?>\n' + GOOD, "line 1: '<?xml version=\"1.0\"?>'"),
    (GOOD.replace("<tb", "\t<tb"), "line 3: '\\t' between tags"),
    (GOOD.replace('cnt="1"', "cnt='1'"), "line 4: single quotes in <step ..."),
    (GOOD.replace(' cnt="1"', '  cnt="1"'), "line 4: two spaces in <step ..."),
    (GOOD.replace(' cnt="1"', '\n cnt="1"'), "line 4: <step goes over several lines"),
    (
        plan(tb(step()), algo=ALGO.replace(' outofplace="1"', "")),
        "line 1: <algo> has no outofplace",
    ),
    (plan(tb(step()), algo=ALGO.replace(' maxBytes="0"', "")), "line 1: <algo> has no maxBytes"),
    (plan(tb(step()), algo=ALGO.replace(' nchannels="2"', "")), "line 1: <algo> has no nchannels"),
    (
        plan(tb(step()), gpu=GPU.replace('o_chunks="4"', 'o_chunks="0"')),
        "line 4, rank 0, thread block 0, step 0: dst of cpy: offset 0, but the gpu says that buff",
    ),
    (GOOD.replace("</gpu>", "<link/></gpu>"), "line 6: <link> in <gpu> is ignored"),
    (
        plan(tb(step(), step(s=1, type="nop"))),
        "line 5, rank 0, thread block 0, step 1: a nop that waits for nothing",
    ),
    (
        plan(tb(step(hasdep=1), step(s=1, type="nop", depid=0, deps=0))),
        "line 5, rank 0, thread block 0, step 1: no step follows this nop",
    ),
    (
        plan(tb(step(), step(s=1, hasdep=1)), tb(step(depid=0, deps=0), b=1)),
        "line 4, rank 0, thread block 0, step 0: others wait for it, but hasdep is 0",
    ),
    (plan(tb(*[step(s=s) for s in range(65)])), "line 3, rank 0, thread block 0: 65 steps"),
    (
        plan(tb(step(cnt="010")), gpu=GPU).replace('"4"', '"16"'),
        "line 4, rank 0, thread block 0: cnt='010' of <step> is 8 to the loaders",
    ),
    (
        plan(tb(step()), algo=ALGO.replace('ngpus="1"', 'ngpus="2"')),
        "line 1, rank 1: there is no gpu 1",
    ),
    (plan(tb(step()), algo=ALGO.replace("allreduce", "broadcast")), "<algo> does not say the root"),
    (
        GOOD.replace("/>", "".join(f' a{k}="0"' for k in range(9)) + "/>"),
        "line 4: <step> has 19 attributes",
    ),
]


@pytest.mark.parametrize(("text", "note"), LENIENT)
def test_what_a_current_runtime_refuses_is_read_with_a_note(text: str, note: str) -> None:
    program = msccl.loads(text, "t")
    assert note in program.extra["notes"]
    assert len(program.ranks[0].thread_blocks) >= 1


def test_clean_files_have_no_notes() -> None:
    assert msccl.loads("<!-- a\tnote -->\n" + GOOD, "t").extra == {"format": "msccl-xml"}
    program = msccl.loads(GOOD.replace('cnt="1"', 'cnt="0x1"'), "t")
    assert program.ranks[0].thread_blocks[0].steps == (COPY,)


def test_numbers_of_the_first_msccl_serve_in_place_only() -> None:
    old = plan(tb(step()), algo=ALGO.replace(' outofplace="1"', ""))
    assert (msccl.loads(old, "t").in_place, msccl.loads(old, "t").out_of_place) == (
        True,
        False,
    )


def test_a_dependency_without_flag_waits_for_the_next_flag() -> None:
    text = plan(tb(step(), step(s=1), step(s=2, hasdep=1)), tb(step(depid=0, deps=0), b=1))
    assert steps_of(text)[-1][2] == ((0, 2),)


WRONG = [
    ("", "XML-SYNTAX", "t:1: not well-formed XML: no element found"),
    (GOOD.replace("<tb", "x<tb"), "XML-TEXT", "t:3: 'x' between tags"),
    ("<!DOCTYPE algo>" + GOOD, "XML-PROLOG", "t:1: a document type"),
    ("<system/>", "XML-ROOT-ELEMENT", "t:1: the outermost element is <system>; that is a topology"),
    (
        "<algo>" + "<a>" * 40 + "</a>" * 40 + "</algo>",
        "XML-SYNTAX",
        "t:1: elements are nested more than 32 deep (input limit PLAN_DEPTH: 32)",
    ),
    (GOOD.replace('proto="Simple" ', ""), "XML-MISSING", "t:1: <algo> has no proto"),
    (
        GOOD.replace("Simple", "simple"),
        "XML-PROTOCOL",
        "t:1: proto is 'simple'; did you mean 'Simple'?",
    ),
    (
        GOOD.replace("allreduce", "allredcue"),
        "XML-COLLECTIVE",
        "t:1: coll is 'allredcue'; did you mean 'allreduce'?",
    ),
    (
        GOOD.replace('ngpus="1"', 'ngpus="0"'),
        "XML-NGPUS",
        "t:1: ngpus is 0; it must lie between 1 and 16384 (input limit RANKS: 16,384)",
    ),
    (
        GOOD.replace('ngpus="1"', 'ngpus="1000000000"'),
        "XML-NGPUS",
        "t:1: ngpus is 1000000000; it must lie between 1 and 16384 (input limit RANKS: 16,384)",
    ),
    (
        GOOD.replace('nchunksperloop="4"', 'nchunksperloop="0"'),
        "XML-CHUNKS-ZERO",
        "t:1: nchunksperloop is 0",
    ),
    (
        GOOD.replace('nchunksperloop="4"', 'nchunksperloop="1000000000"'),
        "RUN-REFUSED",
        "t:1: nchunksperloop is 1000000000; no step reaches a chunk beyond 32838",
    ),
    (
        GOOD.replace('nchunksperloop="4"', 'nchunksperloop="4.0"'),
        "XML-NUMBER",
        "t:1: nchunksperloop='4.0' of <algo> is no integer",
    ),
    (GOOD.replace('inplace="1"', 'inplace="2"'), "XML-FLAG", "t:1: inplace is 2"),
    (
        GOOD.replace('maxBytes="0"', 'maxBytes="-1"'),
        "XML-SIZE-RANGE",
        "t:1: maxBytes is -1; it lies in 0 to 2^63 - 1",
    ),
    (
        GOOD.replace('inplace="1"', 'inplace="0"').replace('outofplace="1"', 'outofplace="0"'),
        "XML-PLACES",
        "t:1: inplace and outofplace are both 0",
    ),
    (
        GOOD.replace("allreduce", "allgather").replace('ngpus="1"', 'ngpus="3"'),
        "XML-CHUNKS-SHARE",
        "t:1: 4 chunks cannot be dealt out to 3 ranks evenly",
    ),
    (GOOD.replace('gpu id="0"', 'gpu id="1"'), "XML-GPU-ID", "t:2: gpu 1 of 1 ranks"),
    (
        GOOD.replace('s_chunks="4"', 's_chunks="-1"'),
        "XML-CHUNKS-NEGATIVE",
        "t:2: rank 0: s_chunks is -1",
    ),
    (
        GOOD.replace('s_chunks="4"', 's_chunks="1000000000"'),
        "RUN-REFUSED",
        "t:2: rank 0: s_chunks is 1000000000; it is at most 32838",
    ),
    (
        plan(tb(step(), b=1000000000)),
        "XML-TB-ID",
        "t:3: rank 0, thread block 1000000000: tb 1000000000 among 1",
    ),
    (
        plan(tb(step(), chan=2)),
        "XML-CHANNEL",
        "t:3: rank 0, thread block 0: chan is 2, but nchannels 2: it is never connected",
    ),
    (
        plan(tb(step(), send=1)),
        "XML-PEER",
        "t:3: rank 0, thread block 0: send is 1, not a rank of 1",
    ),
    (
        plan(tb(step(type="copy"))),
        "XML-STEP-TYPE",
        "t:4: rank 0, thread block 0, step 0: type is 'copy'; did you mean 'cpy'?",
    ),
    (
        plan(tb(step(type="rrsc"))),
        "XML-STEP-TYPE",
        "t:4: rank 0, thread block 0, step 0: type is 'rrsc'; did you mean 'rrs'?",
    ),
    (
        plan(tb(step(srcbuf="x"))),
        "XML-BUFFER",
        "t:4: rank 0, thread block 0, step 0: srcbuf is 'x'",
    ),
    (
        plan(tb(step(srcoff=-1))),
        "XML-BOUNDS",
        "t:4: rank 0, thread block 0, step 0: src of cpy: offset -1",
    ),
    (plan(tb(step(cnt=0))), "XML-COUNT", "t:4: rank 0, thread block 0, step 0: cnt is 0"),
    (
        plan(tb(step(depid=0, deps=0, hasdep=1))),
        "XML-DEP",
        "t:4: rank 0, thread block 0, step 0: it waits for step 0 of its own thread block, which",
    ),
    (
        plan(tb(step(), step(s=1)), tb(step(depid=0, deps=0), b=1)),
        "XML-DEP-FLAG",
        "t:4: rank 0, thread block 0, step 0: others wait for it, but neither it nor a later step",
    ),
    (
        plan(tb(step(hasdep=1), step(s=1, type="nop", depid=0, deps=0), step(s=2))),
        "XML-NOP-BARE",
        "t:6: rank 0, thread block 0, step 2: cpy waits for nothing, though the nop before it does",
    ),
    (
        plan(tb(step(type="s"))),
        "XML-DIRECTION",
        "t:4: rank 0, thread block 0, step 0: s, but send of the thread block is -1",
    ),
    (
        plan(tb(step(type="re", cnt=2), step(s=1, type="re"))),
        "XML-RE-COUNT",
        "t:5: rank 0, thread block 0, step 1: re of 1 chunks after re of 2 on the same place",
    ),
    (
        plan(tb(step(), send=1, b=0), tb(step(), send=1, b=1)).replace('ngpus="1"', 'ngpus="2"'),
        "XML-CONNECTION-SHARED",
        "t:6: rank 0, thread block 1: it sends to rank 1 on channel 0, as thread block 0 does",
    ),
    (
        "<algo " + ALGO + ">" + f"<gpu {GPU}/>" * 20000 + "</algo>",
        "XML-SYNTAX",
        "t:1: more than 16384 gpus (input limit RANKS: 16,384)",
    ),
]


@pytest.mark.timeout(60)
def test_wrong_files_are_refused_in_words() -> None:
    for text, rule, words in WRONG:
        with pytest.raises(PlanError) as caught:
            msccl.loads(text, "t")
        assert (caught.value.rule, str(caught.value)[: len(words)]) == (rule, words)


@pytest.mark.parametrize("word", ["alltoallv", "gather", "custom"])
def test_other_collectives_are_unsupported(word: str) -> None:
    with pytest.raises(UnsupportedError, match=f"coll='{word}' is not supported"):
        msccl.loads(GOOD.replace("allreduce", word), "t")


def test_ra_is_unsupported() -> None:
    with pytest.raises(
        UnsupportedError, match="t:4: rank 0, thread block 0, step 0: type 'ra' is an op"
    ):
        msccl.loads(plan(tb(step(type="ra"))), "t")


@pytest.mark.parametrize("text", [plan(tb(*[step()] * 9)), plan(*[tb(b=b) for b in range(9)])])
def test_the_sum_of_elements_is_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert msccl.loads(text, "t").n == 1
    monkeypatch.setattr("forestcoll.plans.msccl.text.INSTRUCTIONS", Limit(8, "STEPS"))
    with pytest.raises(PlanError, match="more than 8 tbs and steps"):
        msccl.loads(text, "t")


def test_entities_do_not_expand() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx"><!ENTITY y "&x;&x;&x;&x;">]>' + GOOD.replace(
        "x", "&y;"
    )
    with pytest.raises(PlanError, match=r"t:1: a document type: delete"):
        msccl.loads(bomb, "t")
