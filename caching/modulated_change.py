"""Reuse while the estimated changes of the residual add up to little."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from accel.layers import Call
from accel.sites import Streams
from caching.learning import Learnt, Lesson
from caching.measure import place, relative_change
from caching.modulation import modulated_input
from caching.policy import Answer, Ask
from caching.threshold import Steering, ThresholdPolicy

Polynomial = tuple[tuple[float, ...], tuple[float, float]]

_DEGREE = 4
# Fewer points than this fit anything.
_FEWEST = 2 * (_DEGREE + 1)
_CALIBRATING = Answer(
    reuse=False, reason="learning how input and output change", firm=True, chosen=False
)


@dataclass(slots=True)
class SumState:
    """The last evaluation's input and, while learning, its residual."""

    steering: Steering
    lesson: Lesson = field(default_factory=Lesson)
    signal: Streams | None = None
    fresh: Tensor | None = None
    change: Tensor | None = None
    residual: Streams | None = None
    total: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes held between calls; the residual is the one that the engine counts."""
        return 0 if self.signal is None else self.signal.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulatedChange(ThresholdPolicy):
    """Sums polynomial(change of the modulated input) since the last computed evaluation."""

    known: Polynomial | None
    learnt: Learnt

    measures: ClassVar[bool] = True

    def new_state(self) -> SumState:
        """Nothing seen yet."""
        return SumState(Steering(self.target_error))

    def judge(self, state: SumState, ask: Ask) -> Answer:
        """Adds this evaluation's estimated change; the one place that waits for the device."""
        polynomial = self.known or self.learnt.known(ask.call.branch, state.lesson, fit)
        change = self._look(state, ask.call)
        if polynomial is None or change is None:
            return _CALIBRATING
        finite = ask.finite()
        change = change if finite is None else change + finite.to(change.dtype) * 0
        value, limit = state.steering.read(change), self.limit(state)
        if not math.isfinite(value):
            return Answer(reuse=False, reason="non-finite", value=value, firm=True, chosen=False)
        total = state.total + estimate(polynomial, value)
        if total < limit:
            state.total = total
            return Answer(reuse=True, reason=f"sum below {limit:g}", value=total)
        return Answer(reuse=False, reason=f"sum at least {limit:g}", value=total)

    def decided(self, state: SumState, ask: Ask, *, reuse: bool) -> None:
        """The next evaluation is compared with this one, whatever it does."""
        if not self.engages:
            return
        if state.fresh is None:
            self._look(state, ask.call)
        state.signal, fresh, state.fresh = None, state.fresh, None
        if fresh is not None:
            state.signal = ask.call.keep(Streams(fresh), "modulated input", stays=True)
        if not reuse:
            state.total = 0.0
        else:
            state.residual = None

    def recorded(self, state: SumState, call: Call, residual: Streams) -> None:
        """Learns from two computed evaluations in a row."""
        known = self.known or self.learnt.known(call.branch, state.lesson, fit)
        if known is not None:
            return
        before, state.residual = state.residual, residual
        if before is None or state.change is None or not before.matches(residual):
            return
        change = relative_change(residual.hidden, before.hidden)
        state.lesson.note(place(call), state.change, change)
        self.learnt.keep(call.branch, state.lesson)

    def _look(self, state: SumState, call: Call) -> Tensor | None:
        """The relative change of the modulated input, or None where there is none before."""
        state.fresh = modulated_input(call).detach()
        before = state.signal
        matches = before is not None and before.like(state.fresh)
        state.change = (
            relative_change(state.fresh, before.hidden) if matches and before is not None else None
        )
        return state.change


def estimate(polynomial: Polynomial, change: float) -> float:
    """The residual's change, 0 or more, for a change of the input; limits are not exceeded."""
    coefficients, (low, high) = polynomial
    return max(float(np.polyval(coefficients, min(max(change, low), high))), 0.0)


def fit(lessons: Sequence[Lesson]) -> Polynomial | None:
    """The polynomial of degree 4 nearest to what was seen, or None if that is too little."""
    seen: list[Any] = [row for lesson in lessons for row in lesson.rows()]
    points = np.array([row[1:] for row in seen if all(map(math.isfinite, row))])
    if len(points) < _FEWEST:
        return None
    coefficients = np.polyfit(points[:, 0], points[:, 1], _DEGREE)
    return tuple(map(float, coefficients)), (float(points[:, 0].min()), float(points[:, 0].max()))
