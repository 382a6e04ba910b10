"""MagCache: reuse while the residual's magnitude, known beforehand, has drifted little."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from accel.errors import OptionError
from accel.method import Tunable, require_number
from caching.learning import Learnt
from caching.magnitude_drift import MagnitudeDrift, curve
from caching.stack_method import ThresholdMethod, Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class MagCache(ThresholdMethod):
    """Adds up how far the magnitude of the kept residual is off, and computes at `threshold`.

    A model's residuals shrink from one evaluation to the next in a way that hardly depends on the
    prompt. With a = the product of the shrinkages since the last computed evaluation, every
    evaluation adds |1 - a|; the sum is compared. Nothing is measured while generating, so nothing
    waits for the device, unless `target_error` has the observed errors read. `StackMethod` and
    `ThresholdMethod` explain the other options.

    Source: MagCache (arXiv 2506.09045); threshold 0.06, streak 3 and retention 0.2 are its
    defaults. Departures: the magnitudes are learnt on this very model, by `accel.calibrate` or
    else in the first generation, which then computes throughout; they are kept over the noise
    level, not over the step, so that another number of steps or a later start needs no new ones.

    Attributes:
        threshold: sum of the magnitude's errors at which to compute, from 0 (always;
            bit-identical) up.
        retention: share of the evaluations, 0 to 1, that computes at the start.
        magnitudes: pairs (noise level, log of the magnitude), falling in the noise level; None
            learns them.

    Raises:
        OptionError: for a value outside its range.
    """

    warmup: int = 1
    max_streak: int | None = 3
    threshold: float = 0.06
    retention: float = 0.2
    magnitudes: tuple[tuple[float, float], ...] | None = None

    source: ClassVar[str] = "arXiv 2506.09045"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("threshold", 0.0, 0.5, "up"),)

    def __post_init__(self) -> None:
        ThresholdMethod.__post_init__(self)
        require_number(self, "retention", self.retention, low=0.0, high=1.0)
        levels = [level for level, _ in self.magnitudes or ((1.0, 0.0), (0.0, 0.0))]
        if len(levels) < 2 or sorted(set(levels), reverse=True) != levels:  # noqa: PLR2004 -- one point is no curve
            raise OptionError(
                f"MagCache: magnitudes has the noise levels {levels}; expected two or more, each "
                "below the one before."
            )

    def policy(self, learnt: Learnt) -> MagnitudeDrift:
        """The sum of the magnitude's errors."""
        return MagnitudeDrift(
            threshold=self.threshold,
            target_error=self.target_error,
            retention=self.retention,
            magnitudes=self.magnitudes,
            learnt=learnt,
        )

    def learning(self) -> tuple[Watcher, Callable[[], Self]]:
        """A look at the residual's magnitude, and its mean over what was seen."""
        learnt = Learnt(only_learn=True)
        return Watcher(method=self, learnt=learnt), partial(self._averaged, learnt)

    def _averaged(self, learnt: Learnt) -> Self:
        found = curve(learnt.everything())
        if found is None:
            raise OptionError("MagCache saw no two evaluations in a row; run more steps.")
        return replace(self, magnitudes=found)
