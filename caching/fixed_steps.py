"""Reuse at steps that are fixed before the generation: no measurement, no wait for the device."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Protocol

from accel.layers import Call
from caching.policy import Answer, Ask, Policy
from caching.predictor import Predictor

_DUE = Answer(reuse=False, reason="due in this step")
_BETWEEN = Answer(reuse=True, reason="between computed steps")
_UNKNOWN = Answer(reuse=False, reason="number of evaluations unknown", firm=True, chosen=False)


class Place(Protocol):
    """An evaluation's place in the schedule: a call of it, or what is known before there is one."""

    @property
    def step(self) -> int:
        """Evaluations before it."""

    @property
    def num_steps(self) -> int | None:
        """How many there are, if known."""

    @property
    def time(self) -> float | None:
        """Where it is on the trained schedule, from 1 (noise) to 0, if known."""


class Nothing:
    """State of a policy that remembers nothing."""

    nbytes = 0


class Fixed(Policy):
    """A policy that the step alone decides."""

    __slots__ = ()

    def new_state(self) -> Nothing:
        """Nothing is remembered."""
        return Nothing()

    def judge(self, state: Any, ask: Ask) -> Answer:  # noqa: ARG002 -- the step alone decides
        """What is due at the call's place."""
        return self.at(ask.call)

    @abstractmethod
    def at(self, place: Place) -> Answer:
        """Whether an evaluation at this place may reuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Fixed):
    """Computes the evaluations in `compute`, all if None.

    Generations of another number of evaluations than `steps` compute throughout; None takes any.
    `predictors` are those of single evaluations; the others take the usual one.
    """

    compute: frozenset[int] | None
    steps: int | None
    predictors: Mapping[int, Predictor] = field(default_factory=dict)

    idle: ClassVar[str] = "the plan computes every step"

    @property
    def engages(self) -> bool:
        """A plan of every step leaves nothing out."""
        if self.compute is None:
            return False
        return self.steps is None or len(self.compute) < self.steps

    @property
    def depth(self) -> int:
        """What the longest of the predictors needs."""
        return max((predictor.depth for predictor in self.predictors.values()), default=1)

    def at(self, place: Place) -> Answer:
        """Computes where the plan says so, or was made for another number of steps."""
        if self.steps is not None and place.num_steps != self.steps:
            reason = f"the plan is for {self.steps} steps, this run has {place.num_steps}"
            return Answer(reuse=False, reason=reason, firm=True, chosen=False)
        return _DUE if self.compute is None or place.step in self.compute else _BETWEEN

    def predictor(self, call: Call, usual: Predictor) -> Predictor:
        """The one that the plan has for this evaluation."""
        return self.predictors.get(call.step, usual)


@cache
def spread(steps: int, share: float, power: float) -> frozenset[int]:
    """A `share` of `steps` evaluations, the first and the last among them, denser at the start.

    Of n + 1 evaluations number k lies at (k / n) ** power of the way, rounded, or right behind the
    one before.
    """
    last, count = steps - 1, min(max(2, round(share * steps)), steps)
    found = [0]
    for number in range(1, count):
        placed = round(last * (number / (count - 1)) ** power)
        found.append(max(placed, found[-1] + 1))
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Fixed):
    """Computes a share of the evaluations, whatever their number, as `spread` places them."""

    share: float
    power: float

    idle: ClassVar[str] = "the plan computes every step"

    @property
    def engages(self) -> bool:
        """With a share of 1 nothing is left out."""
        return self.share < 1

    def at(self, place: Place) -> Answer:
        """Computes where the plan says so, or while the number of evaluations is unknown."""
        if place.num_steps is None:
            return _UNKNOWN
        return _DUE if place.step in spread(place.num_steps, self.share, self.power) else _BETWEEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Fixed):
    """Computes every `every`-th evaluation, counted from the last one of the warm-up.

    `at_age` gives the predictor of an evaluation that lies so many behind a computed one.
    """

    every: int
    warmup: int
    samples: int
    at_age: Callable[[int], Predictor]

    idle: ClassVar[str] = "interval 1"

    @property
    def engages(self) -> bool:
        """With an interval of 1 nothing is left out."""
        return self.every > 1

    @property
    def depth(self) -> int:
        """What its predictors need."""
        return self.samples

    def at(self, place: Place) -> Answer:
        """Computes where the interval is over."""
        return _BETWEEN if self._age(place) else _DUE

    def predictor(self, call: Call, usual: Predictor) -> Predictor:  # noqa: ARG002 -- the age decides
        """The one for the age; a computed call is checked against the longest that it ends."""
        return self.at_age(self._age(call) or self.every)

    def _age(self, place: Place) -> int:
        return max(place.step - max(self.warmup - 1, 0), 0) % self.every
