"""The finders of last resort: for compiled modules that are installed, and for `forestcoll.torch`.

In the root of a clone Python finds the sources there first, not the package that `pip install .`
has put among its own. Where both have the same C++, the modules of the one serve the other.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

MODULES = (
    "forestcoll.graph.kernel._kernel",
    "forestcoll.execute._engine",
    "forestcoll.verify._machine",
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

        from forestcoll.common.errors import UnsupportedError

        package, _, module = name.rpartition(".")
        clone = Path(path[0]).parents[package.count(".")]
        hidden = ""
        for entry in sys.path:
            other = Path(entry, *package.split("."))
            if any((other / (module + end)).is_file() for end in EXTENSION_SUFFIXES):
                if _sources(Path(entry)) == _sources(clone):
                    return PathFinder.find_spec(name, [str(other)])
                if not hidden:
                    there = Path(entry, "forestcoll")
                    hidden = f", and hides those of other sources in {there}: go elsewhere, or"
        todo = f"run 'pip install -e .' or scripts/quickstart in {clone}"
        if not (clone / "pyproject.toml").is_file():
            todo = "install forestcoll again, with this Python"
        raise UnsupportedError(
            f"{clone / 'forestcoll'} has no compiled modules for this Python{hidden or ':'} {todo}"
        )


def _sources(root: Path) -> dict[Path, bytes]:
    """Returns all C++ of the package below `root`: a module includes files of other folders."""
    package = root / "forestcoll"
    files = (path for path in package.rglob("*") if path.suffix in (".cpp", ".hpp"))
    return {path.relative_to(package): path.read_bytes() for path in files}


class Torch:
    """Finds `forestcoll.torch`, the public name of `forestcoll.execute.torch`, and loads that."""

    PUBLIC, HOME = "forestcoll.torch", "forestcoll.execute.torch"

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        """Returns a spec for the public name and what is below it, else None."""
        if name != cls.PUBLIC and not name.startswith(f"{cls.PUBLIC}."):
            return None
        return ModuleSpec(name, cls())  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the one module that both names stand for."""
        module = import_module(self.HOME + spec.name.removeprefix(self.PUBLIC))
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its own spec back: it has run already."""
        module.__spec__ = self.spec


sys.meta_path += [Installed, Torch]
