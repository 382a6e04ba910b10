"""TaylorSeer: what blocks or modules do, forecast from how it changed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.errors import OptionError
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites
from accel.work import Run
from caching.fixed_steps import Interval
from caching.outputs import Group, OutputCache, OutputRule, parts_of
from caching.predictor import Damped, Newton, Predictor
from caching.prices import outputs_run, stack_run
from caching.stack import StackCache, StackRule

TARGETS = ("modules", "stack")
# From here on an extrapolation leaves what its samples can vouch for.
_SAFE_AGE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TaylorSeer(Method):
    """Computes at every n-th evaluation; in between, forecasts every attention and MLP output.

    Or what the whole stack of blocks adds to its streams: one tensor instead of hundreds, no module
    runs at all in between, and compiled blocks keep their graphs.

    Source: arXiv 2503.06923, whose code takes an interval of 6 for FLUX and of 5 for video models,
    all at order 1. Departures: Newton's form on the noise schedule instead of backward differences
    times powers of the elapsed steps (the same at order 1 on an even schedule, and right
    elsewhere); blocks whose attention and MLP share one projection are forecast as a whole, gate
    included; damping; tail and minimum-step guards.

    Attributes:
        interval: evaluations from one computation to the next, from 1 (always).
        max_order: how many derivatives are used, 1 to 3; above 1 noise is amplified.
        damping: factor on the forecast change for every evaluation beyond the third after a
            computation, 0 (hold) to 1 (none).
        target: what is forecast: the outputs of "modules", as published, or the residual of the
            "stack".
        warmup: first evaluations that always compute.
        tail: last evaluations that always compute.
        min_steps: schedules of at most this many evaluations compute throughout.

    Raises:
        OptionError: for a value outside its range.
    """

    interval: int = 5
    max_order: int = 1
    damping: float = 1.0
    target: str = "modules"
    warmup: int = 3
    tail: int = 1
    min_steps: int = 8

    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})
    source: ClassVar[str] = "arXiv 2503.06923"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("interval", 1, 8, "up"),
        Tunable("damping", 0.0, 1.0, "up"),
    )

    def __post_init__(self) -> None:
        require_number(self, "interval", self.interval, low=1, whole=True)
        require_number(self, "max_order", self.max_order, low=1, high=3, whole=True)
        require_number(self, "damping", self.damping, low=0.0, high=1.0)
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        if self.target not in TARGETS:
            known = " or ".join(map(repr, TARGETS))
            raise OptionError(f"TaylorSeer: target is {self.target!r}; expected {known}.")

    def neutral(self) -> Self:
        """The cache that always computes."""
        return replace(self, interval=1)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the stack, or of the modules and of blocks without modules.

        Raises:
            AccelUnsupportedError: if the model has no stack of blocks, or no attention modules.
        """
        if self.target == "stack":
            yield from self._whole(model)
        else:
            yield from OutputCache(self._apart(model)).bind(model)

    def price(self, model: ModelSites, run: Run) -> Run:
        """The stack, or the modules, run at the computed evaluations only."""
        if self.target != "stack":
            return outputs_run(run, self._apart(model))
        return stack_run(
            run,
            model.require_blocks("TaylorSeer", 1),
            self._policy(),
            Newton(self.max_order),
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
        )

    def _policy(self) -> Interval:
        depth = Newton(self.max_order).depth
        return Interval(every=self.interval, warmup=self.warmup, samples=depth, at_age=self._at_age)

    def _whole(self, model: ModelSites) -> Iterator[Binding]:
        rule = StackRule(
            policy=self._policy(),
            predictor=Newton(self.max_order),
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
        )
        yield from StackCache(rule, model.require_blocks("TaylorSeer", 1)).bind(model)

    def _apart(self, model: ModelSites) -> OutputRule:
        model.require_attention("TaylorSeer")
        whole, modules = parts_of(model)
        groups = (
            Group(name="modules forecast", sites=modules, interval=self.interval),
            Group(name="blocks forecast", sites=whole, interval=self.interval, residual=True),
        )
        return OutputRule(
            groups=tuple(group for group in groups if group.sites),
            depth=self.max_order + 1,
            predictor=lambda _, age: self._at_age(age),
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
        )

    def _at_age(self, age: int) -> Predictor:
        newton = Newton(self.max_order)
        beyond = max(0, age - _SAFE_AGE)
        return Damped(newton, self.damping**beyond) if beyond and self.damping < 1 else newton
