"""The finder of last resort for the compiled modules: those that are installed, beside sources.

In the root of a clone Python finds the sources there first, not the package that `pip install .`
has put among its own. Where both have the same C++, the modules of the one serve the other.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODULES = tuple(
    f"forestcoll.{m}" for m in ("kernel._kernel", "execute._engine", "simulate._simulate")
)


class Installed:
    """Stands last in `sys.meta_path`: it is asked only for what nobody else finds."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        """An installed module of the same C++. UnsupportedError: none; what to do."""
        if name not in MODULES or not path:
            return None
        from pathlib import Path

        from forestcoll.errors import UnsupportedError

        own, (package, _, module) = Path(path[0]), name.rpartition(".")
        hidden = ""
        for entry in sys.path:
            other = Path(entry, *package.split("."))
            if any((other / (module + end)).is_file() for end in EXTENSION_SUFFIXES):
                if _sources(other) == _sources(own):
                    return PathFinder.find_spec(name, [str(other)])
                hidden = (
                    hidden
                    or f", and hides those of other sources in {other.parent}: go elsewhere, or"
                )
        clone = own.parents[1]
        todo = f"run 'pip install -e .' or scripts/quickstart in {clone}"
        if not (clone / "pyproject.toml").is_file():
            todo = "install forestcoll again, with this Python"
        raise UnsupportedError(
            f"{own.parent} has no compiled modules for this Python{hidden or ':'} {todo}"
        )


def _sources(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix in (".cpp", ".hpp")}


sys.meta_path.append(Installed)
