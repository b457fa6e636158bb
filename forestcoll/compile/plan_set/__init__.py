"""Plan sets: one plan for each range of sizes, and an index that says which one serves what.

estimate   how long a plan takes for how many bytes by its links alone
candidates what plans may be made from: forests and routes, of ours and of others
contest    whose plan is fastest where, by simulated times
others     plans of anybody's that take part
make       topology -> plans for all sizes
index      the index file: what is served, and what is not
claims     what the index says, beside what is so
lookup     which plan serves which size
check      a directory proven right, as the runtime looks plans up
"""

from __future__ import annotations

from forestcoll.compile.plan_set.check import Proven, Verdict, check, list_files
from forestcoll.compile.plan_set.contest import ends_of
from forestcoll.compile.plan_set.index import INDEX, files_of
from forestcoll.compile.plan_set.lookup import Chosen, choose_plans
from forestcoll.compile.plan_set.make import make
from forestcoll.compile.plan_set.values import LARGEST, Ends, Entry, PlanSet

__all__ = [
    "INDEX",
    "LARGEST",
    "Chosen",
    "Ends",
    "Entry",
    "PlanSet",
    "Proven",
    "Verdict",
    "check",
    "choose_plans",
    "ends_of",
    "files_of",
    "list_files",
    "make",
]
