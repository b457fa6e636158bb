"""Proof that a program does its collective: right data everywhere, no deadlock, no race.

`verify` runs a program symbolically; `link_loads` compares its traffic with its forest's. The way
there: structure.py (fields, ranges), wiring.py (who talks to whom, balance), atoms.py (what is
always touched together), fifo.py or onesided.py (one abstract run, deadlock) -> trace.py, replay.py
on memory.py (values) and accesses.py (what meets where), order.py (races), check.py (all of it).
"""

from __future__ import annotations

from forestcoll.verify.check import Loads, Verified, link_loads, verify

__all__ = ["Loads", "Verified", "link_loads", "verify"]
