"""Predictors with a memory of their own guesses, or of how the residual moves by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accel.method import require_number
from accel.sites import Streams
from caching.predictor import Newton, Predictor, Sample, combine

_FEWEST_SNAPSHOTS = 4
# Relative to the mean squared length of a snapshot; keeps nearly equal snapshots from blowing up.
_RIDGE = 1e-6


@dataclass(frozen=True, slots=True)
class FoCa(Predictor):
    """The newest computed residual, moved along the noise level, and bent by the last miss.

    It moves with the slope between the two newest computed residuals. In the first evaluation
    behind a computed one, the slope is the mean of that and of the one from the newest guess to the
    residual that was computed after it, so that the miss of the guess bends what follows.

    Source: FoCa (arXiv 2508.16211), in the form in which cache-dit ships it. Departures: slopes
    over the noise level instead of the step; in later evaluations the bend stays what it was in the
    first. There, cache-dit takes the slope between the newest guesses instead, and goes along it
    all the way from the computed residual, so that guesses run away where many are in a row.

    Attributes:
        horizon: how many gaps between computed residuals the guess goes at most.
    """

    horizon: float = 3.0

    def __post_init__(self) -> None:
        require_number(self, "horizon", self.horizon, low=0.0)

    @property
    def depth(self) -> int:
        """Two samples."""
        return 2

    @property
    def trail(self) -> int:
        """The two newest values."""
        return 2

    @property
    def action(self) -> str:
        """The residual is extrapolated."""
        return "forecast"

    def predict(
        self, samples: Sequence[Sample], sigma: float, trail: Sequence[Sample] = ()
    ) -> Streams:
        """The moved residual; with a single sample, that sample."""
        newest = samples[-1]
        if len(samples) < self.depth or samples[-2].sigma == newest.sigma:
            return newest.value
        older = samples[-2]
        before, latest = (trail[-2], trail[-1]) if len(trail) > 1 else (older, newest)
        moved = self._gaps(samples, sigma)
        if latest.sigma != newest.sigma:
            # The newest guess holds the bend.
            rest = moved - self._gaps(samples, latest.sigma)
            return combine([older.value, newest.value, latest.value], [-rest, rest, 1.0])
        step = latest.sigma - before.sigma
        bend = moved / 2 * (newest.sigma - older.sigma) / step if step else 0.0
        straight = moved if not step else moved / 2
        return combine(
            [older.value, before.value, latest.value, newest.value],
            [-straight, -bend, bend, 1 + straight],
        )

    def _gaps(self, samples: Sequence[Sample], sigma: float) -> float:
        """How far `sigma` lies behind the newest sample, in gaps between the two newest."""
        gap = samples[-1].sigma - samples[-2].sigma
        moved = (sigma - samples[-1].sigma) / gap
        return min(max(moved, -self.horizon), self.horizon)


@dataclass(frozen=True, slots=True)
class DMD(Predictor):
    """What the linear map that best carries each computed residual into the next makes of them.

    Dynamic mode decomposition by the method of snapshots: everything happens in the span of the
    kept residuals, so that only their inner products leave the device (one wait a prediction).
    Growing modes are held. Below 4 residuals, `Newton(1)`.

    Source: DMD (Schmid 2010, doi 10.1017/S0022112010001217), as cache-dit uses it for caches.
    Departures: no SVD of the features; a prediction is always a weighted sum of kept residuals.

    Attributes:
        snapshots: how many residuals are kept, 4 or more.
    """

    snapshots: int = 6

    def __post_init__(self) -> None:
        require_number(self, "snapshots", self.snapshots, low=_FEWEST_SNAPSHOTS, whole=True)

    @property
    def depth(self) -> int:
        """The snapshots."""
        return self.snapshots

    @property
    def action(self) -> str:
        """The residual is extrapolated."""
        return "forecast"

    def predict(
        self, samples: Sequence[Sample], sigma: float, trail: Sequence[Sample] = ()
    ) -> Streams:
        """The residual that the map arrives at."""
        if len(samples) < _FEWEST_SNAPSHOTS:
            return Newton(order=1).predict(samples, sigma, trail)
        gap = (samples[-1].sigma - samples[0].sigma) / (len(samples) - 1)
        if not gap:
            return samples[-1].value
        weights = _propagated(_gram(samples), (sigma - samples[-1].sigma) / gap)
        return combine([sample.value for sample in samples], weights)


def _gram(samples: Sequence[Sample]) -> np.ndarray:
    rows: Tensor = torch.stack([sample.value.hidden.flatten().float() for sample in samples])
    return (rows @ rows.mT).double().cpu().numpy()


def _propagated(gram: np.ndarray, gaps: float) -> list[float]:
    """Weights of the snapshots, oldest first, `gaps` mean gaps behind the newest one."""
    count = len(gram) - 1
    ridge = _RIDGE * np.trace(gram) / len(gram) * np.eye(count)
    # Column j: the weights of all but the newest snapshot that make snapshot j + 1.
    step = np.linalg.solve(gram[:count, :count] + ridge, gram[:count, 1:])
    values, vectors = np.linalg.eig(step)
    values = values / np.maximum(np.abs(values), 1.0)
    powers = vectors @ np.diag(values.astype(complex) ** gaps) @ np.linalg.pinv(vectors)
    # What the newest snapshot is made of moves on; what of it lies outside of their span stays.
    moved = np.real(powers @ step[:, -1]) - step[:, -1]
    return [*map(float, moved), 1.0]
