"""The mixture-of-experts example: equal to one process, whatever the router does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from artefacts import ROOT
from command_line import Finished, finished
from torch_ranks import Late, needs_gloo, run_ranks, torch

SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))

pytestmark = needs_gloo

moe = Late("moe")


def options(**given: Any) -> argparse.Namespace:
    known = {"experts": 8, "top": 2, "tokens": 12, "width": 6, "skew": 1.0}
    return argparse.Namespace(**known | given)


def backwards(rows: Any, send: Sequence[int], receive: Sequence[int]) -> Any:
    """Blocks arrive, each upside down."""
    found = moe.stock(rows, send, receive)
    return torch.cat([block.flip(0) for block in found.split(list(receive))])


def _train(rank: int, n: int, asked: argparse.Namespace, plan: Any) -> list[list[str]]:
    layer = moe.Layer(asked, rank, n).double()
    tokens = moe.batch(asked, rank, 0, "cpu").double()
    wanted = moe.reference(asked, rank, n, 0, "cpu")
    ways = (moe.by_plan(plan), moe.stock, backwards)
    return [moe.differences(moe.train(layer, tokens, way), wanted) for way in ways]


@pytest.mark.parametrize(("n", "skew"), [(2, 0.0), (4, 1.0), (4, 40.0)])
def test_equal_to_one_process(n: int, skew: float) -> None:
    """Output and gradients, also where a skew of 40 leaves most experts without a token."""
    plan = moe.make_plan(n)
    found = run_ranks(n, _train, n, options(skew=skew), plan)
    assert [ways[0] for ways in found] == [[]] * n
    assert [ways[1] for ways in found] == [[]] * n
    assert any(ways[2] for ways in found)  # an exchange that is wrong is found out


def test_the_skew_is_the_routers() -> None:
    """Without: every expert about as often. With: most rows go to one."""
    tokens = torch.randn(4000, 6, generator=torch.Generator().manual_seed(1))
    most = []
    for skew in (0.0, 1.0, 3.0):
        _, chosen = moe.Router(6, 8, 2, skew)(tokens)
        most.append(int(torch.bincount(chosen.flatten()).max()))
    assert 1000 < most[0] < 1800
    assert most[0] < most[1] < most[2] <= 4000


def script(*words: str, folder: Path) -> Finished:
    command = [sys.executable, str(SCRIPTS / "moe.py"), *words]
    return finished(*command, cwd=folder)


def test_from_the_command_line(tmp_path: Path) -> None:
    done = script("--ranks", "2", "--steps", "2", "--matrix", "bytes.txt", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "results    equal to one process: output and all gradients" in done.stdout
    rows = [line.split() for line in (tmp_path / "bytes.txt").read_text().splitlines()]
    assert [len(row) for row in rows] == [2, 2]
    # two steps of 96 tokens, and of 128 at rank 1, to two experts each, 32 numbers of 8 bytes
    assert [sum(map(int, row)) for row in rows] == [2 * 96 * 2 * 256, 2 * 128 * 2 * 256]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks", "3"), "16 experts are not dealt out to 3 ranks evenly: --experts 18"),
        (("--ranks", "2", "--top", "17"), "--top 17: there are 16 experts"),
        (("--ranks", "2", "--plan", "nowhere.xml"), "nowhere.xml: cannot be read"),
    ],
)
def test_what_does_not_go_together(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["moe.py", *words])
    with pytest.raises(moe.ForestCollError, match=said):
        moe.main()


def test_a_plan_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forestcoll import plans
    from forestcoll.program.targets import MSCCLPP

    made = moe.make_plan(2).program
    path = tmp_path / "two.json"
    path.write_text(plans.dumps(made, MSCCLPP.format, MSCCLPP))
    monkeypatch.setattr(sys, "argv", ["moe.py", "--ranks", "4", "--plan", str(path)])
    with pytest.raises(moe.ForestCollError, match="alltoall of 2 ranks; it takes an alltoall of 4"):
        moe.main()
