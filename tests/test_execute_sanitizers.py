"""The native engine under ThreadSanitizer and AddressSanitizer: built for it, run on a selection.

Where the compiler lacks them the tests are skipped, unless FORESTCOLL_SANITIZERS=required (as in
.ci/run): then they fail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from artefacts import Artefacts
from native import NATIVE, OPTIONS, compile_, engine, run_sanitized

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["thread", "address"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compiled: Artefacts
) -> tuple[str, Path]:
    """(sanitizer, an engine that was built with it)."""
    sanitizer = str(request.param)
    folder = tmp_path_factory.mktemp(sanitizer)

    def make(place: Path) -> None:
        engine(compiled, folder, place, sanitizer)

    return sanitizer, compiled.once(f"engine-{sanitizer}.so", make, *NATIVE, Path(__file__))


@pytest.mark.timeout(900)
def test_a_selection_is_clean(built: tuple[str, Path]) -> None:
    """Threads with both; processes too with AddressSanitizer (the other sees one process only)."""
    assert clean(*built, "right" if built[0] == "thread" else "right-processes") > 30


def clean(*what: Any, **more: str) -> int:
    """How many runs ended, of none of which the sanitizer says anything."""
    done = run_sanitized(*what, **more)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "Sanitizer" not in done.stderr
    return int(done.stdout.split()[1])


@pytest.mark.timeout(900)
def test_rings_and_relays_are_clean(
    built: tuple[str, Path], compiled: Artefacts, tmp_path: Path
) -> None:
    """GPUs of two nodes on the stand-in, whose engine is built with the sanitizer, too."""
    from forestcoll.execute.gpu.compiler import HEADERS, SOURCE

    flags = ["-g1", "-fno-omit-frame-pointer", "-O0", f"-fsanitize={built[0]}", "-shared", "-fPIC"]
    stand_in = Path(__file__).parent / "fixtures" / "emulated_gpu"

    def make(target: Path) -> None:
        compile_("-std=c++20", *flags, "-I", stand_in, "-x", "c++", SOURCE, "-o", target, "-lrt")

    made_of = SOURCE, *HEADERS, stand_in / "cuda_runtime.h", Path(__file__)
    gpus = compiled.once(f"emulated-gpu-{built[0]}.so", make, *made_of)
    quiet = tmp_path / "suppressions"  # of threads that end, of a library that was loaded late
    quiet.write_text("race:dl_deallocate_tls\n")
    options = f"{OPTIONS['TSAN_OPTIONS']} suppressions={quiet}"
    assert clean(*built, "rings", str(gpus), TSAN_OPTIONS=options) > 10


def test_what_is_not_clean_is_seen(built: tuple[str, Path]) -> None:
    """A plan with a race, a buffer that is too short: else the test above would prove nothing."""
    sanitizer, what, found = {
        "thread": ("ThreadSanitizer", "racing", "data race"),
        "address": ("AddressSanitizer", "overrunning", "heap-buffer-overflow"),
    }[built[0]]
    done = run_sanitized(*built, what)
    assert done.returncode == 66, done.stderr[-3000:]
    assert f"{sanitizer}: {found}" in done.stderr
