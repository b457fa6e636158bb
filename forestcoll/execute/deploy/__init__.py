"""From plan files to a runtime that really uses them: environment, files, a run script, a proof.

    plans.py      what each plan serves, and that it is right
    runtimes.py   a runtime a function: what it needs, what it cannot do with these plans
    stock.py      what stock NCCL and RCCL take in the place of plans: trees, rings
    scripts/      what is copied beside the plans: run.sh and the checks, which need no ForestColl
                  (the torch runtime excepted)

Every run script ends with a proof from the runtime's own log that the plans ran: runtimes fall back
to their built-in algorithms without a word.
"""

from __future__ import annotations

from forestcoll.execute.deploy.runtimes import RUNTIMES, Deployment, deploy

__all__ = ["RUNTIMES", "Deployment", "deploy"]
