"""What stands in for a residual that is not computed, from those that were."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from accel.method import require_number
from accel.sites import Streams


class Sample(NamedTuple):
    """A computed residual and where on the noise schedule it was computed."""

    sigma: float
    value: Streams


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

    @abstractmethod
    def predict(self, samples: Sequence[Sample], sigma: float) -> Streams:
        """The residual at `sigma` from one or more samples, oldest first."""


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

    def predict(self, samples: Sequence[Sample], sigma: float) -> Streams:  # noqa: ARG002 -- the same at every sigma
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

    def predict(self, samples: Sequence[Sample], sigma: float) -> Streams:
        """The extrapolated residual; with a single sample, that sample."""
        # Heun's method evaluates twice at one sigma, no gap to divide by: the newer one counts.
        used = list({sample.sigma: sample for sample in samples}.values())[-self.depth :]
        weights = _lagrange([sample.sigma for sample in used], sigma)
        return _combine([sample.value for sample in used], weights)


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


def _combine(values: Sequence[Streams], weights: Sequence[float]) -> Streams:
    if len(values) == 1:
        return values[0]
    hidden = values[-1].hidden * weights[-1]
    context = None if values[-1].context is None else values[-1].context * weights[-1]
    for value, weight in zip(values[:-1], weights[:-1], strict=True):
        hidden.add_(value.hidden, alpha=weight)
        if context is not None and value.context is not None:
            context.add_(value.context, alpha=weight)
    return Streams(hidden, context)


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

    def predict(self, samples: Sequence[Sample], sigma: float) -> Streams:  # noqa: ARG002 -- the same at every sigma
        """The extrapolated residual; with a single sample, that sample."""
        values = [sample.value for sample in samples[-2:]]
        return _combine(values, [-self.weight, 1 + self.weight][-len(values) :])


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

    def predict(self, samples: Sequence[Sample], sigma: float) -> Streams:
        """The damped residual."""
        expected, newest = self.inner.predict(samples, sigma), samples[-1].value
        return _combine([newest, expected], [1 - self.share, self.share])
