"""BWCache: reuse for some steps once all blocks have stopped changing."""

from dataclasses import dataclass
from typing import ClassVar

from accel.method import Tunable, require_number
from caching.block_change import BlockChange
from caching.learning import Learnt
from caching.stack_method import ThresholdMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class BWCache(ThresholdMethod):
    """Compares every block's output with the one before; below `threshold`, reuses for a while.

    After a computed evaluation, the relative L1 changes of all blocks' outputs since the last
    computed one are averaged. If that is below `threshold`, the next `reuse` evaluations reuse the
    stack's residual, then one computes and is compared again. Once reuse has begun with m
    evaluations left, it ends after m / 2 of them. `StackMethod` and `ThresholdMethod` explain the
    other options.

    Source: BWCache (arXiv 2509.13789); threshold 0.15 and a tenth of the evaluations are its
    defaults. Departures: 64 evenly spaced tokens of every block are compared instead of all, so
    that what is kept for it does not grow with the picture; one residual is kept per run of blocks
    instead of every block's output.

    Attributes:
        threshold: largest mean relative change at which reuse begins, from 0 (never;
            bit-identical) up; 0.15 to 0.25 is usual.
        reuse: evaluations reused after each test, from 1 up, or None for a tenth of all.

    Raises:
        OptionError: for a value outside its range.
    """

    tail: int = 0
    max_streak: int | None = None
    threshold: float = 0.15
    reuse: int | None = None

    source: ClassVar[str] = "arXiv 2509.13789"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("threshold", 0.0, 0.5, "up"),)

    def __post_init__(self) -> None:
        ThresholdMethod.__post_init__(self)
        if self.reuse is not None:
            require_number(self, "reuse", self.reuse, low=1, whole=True)

    def policy(self, learnt: Learnt) -> BlockChange:  # noqa: ARG002 -- every generation is new
        """The mean change of the blocks."""
        return BlockChange(
            threshold=self.threshold, target_error=self.target_error, reuse=self.reuse
        )
