"""Every plan of the catalogue up to 64 ranks runs, all elements checked, at queue depth 1 too."""

from __future__ import annotations

import pytest

from forestcoll import catalog, pipeline
from forestcoll.execute.cpu import RanksAs, run
from forestcoll.program import Collective

MOST_RANKS = 64
# Besides the defaults: several boxes.
BOXES = {"dgx-a100": 8, "dgx1-v100": 2, "mi300x": 2}
NO_SETTINGS: dict[str, str] = {}
FABRICS = [(name, NO_SETTINGS) for name in catalog.names()]
FABRICS += [(name, {"boxes": str(boxes)}) for name, boxes in BOXES.items()]
SIZES = [len(catalog.load(name, settings).gpus) for name, settings in FABRICS]
CASES = [
    pytest.param(name, settings, id=f"{name}-{n}", marks=[pytest.mark.slow] if n > 32 else [])
    for (name, settings), n in zip(FABRICS, SIZES, strict=True)
    if n <= MOST_RANKS
]
RUNS: tuple[tuple[int | None, RanksAs], ...] = ((1, "threads"), (None, "threads"), (1, "processes"))


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_plans_of_the_catalogue_run(
    name: str, settings: dict[str, str], collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writing and proving them is most of the time, and other tests' business.
    monkeypatch.setattr(pipeline, "written", lambda *_: "")
    found = pipeline.synthesize(catalog.load(name, settings), collective)
    assert set(found.programs) == {"msccl-xml", "mscclpp-json"}
    for form, program in found.programs.items():
        for depth, ways in RUNS:
            if ways == "processes" and program.n > 16:
                continue
            result = run(
                program,
                program.n * 4096,
                slots=depth,
                ranks_as=ways,
                dtype="int32",
                timeout=20,
            )
            assert (result.wrong, result.mismatches) == (0, ()), (form, depth, ways)


def test_the_catalogue_has_what_it_had() -> None:
    """So that nothing drops out of the test above unseen."""
    names = {str(case.values[0]) for case in CASES}
    assert names == set(catalog.names()) - {"gb200-nvl72"}
