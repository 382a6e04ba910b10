"""FasterCache: attention extrapolated at every other step, and guidance mostly from one call."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.layers import Call
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites
from caching.guidance import GuidanceCache, GuidanceRule
from caching.outputs import Group, OutputCache, OutputRule
from caching.predictor import Differential

# The places on the trained schedule where a frequency band's difference is emphasised.
_LOW_BAND = (0.099, 0.901)
_HIGH_BAND = (-1.0, 0.301)
_UNKNOWN_WEIGHT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterCache(Method):
    """Extrapolates attention between computations; rebuilds unconditional predictions.

    Attention that is not computed is F1 + (F1 - F2) w, with F1 and F2 the newest computed outputs.
    Of guidance, both predictions are computed at every n-th evaluation; in between only the
    conditional one is, and the other one is it plus the last difference, whose low and high
    frequencies are emphasised at their time.

    Source: arXiv 2410.19355; intervals, places on the schedule and factors are those of diffusers.
    Departures: F1 and F2 are computed ones only, and of each guidance branch on its own; w is 1
    minus the place on the trained schedule where diffusers takes 0.5; the factors do not compound
    over a run of rebuilt steps; guidance in two calls is served too; which prediction is the
    unconditional one follows from names given by the pipeline, or from the arithmetic it was seen
    to do; warm-up, tail and minimum-step guards.

    Attributes:
        interval: evaluations from one computation of attention to the next, from 1 (always).
        start: share of the trained schedule below which attention is extrapolated.
        weight: w, 0 or more, or None for a rise from 0 at the schedule's begin to 1 at its end.
        guidance_interval: evaluations from one computation of both predictions to the next, from 1
            (always).
        guidance_start: share of the trained schedule below which predictions are rebuilt.
        low_weight: factor on the low frequencies of the difference until late in the schedule.
        high_weight: factor on its high frequencies late in the schedule.
        warmup: first evaluations that always compute.
        tail: last evaluations that always compute.
        min_steps: schedules of at most this many evaluations compute throughout.

    Raises:
        OptionError: for a value outside its range.
    """

    interval: int = 2
    start: float = 0.681
    weight: float | None = None
    guidance_interval: int = 5
    guidance_start: float = 0.641
    low_weight: float = 1.1
    high_weight: float = 1.1
    warmup: int = 1
    tail: int = 1
    min_steps: int = 8

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS, Claim.SKIPS_GUIDANCE})
    source: ClassVar[str] = "arXiv 2410.19355"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("interval", 1, 4, "up"),
        Tunable("guidance_interval", 1, 8, "up"),
    )

    def __post_init__(self) -> None:
        for name in ("interval", "guidance_interval"):
            require_number(self, name, getattr(self, name), low=1, whole=True)
        for name in ("warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        for name in ("start", "guidance_start"):
            require_number(self, name, getattr(self, name), low=0.0, high=1.0)
        for name in ("low_weight", "high_weight"):
            require_number(self, name, getattr(self, name), low=0.0)
        if self.weight is not None:
            require_number(self, "weight", self.weight, low=0.0)

    def neutral(self) -> Self:
        """The cache that computes everything."""
        return replace(self, interval=1, guidance_interval=1)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of its attention.

        Raises:
            AccelUnsupportedError: if the model has no attention modules.
        """
        model.require_attention("FasterCache")
        guards = {"warmup": self.warmup, "tail": self.tail, "min_steps": self.min_steps}
        group = Group(
            name="attention extrapolated",
            sites=(*model.attention, *model.temporal),
            interval=self.interval,
            window=(-1.0, self.start),
        )
        modules = OutputCache(
            OutputRule(groups=(group,), depth=2, predictor=self._predictor, **guards)
        )
        rule = GuidanceRule(
            interval=self.guidance_interval,
            start=self.guidance_start,
            weights=self._weights,
            **guards,
        )
        yield from GuidanceCache(rule, modules).bind(model)
        yield from modules.bind(model)

    def _predictor(self, call: Call, age: int) -> Differential:
        del age
        if self.weight is not None:
            return Differential(self.weight)
        return Differential(_UNKNOWN_WEIGHT if call.time is None else 1 - call.time)

    def _weights(self, time: float) -> tuple[float, float]:
        low = self.low_weight if _LOW_BAND[0] < time < _LOW_BAND[1] else 1.0
        high = self.high_weight if _HIGH_BAND[0] < time < _HIGH_BAND[1] else 1.0
        return low, high
