"""Layout files, and the groups that frameworks make of sizes and an order."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from mutations import LAYOUT, MESH

from forestcoll.common.errors import TopologyError, UnsupportedError
from forestcoll.program import Collective
from forestcoll.program.parallel import device_mesh, megatron
from forestcoll.schedule import layout_file

HEAD = "format: forestcoll.layout/1\n"
TRAFFIC = "traffic: [{dim: tp, collective: allreduce, bytes: 1M}]\n"


def by_coordinates(order: list[str], sizes: dict[str, int], among: list[str]) -> list[list[int]]:
    """Groups by the coordinates of every rank: those that agree in all dimensions but `among`."""
    cells = itertools.product(*(range(sizes[name]) for name in reversed(order)))
    where = [dict(zip(reversed(order), cell, strict=True)) for cell in cells]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, cell in enumerate(where):
        key = tuple(cell[name] for name in order if name not in among)
        groups.setdefault(key, []).append(rank)
    # groups count by the dimension that is first in the order
    return [groups[key] for key in sorted(groups, key=lambda key: tuple(reversed(key)))]


def test_groups_are_megatrons() -> None:
    """200 jobs, dense and with experts, against ranks written out by their coordinates."""
    rng = random.Random(0)
    judged = refused = 0
    while judged < 200:
        sizes = {name: rng.choice((1, 1, 2, 3, 4)) for name in ("tp", "cp", "dp", "pp")}
        order = rng.sample(["tp", "cp", "ep", "dp", "pp"], 5)
        expert = rng.choice((None, (rng.choice((1, 2)), rng.choice((1, 2, 4)))))
        world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
        try:
            job = megatron(**sizes, order="-".join(order), expert=expert)
        except UnsupportedError:
            assert expert is not None
            edp, rest = divmod(world, expert[0] * expert[1] * sizes["pp"])
            if not rest and (order[-1] == "pp" or edp == sizes["dp"]):
                own = {"tp": expert[0], "ep": expert[1], "dp": edp, "pp": sizes["pp"], "cp": 1}
                stages = by_coordinates(order, {**sizes, "ep": 1}, ["pp"])
                assert by_coordinates(order, own, ["pp"]) != stages
            refused += 1
            continue
        among = rng.sample(sorted(sizes), rng.randint(1, 3))
        expected = by_coordinates(order, {**sizes, "ep": 1}, among)
        assert [list(group) for group in job.groups("-".join(among))] == expected
        if expert is not None:
            edp = world // (expert[0] * expert[1] * sizes["pp"])
            own = {"tp": expert[0], "ep": expert[1], "dp": edp, "pp": sizes["pp"], "cp": 1}
            words = {"tp": "etp", "ep": "ep", "dp": "edp"}
            among = rng.sample(sorted(words), rng.randint(1, 2))
            token = "-".join(words[name] for name in among)
            assert [list(group) for group in job.groups(token)] == by_coordinates(order, own, among)
            assert by_coordinates(order, own, ["pp"]) == [list(g) for g in job.groups("pp")]
        judged += 1
    assert refused > 20


def test_groups_are_those_that_megatron_documents() -> None:
    job = megatron(tp=2, pp=2, dp=2, order="tp-pp-dp")
    assert job.groups("tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert job.groups("dp") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert job.groups("pp") == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_groups_are_those_of_torchs_mesh() -> None:
    """50 meshes, with `DeviceMesh` as the judge, which needs one process alone."""
    pytest.importorskip("torch.distributed.device_mesh", reason="PyTorch is an extra")
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rng = random.Random(1)
    for _ in range(50):
        names = rng.sample(["pp", "dp", "tp", "cp"], rng.randint(2, 4))
        sizes = [rng.choice((1, 2, 3)) for _ in names]
        ours = device_mesh(names, sizes)
        rank = rng.randrange(ours.world)
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ours.world)
        try:
            mesh = torch.distributed.device_mesh.init_device_mesh(
                "cpu", tuple(sizes), mesh_dim_names=tuple(names)
            )
            for name in names:
                theirs = dist.get_process_group_ranks(mesh[name].get_group())
                assert theirs in [list(group) for group in ours.groups(name)]
                assert rank in theirs
            if len(names) > 2:
                pair = names[1:]
                flat = mesh[tuple(pair)]._flatten()
                theirs = dist.get_process_group_ranks(flat.get_group())
                assert sorted(theirs) in [sorted(group) for group in ours.groups("-".join(pair))]
        finally:
            dist.destroy_process_group()


def test_rows_that_run_together_are_a_step() -> None:
    job = layout_file.loads(
        HEAD
        + """
sizes: {tp: 2, cp: 1, ep: 1, pp: 2, dp: 4}
expert: {tp: 1, ep: 8}
traffic:
  - {dim: tp, collective: allreduce, bytes: 64M, times: 96}
  - {dim: dp, collective: reduce-scatter, bytes: 1G, with: pp}
  - {dim: dp, collective: allgather, bytes: 1G}
  - {dim: pp, collective: sendrecv, bytes: 16M, times: 8}
  - {dim: ep, collective: alltoall, bytes: 32M, times: 64}
keep: {tp: box}
"""
    )
    assert [[row.name for row in step] for step in job.steps] == [
        ["tp:allreduce"],
        ["dp:reduce-scatter", "pp:sendrecv"],
        ["dp:allgather"],
        ["ep:alltoall"],
    ]
    assert [str(w) for w in layout_file.weights(job.steps[1])] == ["1", "1/8"]
    assert job.traffic[2].collective is None
    assert (job.placement, job.keep) == ("search", ("tp",))
    assert job.groups("ep")[0] == tuple(range(8))
    assert job.parallel.names() == ("tp", "cp", "dp", "pp", "etp", "ep", "edp")
    assert job.traffic[0].collective is Collective.ALLREDUCE


WRONG = {
    "sizes: {tp: 4}\n" + TRAFFIC.replace("tp", "pt"): "no dimension is called 'pt': there are tp",
    "sizes: {tp: 4, dp: 2}\norder: tp-pp\n" + TRAFFIC: "x:3: order 'tp-pp' leaves out dp",
    "sizes: {tp: 2, dp: 2}\n"
    + TRAFFIC.replace(
        "tp", "tp-tp"
    ): "x:3: 'tp-tp': no grid has all of these dimensions, each once",
    "": "layout: 'sizes' is missing",
    "sizes: {tp: 4, xp: 2}\n" + TRAFFIC: "x:2: sizes: unknown key 'xp'",
    "sizes: {tp: 4, ep: 2}\n" + TRAFFIC: "x:2: ep is of the experts' grid",
    "sizes: {tp: 0}\n" + TRAFFIC: "sizes: tp must be a whole number from 1, not '0'",
    "sizes: {tp: 1, dp: 2}\n" + TRAFFIC: "a group of 'tp' is one rank",
    "sizes: {tp: 1}\n" + TRAFFIC: "sizes: 1 ranks; a job has 2 to 1,048,576",
    "sizes: {tp: 2}\nmesh: [dp, tp]\n" + TRAFFIC: "mesh must have each dimension of sizes once",
    "sizes: {tp: 2}\nmesh: [tp]\norder: tp\n" + TRAFFIC: "order does not go with mesh",
    "sizes: {tp: 2}\ntraffic: []\n": "traffic: there is none",
    "sizes: {tp: 2}\n" + TRAFFIC.replace("allreduce", "allredcue"): "did you mean 'allreduce'?",
    "sizes: {tp: 2}\n" + TRAFFIC.replace("1M", "1X"): "bytes: '1X' is not a size",
    "sizes: {tp: 2}\n" + TRAFFIC.replace("1M", "1M, with: dp"): "with: no other row of 'dp'",
    "sizes: {tp: 2}\nplacement: any\n" + TRAFFIC: "placement is search or fixed, not 'any'",
    "sizes: {tp: 2}\nkeep: {tp: rack}\n" + TRAFFIC: "tp can be kept in a box, not 'rack'",
    "sizes: {tp: 2, dp: 3}\nexpert: {ep: 4}\n" + TRAFFIC: "x:3: expert: 6 ranks are no multiple",
    "sizes: {tp: 2, dp: 2, pp: 2}\norder: pp-ep-tp-dp\nexpert: {tp: 1, ep: 4}\n"
    + TRAFFIC: "x:3: order 'pp-ep-tp-dp': the stages of experts (edp 1) would be others",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_the_line(text: str) -> None:
    with pytest.raises(TopologyError) as error:
        layout_file.loads(HEAD + text, "x")
    assert WRONG[text] in str(error.value)
    assert str(error.value).startswith("x:")


@pytest.mark.parametrize("text", [LAYOUT, MESH])
def test_no_slip_is_taken_in_silence(text: str) -> None:
    """Each word with a letter lost, doubled or traded, and each line lost or doubled."""
    whole, refused = layout_file.loads(text), list[str]()
    slips = [
        text[: word.start()] + slip + text[word.end() :]
        for word in re.finditer(r"[\w.-]+", text)
        for slip in (word[0][:-1], word[0] + word[0][-1], word[0][1:2] + word[0][:1] + word[0][2:])
        if slip != word[0]
    ]
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        slips += ["".join(lines[:i] + [line] * n + lines[i + 1 :]) for n in (0, 2)]
    for slip in slips:
        try:
            assert layout_file.loads(slip, "x") != whole, slip
        except TopologyError as error:
            refused.append(str(error))
    assert len(refused) > len(slips) // 2
    assert [why for why in refused if not re.match(r"x:\d+: ", why)] == []
