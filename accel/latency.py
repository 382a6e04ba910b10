"""How long a device takes for a model's work: a model of three terms, calibrated once a device."""

import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn import functional as F

from accel.errors import OptionError
from accel.power import mean_watts
from accel.report import Report, device_name
from accel.work import Part, Run, Work

_SAMPLE_S = 0.2
_FEWEST = 3
_RATES = ("matmul", "attention", "convolution", "bandwidth")
# A report that is further off than this tells of something else than the device.
_FURTHEST = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How fast a device is at what denoisers do, in one dtype.

    The latency of a call is the sum of its FLOPs over the rate at which the device does that kind,
    the bytes that it moves over the bandwidth, and a constant for each operation. Where the first
    term prevails (large pictures, long clips), time and energy grow with the square of the tokens
    and linearly with the steps, which arXiv 2509.19222 confirms within 15% on an H100. Departures:
    a rate for each kind of work instead of one share of the peak, and the two other terms.

    Attributes:
        name: as the reports have it; dtype: as torch writes it; torch: its version.
        matmul, attention, convolution: FLOP a second.
        bandwidth: bytes read or written a second.
        launch_s: seconds that an operation takes at least.
        watts: mean power under load, None where the device does not tell.
        factor: measured over predicted seconds of a real model; 1 before there was one.
    """

    name: str
    dtype: str
    torch: str
    matmul: float
    attention: float
    convolution: float
    bandwidth: float
    launch_s: float
    watts: float | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name in (*_RATES, "factor"):
            if not _positive(getattr(self, name)):
                raise OptionError(
                    f"Device: {name} is {getattr(self, name)!r}; expected a number above 0."
                )

    def seconds(self, work: Work) -> float:
        """Seconds of a call that does this work."""
        rates = {Part.CORE: self.attention, Part.CONVOLUTION: self.convolution}
        computing = sum(count / rates.get(part, self.matmul) for part, count in work.flops.items())
        moving = (work.moved + work.weights) / self.bandwidth
        return self.factor * (computing + moving + work.launches * self.launch_s)

    def seconds_of(self, run: Run) -> float:
        """Seconds of all evaluations of a run."""
        each = {id(work): self.seconds(work) for work in run.evaluations}
        return sum(each[id(work)] for work in run.evaluations)

    def joules(self, seconds: float) -> float | None:
        """Energy of so many seconds under load; None where the power is unknown."""
        return None if self.watts is None else self.watts * seconds

    def refined(self, report: Report, predicted_s: float) -> Self:
        """The same, with the factor at which the prediction for this report's run is right.

        Raises:
            OptionError: if the report has no seconds, or is of another device, or so far off that
                something else was measured.
        """
        if report.device != self.name or report.denoiser_seconds <= 0 or predicted_s <= 0:
            raise OptionError(
                f"The report has {report.denoiser_seconds} s in the denoiser on "
                f"{report.device or 'no device'}; expected some on {self.name}."
            )
        ratio = report.denoiser_seconds / predicted_s
        if not 1 / _FURTHEST < ratio < _FURTHEST:
            raise OptionError(
                f"The report has {report.denoiser_seconds:.3g} s where {predicted_s:.3g} s were "
                "predicted; nothing was refined. Was another size, model or machine predicted?"
            )
        return dataclasses.replace(self, factor=self.factor * ratio)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < float("inf")


def measure(device: torch.device, dtype: torch.dtype) -> Device:
    """The device, measured now: about two seconds of work on an idle machine."""
    large = device.type != "cpu"
    matmul = _matmul(device, dtype, 8192 if large else 768)
    options = {"device": device, "dtype": dtype}
    tokens, channels, side = (8192, 512, 128) if large else (768, 64, 64)
    q = torch.randn(1, 8, tokens, 64, **options)  # type: ignore[call-overload]  # one dict for both
    picture = torch.randn(1, channels, side, side, **options)  # type: ignore[call-overload]  # the same
    kernel = torch.randn(channels, channels, 3, 3, **options)  # type: ignore[call-overload]  # the same
    flat = torch.zeros((256 if large else 32) * 2**20, dtype=torch.uint8, device=device)
    small, target = torch.zeros(8, device=device), torch.empty_like(flat)
    size = matmul[1]
    return Device(
        name=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        torch=torch.__version__,
        matmul=2.0 * size**3 / _seconds(device, matmul[0]),
        attention=4.0
        * 8
        * 64
        * tokens**2
        / _seconds(device, lambda: F.scaled_dot_product_attention(q, q, q)),
        convolution=2.0
        * 9
        * channels**2
        * side**2
        / _seconds(device, lambda: F.conv2d(picture, kernel, padding=1)),
        bandwidth=2.0 * flat.nbytes / _seconds(device, lambda: target.copy_(flat)),
        launch_s=_seconds(device, lambda: small.add_(1)),
        watts=mean_watts(device, matmul[0], 2 * _SAMPLE_S),
    )


def _matmul(
    device: torch.device, dtype: torch.dtype, size: int
) -> tuple[Callable[[], object], int]:
    left = torch.randn(size, size, device=device, dtype=dtype)
    return (lambda: left @ left), size


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds that `work` takes, the mean of as many as fit into a moment, without the first."""
    work()
    _synchronise(device)
    runs, start = 0, time.perf_counter()
    while runs < _FEWEST or time.perf_counter() - start < _SAMPLE_S:
        for _ in range(_FEWEST):
            work()
        runs += _FEWEST
        _synchronise(device)
    return (time.perf_counter() - start) / runs


def _synchronise(device: torch.device) -> None:
    """Waits until the device has finished what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def cache_folder() -> Path:
    """Where measured devices are kept: in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "accel-diffusion" / "devices"


def stored(
    device: torch.device, dtype: torch.dtype, *, folder: Path | None = None
) -> Device | None:
    """The device as it was measured before, or None if it was not, or the file is of no use."""
    path = _path(device, dtype, folder)
    try:
        found = Device(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        # Absent, cut off, or written by another version: as good as never measured.
        return None
    return found if _path_of(found, path.parent) == path else None


def store(device: Device, *, folder: Path | None = None) -> Path:
    """Keeps a device for later; returns where.

    Raises:
        OSError: if nothing can be written there.
    """
    path = _path_of(device, folder or cache_folder())
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another process may read it meanwhile.
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(dataclasses.asdict(device), indent=2) + "\n", "utf-8")
    partial.replace(path)
    return path


def calibrated(
    device: torch.device,
    dtype: torch.dtype,
    *,
    folder: Path | None = None,
    measuring: Callable[[torch.device, torch.dtype], Device] = measure,
) -> Device:
    """The device as it was measured before, else measured now and kept if that is possible.

    Args:
        device: where a model runs.
        dtype: in what.
        folder: where measured devices are kept; the user's cache folder if left out.
        measuring: what measures.
    """
    known = stored(device, dtype, folder=folder)
    if known is not None:
        return known
    found = measuring(device, dtype)
    try:
        store(found, folder=folder)
    except OSError:
        # A home that cannot be written to costs two seconds each time, and nothing else.
        return found
    return found


def _path(device: torch.device, dtype: torch.dtype, folder: Path | None) -> Path:
    name = str(dtype).removeprefix("torch.")
    return _named(folder or cache_folder(), device_name(device), torch.__version__, name)


def _path_of(device: Device, folder: Path) -> Path:
    return _named(folder, device.name, device.torch, device.dtype)


def _named(folder: Path, *parts: str) -> Path:
    return folder / (re.sub(r"[^\w.+-]+", "-", "_".join(parts)) + ".json")
