"""DeepCache: hold what the deep part of a UNet hands to its shallow part, for some evaluations."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar, Self

from accel.errors import OptionError
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites
from accel.work import Run
from caching.predictor import Hold, Predictor, require_predictor
from caching.prices import unet_run
from caching.shallow import ShallowUNet
from caching.unet import UNetPath
from caching.unet_cache import UNetRule

_SCHEDULES = ("uniform", "quadratic")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepCache(Method):
    """Runs the whole UNet on one of `interval` evaluations, and its shallow part on the others.

    One feature is kept: the one that the deep part of the way up hands to the layer at which the
    branch ends. What stands above the branch runs on every evaluation, so it sees the new latents,
    the new timestep and what a ControlNet adds there.

    Source: DeepCache (arXiv 2312.00858), sections 3.2 and 3.3. The released code numbers branches
    as 3 * block + layer and counts timesteps; here evaluations are counted. Departures: warm-up,
    tail and minimum-step guards; `centre` is a share of the schedule, so that it holds for every
    number of steps; the roots of negative numbers in the quadratic schedule keep their sign.

    Attributes:
        interval: evaluations from one whole run to the next, from 1 (which changes nothing) up; 2
            to 5 is usual. The quadratic schedule has as many whole runs as the uniform one.
        block: down block in which the branch begins, counted from 0, the shallowest. Deeper is
            slower and closer to the whole run.
        layer: layers of that block that still run. With 0 its input is the last thing computed.
        schedule: "uniform", or "quadratic" for whole runs that crowd around `centre`.
        centre: where they crowd, from 0 (the start) to 1; 0.3 is the published 15 of 50.
        power: how much, from 1 (evenly spaced) up.
        predictor: what stands in for the feature between whole runs: `Hold()` as published, or an
            extrapolation along the noise schedule, such as `FoCa()`.
        warmup: first evaluations that always run whole.
        tail: last evaluations that always run whole.
        min_steps: schedules of at most this many evaluations run whole throughout.

    Raises:
        OptionError: for a value outside its range.
    """

    interval: int = 3
    block: int = 0
    layer: int = 0
    schedule: str = "uniform"
    centre: float = 0.3
    power: float = 1.4
    predictor: Predictor = field(default=Hold())
    warmup: int = 1
    tail: int = 1
    min_steps: int = 8

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})
    source: ClassVar[str] = "arXiv 2312.00858"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("interval", 1, 10, "up"),
        Tunable("block", 0, 3, "down"),
    )

    def __post_init__(self) -> None:
        require_number(self, "interval", self.interval, low=1, whole=True)
        for name in ("block", "layer", "warmup", "tail", "min_steps"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        require_number(self, "centre", self.centre, low=0.0, high=1.0)
        require_number(self, "power", self.power, low=1.0, high=10.0)
        require_predictor(self, self.predictor)
        if self.schedule not in _SCHEDULES:
            raise OptionError(
                f"{type(self).__name__}: schedule is {self.schedule!r}; expected 'uniform' or "
                "'quadratic'."
            )

    def neutral(self) -> Self:
        """With an interval of 1 every evaluation runs whole."""
        return replace(self, interval=1)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of the blocks from the branch on.

        Raises:
            AccelUnsupportedError: if the model is no UNet of the usual layout, or has no such
                branch.
        """
        yield from self._cache(model).bind()

    def price(self, model: ModelSites, run: Run) -> Run:
        """The whole UNet runs at the whole evaluations, its shallow part at the others."""
        return unet_run(run, self._cache(model))

    def _cache(self, model: ModelSites) -> ShallowUNet:
        path = UNetPath(type(self).__name__, model)
        rule = UNetRule(
            warmup=self.warmup,
            tail=self.tail,
            min_steps=self.min_steps,
            newest_whole=self._newest_whole,
            never_rests=self.interval == 1,
            predictor=self.predictor,
        )
        return ShallowUNet(rule, path, path.branch(self.block, self.layer))

    def _newest_whole(self, step: int, steps: int | None) -> int | None:
        if self.schedule == "uniform":
            # Counted from the last evaluation of the warm-up, which ran whole anyway.
            start = max(self.warmup - 1, 0)
            return step if step < start else step - (step - start) % self.interval
        if steps is None:
            return None
        runs = math.ceil(steps / self.interval)
        crowded = quadratic(steps, runs, self.centre * steps, self.power)
        return max(run for run in crowded if run <= step)


@cache
def quadratic(steps: int, runs: int, centre: float, power: float) -> tuple[int, ...]:
    """At most `runs` of `steps` evaluations, crowding around `centre`, the first among them.

    Between the signed roots of order `power` of -centre and steps - centre lie `runs` evenly spaced
    numbers, the upper end left out; their powers, shifted back by `centre` and rounded down, are
    the evaluations. Numbers that coincide count once. (arXiv 2312.00858, section 3.3.)
    """
    low, high = -_signed(centre, 1 / power), _signed(steps - centre, 1 / power)
    spaced = (low + (high - low) * index / runs for index in range(runs))
    # A root and its power are a rounding error away from the number that they started from.
    found = {math.floor(_signed(number, power) + centre + 1e-9) for number in spaced}
    return tuple(sorted({0, *(min(max(run, 0), steps - 1) for run in found)}))


def _signed(number: float, power: float) -> float:
    return math.copysign(abs(number) ** power, number)
