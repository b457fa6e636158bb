# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A machine, its best schedule, and what runs on it today
#
# Load a machine, solve it, look at the trees, compare plans with rings by size, lose a link, hold
# the joint allreduce against the same trees both ways, and bring a plan file of your own. All times
# are simulated on the links of the topology.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import forestcoll
from forestcoll.solver import baselines
from forestcoll.topology.edit import edit

machine = forestcoll.load_topology("rail", {"boxes": 2, "gpus": 4, "rails": 4})
machine.plot(width=8)

# %% [markdown]
# ## The best possible, and what limits it

# %%
best = forestcoll.optimum(machine, "allgather")
print(f"{float(best.algbw):.2f} GB/s, and no schedule does more: {best.bound}")

# %% [markdown]
# ## A schedule, its trees, its plans

# %%
made = forestcoll.synthesize(machine, "allgather")
made.forest

# %%
made.forest.plot(tree=0, width=8)

# %%
links = made.forest.to_pandas()
links.sort_values("percent", ascending=False).head()

# %%
tree = made.forest.to_networkx(tree=0)
for near, far, path in tree.edges(data="path"):
    print(near, "->", far, "over", " ".join(path[1:-1]))

# %%
made.programs["mscclpp-json"]

# %% [markdown]
# ## Beside rings and the ways of other libraries, by size

# %%
against = ["rings", "double-tree", "hierarchical", "halving-doubling"]
found = forestcoll.compare(machine, "allreduce", sizes="4K:64M:128", against=against)
found

# %%
found.plot()

# %%
table = found.to_pandas()
table[table["links"] == "fifo"].pivot_table(index="size", columns="schedule", values="algbw")

# %% [markdown]
# ## A link is lost

# %%
broken = edit(machine, without=["box0/gpu3-rail3"])
after = forestcoll.compare(machine, "allgather", sizes="16M,256M", against=["rings"], broken=broken)
after

# %%
old, new = (after.cell(name, 256 << 20, "fair") for name in ("old plan", "forestcoll"))
print(
    f"the old plan {old.algbw:.1f} GB/s, a new one {new.algbw:.1f}: {old.time / new.time:.2f} times"
)

# %% [markdown]
# ## A joint allreduce, and the same trees both ways
#
# Half of the dies of two MI250 boxes. Trees that reduce and broadcast alike share every link
# evenly; solved jointly, each phase takes what the other leaves.

# %%
half = forestcoll.load_topology("mi250", {"boxes": 2})
joint = forestcoll.optimum(half, "allreduce", ranks="box*/gpu[0-7]").algbw
same = forestcoll.optimum(half, "allgather", ranks="box*/gpu[0-7]").algbw / 2
print(f"jointly {float(joint):.0f} GB/s, the allgather's trees both ways {float(same):.0f}")

# %% [markdown]
# ## A plan file of your own
#
# Any MSCCL XML or MSCCL++ JSON is proven first, then timed beside the others. Here: one ring.

# %%
from forestcoll import plans
from forestcoll.graph.capacity_graph import CapacityGraph
from forestcoll.lower import lower
from forestcoll.program.targets import MSCCL

ring = baselines.forests("ring", CapacityGraph.from_topology(machine))[0]
with TemporaryDirectory() as folder:
    mine = Path(folder) / "mine.xml"
    mine.write_text(plans.dumps(lower(ring, MSCCL), "msccl-xml", MSCCL))
    own = forestcoll.compare(machine, "allreduce", sizes="64M", against=["rings"], files=[mine])
own
