"""What users can ask for, as data: commands, options, fields of --json, Python's names.

    python scripts/surface.py write   [--python PYTHON]   into scripts/surface.json
    python scripts/surface.py compare [--python PYTHON]   exit code 1 where something is gone

A line each: of every command its options and arguments with type, default and choices (formats,
collectives, targets, readers, exporters, runtimes are choices of options); of every command with
--json the paths of its fields over small examples, with their types; the catalogue's topologies
with their parameters; the names of `forestcoll` with their parameters and attributes.

What is gone or differs is a failure, but an option may take more choices than before. An option or
a field that was renamed stands in RENAMED, and
the old name of an option has to be refused with the new one in the message.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FROZEN = Path(__file__).with_name("surface.json")
RENAMED: Mapping[str, str] = {
    "python Budget.lowered": "python Budget.limit_target",
    "python Forest.expanded": "python Forest.expand",
    "python Forest.scanned": "python Forest.scan",
    "python Program.misplaced": "python Program.misplacements",
    "python Program.part_meant": "python Program.part_of",
    "python Topology.directed": "python Topology.rates",
}
"""Lines that are gone, and those that stand for them: `"option synthesize --foo"`."""

Entries = Iterator[tuple[str, str]]


def options(group: Any) -> Entries:
    """Commands with their parameters."""
    for name, command in sorted(group.commands.items()):
        path = command_path(group, name)
        yield f"command {path}", ""
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        for parameter in command.params:
            words = " ".join([*parameter.opts, *parameter.secondary_opts])
            if parameter in arguments:
                words = str(1 + arguments.index(parameter))
            yield f"{parameter.param_type_name} {path} {words}", described(parameter)
        if hasattr(command, "commands"):
            yield from ((key, value) for key, value in options(command))


def command_path(group: Any, name: str) -> str:
    """`"topology list"`: the command in words, without the program."""
    return name if group.name in ("cli", "forestcoll") else f"{group.name} {name}"


def described(parameter: Any) -> str:
    """Type, choices or bounds, default, and how often it may stand."""
    kind = parameter.type
    words = [kind.name.lower()]
    if hasattr(kind, "choices"):
        words = ["|".join(str(getattr(choice, "value", choice)) for choice in kind.choices)]
    for bound in ("min", "max"):
        if getattr(kind, bound, None) is not None:
            words.append(f"{bound} {getattr(kind, bound):g}")
    default = parameter.default
    if isinstance(default, str | int | float) and not isinstance(default, bool):
        words.append(f"default {default}")
    words += [word for word in ("multiple", "required", "is_flag") if getattr(parameter, word, 0)]
    if parameter.nargs != 1:
        words.append(f"nargs {parameter.nargs}")
    return ", ".join(words)


EXAMPLES = """
doctor
topology list
topology show dgx-a100
topology show dgx-h100 --set boxes=2
topology diff ring star
optimum -t dgx-a100 -c allgather
optimum -t dgx-h100 -c allreduce --explain
optimum -t ring -c alltoall --explain
optimum -t dgx-a100 -c allgather --groups box0/gpu[0-3];box0/gpu[4-7]
optimum -t dgx-h100 --set boxes=2 -c alltoallv --matrix bytes.txt --explain
optimum -t dgx-h100 --set boxes=2 -c alltoallv --matrix bytes.txt -o matrix/
synthesize -t dgx-a100 -c allreduce -o plain/
synthesize -t ring --set gpus=4 -c allgather --trees 1 --format forest -o one/
synthesize -t dgx-h100 -c allreduce --target mscclpp --nvls in-place -o nvls/
synthesize -t ring --set gpus=4 -c alltoall -o routes/
synthesize -t dgx1-v100 -c allgather --min-percent 90 --budget trees=4 -o less/
synthesize -t mi250 -c allgather --groups box0/gpu[0-7];box0/gpu[89],box0/gpu1* -o groups/
synthesize -t mi300x -c allreduce --target rccl --sizes 1K:1M -o set/
synthesize -t ring --set gpus=4 -c allreduce --target mscclpp --sizes 1K:64M -o set2/
synthesize -t ring --set gpus=4 -c alltoall --target mscclpp --sizes 1K:1M -o set3/
front -t dgx1-v100
front -t dgx-a100 --rates
time plain/dgx-a100-1.allreduce.mscclpp.json --size 1M
time plain/dgx-a100-1.allreduce.msccl.xml --size 1M --links 0
time plain/dgx-a100-1.allreduce.forest.json --size 1M
calendar plain/dgx-a100-1.allreduce.mscclpp.json --size 1M
compare -t ring --set gpus=4 --sizes 64K,1M --against ring
compare -t dgx-h100 -c alltoall --sizes 1M --against direct
compare -t ring --set gpus=4 --sizes 1M --without gpu0-gpu1 --against none --with ring.xml
verify plain/dgx-a100-1.allreduce.forest.json --links
verify plain/
verify nvls/ routes/ groups/
verify set/
verify broken.msccl.xml
verify broken.mscclpp.json
degrade -t ring --set gpus=4 -c allreduce
degrade -t dgx-a100 -c allgather --kinds link --bundle bundle/ --format forest --dask none
verify bundle/
run plain/dgx-a100-1.allreduce.mscclpp.json --size 1M -t dgx-a100
run set2/ --size 64K
deploy plain/dgx-a100-1.allreduce.mscclpp.json --runtime mscclpp
deploy plain/dgx-a100-1.allreduce.mscclpp.json --runtime torch
deploy plain/dgx-a100-1.allreduce.msccl.xml --runtime rccl
deploy set/ --runtime rccl
deploy set2/ --runtime mscclpp -o deployed/
"""
"""Commands in order, run in one folder: later ones read what earlier ones wrote."""
RING_XML = "synthesize -t ring --set gpus=4 -c allreduce --target msccl --format msccl-xml"


def example_fields(main: Callable[[list[str]], int]) -> Entries:
    """The fields of what the examples print."""
    import contextlib
    import io

    rows = [" ".join(str(1 + (i * j) % 5) if i != j else "0" for j in range(16)) for i in range(16)]
    Path("bytes.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for line in EXAMPLES.strip().splitlines():
        if "broken" in line:
            break_plans()
        if "ring.xml" in line:
            main([*RING_XML.split(), "-o", "ring.xml", "-q"])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*line.split(), "--json"])
        try:
            value = json.loads(out.getvalue())
        except json.JSONDecodeError as error:
            raise SystemExit(f"{line}: exit {code}: {err.getvalue()}") from error
        yield f"example {line}", f"exit {code}"
        command = " ".join(word for word in line.split()[:2] if word.isalpha())
        command = command if command.startswith("topology") else command.split()[0]
        for path, kind in leaves(value):
            yield f"json {command} {path}", kind


def break_plans() -> None:
    """Copies of the plain plans in which a step is missing."""
    import re

    xml = Path("plain/dgx-a100-1.allreduce.msccl.xml").read_text(encoding="utf-8")
    broken = re.sub(r'srcbuf="i" srcoff="0"', 'srcbuf="i" srcoff="1"', xml, count=1)
    Path("broken.msccl.xml").write_text(broken, encoding="utf-8")
    plan = json.loads(Path("plain/dgx-a100-1.allreduce.mscclpp.json").read_text(encoding="utf-8"))
    plan["gpus"][0]["threadblocks"][0]["ops"].pop()
    Path("broken.mscclpp.json").write_text(json.dumps(plan), encoding="utf-8")


def leaves(value: Any, path: str = "") -> Entries:
    """(path, type) of all fields; lists are `[]`, stages of time `seconds.*`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            inside = "*" if path.endswith("seconds") else name
            yield from leaves(inner, f"{path}.{inside}" if path else inside)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    kinds = {bool: "bool", int: "number", float: "number", str: "text", list: "list"}
    yield path, "null" if value is None else kinds.get(type(value), "object")


def python_names() -> Entries:
    """What `forestcoll` has: functions with their parameters, classes with what they have."""
    import inspect
    from importlib import import_module

    package = import_module("forestcoll")
    for name in package.__all__:
        value = getattr(package, name)
        yield f"python {name}", ""
        for parameter in _parameters(inspect, value):
            has = parameter.default is not parameter.empty
            default = f" = {parameter.default!r}" if has else ""
            yield f"python {name}({parameter.name})", f"{parameter.kind.description}{default}"
        if isinstance(value, type):
            for attribute in sorted(set(dir(value)) - set(dir(BaseException)) - set(dir(str))):
                if not attribute.startswith("_"):
                    yield f"python {name}.{attribute}", ""


def _parameters(inspect: Any, value: Any) -> list[Any]:
    if isinstance(value, type) and issubclass(value, str | BaseException):
        return []
    return list(inspect.signature(value).parameters.values())


def probe() -> dict[str, str]:
    """All lines of the package that this process finds, made in the present folder."""
    from forestcoll.ui import cli

    lines: dict[str, set[str]] = {}
    sources = [options(cli.cli), python_names(), example_fields(cli.main)]
    for key, value in (entry for source in sources for entry in source):
        lines.setdefault(key, set()).add(value)
    listed = json.loads(_printed(cli.main, ["topology", "list", "--json"]))
    for one in listed:
        lines[f"topology {one['name']}"] = {one["description"]}
    return {key: "|".join(sorted(values)) for key, values in sorted(lines.items())}


def _printed(main: Callable[[list[str]], int], words: list[str]) -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(words)
    return out.getvalue()


def surface(python: str) -> dict[str, str]:
    """All lines of the package that `python` finds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.json"
        words = [python, str(Path(__file__).resolve()), "probe", "--output", str(file)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr or done.stdout)
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return found


def faults(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What is gone or differs, a line each."""
    out = []
    for key, value in before.items():
        new = RENAMED.get(key, key)
        if new not in after:
            out.append(f"gone: {key}")
        elif new == key and not widened(value, after[new]):
            out.append(f"differs: {key}: {value!r} -> {after[new]!r}")
    return out


def widened(before: str, after: str) -> bool:
    """Whether an option takes all that it took, by its choices ('a|b, multiple')."""
    (old, *rest), (new, *now) = before.split(", "), after.split(", ")
    return rest == now and set(old.split("|")) <= set(new.split("|"))


def hints(python: str) -> list[str]:
    """Old names of options that are not refused with the new one in the message."""
    out = []
    for old, new in RENAMED.items():
        kind, *path = old.split()
        if kind != "option":
            continue
        words = [python, "-m", "forestcoll", *path]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
        if done.returncode != 2 or new.split()[-1] not in done.stderr:
            out.append(f"no hint at {new!r}: {' '.join(path)}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("write", "compare", "probe"))
    parser.add_argument("--python", default=sys.executable, help="whose package is asked")
    parser.add_argument("--frozen", type=Path, default=FROZEN)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.what == "probe":
        asked.output.write_text(json.dumps(probe()), encoding="utf-8")
        return 0
    found = surface(asked.python)
    if asked.what == "write":
        text = json.dumps(found, indent=0, ensure_ascii=False)
        asked.frozen.write_text(f"{text}\n", encoding="utf-8")
        print(f"{len(found)} lines in {asked.frozen}")
        return 0
    before = json.loads(asked.frozen.read_text(encoding="utf-8"))
    wrong = faults(before, found) + hints(asked.python)
    new = [f"new: {key}: {value}" for key, value in found.items() if key not in before]
    print(*new, *wrong, f"{len(before)} lines, {len(wrong)} gone or different", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
