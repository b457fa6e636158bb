"""Links at what is real: what was measured between pairs of GPUs, turned into bandwidths of links.

`calls` reads what tools print, `fit` finds what each link carries.
"""

from __future__ import annotations

from forestcoll.topology.calibrate.calls import Measured, load_measurement
from forestcoll.topology.calibrate.fit import Calibration, ClassFit, Odd, calibrate

__all__ = ["Calibration", "ClassFit", "Measured", "Odd", "calibrate", "load_measurement"]
