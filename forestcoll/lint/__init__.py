"""Whether a runtime takes a plan, and survives it: `lint` lists everything that is wrong.

The loaders of MSCCL XML and MSCCL++ JSON check next to nothing, so a plan may be refused, silently
unused, hang, corrupt memory or add wrongly. The linter knows their rules (rules.py, docs/lint.md).
It reads a file as the loader does, and goes on where a reader would stop:

    xml_text.py json_text.py                  the text, its tags and values
    xml_plan.py xml_algo, xml_blocks, xml_steps          MSCCL XML
    json_plan.py json_ops, json_operands                 MSCCL++ JSON
    run.py                                    the symbolic run: wiring, deadlock, races, data
    check.py                                  all of it
"""

from __future__ import annotations

from forestcoll.lint.check import lint
from forestcoll.lint.findings import Finding, Report
from forestcoll.lint.rules import RULES, Rule, Severity
from forestcoll.lint.run import Told

__all__ = ["RULES", "Finding", "Report", "Rule", "Severity", "Told", "lint"]
