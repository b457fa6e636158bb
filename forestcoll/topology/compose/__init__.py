"""A cluster out of a machine and a network: machine descriptions x boxes + what joins them.

The network is a regular one (one switch, rails, a fat tree) or a `Fabric` that a dump describes.
Every network port of the machine is used once; what cannot be is said.
"""

from __future__ import annotations

from forestcoll.topology.compose.networks import (
    SETTINGS,
    PortMap,
    compose_boxes,
    join_fabric,
    parse_ports,
    split_settings,
)

__all__ = [
    "SETTINGS",
    "PortMap",
    "compose_boxes",
    "join_fabric",
    "parse_ports",
    "split_settings",
]
