"""TeaCache: reuse while the conditioned input of the first block has not changed much in all."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from accel.errors import OptionError
from accel.method import Tunable, require_number
from caching.learning import Learnt
from caching.modulated_change import ModulatedChange, fit
from caching.stack_method import ThresholdMethod, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class TeaCache(ThresholdMethod):
    """Adds up how much the stack's residual should have changed, and computes at `threshold`.

    The relative L1 change of the first block's modulated input between successive evaluations,
    put through a polynomial of degree 4, estimates the relative change of the residual; its sum
    since the last computed evaluation is compared. `StackMethod` and `ThresholdMethod` explain the
    other options.

    Source: TeaCache (arXiv 2411.19108), whose code computes the first and the last evaluation.
    Departures: the polynomial is fitted on this very model, by `accel.calibrate` or else in the
    first generation, which then computes throughout, and is not trusted beyond the changes it was
    fitted on; every family compares the modulated input (the paper's code takes the bare time
    embedding on Wan); guards and state per guidance branch.

    Attributes:
        threshold: estimated relative change of the residual at which to compute, from 0 (always;
            bit-identical) up; 0.1 to 0.6 is usual.
        coefficients: of the polynomial, highest degree first; None learns them.
        limits: least and largest change of the input that the coefficients hold for; None knows
            no limits.

    Raises:
        OptionError: for a value outside its range.
    """

    warmup: int = 1
    max_streak: int | None = None
    threshold: float = 0.25
    coefficients: tuple[float, ...] | None = None
    limits: tuple[float, float] | None = None

    source: ClassVar[str] = "arXiv 2411.19108"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("threshold", 0.0, 1.0, "up"),)

    def __post_init__(self) -> None:
        ThresholdMethod.__post_init__(self)
        if self.coefficients == ():
            raise OptionError("TeaCache: coefficients is empty; give some, or None to learn them.")
        for number in self.coefficients or ():
            require_number(self, "coefficients", number, low=-math.inf)
        for number in self.limits or ():
            require_number(self, "limits", number, low=0.0)

    def policy(self, learnt: Learnt) -> ModulatedChange:
        """The sum of estimated changes."""
        limits = self.limits or (0.0, math.inf)
        known = None if self.coefficients is None else (self.coefficients, limits)
        return ModulatedChange(
            threshold=self.threshold, target_error=self.target_error, known=known, learnt=learnt
        )

    def learning(self) -> tuple[Watcher, Callable[[], Self]]:
        """A look at how input and residual change, and the polynomial that fits it."""
        learnt = Learnt(only_learn=True)
        return Watcher(method=self, learnt=learnt), partial(self._fitted, learnt)

    def _fitted(self, learnt: Learnt) -> Self:
        found = fit(learnt.everything())
        if found is None:
            raise OptionError("TeaCache saw too few evaluations to fit its polynomial.")
        return replace(self, coefficients=found[0], limits=found[1])
