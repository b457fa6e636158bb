"""The GPU engine's own source, driven by a stand-in for the CUDA runtime; and that it compiles.

What runs here is the kernel's code and the host's, over several "devices" with memory that is
shared between processes. Whether a GPU's memory model is obeyed only a GPU can tell.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from command_line import script
from native import compile_

from forestcoll.common.errors import ExecutionError, UnsupportedError
from forestcoll.execute import cpu, doctor, gpu
from forestcoll.execute.gpu import compiler as builds
from forestcoll.execute.gpu.arena import SLOT_BYTES, slot_of
from forestcoll.execute.result import RunResult
from forestcoll.execute.sizes import geometry, layout, longest_message
from forestcoll.program import BY_TREES, Collective, Op, Program
from forestcoll.ui.cli import main
from tests.notation import line_of
from tests.programs import all_good, edit

HERE = Path(__file__).parent / "fixtures" / "emulated_gpu"
COLLECTIVES = tuple(c.value for c in BY_TREES)
HALF = ("--ranks", "box0/gpu[0-3]")
FORMATS = ("msccl-xml", "mscclpp-json")
Programs = dict[tuple[str, str], Program]
Runs = Callable[..., RunResult]


@pytest.fixture(scope="session")
def library(compiled: Artefacts) -> Path:
    """The engine, compiled by the C++ compiler against the stand-in; once for all processes."""
    flags = ["-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]

    def make(place: Path) -> None:
        files = [builds.SOURCE, "-o", place, "-lpthread", "-lrt"]
        compile_(*flags, "-x", "c++", f"-I{HERE}", *files)

    package = builds.SOURCE.parents[1]
    sources = [path for home in (HERE, package) for path in home.rglob("*") if path.is_file()]
    native = [path for path in sources if path.suffix in (".cu", ".hpp", ".h", ".cpp")]
    return compiled.once("emulated-gpu.so", make, *native)


@pytest.fixture(autouse=True)
def emulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EMULATED_GPUS", "3")
    monkeypatch.setenv("EMULATED_THREADS", "2")
    monkeypatch.setenv("EMULATED_PROCESSORS", "1000")
    yield
    for left in Path("/dev/shm").glob("emulated-gpu.*"):  # of devices whose process was killed
        if not Path("/proc", left.name.split(".")[1]).exists():
            left.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def kept() -> Iterator[gpu.Processes]:
    """Processes for tests that want no others than the usual devices."""
    with gpu.Processes() as processes:
        yield processes


@pytest.fixture(scope="module")
def run(library: Path, kept: gpu.Processes) -> Runs:
    """A run with ranks on the first device, unless it says otherwise."""
    return partial(gpu.run, built=library, processes=kept, devices=[0], timeout=30)


@pytest.fixture(scope="session")
def programs(compiled: Artefacts) -> Programs:
    """Four GPUs on one switch, every collective in both formats."""
    made = {one: compiled("dgx-a100", one, *HALF).programs for one in COLLECTIVES}
    return {(one, form): made[one][form] for one in COLLECTIVES for form in FORMATS}


@pytest.fixture
def plan(compiled: Artefacts) -> Path:
    return compiled("dgx-a100", "allreduce", *HALF).file(".msccl.xml")


@pytest.mark.parametrize("target", ["rccl", "mscclpp"])
def test_alltoall_is_right(run: Runs, compiled: Artefacts, target: str) -> None:
    """Over relays, several chunks per block: half of a DGX-1."""
    made = compiled("dgx1-v100", "alltoall", *HALF, "--units", "2", "--target", target)
    (program,) = made.programs.values()
    made = run(program, 30_000)
    assert [(row.mode, row.wrong) for row in made.rows] == [("out-of-place", 0)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right(
    programs: Programs,
    run: Runs,
    collective: str,
    form: str,
) -> None:
    program = programs[collective, form]
    one = run(program, 30_000)
    assert [(row.mode, row.wrong) for row in one.rows] == [("out-of-place", 0), ("in-place", 0)]
    assert one.notes[-1] == "4 ranks share 1 GPU: right or wrong shows, speed does not"
    op = "avg" if program.collective.reduces else "sum"
    two = run(
        program,
        3_333,
        devices=[0, 2],
        dtype="bfloat16",
        op=op,
        iterations=2,
        warmup=1,
    )
    assert [row.wrong for row in two.rows] == [0, 0]
    assert all(row.time_us > 0 for row in two.rows)


@pytest.mark.parametrize(("number", "dtype"), list(enumerate(cpu.DTYPES)), ids=cpu.DTYPES)
def test_every_type_and_operation_is_right(
    programs: Programs,
    run: Runs,
    number: int,
    dtype: str,
) -> None:
    program = programs["reduce-scatter", "mscclpp-json"]
    for op in (cpu.OPS[number % len(cpu.OPS)], cpu.OPS[(number + 2) % len(cpu.OPS)]):
        result = run(program, 999, devices=[1], dtype=dtype, op=op)
        assert result.wrong == 0, (dtype, op, result.mismatches)


@pytest.mark.parametrize("name", sorted(all_good()))
def test_every_kind_of_instruction_is_right(name: str, run: Runs) -> None:
    program = all_good()[name]
    result = run(
        program,
        5_000,
        devices=[0, 1],
        iterations=3,
        dtype="int32",
    )
    assert result.wrong == 0, result.mismatches


def test_chunks_longer_than_slots_go_in_slices(programs: Programs, run: Runs) -> None:
    program = programs["allreduce", "msccl-xml"]
    for slots in (1, 3):
        result = run(
            program,
            100_000,
            slots=slots,
            slot_bytes=1000,
        )
        assert result.wrong == 0


def test_processes_are_kept_from_run_to_run(programs: Programs, library: Path) -> None:
    program = programs["allgather", "mscclpp-json"]
    with gpu.Processes() as kept:
        ways = {"built": library, "processes": kept}
        assert gpu.run(program, 300, devices=[0], **ways).wrong == 0  # type: ignore[arg-type]
        first = list(kept.children)
        assert len(first) == 1
        assert gpu.run(program, 90_000, devices=[2, 0], **ways).wrong == 0  # type: ignore[arg-type]
        assert kept.children[:1] == first
        broken = program.ranks[0].thread_blocks[0].steps
        s = next(s for s, i in enumerate(broken) if i.op is Op.RELAXED_SIGNAL)  # type: ignore[union-attr]
        with pytest.raises(ExecutionError, match="stuck"):
            gpu.run(edit(program, f"0.0.{s} -"), 300, devices=[0], timeout=0.3, **ways)  # type: ignore[arg-type]
        assert all(process.poll() is not None for process in first)
        assert gpu.run(program, 300, devices=[0], **ways).wrong == 0  # type: ignore[arg-type]
        last = list(kept.children)
    assert [process.poll() for process in last] == [0]


def _wrong(program: Program) -> tuple[Program, int]:
    """An allgather with a message that goes to the wrong place, and at which rank."""
    r, b, s, i = next(
        (r, b, s, i)
        for r, b, s, i in program.instructions()
        if i.op is Op.RECV and i.dst[0].offset not in (0, r)
    )
    wrong = replace(i, dst=(replace(i.dst[0], offset=r),))
    return edit(program, f"{r}.{b}.{s} = {line_of(wrong)}"), r


def test_slots_are_for_the_longest_message(programs: Programs) -> None:
    """Small data takes little memory; whatever a message of the largest slots holds goes in one."""
    program = programs["allreduce", "msccl-xml"]
    longest = longest_message(program)
    for size in (16, 4096, 30_000, 2**20):
        data = layout(program, size, 4)
        slot = slot_of(program, data)
        assert 0 <= slot - longest * data.chunk_bytes < 256
        held = [geometry(data, given)[2:4] for given in (slot, SLOT_BYTES)]
        assert held[0] == held[1] == (data.chunk_bytes, 1)
        assert slot // data.chunk_bytes >= longest
    large = layout(program, 2**30, 4)
    assert slot_of(program, large) == SLOT_BYTES
    assert slot_of(program, large, 1003) == 1000


def test_wrong_data_is_found(programs: Programs, run: Runs) -> None:
    wrong, r = _wrong(programs["allgather", "msccl-xml"])
    result = run(wrong, 4096)
    assert result.wrong > 0
    assert result.mismatches[0].startswith(f"rank {r}, output element ")


def without(op: Op, programs: Programs) -> tuple[int, Program]:
    """A broadcast without its first such instruction, and whose that was."""
    program = programs["broadcast", "mscclpp-json"]
    r, b, s = next((r, b, s) for r, b, s, i in program.instructions() if i.op is op)
    return r, edit(program, f"{r}.{b}.{s} -")


def test_a_stuck_plan_is_given_up_and_explained(programs: Programs, run: Runs) -> None:
    rank, spoilt = without(Op.RELAXED_SIGNAL, programs)
    with pytest.raises(
        ExecutionError, match=r"nothing moved for 0\.3 s; the plan is stuck: "
    ) as found:
        run(spoilt, 4096, devices=[0, 1], timeout=0.3)
    assert f"waits for a signal from rank {rank}" in "\n".join(found.value.__notes__)


def test_signals_left_behind_are_found(programs: Programs, run: Runs) -> None:
    with pytest.raises(ExecutionError, match="would break the next launch"):
        run(without(Op.RELAXED_WAIT, programs)[1], 4096)


def test_a_killed_process_is_named(
    programs: Programs, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[subprocess.Popen[bytes]] = []
    real = gpu._spawn

    def spawn(file: int) -> tuple[object, subprocess.Popen[bytes]]:
        pipe, process = real(file)
        made.append(process)
        return pipe, process

    def kill(team: gpu.Team, *_: object) -> bool:
        os.kill(made[-1].pid, signal.SIGKILL)
        team.ask("poll")
        return True

    monkeypatch.setattr(gpu, "_spawn", spawn)
    monkeypatch.setattr(gpu.Team, "launch", kill)
    with pytest.raises(ExecutionError, match="the process of GPU 1 was killed by signal 9"):
        gpu.run(programs["broadcast", "msccl-xml"], 4096, built=library, devices=[0, 1])
    assert all(process.poll() is not None for process in made)  # none is left behind


def test_what_a_machine_cannot_do_is_said(
    programs: Programs, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = programs["allreduce", "mscclpp-json"]
    with pytest.raises(UnsupportedError, match="there is no GPU 7: 3 are seen"):
        gpu.run(program, 4096, built=library, devices=[7])
    monkeypatch.setenv("EMULATED_PEERS", "0")
    with pytest.raises(UnsupportedError, match="GPU 0 cannot reach the memory of GPU 1"):
        gpu.run(program, 4096, built=library, devices=[0, 1])
    monkeypatch.setenv("EMULATED_PROCESSORS", "7")
    with pytest.raises(UnsupportedError, match="64 thread blocks of 4 ranks, and it runs 56 at o"):
        gpu.run(program, 4096, built=library, devices=[0])
    monkeypatch.setenv("EMULATED_PROCESSORS", "8")  # with an eighth of the threads
    assert gpu.run(program, 4096, built=library, devices=[0]).wrong == 0
    monkeypatch.setenv("EMULATED_PROCESSORS", "1000")
    with pytest.raises(UnsupportedError, match=r"need \d+\.\d GiB, 1\.0 are free"):
        gpu.run(program, 2**30, built=library, devices=[0])
    far = replace(program, names=("a/gpu0", "a/gpu1", "b/gpu0", "b/gpu1"))
    with pytest.raises(UnsupportedError, match=r"the ranks sit in 2 nodes \(a, b, ...\).*torch"):
        gpu.run(far, 4096, built=library)


def test_ranks_take_the_gpus_of_their_names(programs: Programs) -> None:
    program = programs["allreduce", "msccl-xml"]
    assert gpu._devices(program, None, 8) == [0, 1, 2, 3]
    named = replace(program, names=("gpu3", "gpu2", "gpu1", "gpu0"))
    assert gpu._devices(named, None, 4) == [3, 2, 1, 0]
    assert gpu._devices(named, None, 2) == [0, 0, 1, 1]
    assert gpu._devices(named, [5, 6], 8) == [5, 5, 6, 6]
    assert gpu._devices(replace(program, names=()), None, 4) == [0, 1, 2, 3]


def knows(compiler: builds.Compiler, architecture: str, folder: Path) -> bool:
    """Whether a HIP compiler has heard of it."""
    source = folder / "nothing.hip"
    source.write_text("")
    words = [compiler.path, f"--offload-arch={architecture}", "--cuda-device-only", "-E"]
    done = subprocess.run(
        [*words, "-x", "hip", str(source)],
        capture_output=True,
        env={**os.environ, "HIP_PLATFORM": "amd"},
        timeout=60,
    )
    source.unlink()
    return done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "architectures"),
    [("cuda", ("sm_90",)), ("hip", ("gfx90a",))],
)
def test_the_engine_compiles(
    platform: builds.Platform,
    architectures: tuple[str, ...],
    tmp_path: Path,
    compiled: Artefacts,
) -> None:
    """Where none of what it is made of has changed, as it did before."""
    found = builds.find_compiler(platform)
    if found is None:
        pytest.skip(f"no compiler for {platform} is installed")
    if platform == "hip":
        assert knows(found, "gfx90a", tmp_path)
        assert not knows(found, "gfx90b", tmp_path)  # there is none
        if knows(found, "gfx942", tmp_path):
            architectures = ("gfx942",)
    # -O3 finds no other errors and takes longer, except where nvcc knows of no quick way.
    found = found._replace(quick=re.search(r"release 12\.[0-8]\b", found.version) is None)
    build = partial(builds.compile_library, found, architectures)
    folder = compiled.once(f"engine-{platform}", build, builds.SOURCE, *builds.HEADERS)
    made = build(folder)
    code = made.read_bytes()
    assert code[:4] == b"\x7fELF"
    assert all(name.encode() in code for name in architectures)
    assert build(folder) == made
    assert {path.suffix for path in folder.iterdir()} == {".so"}


def test_builds_are_kept_by_what_went_into_them(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    tool = tmp_path / "nvcc"
    tool.write_text(
        f'#!/bin/bash\necho "$@" >> {calls}\n'
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && touch "$2"; shift; done\n'
    )
    tool.chmod(0o755)
    compiler = builds.Compiler("cuda", str(tool), "12.8")
    cache = tmp_path / "cache"
    first = builds.compile_library(compiler, ["sm_90"], cache)
    assert builds.compile_library(compiler, ["sm_90"], cache) == first
    others = (
        builds.compile_library(compiler, ["sm_100"], cache),
        builds.compile_library(compiler._replace(version="13.0"), ["sm_90"], cache),
    )
    assert len({first, *others}) == 3
    lines = calls.read_text().splitlines()
    assert len(lines) == 3
    assert "-gencode arch=compute_90,code=sm_90" in lines[0]


def examined(what: str) -> doctor.Finding:
    return next(found for found in doctor.examine() if found.what == what)


def test_hipcc_is_asked_as_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "hipcc"
    tool.write_text('#!/bin/bash\necho "hipcc for ${HIP_PLATFORM:-whatever it finds}"\n')
    tool.chmod(0o755)
    monkeypatch.delenv("HIP_PLATFORM", raising=False)
    monkeypatch.setenv("HIPCC", str(tool))
    found = builds.find_compiler("hip")
    assert found == builds.Compiler("hip", str(tool), "hipcc for amd")
    told = examined("hipcc")
    assert (told.state, told.found) == (doctor.OK, f"{tool} (hipcc for amd)")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/bash\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("HIPCC", str(broken))
    told = examined("hipcc")
    assert (told.state, told.found) == (doctor.ABSENT, f"{broken} does not run")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    tool = tmp_path / "nvcc"
    tool.write_text("#!/bin/bash\necho 'engine.cu(3): error: no such thing' >&2\nexit 2\n")
    tool.chmod(0o755)
    with pytest.raises(ExecutionError, match=r"failed\nengine\.cu\(3\): error: no such thing"):
        builds.compile_library(builds.Compiler("cuda", str(tool), ""), ["sm_90"], tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_without_a_gpu_the_cpu_is_named(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "find_platform", lambda: None)
    with pytest.raises(UnsupportedError, match=r"no GPU is seen .* --engine cpu needs none"):
        gpu.run(programs["allreduce", "msccl-xml"], 4096)
    monkeypatch.setattr(builds, "find_platform", lambda: ("cuda", ["sm_90"]))
    monkeypatch.setattr(builds, "find_compiler", lambda platform: None)
    with pytest.raises(UnsupportedError, match=r"nvcc \(the CUDA toolkit\) is not found"):
        gpu.gpus()


def test_the_command_says_what_is_missing(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "find_platform", lambda: None)
    assert main(["run", str(plan), "--engine", "gpu", "--size", "4K"]) == 1
    assert main(["run", str(plan), "--gpus", "0"]) == 2
    assert main(["run", str(plan), "--engine", "gpu", "--gpus", "0,x"]) == 2
    assert examined("GPU engine").state == doctor.ABSENT
    monkeypatch.setattr(builds, "find_platform", lambda: ("hip", ["gfx90a"]))
    monkeypatch.setattr(builds, "find_compiler", lambda platform: None)
    told = examined("GPU engine").found
    assert told == "gfx90a, but hipcc (ROCm) is missing: it is compiled here"


def test_the_command_runs_on_gpus(
    plan: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gpu, "find_library", lambda: library)
    assert main(["run", str(plan), "--engine", "gpu", "--gpus", "1,2", "-b", "1K", "-e", "2K"]) == 0
    assert "# Out of bounds values : 0 OK" in capsys.readouterr().out


def test_the_benchmark_runs_and_finds_wrong_plans(
    programs: Programs,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = script("gpu")
    monkeypatch.setattr(bench, "program", lambda collective, *_: made[collective])
    made = {name: programs[name, "mscclpp-json"] for name in COLLECTIVES}
    monkeypatch.setattr(bench, "COLLECTIVES", ("allreduce",))
    monkeypatch.setattr(bench, "FORMATS", ("mscclpp-json",))
    monkeypatch.setattr(bench.cpu, "DTYPES", ("int8", "float64"))
    arguments = ["--library", str(library), "--ranks", "4", "--size", "4096", "--repeat", "1"]
    assert bench.main(arguments) == 0
    told = capsys.readouterr().out
    assert "| allgather, mscclpp-json | 4 |  | " in told
    assert "- 4 ranks: 11 runs so far, 0 of them wrong" in told
    made["allreduce"] = _wrong(programs["allgather", "msccl-xml"])[0]
    assert bench.main([*arguments, "--tiny"]) == 1
    assert "WRONG: 4 ranks, allreduce, mscclpp-json, int8, sum\nrank " in capsys.readouterr().out
    assert bench.main([*arguments, "--tiny", "--seconds", "0"]) == 1
    assert "no time for the rest" in capsys.readouterr().out


def test_the_memory_checker_is_heard_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = script("gpu")
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        '#!/bin/bash\nwhile [ "$1" != --log-file ]; do shift; done\n'
        'for n in $FOUND; do echo "=== ERROR SUMMARY: $n errors" > "${2/\\%p/$n}"; done\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for found, status, words in (
        ("0", 0, "1 processes, 0 errors"),
        ("0 3", 1, "2 processes, 3 errors"),
        ("", 1, "0 processes, 0 errors"),
    ):
        monkeypatch.setenv("FOUND", found)
        assert bench.main(["--memcheck"]) == status
        assert f"compute-sanitizer: {words}\n" in capsys.readouterr().out


# --- addresses as the runtime has them


def test_packets_take_the_writers_half_at_peers_too(library: Path, kept: gpu.Processes) -> None:
    """As on the CPU: with unequal scratch the first launch is right, the second one hangs."""
    from hand_forests import forest, star

    from forestcoll.lower import lower
    from forestcoll.program.targets import MSCCLPP

    program = lower(
        forest(Collective.BROADCAST, 2, [star(2, 0, "broadcast")]), MSCCLPP, protocol="LL"
    )
    how: dict[str, Any] = {"built": library, "processes": kept, "devices": [0, 1]}
    assert gpu.run(program, 64, iterations=4, timeout=30, **how).wrong == 0
    ranks = (replace(program.ranks[0], scratch_chunks=0), program.ranks[1])
    unequal = replace(program, ranks=ranks)
    assert gpu.run(unequal, 64, modes=["in-place"], timeout=30, **how).wrong == 0
    with pytest.raises(ExecutionError, match="waits for packets"):
        gpu.run(unequal, 64, modes=["in-place"], iterations=2, timeout=0.5, **how)


def test_ports_read_from_where_the_allocation_begins(run: Runs) -> None:
    program = replace(all_good()["direct_allgather kind=port"], in_place=True)
    result = run(program, 4096, devices=[0, 1])
    assert [row.wrong > 0 for row in result.rows] == [False, True]
