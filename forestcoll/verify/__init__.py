"""Proof that a program does its collective: right data everywhere, no deadlock, no race.

`verify` runs a program symbolically; `link_loads` compares its traffic with its forest's. The way
there: structure.py (fields, ranges), wiring.py (who talks to whom, balance), atoms.py (what is
always touched together), fifo.py or onesided.py (one abstract run, deadlock) -> trace.py, replay.py
on memory.py (values) and accesses.py (what meets where), order.py (races), check.py (all of it).
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
