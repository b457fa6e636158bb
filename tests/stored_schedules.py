"""The schedules under schedules/: what `synthesize` writes for six machines, byte for byte.

test_golden.py asserts just that; other tests read the files and need not make them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forestcoll import plans
from forestcoll.plans import FORMATS
from forestcoll.program import Collective, Program
from forestcoll.schedule import forest_file
from forestcoll.schedule.forest import Forest

SCHEDULES = Path(__file__).parents[1] / "schedules"
MACHINES: dict[str, tuple[str, dict[str, str]]] = {
    "dgx1-v100-1": ("dgx1-v100", {}),
    "dgx-a100-1": ("dgx-a100", {}),
    "dgx-a100-2": ("dgx-a100", {"boxes": "2"}),
    "dgx-h100-1": ("dgx-h100", {}),
    "mi250-1": ("mi250", {}),
    "mi300x-1": ("mi300x", {}),
}


def forest_and_plans(
    folder: str, collective: Collective | str
) -> tuple[Forest, dict[str, Program]]:
    """Those of one of the folders, programs by format."""
    file = SCHEDULES / folder / f"{collective}.forest.json"
    programs: dict[str, Program] = {
        form: plans.read_plan(file.with_name(f"{collective}{row.suffix}"))
        for form, row in FORMATS.items()
    }
    return forest_file.load(file), programs


def stored(
    name: str, settings: Mapping[str, str], collective: Collective
) -> tuple[Forest, dict[str, Program]] | None:
    """Those of a machine; None where they are not stored."""
    for folder, machine in MACHINES.items():
        if machine == (name, dict(settings)):
            return forest_and_plans(folder, collective)
    return None
