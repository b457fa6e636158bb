"""Machines whose dumps leave out what is public: how to tell them, and what they are.

A cloud provider's topology file lists PCI devices and nothing of NVLink. Where its bus ids are
those of a machine below, the links between the GPUs are taken from the catalogue entry `machine`,
and the rates of the network ports from here; the topology's notes say so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Known:
    """A virtual machine: `gpus` are bus ids in rank order, or of the bridges above the GPUs where
    the file leaves the GPUs themselves out (`hidden`)."""

    name: str
    machine: str  # of the catalogue
    gpus: tuple[str, ...]
    port: Fraction  # GB/s of a network port
    source: str
    hidden: bool = False


def _buses(text: str) -> tuple[str, ...]:
    return tuple(f"{bus}:00.0" for bus in text.split())


KNOWN = (
    Known(
        "Azure ND96 A100 v4",
        "dgx-a100",
        _buses("0001:00 0002:00 0003:00 0004:00 000b:00 000c:00 000d:00 000e:00"),
        Fraction(25),  # 8 x 200 Gb/s HDR
        "Microsoft, Azure virtual machine sizes, NDasrA100_v4 series",
    ),
    Known(
        "Azure ND96 H100 v5",
        "dgx-h100",
        _buses("0001:00 0002:00 0003:00 0008:00 0009:00 000a:00 000b:00 000c:00"),
        Fraction(50),  # 8 x 400 Gb/s NDR
        "Microsoft, Azure virtual machine sizes, NDsr_H100_v5 series",
    ),
    Known(
        "AWS p5.48xlarge",
        "dgx-h100",
        _buses("0000:45 0000:56 0000:67 0000:78 0000:89 0000:9a 0000:ab 0000:bc"),
        Fraction(25, 2),  # 32 x 100 Gb/s EFA
        "Amazon, EC2 P5 instances: 3,200 Gb/s over 32 network cards",
        hidden=True,
    ),
)


def recognise(buses: Collection[str]) -> Known | None:
    """The machine all of whose bus ids are among `buses`, or None."""
    there = {bus.lower() for bus in buses}
    return next((known for known in KNOWN if there.issuperset(known.gpus)), None)
