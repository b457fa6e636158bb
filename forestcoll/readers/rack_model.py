"""Models of racks and blocks (`switches:` and `blocks:`), as schedulers of jobs take them: refused.

They say which nodes are near each other, for placing jobs, and nothing of links and bandwidths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from forestcoll.errors import TopologyError
from forestcoll.readers.settings import Setting
from forestcoll.topology.file import NO_SETTINGS

SETTINGS: tuple[Setting, ...] = ()


def loads(text: str, source: str, settings: Mapping[str, str] = NO_SETTINGS) -> NoReturn:
    """Raises `TopologyError`: what the file lacks, and what to take instead."""
    raise TopologyError(
        f"{source}: a model of switches and blocks for a job scheduler: it says which nodes are "
        "near each other, and has no GPUs, links or bandwidths. Take the machine from the "
        "catalogue (gb200-nvl72 --set boxes=N) or a dump of the fabric (ibnetdiscover, a CSV list)"
    )
