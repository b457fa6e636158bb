"""Links between the GPUs of a machine, taken from the catalogue where a dump has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from forestcoll.common.errors import TopologyError
from forestcoll.topology import Adapter, Topology
from forestcoll.topology.readers.settings import Setting

Machines = Callable[[str], Topology]
"""One machine of the catalogue by name, its ports to the network in `adapters`."""

MACHINE = Setting("machine", "catalogue entry whose links between GPUs stand in for the file's")


def NO_MACHINES(name: str) -> Topology:
    """Stands in where there is no catalogue to ask."""
    raise TopologyError(f"machine '{name[:60]}' is not known: no catalogue is at hand")


def put_inside(
    bare: Topology, gpus: Sequence[str], inside: Topology, machine: str, source: str
) -> Topology:
    """`bare`'s GPUs, in order, with the links and switches of `inside`; the adapters stay.

    Adapters whose rate is not in the file take that of the machine's, where those have one rate.
    """
    if len(gpus) != len(inside.gpus):
        raise TopologyError(
            f"{source}: {len(gpus)} GPUs, but machine '{machine}' has {len(inside.gpus)}"
        )
    names = dict(zip(inside.gpus, gpus, strict=True))
    nodes = {names.get(name, name): node for name, node in inside.nodes.items()}
    nodes = {**{gpu: nodes[gpu] for gpu in gpus}, **nodes}
    links = tuple(
        replace(link, src=names.get(link.src, link.src), dst=names.get(link.dst, link.dst))
        for link in inside.links
    )
    adapters, notes = _rate_adapters(bare.adapters, inside, machine)
    if not adapters and inside.adapters:
        adapters = tuple(
            replace(one, near=tuple(names[gpu] for gpu in one.near)) for one in inside.adapters
        )
        notes = (f"the network ports are those of {machine}, not the file's",)
    notes = (f"the links between the GPUs are those of {machine}, not the file's", *notes)
    return Topology(bare.name, nodes, links, adapters, (*bare.notes, *notes))


def _rate_adapters(
    adapters: tuple[Adapter, ...], inside: Topology, machine: str
) -> tuple[tuple[Adapter, ...], tuple[str, ...]]:
    rates = {adapter.bandwidth for adapter in inside.adapters}
    unknown = [adapter for adapter in adapters if adapter.bandwidth is None]
    if not unknown or len(rates) != 1 or len(unknown) != len(inside.adapters):
        return adapters, ()
    rate = rates.pop()
    if rate is None:
        return adapters, ()
    known = tuple(a if a.bandwidth is not None else replace(a, bandwidth=rate) for a in adapters)
    return known, (f"the network ports count {float(rate):g} GB/s each, as {machine}'s",)
