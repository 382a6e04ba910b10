"""Reuse while the residual of the head blocks is close to the last computed one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from accel.sites import Streams
from caching.measure import l1_norm
from caching.policy import Answer, Ask
from caching.threshold import Steering, ThresholdPolicy


@dataclass(slots=True)
class ProbeState:
    """The residual of the head blocks at the last computed call."""

    steering: Steering
    probe: Streams | None = None
    # What a change of the probe is relative to; NaN where a kept residual is not finite.
    scale: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        return 0 if self.probe is None else self.probe.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualChange(ThresholdPolicy):
    """mean|r - r_last| / mean|r_last| < `threshold`, with r what the head blocks added."""

    blocks: int
    batch: str
    branches: Mapping[str, float] = field(default_factory=dict)

    measures: ClassVar[bool] = True

    @property
    def head(self) -> int:
        """The probed blocks."""
        return self.blocks

    @property
    def engages(self) -> bool:
        """At threshold 0 nothing is ever below it."""
        return max(self.threshold, *self.branches.values(), 0) > 0

    def new_state(self) -> ProbeState:
        """Nothing to compare with yet."""
        return ProbeState(Steering(self.target_error))

    def judge(self, state: ProbeState, ask: Ask) -> Answer:
        """Compares with the last computed call; the one place that waits for the device."""
        kept, change = state.probe, ask.change
        if kept is None or change is None:
            return Answer(reuse=False, reason="nothing to reuse yet", firm=True, chosen=False)
        if not kept.like(change):
            reason = "shape, dtype or device changed"
            return Answer(reuse=False, reason=reason, firm=True, chosen=False)
        value, threshold = self._measure(state, kept.hidden, change, ask)
        if value < threshold:
            return Answer(reuse=True, reason=f"change below {threshold:g}", value=value)
        if math.isfinite(value):
            return Answer(reuse=False, reason=f"change at least {threshold:g}", value=value)
        return Answer(reuse=False, reason="non-finite", value=value, firm=True, chosen=False)

    def decided(self, state: ProbeState, ask: Ask, *, reuse: bool) -> None:
        """A computed call is what later ones are compared with."""
        if not reuse:
            state.probe = state.scale = None
            if ask.change is not None:
                state.probe = ask.call.keep(Streams(ask.change), "change", stays=True)

    def _measure(
        self, state: ProbeState, kept: Tensor, change: Tensor, ask: Ask
    ) -> tuple[float, float]:
        worst = self.batch == "worst"
        threshold = self.branches.get(ask.call.branch, self.threshold)
        if state.scale is None:
            state.scale = _scale(kept, ask.finite(), samplewise=worst)
        value = (l1_norm(change - kept, samplewise=worst) / state.scale).max()
        number = state.steering.read(value)
        return number, threshold * state.steering.factor


def _scale(old: Tensor, finite: Tensor | None, *, samplewise: bool) -> Tensor:
    # A residual of exactly zero that stays zero has not changed.
    size = l1_norm(old, samplewise=samplewise).clamp_min(torch.finfo(torch.float32).tiny)
    return size if finite is None else size + finite * 0
