"""Faster generation with diffusion models, without training: `accel.patch(pipe)`."""

from accel import zoo
from accel.api import patch, status, unpatch
from accel.calibration import calibrate
from accel.errors import (
    AccelBusyError,
    AccelError,
    AccelUnsupportedError,
    ConflictError,
    OptionError,
)
from accel.handle import Patch, Status
from accel.memory import LightCache
from accel.method import Binding, Claim, Method, Only, Tunable
from accel.presets import methods, presets
from accel.report import Decision, Report
from accel.siblings import check_siblings

__version__ = "0.1.0"

__all__ = [
    "AccelBusyError",
    "AccelError",
    "AccelUnsupportedError",
    "Binding",
    "Claim",
    "ConflictError",
    "Decision",
    "LightCache",
    "Method",
    "Only",
    "OptionError",
    "Patch",
    "Report",
    "Status",
    "Tunable",
    "calibrate",
    "methods",
    "patch",
    "presets",
    "status",
    "unpatch",
    "zoo",
]

check_siblings()
