"""All rules of an MSCCL XML file: text, algo, gpus, thread blocks, steps."""

from __future__ import annotations

from forestcoll.plans.findings import Findings
from forestcoll.plans.msccl.algo import check_buffers, read_buffers, read_gpus, read_head
from forestcoll.plans.msccl.blocks import (
    Connections,
    check_channels,
    check_partners,
    check_spare_channels,
    read_blocks,
)
from forestcoll.plans.msccl.steps import check_dependencies, read_lane
from forestcoll.plans.msccl.tags import Numbers, scan
from forestcoll.program import Collective
from forestcoll.program.targets import Target


def lint(text: str, target: Target, sms: int, collective: Collective | None, out: Findings) -> None:
    """Note everything in the file that the runtime refuses, misreads or does not survive."""
    algo = scan(text, out)
    if algo is None:
        return
    numbers = Numbers(out)
    head = read_head(algo, target, collective, numbers)
    ends, used = Connections(), 0
    for rank, gpu in sorted(read_gpus(algo, head, numbers).items()):
        buffers = read_buffers(rank, gpu, head, numbers)
        blocks = read_blocks(rank, gpu, head, target, sms, numbers)
        check_channels(rank, blocks, ends, out)
        used = max([used, *(1 + b.channel for b in blocks.values() if b.channel is not None)])
        reach: dict[str, int] = {}
        lanes = {
            b: read_lane(rank, block, buffers, target, reach, numbers)
            for b, block in sorted(blocks.items())
        }
        check_buffers(rank, gpu, buffers, reach, out)
        check_dependencies(rank, lanes, target, out)
    check_partners(ends, out)
    check_spare_channels(algo, head, used, out)
