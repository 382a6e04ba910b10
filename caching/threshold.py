"""Policies that compare a measured number with a threshold, which observed errors may steer."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from caching.policy import Policy

# A single check says little, so a step towards the wanted error is damped and bounded.
_GAIN = 0.5
_MOST_STEP = 2.0
_MOST_AWAY = 8.0


@dataclass(slots=True)
class Steering:
    """How far the threshold has moved, and an observed error that nobody has read yet.

    The threshold is multiplied after every check by (target / error) ** 0.5, within a factor 2 at
    once and 8 in all.

    Attributes:
        target: the relative error that is wanted, or None to leave the threshold alone.
        factor: what the threshold is multiplied by.
    """

    target: float | None = None
    factor: float = 1.0
    _error: Tensor | None = None

    def observe(self, error: Tensor) -> None:
        """Keeps an error for the next time that something is read from the device anyway."""
        if self.target is not None:
            self._error = error

    def read(self, value: Tensor) -> float:
        """The value as a number, and with it the error that waits: one wait for both."""
        if self._error is None:
            return float(value)
        number, error = torch.stack((value, self._error.to(value.dtype))).tolist()
        self._turn(error)
        return float(number)

    def settle(self) -> None:
        """Reads the error that waits, if one does, for policies that read nothing else."""
        if self._error is not None:
            self._turn(float(self._error))

    def _turn(self, error: float) -> None:
        self._error = None
        if self.target is None or not error > 0 or not math.isfinite(error):
            return
        step = (self.target / error) ** _GAIN
        wanted = self.factor * min(max(step, 1 / _MOST_STEP), _MOST_STEP)
        self.factor = min(max(wanted, 1 / _MOST_AWAY), _MOST_AWAY)


class Steered(Protocol):
    """What a state has whose threshold is steered."""

    steering: Steering


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPolicy(Policy):
    """Reuses while a number is below `threshold`; at 0 nothing ever is.

    Attributes:
        threshold: where to compute.
        target_error: relative error at which reuse aims, or None to keep the threshold.
    """

    threshold: float
    target_error: float | None = None

    idle: ClassVar[str] = "threshold 0"

    @property
    def engages(self) -> bool:
        """At threshold 0 nothing is ever below it."""
        return self.threshold > 0

    def missed(self, state: Steered, error: Tensor) -> None:
        """The next measurement reads the error along with its own number."""
        state.steering.observe(error)

    def limit(self, state: Steered) -> float:
        """The threshold as it stands now."""
        return self.threshold * state.steering.factor
