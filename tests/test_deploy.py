"""Deployments: what is written, what is refused, and that the proof of use proves it."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from artefacts import ROOT, Artefacts
from click.testing import CliRunner
from command_line import Finished, finished

from forestcoll import plans
from forestcoll.execute.deploy import RUNTIMES, deploy
from forestcoll.ui.cli import cli

BOXES = "fat-tree leaves=1 hosts=2 gpus=2"
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce")


def plans_of(machine: str, compiled: Artefacts, folder: Path) -> Path:
    """Both plan formats of all collectives, in a folder."""
    for collective in COLLECTIVES:
        for file in compiled(machine, collective).folder.iterdir():
            shutil.copy(file, folder / file.name[file.name.index(collective) :])
    return folder


@pytest.fixture(scope="module")
def schedules(compiled: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of two small boxes of two GPUs."""
    return plans_of(BOXES, compiled, tmp_path_factory.mktemp("schedules"))


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["deploy", *map(str, words)], catch_exceptions=True)
    return result.exit_code, str(result.exception or result.output)


def deployed(schedules: Path, runtime: str, folder: Path) -> dict[str, Any]:
    code, text = run(schedules, "--runtime", runtime, "-o", folder)
    assert code == 0, text
    document: dict[str, Any] = json.loads((folder / "deploy.json").read_text())
    return document


@pytest.mark.parametrize("runtime", ["mscclpp", "msccl", "rccl"])
def test_a_deployment_holds_all_that_its_script_needs(
    schedules: Path, runtime: str, tmp_path: Path
) -> None:
    document = deployed(schedules, runtime, tmp_path / "d")
    assert {p["collective"] for p in document["plans"]} == set(COLLECTIVES)
    for entry in document["plans"]:
        program = plans.read_plan(tmp_path / "d" / entry["file"])
        assert program.collective == entry["collective"]
        assert entry["check_bytes"] % entry["multiple"] == 0
        assert entry["check_bytes"] > 0
        assert entry["in_place"] or entry["out_of_place"]
    assert [(p["rank"], p["gpu"]) for p in document["places"]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert (document["nodes"], document["ranks_per_node"]) == (2, 2)
    for script in (tmp_path / "d").glob("*.py"):
        compile(script.read_text(), script.name, "exec")
    # the runtimes read every file of the folder of plans: nothing else may lie there
    listed = {Path(p["file"]).name for p in document["plans"]}
    assert {p.name for p in (tmp_path / "d" / "plans").iterdir()} == listed


def start(folder: Path, *command: str, **more: str) -> Finished:
    return finished("bash", folder / "run.sh", *command, env={**os.environ, **more})


@pytest.mark.parametrize(
    ("runtime", "log"),
    [
        ("msccl", ("Using MSCCL Algo files from", "MSCCL: Setup Kernel finished, smem 0")),
        ("rccl", ("Using MSCCL files from", "MSCCL: typeMask 1 fnIndex 2 Setup Kernel finished")),
    ],
)
def test_run_proves_use_by_the_log(
    schedules: Path, runtime: str, log: tuple[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    loaded, ran = f'echo "{log[0]} $MSCCL_ALGO_DIR"', f'echo "{log[1]}"'
    deployed(schedules, runtime, folder)
    good = start(folder, "bash", "-c", f"{loaded}; {ran}")
    assert (good.returncode, good.stderr) == (0, "")
    assert "used: the log has 1 x " in good.stdout
    assert str(folder / "plans") in good.stdout
    loaded_only = start(folder, "bash", "-c", loaded)
    assert loaded_only.returncode == 3
    assert "NOT USED: the log has no '" in loaded_only.stderr
    assert "Setup Kernel finished" in loaded_only.stderr
    other = start(folder, "bash", "-c", f"echo {log[0]} /usr/share/plans; {ran}")
    assert other.returncode == 3
    assert "NOT USED: the log has no 'Using MSCCL" in other.stderr


def test_run_keeps_the_commands_own_failure(schedules: Path, tmp_path: Path) -> None:
    deployed(schedules, "msccl", tmp_path / "d")
    assert start(tmp_path / "d", "bash", "-c", "exit 7").returncode == 7


def test_run_sets_the_environment(schedules: Path, tmp_path: Path) -> None:
    deployed(schedules, "rccl", tmp_path / "d")
    told = start(tmp_path / "d", "env", NCCL_DEBUG_FILE="/tmp/elsewhere").stdout.splitlines()
    values = dict(line.split("=", 1) for line in told if "=" in line)
    assert values["RCCL_MSCCL_FORCE_ENABLE"] == "1"
    assert values["MSCCL_ALGO_DIR"] == str(tmp_path / "d" / "plans")
    assert "NCCL_DEBUG_FILE" not in values  # the proof is read from what is printed


def test_run_starts_the_check_on_every_node(schedules: Path, tmp_path: Path) -> None:
    folder, tools = tmp_path / "d", tmp_path / "bin"
    document = deployed(schedules, "mscclpp", folder)
    tools.mkdir()
    proofs = "\n".join(f"echo '{words}'" for words in document["proof"])
    (tools / "torchrun").write_text(f'#!/bin/bash\necho "$@"\n{proofs}\n')
    (tools / "torchrun").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = start(folder, PATH=path, NODE_RANK="1", MASTER_ADDR="first")
    assert done.returncode == 0, done.stderr
    assert (
        "--nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr first --master-port 29500 "
        f"{folder}/check_executor.py"
    ) in done.stdout


def test_every_call_of_the_check_must_have_been_a_plans(schedules: Path, tmp_path: Path) -> None:
    """The runtimes of XML log calls, not plans: one plan of a set could pass for all of them."""
    folder, tools = tmp_path / "d", tmp_path / "bin"
    document = deployed(schedules, "msccl", folder)
    assert document["each_call"] == document["proof"][1] == "MSCCL: Setup Kernel finished"
    tools.mkdir()
    fake = tools / "torchrun"
    # allgather and reduce-scatter both ways, the others in place; two ranks a node
    for calls, code in ((14, 0), (13, 3)):
        fake.write_text(
            '#!/bin/bash\necho "Using MSCCL Algo files from $MSCCL_ALGO_DIR"\n'
            f"for i in $(seq {calls}); do echo 'MSCCL: Setup Kernel finished, smem 0'; done\n"
        )
        fake.chmod(0o755)
        done = start(folder, PATH=f"{tools}:{os.environ['PATH']}")
        assert done.returncode == code, done.stderr
        words = (
            "NOT ALWAYS USED: the log has 13 x 'MSCCL: Setup Kernel finished', and the check made "
            "14 calls here that plans serve"
        )
        assert (words in done.stderr) == bool(code)
    # a command of the user's own makes as many calls as it likes
    assert start(folder, str(fake)).returncode == 0


def test_plans_end_where_the_device_counts_no_further(shim: Any) -> None:
    """Beyond, offsets would wrap round: those calls go elsewhere, though the file sets no limit."""
    entry = entry_of(shim, "allreduce")
    every = {"allreduce": {a.id: a for a in shim.builder.added}}
    most = entry["max_bytes"]
    assert 2**31 < most < 2**32
    last = most // entry["multiple"] * entry["multiple"]
    assert shim.select(every, request("allreduce", last)).id == entry["name"]
    assert shim.select(every, request("allreduce", last + entry["multiple"])) is None


DRIVER = """
#include <stddef.h>
#include <stdint.h>
/* every allocation begins at a whole GiB; below 4096 there is none */
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  if (address < 4096) return 1;
  *base = address >> 30 << 30;
  *size = (size_t)1 << 30;
  return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for the GPU driver's library, which knows of allocations."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    made = folder / "libdriver.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(made), str(folder / "driver.c")]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def shim(
    schedules: Path,
    driver: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiled: Artefacts,
) -> Iterator[ModuleType]:
    """`register.py` over stand-ins for the runtime's classes, which note what they are given."""
    inside = compiled(BOXES, "allgather", "--target", "mscclpp", "--place", "in-place")
    shutil.copy(inside.file(".mscclpp.json"), tmp_path / "in.mscclpp.json")
    code, text = run(
        schedules, tmp_path / "in.mscclpp.json", "--runtime", "mscclpp", "-o", tmp_path / "d"
    )
    assert code == 0, text
    builder = SimpleNamespace(added=[], selector=None)
    builder.add_algorithm_builder = builder.added.append
    builder.set_algorithm_selector = lambda selector: setattr(builder, "selector", selector)
    runtime, ext = ModuleType("mscclpp"), ModuleType("mscclpp.ext")
    runtime.Algorithm = lambda **fields: SimpleNamespace(**fields)  # type: ignore[attr-defined]
    runtime.ExecutionPlan = lambda path, rank: (path, rank)  # type: ignore[attr-defined]
    ext.AlgorithmCollectionBuilder = lambda: builder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mscclpp", runtime)
    monkeypatch.setitem(sys.modules, "mscclpp.ext", ext)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.syspath_prepend(str(tmp_path / "d"))
    for name in ("common", "register"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    common = importlib.import_module("common")
    monkeypatch.setattr(
        common, "DRIVERS", (("lib-nowhere.so", "x"), (str(driver), "cuMemGetAddressRange_v2"))
    )
    module = importlib.import_module("register")
    module.builder = builder  # type: ignore[attr-defined]
    yield module
    for name in ("common", "register"):
        sys.modules.pop(name, None)


def entry_of(shim: Any, collective: str) -> Any:
    return next(p for p in shim.plans_for_shim() if p["collective"] == collective)


def request(collective: str, size: int, *, offset: int | None = 0) -> SimpleNamespace:
    """A call of rank 2; `offset`: output - input in bytes, None: elsewhere."""
    there = 1 << 40 if offset is None else (1 << 30) + offset
    return SimpleNamespace(
        collective=collective,
        world_size=4,
        rank=2,
        message_size=size,
        input_buffer=1 << 30,
        output_buffer=there,
        hints={},
        dtype="CppDataType.float32",
    )


def test_the_shim_gives_out_plans_for_calls_that_they_serve(shim: Any) -> None:
    by_name = {a.id: a for a in shim.builder.added}
    assert len(by_name) == 5  # reduce is not hooked; two kinds of allgather
    assert all(a.execution_plan[1] == 2 for a in by_name.values())
    entry = entry_of(shim, "allreduce")
    every = {"allreduce": by_name, "allgather": by_name, "reducescatter": by_name}
    size = entry["multiple"] * 5
    assert shim.select(every, request("allreduce", size)).id == entry["name"]
    assert shim.used == {entry["name"]: 1}
    assert shim.select(every, request("allreduce", size + 4)) is None
    assert shim.select(every, request("allreduce", size, offset=None)) is None
    wrong_world = request("allreduce", size)
    wrong_world.world_size = 8
    assert shim.select(every, wrong_world) is None
    bytewise = request("allreduce", size)
    bytewise.dtype = "CppDataType.uint8"  # DslAlgorithm::execute refuses it
    assert shim.select(every, bytewise) is None
    gathered = {p["in_place"]: p for p in shim.plans_for_shim() if p["collective"] == "allgather"}
    assert [gathered[k]["whole"] for k in (False, True)] == [["input"], ["output"]]
    share = gathered[False]["multiple"]
    assert (
        shim.select(every, request("allgather", share, offset=None)).id == (gathered[False]["name"])
    )
    inside = request("allgather", share, offset=0)
    inside.input_buffer += 2 * share  # rank 2's part of the output
    assert shim.select(every, inside).id == gathered[True]["name"]
    assert shim.used.total() == 3


def test_the_shim_asks_for_the_root(shim: Any) -> None:
    """MSCCL++ would take the plan for any (algorithm_selector.cc:38-50), though a call tells it."""
    every = {"broadcast": {a.id: a for a in shim.builder.added}}
    entry = entry_of(shim, "broadcast")
    call = request("broadcast", entry["multiple"])
    call.hints = {"root": [entry["root"] + 1]}
    assert shim.select(every, call) is None
    call.hints = {"root": [entry["root"]]}
    assert shim.select(every, call).id == entry["name"]


def test_the_shim_looks_where_allocations_begin(shim: Any, capfd: Any) -> None:
    """Before the first call, and before any other: ports would read other memory."""
    every = {"allreduce": {a.id: a for a in shim.builder.added}}
    entry = entry_of(shim, "allreduce")
    assert entry["whole"]
    call = request("allreduce", entry["multiple"])
    call.input_buffer += 256
    call.output_buffer += 256
    with pytest.raises(RuntimeError, match="begins 256 bytes after its allocation") as caught:
        shim.select(every, call)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1" in str(caught.value)
    assert entry["file"] in str(caught.value)
    assert f"forestcoll: error: rank 2: {caught.value}" in capfd.readouterr().err
    assert not shim.used
    call.input_buffer = call.output_buffer = 17
    with pytest.raises(RuntimeError, match="answers 1 for the address 0x11: is it a GPU's memory"):
        shim.select(every, call)
    common = sys.modules["common"]
    common.DRIVERS = (("lib-nowhere.so", "x"), ("lib-neither.so", "y"))
    with pytest.raises(RuntimeError, match="neither lib-nowhere"):
        shim.select(every, call)


def test_whole_allocations_are_asked_for_where_ports_read(schedules: Path) -> None:
    between = deploy([schedules / "allreduce.mscclpp.json"], "mscclpp")
    asks = "port channels read buffers from where their allocation begins: pass whole allocations"
    assert any(asks in note for note in between.notes)
    packets = "packets: the allocations of all ranks' inputs must have one size"
    assert not any(packets in note for note in between.notes)


def test_inside_a_box_the_same_offset_is_enough(compiled: Artefacts) -> None:
    for protocol, words in (("Simple", "same offset"), ("LL", "or all 1048576 bytes and more")):
        asked = ("--target", "mscclpp", "--trees", "1", "--protocol", protocol)
        inside = deploy(
            [compiled("dgx-a100", "allreduce", *asked).file(".mscclpp.json")], "mscclpp"
        )
        assert any(words in note for note in inside.notes)
        assert not any("port channels" in note for note in inside.notes)
        entry = json.loads(inside.files["deploy.json"])["plans"][0]
        assert entry["whole"] == []


@pytest.mark.parametrize("runtime", ["mscclpp", "msccl", "rccl"])
def test_plan_sets_are_deployed(runtime: str, tmp_path: Path, compiled: Artefacts) -> None:
    made = compiled("ring gpus=4", "allreduce", "--sizes", "1K:1G")
    document = deployed(made.folder, runtime, tmp_path / "d")
    ranges = sorted((p["min_bytes"], p["max_bytes"]) for p in document["plans"])
    assert len(ranges) > 1
    assert ranges[0][0] <= 1024
    assert ranges[-1][1] >= 2**30
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(ranges))


def test_runtimes() -> None:
    assert set(RUNTIMES) == {"mscclpp", "msccl", "rccl", "torch"}


@pytest.mark.slow
def test_torch_runs_plans_and_says_so(
    compiled: Artefacts,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine without GPUs, as it stands: over gloo, which it says; fewer bytes than usual.

    Two ranks, as each imports PyTorch.
    """
    pytest.importorskip("torch")
    monkeypatch.setattr("forestcoll.execute.deploy.plans.CHECKED_BYTES", 1 << 18)
    environment = {name: value for name, value in os.environ.items() if name != "BACKEND"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    folder = tmp_path / "d"
    schedules = plans_of("ring gpus=2", compiled, tmp_path_factory.mktemp("schedules"))
    document = deployed(schedules, "torch", folder)
    assert len(document["plans"]) == len(COLLECTIVES)  # each schedule once, though in two formats
    assert {Path(p["file"]).suffix for p in document["plans"]} == {".xml"}
    port = socket_port()
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    words = [folder / "run.sh", sys.executable, *torchrun, folder / "check_torch.py"]
    more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = finished("bash", *words, env=environment | more)
    assert done.returncode == 0, done.stdout + done.stderr
    said = "forestcoll: no GPU on this machine: over gloo, by its processors"
    assert done.stdout.count(said) == 1
    assert done.stdout.count(": right") == 7  # two of them in place and out of place
    for entry in document["plans"]:
        assert f"used: the log has 1 x 'forestcoll: ran {entry['file']}'" in done.stdout


@pytest.mark.parametrize("check", ["check_nccl.py", "check_torch.py"])
def test_a_check_without_its_gpu_says_so_in_a_line(
    check: str,
    schedules: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where NCCL is what is to be checked, or asked for, and there is no GPU: no tracebacks."""
    torch = pytest.importorskip("torch")
    folder = tmp_path / "d"
    deployed(schedules, "rccl" if check == "check_nccl.py" else "torch", folder)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("BACKEND", "nccl")
    monkeypatch.syspath_prepend(folder)
    for local in (0, 1):
        monkeypatch.setenv("RANK", str(local))
        monkeypatch.setenv("LOCAL_RANK", str(local))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(folder / check), run_name="__main__")
        for module in ("common", "check_nccl"):  # of this folder: another has its own
            sys.modules.pop(module, None)
        # Python prints a text and ends with 1
        said = "no GPU 0 on this machine, which has 0; rank 0 needs it"
        assert end.value.code == (1 if local else said)
    assert capsys.readouterr() == ("", "")


def socket_port() -> str:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
