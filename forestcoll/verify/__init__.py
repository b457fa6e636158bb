"""Proof that a program does its collective: right data everywhere, no deadlock, no race.

`verify` runs a program symbolically; `link_loads` compares its traffic with its forest's. The way
there: program/check.py (fields, ranges), wiring.py (who talks to whom, balance), columns.py, and in
native/ atoms.cpp (what is always touched together), fifo_run.cpp or onesided_run.cpp (one abstract
run, deadlock), replay.cpp (values), accesses.cpp (what meets where, and races); faults.py says what
they find.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forestcoll.verify.check import Loads, Verified, link_loads, verify

__all__ = ["Loads", "Verified", "link_loads", "verify"]


def __getattr__(name: str) -> object:
    """Imports the proof when it is first used: the time of a forest needs `simulate` alone."""
    if name not in __all__:
        raise AttributeError(f"module 'forestcoll.verify' has no attribute '{name}'")
    return getattr(import_module("forestcoll.verify.check"), name)
