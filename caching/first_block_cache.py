"""FirstBlockCache: skip the rest of the stack while the first block's residual hardly changes."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.errors import OptionError
from accel.method import Tunable, require_number
from caching.learning import Learnt
from caching.residual_change import ResidualChange
from caching.stack_method import ThresholdMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBlockCache(ThresholdMethod):
    """Runs the first block; reuses the rest while its residual is close to the last computed one.

    The test is mean|r - r_last| / mean|r_last| < `threshold`, with r the first block's output minus
    its input. A reused step adds the kept residual of all further blocks, for both streams of
    two-stream blocks. `StackMethod` and `ThresholdMethod` explain the options that are not listed
    here.

    Source: ParaAttention's first block cache, after TeaCache (arXiv 2411.19108). Departures:
    warm-up, tail, streak and minimum-step guards; state per guidance branch; the worst sample of a
    batch decides; the threshold can be steered by the errors that are observed.

    Attributes:
        threshold: largest relative change at which work is reused, from 0 (never; bit-identical)
            up; 0.05 to 0.3 is usual.
        batch: "worst" lets the sample that changed most decide, "mean" the mean over the batch.
        branches: pairs (guidance branch, threshold) for branches with thresholds of their own, by
            the names that the report shows; with `joint`, the first branch of a step decides.

    Raises:
        OptionError: for a value outside its range.
    """

    threshold: float = 0.08
    batch: str = "worst"
    branches: tuple[tuple[str, float], ...] = ()

    source: ClassVar[str] = "https://github.com/chengzeyi/ParaAttention, after arXiv 2411.19108"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("threshold", 0.0, 0.5, "up"),)

    def __post_init__(self) -> None:
        ThresholdMethod.__post_init__(self)
        for _, threshold in self.branches:
            require_number(self, "branches", threshold, low=0.0)
        if self.batch not in ("worst", "mean"):
            raise OptionError(
                f"{type(self).__name__}: batch is {self.batch!r}; expected 'worst' or 'mean'."
            )

    def neutral(self) -> Self:
        """The cache that never reuses."""
        return replace(self, threshold=0.0, branches=())

    def policy(self, learnt: Learnt) -> ResidualChange:  # noqa: ARG002 -- every generation is new
        """The test of the first block's residual."""
        return ResidualChange(
            blocks=self.probed(),
            threshold=self.threshold,
            batch=self.batch,
            target_error=self.target_error,
            branches=dict(self.branches),
        )

    def probed(self) -> int:
        """How many blocks at the start of the stack run before the decision."""
        return 1
