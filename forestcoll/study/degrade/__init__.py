"""Single failures: what each costs, and the plans for all of them made ahead.

failures   every cable, adapter, GPU and switch that can fail, and which of them are alike
losses     algbw with the forest in use and with the best new one; the worst in simulated time
bundle     forests and plans for every failure, in a folder each
"""

from forestcoll.study.degrade.failures import KINDS, Failure, Kind, check_kinds, list_failures
from forestcoll.study.degrade.losses import (
    Loss,
    Report,
    Workload,
    Worst,
    play_whole,
    play_worst,
    report_losses,
)

__all__ = [
    "KINDS",
    "Failure",
    "Kind",
    "Loss",
    "Report",
    "Workload",
    "Worst",
    "check_kinds",
    "list_failures",
    "play_whole",
    "play_worst",
    "report_losses",
]
