"""Single failures: what each costs, and the plans for all of them made ahead.

failures   every cable, adapter, GPU and switch that can fail
classes    which of them a symmetry of the fabric maps onto each other
losses     algbw with the forest in use and with the best new one
played     the worst of them in simulated time
bundle     forests and plans for every failure, in a folder each
"""

from forestcoll.study.degrade.failures import KINDS, Failure, Kind, check_kinds, list_failures
from forestcoll.study.degrade.losses import Loss, Report, Workload, report_losses
from forestcoll.study.degrade.played import Worst, play_whole, play_worst

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
