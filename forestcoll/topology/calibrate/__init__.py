"""Links at what is real: what was measured between pairs of GPUs, turned into bandwidths of links.

`measured` reads what tools print, `fit` finds what each link carries.
"""

from __future__ import annotations

from forestcoll.topology.calibrate.fit import Calibration, ClassFit, Odd, calibrate
from forestcoll.topology.calibrate.measured import Measured, load_measurement

__all__ = ["Calibration", "ClassFit", "Measured", "Odd", "calibrate", "load_measurement"]
