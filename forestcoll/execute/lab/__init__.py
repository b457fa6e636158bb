"""A fabric on this machine: network namespaces joined by links shaped to a topology's bandwidths.

The ranks of a plan run in them over gloo, and so do rings, trees and gloo's own allreduce: what is
measured is the schedule, and nothing else differs. Needs root and Linux (network.lacking says why
where it does not work), and PyTorch.

    routes       which way the traffic of every two ranks takes, and how fast theory says it is
    network      namespaces, veth pairs, tbf queues, routing tables
    ranks        a process in each GPU's namespace
    measurement  all of it, for a plan and what it is measured against

PyTorch is imported by the ranks alone.
"""

from __future__ import annotations

from forestcoll.execute.lab.network import lacking

__all__ = ["lacking"]
