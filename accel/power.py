"""Watts that a device draws while it works, where it tells."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

_RAPL = Path("/sys/class/powercap")
_MICRO, _MILLI = 1e-6, 1e-3


def mean_watts(
    device: torch.device, work: Callable[[], object], seconds: float, *, rapl: Path = _RAPL
) -> float | None:
    """The mean power of a device while `work` runs again and again; None where it does not tell.

    NVIDIA devices tell by NVML, Intel and AMD processors on Linux by RAPL, which counts the whole
    package and mostly needs to be made readable by an administrator.

    Args:
        device: where the work runs.
        work: called without arguments.
        seconds: for how long, above 0.
        rapl: where Linux keeps the counters.
    """
    if device.type == "cuda":
        return _sampled(device, work, seconds)
    return _counted(rapl, work, seconds) if device.type == "cpu" else None


def _sampled(device: torch.device, work: Callable[[], object], seconds: float) -> float | None:
    samples = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        work()
        try:
            samples.append(torch.cuda.power_draw(device) * _MILLI)
        except (ImportError, RuntimeError, OSError):
            # Without NVML, or on a device that keeps it to itself.
            return None
        torch.cuda.synchronize(device)
    return sum(samples) / len(samples) if samples else None


def _counted(rapl: Path, work: Callable[[], object], seconds: float) -> float | None:
    before, start = joules(rapl), time.monotonic()
    if before is None:
        return None
    while time.monotonic() < start + seconds:
        work()
    after, passed = joules(rapl), time.monotonic() - start
    # A counter that began anew in between tells nothing.
    return None if after is None or after < before else (after - before) / passed


def joules(rapl: Path = _RAPL) -> float | None:
    """What all packages have used so far, or None if nobody may know."""
    packages = [path for path in rapl.glob("*-rapl:*") if path.name.count(":") == 1]
    try:
        counts = [int((path / "energy_uj").read_text()) for path in packages]
    except (OSError, ValueError):
        return None
    return sum(counts) * _MICRO if counts else None
