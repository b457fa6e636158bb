"""Repeat reports of wrong behaviour: run the commands of each, and check what they say.

    .venv/bin/python scripts/reproducers.py [FOLDER] [--line N ...]

FOLDER (default: ../shared/defects beside the project) has the reports' files; what needs them is
left out where it is missing, and said. A report is a line of the folder's README: its number,
commands, their exit code, what they must and must not say. Where it takes several processes, a
browser or an environment of its own, the commands are the tests that stand for it. Exits 1 where a
report does not hold.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300
"""Longest that a command may take."""


@dataclass(frozen=True)
class Step:
    """A command, words split at spaces: `{d}` is FOLDER, `{o}` an empty folder of the report's own.

    The first word is a command of forestcoll, or `pytest`, `python`, `mkdir`. `code`: how it ends.
    `says`, `hushes`: patterns that its output has, and has not. `width`: columns of the terminal.
    """

    command: str
    code: int = 0
    says: Sequence[str] = ()
    hushes: Sequence[str] = (r"Traceback \(most recent",)
    width: int = 120


@dataclass(frozen=True)
class Edit:
    """A file in `{o}` whose first match of a pattern is put in other words before the next step."""

    file: str
    pattern: str
    other: str


def test(name: str) -> Step:
    """A test, or several."""
    return Step(f"pytest -q -n 0 {name}", says=[r"\d+ passed"])


RATE = "algbw +125/2 "
SET = "synthesize -t star --set gpus=4 -c allgather --sizes 64K:1M -o {o}/set"
REPORTS: dict[int, tuple[str, list[Step | Edit]]] = {
    1: (
        "an all-to-all drops elements that are not dealt out evenly",
        [
            Step(
                "synthesize -t ring --set gpus=4 -c alltoall --format msccl-xml "
                "-o {o}/ring-4.alltoall.msccl.xml"
            ),
            Step(
                "python {d}/torch-indivisible.py",
                1,
                ["17 elements are not dealt out to 4 ranks"],
                [],
            ),
            test("tests/test_torch_agreement.py -k said_at_all_ranks"),
        ],
    ),
    2: (
        "cables and rows count twice",
        [
            Step("optimum -t {d}/once.csv -c allgather", says=[RATE]),
            Step(
                "optimum -t {d}/lldp-both-ends.csv -c allgather",
                says=[RATE, "note: .*it counts once"],
            ),
            Step(
                "optimum -t {d}/dup_row.csv -c allgather", says=[RATE, "note: .*line 9 of line 2"]
            ),
            Step("optimum -t {d}/same_port_other_end.csv -c allgather", 1, ["a port has one"]),
        ],
    ),
    3: (
        "readers take contradictions",
        [
            Step("optimum -t {d}/dup_xgmi.xml -c allgather", 1, ["a second <xgmi>"]),
            Step(
                "optimum -t {d}/xgmi_count_4_one_way.xml -c allgather", 1, ["states 4 xGMI links"]
            ),
            Step("optimum -t {d}/dup_nvlink.xml -c allgather", 1, ["a second <nvlink>"]),
            Step("optimum -t {d}/nvlink_count_50.xml -c allgather", 1, ["a GPU has 18 at most"]),
            Step("optimum -t {d}/two_values.yaml -c allgather", 1, ["one bandwidth in 2 figures"]),
            Step("optimum -t {d}/dup_link_name.yaml -c allgather", 1, ["a second link 'link0'"]),
        ],
    ),
    4: (
        "a read takes no round trip",
        [
            Step(
                "time {d}/mi250-1.reduce.mscclpp.json --rule fair --size 16M --latency 1 "
                "--signal 0",
                says=[r"95\.3\d+ GB/s"],
            ),
            test("tests/test_simulate.py"),
        ],
    ),
    5: (
        "groups that MSCCL++ refuses",
        [
            Step(
                "synthesize -t {d}/two-one.yaml -c allgather --target mscclpp -o {o}/x",
                1,
                ["a 2, b 1", "MSCCL\\+\\+ makes no Executor"],
            ),
            Step(
                "synthesize -t {d}/two-one.yaml -c allgather -o {o}/any",
                0,
                ["note +no MSCCL\\+\\+"],
            ),
            Step("verify {d}/interleaved.allreduce.mscclpp.json", 1, ["error MPP-NODES"]),
        ],
    ),
    6: (
        "more than 8 ranks a node with ports",
        [
            Step(
                "synthesize -t mi250 --set boxes=2 -c allgather --target mscclpp -o {o}/x",
                1,
                ["not among the first 8 of theirs"],
            ),
            test("tests/test_rank_placement.py"),
        ],
    ),
    7: (
        "two threads of a block signal on one channel",
        [Step("verify {d}/two-threads-one-channel.mscclpp.json", 1, ["error MPP-SIGNAL-THREADS"])],
    ),
    8: (
        "records of bundles and sets that nothing holds",
        [
            Step(f"{SET}"),
            Step("verify {o}/set"),
            Edit("set/index.json", r'"sms": \d+', '"sms": 7'),
            Step("verify {o}/set", 1),
            test("tests/test_plan_set_claims.py tests/test_degrade_bundles.py"),
        ],
    ),
    9: ("several figures for one file", [test("tests/test_one_truth.py")]),
    10: (
        "several models of a hop",
        [
            Step("synthesize -t star --set gpus=4 -c allreduce -o {o}/p"),
            Step(
                "time {o}/p/star-4.allreduce.msccl.xml --size 64M",
                says=["model .*3.4 us per Simple hop"],
            ),
            Step(
                "compare -t star --set gpus=4 --sizes 64M --against none",
                says=["(?s)model .*3.4 us"],
            ),
        ],
    ),
    11: (
        "a killed bundle leaves a folder that is refused",
        [
            Step("mkdir -p {o}/e/link.gpu3-switch.49b5d8"),
            Step("degrade -t star --set gpus=4 -c allgather --dask none --bundle {o}/e"),
            test("tests/test_degrade_bundles.py -k killed"),
        ],
    ),
    12: (
        "stock traffic between a call and its wait",
        [test("tests/test_torch_agreement.py -k asynchronous")],
    ),
    13: (
        "one rank's error is the others' timeout",
        [test("tests/test_torch_agreement.py -k said_at_all_ranks")],
    ),
    14: (
        "puts that name no channel",
        [
            Step(
                "time {d}/up_s_allgather.json -t star --set gpus=2 --size 1M",
                says=["of the best plan"],
            ),
            Step(
                "time {d}/up_m_allgather.json -t star --set gpus=8 --size 1M",
                says=["of the best plan"],
            ),
        ],
    ),
    15: (
        "huge bandwidths",
        [Step("verify {d}/huge-bandwidth.forest.json", 1, ["between 10\\^-40"])],
    ),
    16: (
        "names that break outputs",
        [
            Step(
                f"{command} {{d}}/{name}.forest.json -o {{o}}/{k}{name}",
                hushes=["Traceback", "\x1b", "\u202e", "\0"],
            )
            for name in ("surrogate-name", "nul-name", "esc-node")
            for k, command in enumerate(("view", "export --to svg", "export --to chakra"))
        ],
    ),
    17: ("sources hide the installed package", [test("tests/test_packaging.py -k sources")]),
    18: ("no compiler", [test("tests/test_packaging.py -k compiler")]),
    19: (
        "compare shows nothing for minutes",
        [
            Step(
                "compare -t dgx-h100 --set boxes=4 -c allreduce --sizes 1M,64M,1G --against rings",
                says=["(?m)^forestcoll +1 MiB"],
            ),
            test("tests/test_cli.py -k compar"),
        ],
    ),
    20: ("numbers are split at 80 columns", [test("tests/test_widths.py")]),
    21: (
        "nobody says that stock NCCL loads no plans",
        [
            Step(
                "synthesize -t star --set gpus=4 -c allgather --target nccl -o {o}/x",
                2,
                ["(?s)NCCL loads no.*forestcoll.torch"],
            ),
        ],
    ),
    22: ("the notebook has no pictures", [test("tests/test_display.py -k notebook")]),
    23: (
        "machines are given in many ways, reasons are untrue",
        [
            Step("view -t dgx-h100 --set boxes=4 -o {o}/m.html"),
            Step("export x --format chakra", 2, ["--to"], ["--force"]),
            Step("synthesize -t star --set gpus=4 -c allgather", says=["nothing is written"]),
            Step(
                "synthesize -t star --set gpus=4 -c allgather -o /proc/x", 1, hushes=["another run"]
            ),
        ],
    ),
    24: (
        "bandwidths without units",
        [
            Step(
                "optimum -t dgx-h100 --set boxes=2 --set network=200 -c allgather",
                says=["did you mean 200Gb/s = 25 GB/s"],
            ),
            Step(
                "optimum -t dgx-h100 --set boxes=2 --set network=200Gb/s -c allgather",
                hushes=["did you mean"],
            ),
        ],
    ),
    25: (
        "lint hides the proof",
        [test("tests/test_commands.py -k lint")],
    ),
    26: ("a file's row says nothing", [test("tests/test_cli.py -k factor_and_reason")]),
    27: ("errors stand twice", [test("tests/test_cli.py -k verify_stand_once")]),
    28: ("the viewer", [test("tests/test_view_design.py")]),
    29: ("how to add a topology", [test("tests/test_catalog.py")]),
}


def run(step: Step, folder: Path, own: Path) -> tuple[str, float]:
    """What does not hold of a step, or "", and its seconds of processor time."""
    words = [word.format(d=folder, o=own) for word in step.command.split(" ")]
    programs = {
        "python": [sys.executable],
        "pytest": [sys.executable, "-m", "pytest"],
        "mkdir": ["mkdir"],
    }
    own_name = [sys.executable, "-m", "forestcoll", words[0]]
    first = programs.get(words[0], own_name)
    before = os.times()
    done = subprocess.run(
        [*first, *words[1:]],
        cwd=own if words[0] == "python" else ROOT,
        env={**os.environ, "COLUMNS": str(step.width), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
    )
    after = os.times()
    text = (done.stdout + done.stderr).decode(errors="replace")
    wrong = (
        [f"exit code {done.returncode}, not {step.code}"] if done.returncode != step.code else []
    )
    wrong += [f"does not say {p!r}" for p in step.says if not re.search(p, text)]
    wrong += [f"says {p!r}" for p in step.hushes if re.search(p, text)]
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    if not wrong:
        return "", used
    last = "\n".join(f"        {line}" for line in text.splitlines()[-5:])
    return f"{' '.join(words)}: {'; '.join(wrong)}\n{last}", used


def edit(step: Edit, own: Path) -> str:
    """Change the file; why that cannot be, or ""."""
    path = own / step.file
    text, count = re.subn(step.pattern, step.other, path.read_text(), count=1)
    path.write_text(text)
    return "" if count else f"no {step.pattern!r} in {step.file}"


def main() -> int:
    """Run all reports, or those asked for; a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "defects")
    parser.add_argument("--line", type=int, action="append", help="This report alone; repeatable.")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    failed, left = 0, 0
    for number, (words, steps) in REPORTS.items():
        if asked.line and number not in asked.line:
            continue
        if not folder.is_dir() and any("{d}" in s.command for s in steps if isinstance(s, Step)):
            print(f"{number:3} left out  {words}: no folder {folder}", flush=True)
            left += 1
            continue
        start, used, wrong = time.monotonic(), 0.0, []
        with tempfile.TemporaryDirectory() as own:
            for step in steps:
                if isinstance(step, Edit):
                    why = edit(step, Path(own))
                else:
                    why, seconds = run(step, folder, Path(own))
                    used += seconds
                wrong += [why] if why else []
        failed += bool(wrong)
        state = "WRONG" if wrong else "holds"
        wall = time.monotonic() - start
        print(f"{number:3} {state}  {used:5.1f} s of {wall:5.1f} s  {words}", flush=True)
        for why in wrong:
            print(f"      {why}", flush=True)
    print(f"{failed} failed, {left} left out")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
