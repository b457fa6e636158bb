"""Models of racks and blocks (`switches:` and `blocks:`), as schedulers of jobs take them: refused.

They say which nodes are near each other, for placing jobs, and nothing of links and bandwidths.
"""

from __future__ import annotations

from typing import NoReturn

from forestcoll.common.errors import TopologyError
from forestcoll.topology.readers.settings import Setting, Values

TITLE = "a model of racks"
SETTINGS: tuple[Setting, ...] = ()


def loads(text: str, values: Values) -> NoReturn:
    """Raises `TopologyError`: what the file lacks, and what to take instead."""
    raise TopologyError(
        f"{values.source}: a model of switches and blocks for a job scheduler: it says which nodes "
        "are near each other, and has no GPUs, links or bandwidths. Take the machine from the "
        "catalogue (gb200-nvl72 --set boxes=N) or a dump of the fabric (ibnetdiscover, a CSV list)"
    )
