"""Hands the plans to MSCCL++'s NCCL shim: `import register` before the first collective.

The process must have been started with LD_PRELOAD=<...>/libmscclpp_nccl.so, and
MSCCLPP_NCCL_LIB_PATH=<...>/libnccl.so for the calls that no plan serves. `register.used` counts, by
plan name, the calls that were given to it.
"""

import os
import sys
from collections import Counter

from common import DEPLOYED, HERE, check_whole
from mscclpp import Algorithm, ExecutionPlan
from mscclpp.ext import AlgorithmCollectionBuilder

used = Counter()


def plans_for_shim():
    """The plans whose collectives the shim looks plans up for."""
    return [p for p in DEPLOYED["plans"] if p["hooked"]]


def serves(plan, request, size):
    """Whether the plan can do the call: what the shim does not ask is asked here."""
    return (
        plan["plan_word"] == request.collective
        and request.world_size == DEPLOYED["ranks"]
        and plan["min_bytes"] <= size <= (plan["max_bytes"] or size)
        and size % plan["multiple"] == 0
        and plan["in_place"] == in_place(plan, request, size)
        and (plan["root_is"] == "none" or [plan["root"]] == request.hints.get("root"))
        and str(request.dtype).rpartition(".")[2] != "uint8"  # which plans are not run for
    )


def in_place(plan, request, size):
    """As NCCL defines it."""
    share = size // request.world_size * request.rank
    if plan["inputs"] == "one" and plan["outputs"] == "each":
        return request.input_buffer == request.output_buffer + share
    if plan["inputs"] == "each" and plan["outputs"] == "one":
        return request.output_buffer == request.input_buffer + share
    return request.input_buffer == request.output_buffer


def select(algorithms, request):
    """The plan that serves the call, or None: the shim then does what it does without plans."""
    for plan in plans_for_shim():
        size = request.message_size  # of the input
        if plan["inputs"] == "one" and plan["outputs"] == "each":
            size *= request.world_size
        if serves(plan, request, size):
            look(plan, request)
            used[plan["name"]] += 1
            return algorithms[request.collective][plan["name"]]
    return None


def look(plan, request):
    """Ends the call where ports would read other memory than its buffers.

    Not by leaving it to NCCL: at other ranks the plan may serve it. The text is printed too, for
    the library between may keep the exception's to itself.
    """
    try:
        check_whole(plan, request.input_buffer, request.output_buffer)
    except RuntimeError as error:
        print(f"forestcoll: error: rank {request.rank}: {error}", file=sys.stderr, flush=True)
        raise


def register(rank):
    """Registers all plans for this process's rank.

    Without a constraint on the world no plan passes the shim's own matching, which asks neither for
    the granule of sizes, the root and the type nor, after the first plan, for the place: only
    `select` gives them out.
    """
    builder = AlgorithmCollectionBuilder()
    for plan in plans_for_shim():
        builder.add_algorithm_builder(
            Algorithm(id=plan["name"], execution_plan=ExecutionPlan(str(HERE / plan["file"]), rank))
        )
    builder.set_algorithm_selector(select)


register(int(os.environ["RANK"]))
