"""What each runtime needs to find, take and really use a set of plans.

Sources: Azure/msccl-executor-nccl c6f6b36 (msccl_lifecycle.cc, msccl_setup.cc), ROCm/rccl 0cbce2a
(the same files, rome_models.cc), microsoft/mscclpp 1f5f065d (executor.cc, nccl.cc, env.cpp,
algorithm_selector.cc).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from forestcoll.common.errors import PlanError
from forestcoll.execute.deploy import stock
from forestcoll.execute.deploy.plans import (
    CHECKED_BYTES,
    Plan,
    channels,
    clashes,
    namesakes,
    read,
    read_by_ports,
    reads_input_remotely,
)
from forestcoll.plans.stock import WORDS
from forestcoll.program import Collective
from forestcoll.program.rank_placement import Places, places, same_places
from forestcoll.program.targets import PlanFormat, host_of

Runtime = Literal["mscclpp", "msccl", "nccl", "rccl", "torch"]


Environment = dict[str, str]
"""Variables, with `$PLANS` for the folder of the plans."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that it takes to run plans on one runtime.

    `environment` holds values with `$PLANS` for the folder of the plans; `files` the texts to be
    written, by name; `proof` what in the runtime's log shows that the plans ran.
    """

    runtime: Runtime
    plans: tuple[Plan, ...]
    places: Places
    environment: Environment
    files: Environment = field(repr=False)
    start: str  # command, in the folder
    proof: str
    notes: tuple[str, ...]  # what the user must know


Plans = tuple[Plan, ...]


class _Kind(NamedTuple):
    """A runtime: the format that it reads (None: both) and how plans are deployed there.

    `proof`: lines of its log that show that plans ran, with {name} and {file} of each plan;
    `each_call`: the one that is there for every call. `clash`: what it does with two plans for one
    call. `check` and `more`: scripts beside run.sh. `notes`: what the user must know.
    """

    what: str
    format: PlanFormat | None
    environment: Environment
    check: str
    proof: tuple[str, ...]
    notes: Callable[[Plans, Places], list[str]]
    more: tuple[str, ...] = ()
    each_call: str = ""
    clash: str = ""


def deploy(paths: Sequence[Path], runtime: Runtime) -> Deployment:
    """The deployment of the plan files (or folders of plan files) on `runtime`.

    Or of what stock libraries take in their place: trees and rings.

    Raises PlanError where the runtime would not take a plan, would run it wrongly, or would take
    another one in its place.
    """
    texts = stock.collect(paths)
    if texts:
        return _deploy_stock(texts, runtime)
    if runtime == "nccl":
        raise PlanError(f"{', '.join(map(str, paths))}: {stock.NO_PLANS}")
    kind = RUNTIMES[runtime]
    plans = read(paths, kind.format, runtime if kind.format else None)
    held = [(p.source, p.program.names, p.program.n) for p in plans]
    spread = same_places(held, host_of(plans[0].program.name))
    if kind.format:
        _refuse_clashes(plans, kind.clash)
    names = _file_names(plans)
    named = list(zip(plans, names, strict=True))
    proof = dict.fromkeys(
        line.format(name=plan.name, file=name) for line in kind.proof for plan, name in named
    )
    document = {
        "each_call": kind.each_call,
        "plans": [_entry(plan, name) for plan, name in named],
        "proof": [*proof],
    }
    texts_of = {f"plans/{name}": plan.text for plan, name in named}
    files = _files(runtime, spread, kind.environment, document, (kind.check, *kind.more)) | texts_of
    notes = (*kind.notes(plans, spread), *_note_places(spread))
    start = _start(spread)
    return Deployment(
        runtime, plans, spread, kind.environment, files, start, "; ".join(proof), notes
    )


def _files(
    runtime: Runtime,
    spread: Places,
    environment: Environment,
    document: Mapping[str, object],
    scripts: Sequence[str],
) -> Environment:
    """Scripts, the first of them the check, environment, and the document that tells them more."""
    told = {
        "runtime": runtime,
        "ranks": len(spread.places),
        "nodes": len(spread.nodes),
        "ranks_per_node": spread.per_node,
        "check": scripts[0],
        **document,
        "places": [place._asdict() for place in spread.places],
    }
    folder = resources.files("forestcoll.execute.deploy") / "scripts"
    names = "run.sh", "common.py", *scripts
    files = {name: (folder / name).read_text("utf-8") for name in names}
    files["env.sh"] = _environment(environment)
    return files | {"deploy.json": json.dumps(told, indent=1) + "\n"}


def _deploy_stock(texts: Sequence[tuple[str, str]], runtime: Runtime) -> Deployment:
    """The deployment of trees or rings, which the library's log has to show."""
    given = stock.read(texts)
    takes = ("rccl",) if given.kind == "rccl-trees" else ("nccl", "rccl")
    if runtime not in takes:
        raise PlanError(
            f"{texts[0][0]}: {WORDS[given.kind]} is for a stock library: --runtime "
            f"{' or '.join(takes)}"
        )
    names = [f"box{k}/gpu{gpu}" for k, box in enumerate(given.boxes) for gpu in range(box)]
    spread = places(names, len(names))
    scripts = ("check_nccl.py", "stock_log.py")
    document = {
        "plans": [_entry_of_library()],
        "kind": given.kind,
        "channels": given.channels,
    }
    files = _files(runtime, spread, given.environment, document, scripts)
    files |= {f"plans/{name}": text for name, text in given.files.items()}
    proof = "of every rank its log says what it was given"
    notes = (*stock.NOTES[given.kind], *_note_places(spread))
    return Deployment(runtime, (), spread, given.environment, files, _start(spread), proof, notes)


def _refuse_clashes(plans: Plans, why: str) -> None:
    for one, other in clashes(plans):
        raise PlanError(
            f"{one.source} and {other.source} serve the same calls, and {why}; deploy one of them, "
            "or plans of different sizes (synthesize --sizes)"
        )
    for one, other in namesakes(plans):
        raise PlanError(
            f"{one.source} and {other.source} are both named {one.name!r}, and MSCCL++ keeps what "
            "it has set up for a plan by its name; give each a name of its own, or deploy one"
        )


def _note_places(spread: Places) -> list[str]:
    if not spread.in_order:
        return [
            "the ranks are not numbered node by node, so launchers that fill node after node place "
            "them wrongly: give yours the places of deploy.json (rank, node, gpu)"
        ]
    if not spread.plain:
        return [
            "the nodes hold different numbers of ranks: run.sh takes a COMMAND of your launcher's, "
            "with as many ranks on each node as deploy.json has"
        ]
    return []


def _note_mscclpp(plans: Plans, spread: Places) -> list[str]:
    notes = [
        "sum only: the runtime adds up whatever operation a call asks for; of float16, bfloat16, "
        "float32, fp8 and integers of 32 bits",
        "sizes must be multiples of the plan's granule (table above), under 4 GiB a buffer; "
        "others raise an error in the middle of the call",
        "the runtime sets a plan up for each pair of allocations that it has not seen, with all "
        "ranks together: change buffers in the same call at every rank, or it waits for ever",
    ]
    if any(map(reads_input_remotely, plans)):
        notes.append(
            "GPUs write into each other's buffers: all ranks must pass buffers with the same "
            "offset in their allocation (take whole allocations: mscclpp.RawGpuBuffer)"
        )
    if any(map(read_by_ports, plans)):
        notes.append(
            "port channels read buffers from where their allocation begins: pass whole allocations "
            "(offset 0) between nodes, of mscclpp.RawGpuBuffer or, from PyTorch's own allocator, "
            "with PYTORCH_NO_CUDA_MEMORY_CACHING=1; the scripts look before each call"
        )
    notes += _note_packets(plans)
    if any(plan.uses("switch") for plan in plans):
        notes.append("NVLS: sm_90 or newer, and a fabric with NVLink SHARP switched on")
    if any(plan.uses("port") for plan in plans) and len(spread.nodes) > 1:
        notes.append(
            "between nodes the NIC is that of the GPU's number in its node (8 at most); "
            "MSCCLPP_HCA_DEVICES names them in that order, one that GPUs share as often"
        )
    for word in sorted(
        {p.program.collective for p in plans if not p.program.collective.definition.hooked}
    ):
        notes.append(f"{word} is not hooked by the NCCL shim: call it through the Executor")
    return notes


def _note_packets(plans: Plans) -> list[str]:
    notes = []
    if any(plan.program.protocol == "LL" for plan in plans):
        notes.append(
            "packets carry how many plans their process has launched: all ranks must have launched "
            "as many, so have one group a process"
        )
    if any(plan.program.double_scratch for plan in plans):
        most = max(plan.max_bytes for plan in plans if plan.program.double_scratch)
        notes.append(
            "packets: the allocations of all ranks' inputs must have one size, or all "
            f"{most} bytes and more: the runtime makes scratch by it, and halves must be alike"
        )
    return notes


def _note_xml(plans: Plans, _: Places, *, own: str, library: str) -> list[str]:
    needed = max(map(channels, plans))
    notes = [
        own,
        f"channels: {needed}; NCCL_MAX_NCHANNELS, where it is set, must not be less",
        "sum, prod, min and max; sizes whose elements are no multiple of the plan's chunks go to "
        "the runtime's own algorithms without a word",
        f"set {library}",
        "one collective at a time in a process: scratch and flags are shared by all streams",
    ]
    if any(plan.program.protocol == "LL128" for plan in plans):
        notes.append(
            "LL128: for NVLink of V100 to H100 and MI250's Infinity Fabric, which keep 128 bytes "
            "together; the runtime takes it anywhere, and elsewhere data may be wrong"
        )
    for plan in plans:
        program = plan.program
        if program.collective.has_root:
            notes.append(
                f"{Path(plan.source).name} is for root {program.root}; the runtime would take it "
                "for every root"
            )
    return notes


def _note_torch(_: Plans, __: Places) -> list[str]:
    return [
        "needs this package and PyTorch on every node: pip install '.[torch]' in a clone of it",
        "BACKEND=nccl (the default where there are GPUs; RCCL too) or gloo, which needs none",
        "in your own job: forestcoll.torch.install([plans...]) behind init_process_group",
    ]


def _call(collective: Collective) -> dict[str, object]:
    """How checks call a collective."""
    definition = collective.definition
    return {
        "collective": collective.value,
        "perf": f"{definition.perf}_perf",
        "torch": definition.torch[0],
        "inputs": definition.inputs,
        "outputs": definition.outputs,
        "reduces": definition.reduces,
        "root_is": definition.root,
        "apart": definition.apart,
        "hooked": definition.hooked,
        "plan_word": definition.plan_word,
    }


def _entry(plan: Plan, name: str) -> dict[str, object]:
    program = plan.program
    return {
        "file": f"plans/{name}",
        "name": plan.name,
        **_call(program.collective),
        "root": program.root,
        "in_place": plan.in_place,
        "out_of_place": plan.out_of_place,
        "min_bytes": program.min_bytes,
        "max_bytes": plan.max_bytes,
        "multiple": plan.multiple,
        "check_bytes": plan.check_size,
        "whole": read_by_ports(plan),
    }


def _entry_of_library() -> dict[str, object]:
    """An allreduce that no plan answers."""
    sizes = {"min_bytes": 0, "max_bytes": 0, "multiple": 4, "check_bytes": CHECKED_BYTES}
    offer = {"root": -1, "in_place": True, "out_of_place": False, "whole": []}
    return {"file": "allreduce", "name": "", **_call(Collective("allreduce")), **sizes, **offer}


def _file_names(plans: Sequence[Plan]) -> list[str]:
    """Names under which the plans lie together; numbered where two are called alike."""
    names = [Path(plan.source).name for plan in plans]
    if len(set(names)) == len(names):
        return names
    return [f"{number:02}-{name}" for number, name in enumerate(names)]


def _environment(values: Environment) -> str:
    lines = [
        "# What the runtime must be told; sourced by run.sh. PLANS: the folder of the plans.",
        'PLANS=$(cd "$(dirname "${BASH_SOURCE[0]}")/plans" && pwd)',
        "export PLANS",
        *(f'export {key}="{value}"' for key, value in values.items()),
    ]
    return "\n".join(lines) + "\n"


def _start(spread: Places) -> str:
    if len(spread.nodes) == 1:
        return "bash run.sh"
    return "NODE_RANK=<0, 1, ...> MASTER_ADDR=<first node> bash run.sh    # on every node"


RUNTIMES: dict[Runtime, _Kind] = {
    "mscclpp": _Kind(
        what="MSCCL++: Python Executor or NCCL shim",
        format="mscclpp-json",
        environment={"MSCCLPP_LOG_LEVEL": "INFO", "MSCCLPP_LOG_SUBSYS": "EXEC"},
        check="check_executor.py",
        more=("register.py",),
        proof=("Starting execution with plan: {name}",),
        clash="the shim takes whichever it finds first",
        notes=_note_mscclpp,
    ),
    "msccl": _Kind(
        what="msccl-executor-nccl, the NCCL fork",
        format="msccl-xml",
        environment={
            "MSCCL_ALGO_DIR": "$PLANS",
            "NCCL_MSCCL_ENABLE": "1",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT",
        },
        check="check_nccl.py",
        proof=("Using MSCCL Algo files from $PLANS", "MSCCL: Setup Kernel finished"),
        each_call="MSCCL: Setup Kernel finished",
        clash="the runtime takes the first in its directory",
        notes=partial(
            _note_xml,
            own="one GPU a process; CUDA 12 (the fork does not build with CUDA 13)",
            library="MSCCL_LIBRARY: the fork's libnccl.so, where it is not the one that loads "
            "anyway",
        ),
    ),
    "torch": _Kind(
        what="stock PyTorch: torch.distributed over gloo, NCCL or RCCL",
        format=None,
        environment={},
        check="check_torch.py",
        more=("check_nccl.py",),
        proof=("forestcoll: ran plans/{file}",),
        notes=_note_torch,
    ),
    "rccl": _Kind(
        what="RCCL of ROCm 6.1 to 7.2",
        format="msccl-xml",
        environment={
            "MSCCL_ALGO_DIR": "$PLANS",
            "RCCL_MSCCL_ENABLE": "1",
            "RCCL_MSCCL_FORCE_ENABLE": "1",
            "RCCL_MSCCLPP_ENABLE": "0",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,COLL",
        },
        check="check_nccl.py",
        proof=("Using MSCCL files from $PLANS", "Setup Kernel finished"),
        each_call="Setup Kernel finished",
        clash="the runtime takes the first in its directory",
        notes=partial(
            _note_xml,
            own="ROCm 6.1 to 7.2: later releases removed MSCCL, and run their own algorithms",
            library="MSCCL_LIBRARY: another librccl.so than the one that loads anyway",
        ),
    ),
}
"""The runtimes."""
