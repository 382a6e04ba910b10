"""What every method that skips the middle of a stack of blocks has in common."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from accel.errors import AccelUnsupportedError, OptionError
from accel.method import Binding, Claim, Method, require_number
from accel.sites import ModelSites
from caching.learning import Learnt
from caching.policy import Policy
from caching.predictor import Hold, Predictor, require_predictor
from caching.stack import StackCache, StackRule


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMethod(Method):
    """Guards and predictor of a stack cache; a subclass adds its policy and its defaults.

    Attributes:
        warmup: first evaluations that always compute.
        tail: last evaluations that always compute.
        max_streak: most reused evaluations in a row, or None for no limit.
        min_steps: schedules of at most this many evaluations compute throughout: distilled models
            spend each of them on a large change.
        joint: whether the further guidance calls of a step follow the first one's decision. Errors
            that both branches make at the same step largely cancel in the guided prediction.
        predictor: `Hold()` reuses the residual, `Newton(1)` extrapolates it along the noise
            schedule.
    """

    warmup: int = 2
    tail: int = 1
    max_streak: int | None = 3
    min_steps: int = 8
    joint: bool = True
    predictor: Predictor = field(default=Hold())

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})

    def __post_init__(self) -> None:
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        if self.max_streak is not None:
            require_number(self, "max_streak", self.max_streak, low=1, whole=True)
        if not isinstance(self.joint, bool):
            raise OptionError(
                f"{type(self).__name__}: joint is {self.joint!r}; expected True or False."
            )
        require_predictor(self, self.predictor)

    @abstractmethod
    def policy(self, learnt: Learnt) -> Policy:
        """What decides; it may keep in `learnt` what later generations can use."""

    def refreshed(self) -> int:
        """How many blocks at the end of the stack run in every evaluation."""
        return 0

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the stack.

        Raises:
            AccelUnsupportedError: if the model has no stack of blocks that is long enough, or tail
                blocks would get stale inputs.
        """
        yield from self._hooks(model, Learnt())

    def _hooks(self, model: ModelSites, learnt: Learnt) -> Iterator[Binding]:
        policy, refreshed = self.policy(learnt), self.refreshed()
        if refreshed and not model.direct:
            raise AccelUnsupportedError(
                f"{type(self).__name__}: tail_blocks is {refreshed}, but the last blocks of "
                f"{model.name} may need what earlier ones returned, which skipped blocks do not. "
                "Use tail_blocks=0."
            )
        needed = policy.head + refreshed + 1
        rule = StackRule(
            policy=policy,
            predictor=self.predictor,
            tail_blocks=refreshed,
            warmup=self.warmup,
            tail=self.tail,
            max_streak=self.max_streak,
            min_steps=self.min_steps,
            joint=self.joint,
        )
        yield from StackCache(rule, model.require_blocks(type(self).__name__, needed)).bind(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdMethod(StackMethod):
    """A stack cache that reuses below a threshold; a subclass says of what.

    Attributes:
        threshold: where to compute, from 0 (always; bit-identical) up.
        target_error: relative error at which reuse aims, or None to keep the threshold. Wherever
            a computed call follows reuse, what would have been predicted is compared with the
            truth, and the threshold moves towards the wanted error, by at most 8 times either way.
    """

    threshold: float = 0.1
    target_error: float | None = None

    def __post_init__(self) -> None:
        StackMethod.__post_init__(self)
        require_number(self, "threshold", self.threshold, low=0.0)
        if self.target_error is not None:
            require_number(self, "target_error", self.target_error, low=1e-6)

    def neutral(self) -> Self:
        """The cache that never reuses."""
        return replace(self, threshold=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher(Method):
    """A stack method that computes everything and writes down what it sees."""

    method: StackMethod
    learnt: Learnt

    def neutral(self) -> Self:
        """The watcher itself: it changes nothing."""
        return self

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the method's hooks."""
        yield from self.method._hooks(model, self.learnt)  # noqa: SLF001 -- its other half
