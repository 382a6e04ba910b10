"""Reuse while the known magnitudes of the residual have drifted little since it was computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from accel.layers import Call
from accel.sites import Streams
from caching.learning import Learnt, Lesson
from caching.measure import place
from caching.policy import Answer, Ask
from caching.threshold import Steering, ThresholdPolicy

Curve = tuple[tuple[float, float], ...]

_FEWEST = 2


@dataclass(slots=True)
class DriftState:
    """How far the kept residual's magnitude is off, and what the last evaluation was."""

    steering: Steering
    lesson: Lesson = field(default_factory=Lesson)
    # The length of every token's residual [B, N] at the last computed evaluation, while learning.
    lengths: Streams | None = None
    level: float | None = None
    ratio: float = 1.0
    error: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        return 0 if self.lengths is None else self.lengths.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MagnitudeDrift(ThresholdPolicy):
    """Sums |1 - magnitude now / magnitude when computed|."""

    retention: float
    magnitudes: Curve | None
    learnt: Learnt

    def new_state(self) -> DriftState:
        """Nothing computed yet."""
        return DriftState(Steering(self.target_error))

    def judge(self, state: DriftState, ask: Ask) -> Answer:
        """Adds this evaluation's error of magnitude."""
        call = ask.call
        known = self.magnitudes or self.learnt.known(call.branch, state.lesson, curve)
        if known is None or state.level is None:
            reason = "learning the magnitudes"
            return Answer(reuse=False, reason=reason, firm=True, chosen=False)
        steps = call.num_steps
        if steps is not None and call.step < self.retention * steps:
            return Answer(reuse=False, reason="retention", firm=True, chosen=False)
        ratio = state.ratio * math.exp(at(known, place(call)) - at(known, state.level))
        error = state.error + abs(1 - ratio)
        state.steering.settle()
        limit = self.limit(state)
        if error > limit:
            reason = f"drift above {limit:g}"
            return Answer(reuse=False, reason=reason, value=error)
        state.ratio, state.error = ratio, error
        return Answer(reuse=True, reason=f"drift within {limit:g}", value=error)

    def decided(self, state: DriftState, ask: Ask, *, reuse: bool) -> None:
        """A computed evaluation starts the sum anew."""
        state.level = place(ask.call)
        if reuse:
            state.lengths = None
        else:
            state.ratio, state.error = 1.0, 0.0

    def recorded(self, state: DriftState, call: Call, residual: Streams) -> None:
        """Learns from two computed evaluations in a row."""
        known = self.magnitudes or self.learnt.known(call.branch, state.lesson, curve)
        if known is not None:
            return
        before, state.lengths = state.lengths, None
        lengths = torch.linalg.vector_norm(residual.hidden, dim=-1, dtype=torch.float32)
        fits = before is not None and before.shape == lengths.shape
        ratio = (
            _ratio(lengths, before.hidden) if fits and before is not None else lengths.new_ones(())
        )
        before = None
        state.lengths = call.keep(Streams(lengths), "token lengths", stays=True)
        state.lesson.note(place(call), ratio.log())
        self.learnt.keep(call.branch, state.lesson)


def _ratio(lengths: Tensor, before: Tensor) -> Tensor:
    return (lengths / before.clamp_min(torch.finfo(torch.float32).tiny)).mean()


def at(known: Curve, level: float) -> float:
    """The log magnitude at a noise level, linear between the known ones and held beyond them."""
    rising = known[::-1]
    return float(np.interp(level, [pair[0] for pair in rising], [pair[1] for pair in rising]))


def curve(lessons: Sequence[Lesson]) -> Curve | None:
    """The mean log magnitude over the noise level, or None if nothing was seen.

    Levels are those of the longest lesson; the others are read off at these.
    """
    curves = [found for lesson in lessons if len(found := _one(lesson)) >= _FEWEST]
    if not curves:
        return None
    longest = max(curves, key=len)
    return tuple(
        (level, sum(at(each, level) for each in curves) / len(curves)) for level, _ in longest
    )


def _one(lesson: Lesson) -> Curve:
    total = 0.0
    points: list[tuple[float, float]] = []
    for level, change in lesson.rows():
        # Schedulers of two evaluations a step ask twice at a level; the first counts.
        if math.isfinite(change) and (not points or level < points[-1][0]):
            total += change
            points.append((level, total))
    return tuple(points)
