"""FirstBlockCache: skip the rest of the stack while the first block's residual hardly changes."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from accel.errors import AccelUnsupportedError, OptionError
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites
from caching.predictor import Hold, Predictor
from caching.stack import StackCache, StackRule


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBlockCache(Method):
    """Runs the first block; reuses the rest while its residual is close to the last computed one.

    The test is mean|r - r_last| / mean|r_last| < `threshold`, with r the first block's output minus
    its input. A reused step adds the kept residual of all further blocks, for both streams of
    two-stream blocks.

    Source: ParaAttention's first block cache, after TeaCache (arXiv 2411.19108). Departures:
    warm-up, tail, streak and minimum-step guards; state per guidance branch; the worst sample of a
    batch decides.

    Attributes:
        threshold: largest relative change at which work is reused, from 0 (never; bit-identical)
            up; 0.05 to 0.3 is usual.
        warmup: first evaluations that always compute.
        tail: last evaluations that always compute.
        max_streak: most reused evaluations in a row, or None for no limit.
        min_steps: schedules of at most this many evaluations compute throughout.
        batch: "worst" lets the sample that changed most decide, "mean" the mean over the batch.
        joint: whether the further guidance calls of a step follow the first one's decision. Errors
            that both branches make at the same step largely cancel in the guided prediction.
        predictor: `Hold()` reuses the residual, `Newton(1)` extrapolates it along the noise
            schedule.

    Raises:
        OptionError: for a value outside its range.
    """

    threshold: float = 0.08
    warmup: int = 2
    tail: int = 1
    max_streak: int | None = 3
    min_steps: int = 8
    batch: str = "worst"
    joint: bool = True
    predictor: Predictor = field(default=Hold())

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})
    source: ClassVar[str] = "https://github.com/chengzeyi/ParaAttention, after arXiv 2411.19108"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("threshold", 0.0, 0.5, "up"),)

    def __post_init__(self) -> None:
        require_number(self, "threshold", self.threshold, low=0.0)
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        if self.max_streak is not None:
            require_number(self, "max_streak", self.max_streak, low=1, whole=True)
        if self.batch not in ("worst", "mean"):
            raise OptionError(
                f"{type(self).__name__}: batch is {self.batch!r}; expected 'worst' or 'mean'."
            )
        if not isinstance(self.joint, bool):
            raise OptionError(
                f"{type(self).__name__}: joint is {self.joint!r}; expected True or False."
            )
        if not isinstance(self.predictor, Predictor):
            raise OptionError(
                f"{type(self).__name__}: predictor is {self.predictor!r}; expected Hold() or "
                "Newton(order)."
            )

    def neutral(self) -> Self:
        """The cache that never reuses."""
        return replace(self, threshold=0.0)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the stack.

        Raises:
            AccelUnsupportedError: if the model has no stack of at least one probed and one
                skippable block, or tail blocks that would get stale inputs.
        """
        head, tail_blocks = self.probes()
        name = type(self).__name__
        blocks = model.require_blocks(name, head + tail_blocks + 1)
        if tail_blocks and not model.direct:
            raise AccelUnsupportedError(
                f"{name}: tail_blocks is {tail_blocks}, but the last blocks of {model.name} may "
                "need what earlier ones returned, which skipped blocks do not. Use tail_blocks=0."
            )
        rule = StackRule(
            head=head,
            tail_blocks=tail_blocks,
            threshold=self.threshold,
            warmup=self.warmup,
            tail=self.tail,
            max_streak=self.max_streak,
            min_steps=self.min_steps,
            batch=self.batch,
            joint=self.joint,
            predictor=self.predictor,
        )
        yield from StackCache(rule, blocks).bind(model)

    def probes(self) -> tuple[int, int]:
        """How many blocks always run at the start and at the end of the stack."""
        return 1, 0
