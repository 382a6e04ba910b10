"""What stands in for a residual that is not computed, from those that were."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel.errors import OptionError
from accel.layers import Call
from accel.method import require_number
from accel.sites import Streams


class Sample(NamedTuple):
    """A computed residual, where on the noise schedule it was computed, and its elements' sum.

    The sum, a scalar, is not finite as soon as one element is not.
    """

    sigma: float
    value: Streams
    total: Tensor | None = None


def total_of(residual: Streams) -> Tensor:
    """The sum of a residual's elements."""
    total = residual.hidden.sum(dtype=torch.float32)
    if residual.context is None:
        return total
    return total + residual.context.sum(dtype=torch.float32)


def append(call: Call, row: deque[Sample], newest: Sample, what: str) -> Sample | None:
    """The newest sample as it is kept in its row, in the place of the oldest one.

    Where there is no room for it, the row is emptied: what it holds would be taken for newer.
    """
    if len(row) == row.maxlen:
        row.popleft()
    kept = call.keep(newest.value, what)
    if kept is None:
        row.clear()
        return None
    row.append(newest._replace(value=kept))
    return row[-1]


class Predictor(ABC):
    """Extrapolates from the newest computed samples; keeps `depth` of them."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many samples are worth keeping."""

    @property
    @abstractmethod
    def action(self) -> str:
        """What the report calls a prediction: "reused" or "forecast"."""

    @property
    def trail(self) -> int:
        """How many of the newest values, computed or predicted, it wants to see beside them."""
        return 0

    @abstractmethod
    def predict(
        self, samples: Sequence[Sample], sigma: float, trail: Sequence[Sample] = ()
    ) -> Streams:
        """The residual at `sigma` from one or more samples, and the trail, both oldest first."""


def require_predictor(owner: object, value: Any) -> None:
    """Checks a method's `predictor`.

    Raises:
        OptionError: if it is none.
    """
    if not isinstance(value, Predictor):
        raise OptionError(
            f"{type(owner).__name__}: predictor is {value!r}; expected Hold() or Newton(order)."
        )


@dataclass(frozen=True, slots=True)
class Hold(Predictor):
    """The newest residual, unchanged."""

    @property
    def depth(self) -> int:
        """One sample."""
        return 1

    @property
    def action(self) -> str:
        """Nothing new is made up."""
        return "reused"

    def predict(
        self,
        samples: Sequence[Sample],
        sigma: float,  # noqa: ARG002 -- the same at every sigma
        trail: Sequence[Sample] = (),  # noqa: ARG002 -- wants none
    ) -> Streams:
        """The newest residual."""
        return samples[-1].value


@dataclass(frozen=True, slots=True)
class Newton(Predictor):
    """Newton's interpolation through the newest `order` + 1 residuals, at the current sigma.

    TaylorSeer (arXiv 2503.06923) multiplies backward differences by powers of the elapsed steps,
    which is right for order 1 alone; divided differences are right for every order and for uneven
    gaps. Order 2 and above amplify noise at the step counts in use.
    """

    order: int = 1

    def __post_init__(self) -> None:
        require_number(self, "order", self.order, low=1, high=3, whole=True)

    @property
    def depth(self) -> int:
        """One sample more than the order."""
        return self.order + 1

    @property
    def action(self) -> str:
        """The residual is extrapolated."""
        return "forecast"

    def predict(
        self,
        samples: Sequence[Sample],
        sigma: float,
        trail: Sequence[Sample] = (),  # noqa: ARG002 -- wants none
    ) -> Streams:
        """The extrapolated residual; with a single sample, that sample."""
        # Heun evaluates twice at a noise level; the newer one counts.
        levels = {sample.sigma: sample for sample in samples}
        used = list(levels.values())[-self.depth :]
        weights = _lagrange([sample.sigma for sample in used], sigma)
        return combine([sample.value for sample in used], weights)


def _lagrange(nodes: Sequence[float], at: float) -> list[float]:
    # Lagrange's weights give the same polynomial as Newton's form, in one pass over the tensors.
    weights = []
    for i, node in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if j != i:
                weight *= (at - other) / (node - other)
        weights.append(weight)
    return weights


def combine(values: Sequence[Streams], weights: Sequence[float]) -> Streams:
    """The weighted sum of one or more values, in new tensors."""
    if len(values) == 1 and weights[0] == 1:
        return values[0]
    hidden = values[-1].hidden * weights[-1]
    context = None if values[-1].context is None else values[-1].context * weights[-1]
    for value, weight in zip(values[:-1], weights[:-1], strict=True):
        hidden.add_(value.hidden, alpha=weight)
        if context is not None and value.context is not None:
            context.add_(value.context, alpha=weight)
    return Streams(hidden, context)


@dataclass(frozen=True, slots=True)
class Weighted(Predictor):
    """A sum of the newest computed residuals with given weights, newest first."""

    weights: tuple[float, ...]

    @property
    def depth(self) -> int:
        """One sample a weight."""
        return len(self.weights)

    @property
    def action(self) -> str:
        """The residual is made from several."""
        return "forecast"

    def predict(
        self,
        samples: Sequence[Sample],
        sigma: float,  # noqa: ARG002 -- weights know the step
        trail: Sequence[Sample] = (),  # noqa: ARG002 -- wants none
    ) -> Streams:
        """The weighted sum; where samples are missing, the newest one."""
        used = list(samples)[-self.depth :]
        if len(used) < self.depth:
            return used[-1].value
        return combine([sample.value for sample in used], self.weights[::-1])


@dataclass(frozen=True, slots=True)
class Differential(Predictor):
    """The newest residual plus `weight` times its change from the one before.

    FasterCache's extrapolation (arXiv 2410.19355), wherever on the schedule the two lie.
    """

    weight: float = 0.5

    def __post_init__(self) -> None:
        require_number(self, "weight", self.weight, low=0.0)

    @property
    def depth(self) -> int:
        """Two samples."""
        return 2

    @property
    def action(self) -> str:
        """The residual is extrapolated."""
        return "forecast"

    def predict(
        self,
        samples: Sequence[Sample],
        sigma: float,  # noqa: ARG002 -- the same at every sigma
        trail: Sequence[Sample] = (),  # noqa: ARG002 -- wants none
    ) -> Streams:
        """The extrapolated residual; with a single sample, that sample."""
        used = samples[-self.depth :]
        if len(used) < self.depth:
            return used[-1].value
        return combine([sample.value for sample in used], [-self.weight, 1 + self.weight])


@dataclass(frozen=True, slots=True)
class Damped(Predictor):
    """The newest residual plus only a `share` of the change that another predictor expects."""

    inner: Predictor
    share: float

    def __post_init__(self) -> None:
        require_number(self, "share", self.share, low=0.0, high=1.0)

    @property
    def depth(self) -> int:
        """As many samples as the other predictor."""
        return self.inner.depth

    @property
    def action(self) -> str:
        """What the other predictor does."""
        return self.inner.action

    @property
    def trail(self) -> int:
        """What the other predictor wants."""
        return self.inner.trail

    def predict(
        self, samples: Sequence[Sample], sigma: float, trail: Sequence[Sample] = ()
    ) -> Streams:
        """The damped residual."""
        expected, newest = self.inner.predict(samples, sigma, trail), samples[-1].value
        return combine([newest, expected], [1 - self.share, self.share])
