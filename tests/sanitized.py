"""What the tests of sanitizers run in a process of its own: `python sanitized.py ENGINE WHAT`.

ENGINE is a native engine that was built with a sanitizer, WHAT is right, racing or overrunning; or
one with mistakes to choose from, and WHAT is mistakes.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any


def use(path: str) -> Any:
    """Put the engine at `path` in the place of the installed one; numpy comes first."""
    import numpy  # noqa: F401

    name = "forestcoll.execute._engine"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    import apart

    apart.built.append(path)
    return module


def right(processes: bool) -> int:
    """Runs of right and stuck plans, large and small queues, every way to end. Runs that ended."""
    import programs as pg
    import pytest
    from apart import run_apart

    from forestcoll.common.errors import ExecutionError
    from forestcoll.execute.cpu import RanksAs, run
    from forestcoll.plans import read_plan

    ended = 0
    ways: tuple[RanksAs, ...] = ("threads", "processes") if processes else ("threads",)
    for way in ways:
        for number, (name, plan) in enumerate(pg.all_good().items()):
            fewest = 2 if name.startswith("ring_") or name == "direct_reduce_scatter" else 1
            queues = [(fewest, 64, "sum"), ((None, None, "max"), (3, 4096, "avg"))[number % 2]]
            if way == "processes" and number % 3:  # which take long to make
                continue
            for slots, slot_bytes, op in [queues[number // 2 % 2]]:  # by turns
                result = run(
                    plan, 5000, slots=slots, slot_bytes=slot_bytes, op=op, threads=4, ranks_as=way,
                    iterations=2, dtype="bfloat16" if op == "max" else "float32",
                )  # fmt: skip
                assert result.wrong == 0, (name, slots, result.mismatches)
                ended += 1
        circle = pg.edit(pg.ring_allgather(3), *(f"{r}.0.1 <> {r}.0.2" for r in range(3)))
        with pytest.raises(ExecutionError, match="these wait for each other"):
            run(circle, 4096, threads=4, ranks_as=way)
        schedules = Path(__file__).parents[1] / "schedules"
        for file in sorted(schedules.glob("dgx1-v100-1/all*.*[lp].*[ml]*")):
            if file.name.endswith((".msccl.xml", ".mscclpp.json")):
                assert run(read_plan(file), 200_000, threads=4, ranks_as=way).wrong == 0
                ended += 1
    for name, plan in pg.all_good().items():
        for wire in () if "fabric" in name else ("unkind", "sockets"):
            apart = run_apart(plan, 5000, plan.n, wire=wire, lazy=wire == "unkind", iterations=2)
            assert apart.wrong == 0, (name, wire, apart.mismatches)
            ended += 1
    return ended


def racing() -> int:
    """A plan whose ranks overwrite what others still read: the sanitizer must see it.

    It sees one where two threads happen to run the two ranks; it ends the process when it has.
    """
    import programs as pg

    from forestcoll.execute.cpu import run

    plan, rows, end = replace(pg.base("reading_pair"), in_place=True), 0, time.monotonic() + 120
    while time.monotonic() < end:
        result = run(plan, 3 * 4 * 10_000, threads=2, modes=["in-place"], iterations=20)
        rows += len(result.rows)
    return rows


def overrunning(engine: Any) -> int:
    """A launch with a buffer that is too short, as if `check` had let it through."""
    import numpy as np
    import programs as pg

    from forestcoll.execute.tables import build

    buffers = [np.zeros(4096, np.uint8) for _ in range(2)] + [np.zeros(4080, np.uint8)] * 7
    tables = build(pg.chain_broadcast(3, 2))
    own = [b.ctypes.data for b in buffers]
    addresses = [a for r in range(3) for a in own[3 * r : 3 * r + 3] * 2]
    shape, slots = (2048, 4, 2048, 1, 1), (2048, 2)
    made = engine.Engine(
        tables, 3, addresses, [], shape, slots, (0, 0), False, 1, 5.0, 0, ([], []), [], 0
    )
    return int(made.launch(0)[0])


def mistakes(numbers: int) -> int:
    """Of $MISTAKE from 0 on, a line each: whether the unkind wire finds a plan wrong."""
    import os

    for number in range(numbers):
        os.environ["MISTAKE"] = str(number)
        print(f"mistake {number}: {int(mistaken())}", flush=True)
    return numbers


def mistaken() -> bool:
    """Whether one of a few plans goes wrong over the unkind wire, or is seen not to go on."""
    import programs as pg
    from apart import run_apart
    from notation import parse
    from test_cluster import REUSE

    from forestcoll.common.errors import ExecutionError

    plans = [parse(REUSE), pg.ring_allreduce(3)]
    plans += [pg.samples()[name] for name in ("reading_allreduce", "packet_allreduce")]
    how: dict[str, Any] = {"strict": True, "iterations": 2, "timeout": 5, "slots": 2}
    try:
        return any(
            run_apart(
                plan, 8_000, plan.n, seed=seed, lazy=seed % 2 == 0, slot_bytes=256, **how
            ).wrong
            for plan in plans
            for seed in range(4)
        )
    except ExecutionError:
        return True


def rings(gpus: str) -> int:
    """Right runs of GPUs in several nodes, by the engine at `gpus`; their ranks."""
    import os

    import programs as pg
    import test_gpu_cluster

    os.environ |= {"EMULATED_GPUS": "8", "EMULATED_THREADS": "1", "EMULATED_PROCESSORS": "1000"}
    ended = 0
    for name, size in {
        "ring_allreduce": 400_000,
        "direct_allgather": 3_000,
        "direct_reduce_scatter": 400_000,
        "packet_allreduce": 3_000,
    }.items():
        plan = pg.samples()[name]
        found = test_gpu_cluster.run(plan, size, Path(gpus), nodes=2, timeout=100.0)
        assert found == [0] * plan.n, (name, found)
        ended += plan.n
    return ended


if __name__ == "__main__":
    native = use(sys.argv[1])
    done = {
        "right": lambda: right(processes=False),
        "right-processes": lambda: right(processes=True),
        "racing": racing,
        "overrunning": lambda: overrunning(native),
        "mistakes": lambda: mistakes(int(sys.argv[3])),
        "rings": lambda: rings(sys.argv[3]),
    }[sys.argv[2]]()
    print(f"ended {done}")
