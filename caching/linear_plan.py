"""LinearPlan: a fixed set of computed steps, and weights that predict the others from them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from accel.errors import OptionError
from accel.method import Binding, Claim, Method, Tunable, require_number
from accel.sites import ModelSites
from accel.work import Run
from caching.fixed_steps import Planned, Spread
from caching.predictor import Hold, Predictor, Weighted, require_predictor
from caching.prices import stack_run
from caching.stack import StackCache, StackRule

# Distilled models spend each of their few evaluations on a large change.
_FEW = 8
_LEAST_SHARE = 0.01
Weights = tuple[tuple[int, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearPlan(Method):
    """Computes chosen steps; in the others the stack's residual is a weighted sum of computed ones.

    Nothing is measured: no probe block, no wait for the device, no graph break, and every rank of
    a distributed run decides alike. A generation of another number of evaluations than the plan was
    made for computes throughout and says so.

    Source: step masks as cache-dit's SCM has them; weights per skipped step after the plans of
    DPCache and CEM (arXiv 2512.23258). Departures: weights act on the residual of the stack, not
    on the model's output, so that embedding, modulation and output layers are always fresh.

    Attributes:
        compute: the evaluations that compute, counted from 0, which is always among them; None
            computes all, or what `share` says.
        share: how many of the evaluations compute, above 0 to 1, instead of `compute` and for any
            number of them. The first and the last one always do, and all of up to 8.
        power: how densely they lie at the start, with `share`: 1 spaces them evenly, above 1 the
            gaps grow. The first evaluations decide what the picture shows.
        steps: evaluations of the generation that the plan is for, 1 or more, or None for any.
        weights: pairs (evaluation, weights) for skipped evaluations; the weights multiply the
            newest computed residuals, newest first.
        predictor: what predicts at skipped evaluations without weights.

    Raises:
        OptionError: for an evaluation outside of the plan, weights for a computed evaluation, or
            more weights than evaluations computed before it.
    """

    compute: tuple[int, ...] | None = None
    share: float | None = None
    power: float = 2.0
    steps: int | None = None
    weights: Weights = ()
    predictor: Predictor = field(default=Hold())

    order: ClassVar[int] = 100
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.SKIPS_BLOCKS})
    source: ClassVar[str] = "https://github.com/vipshop/cache-dit (SCM), arXiv 2512.23258"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("share", 0.15, 1.0, "down"),)

    def __post_init__(self) -> None:
        if self.steps is not None:
            require_number(self, "steps", self.steps, low=1, whole=True)
        require_predictor(self, self.predictor)
        self._check_share()
        for step in self.compute if self.compute is not None else (0,):
            require_number(self, "compute", step, low=0, high=self._last, whole=True)
        if self.compute is not None and 0 not in self.compute:
            raise OptionError(
                f"LinearPlan: compute is {self.compute!r}; expected 0 among them: the first "
                "evaluation has nothing to reuse."
            )
        for step, weights in self.weights:
            self._check_weights(step, weights)

    def _check_share(self) -> None:
        require_number(self, "power", self.power, low=1.0, high=10.0)
        if self.share is None:
            return
        require_number(self, "share", self.share, low=_LEAST_SHARE, high=1.0)
        if self.compute is not None or self.weights or self.steps is not None:
            raise OptionError(
                "LinearPlan: share is given beside compute, steps or weights; expected either a "
                "share of any number of evaluations or a plan for a known one."
            )

    def _check_weights(self, step: Any, weights: Sequence[Any]) -> None:
        require_number(self, "weights", step, low=1, high=self._last, whole=True)
        before = sum(computed < step for computed in self.compute or ())
        if self.compute is None or step in self.compute:
            problem = f"evaluation {step!r}, which the plan does not skip"
        elif not 1 <= len(weights) <= before:
            problem = (
                f"{len(weights)} numbers for evaluation {step}, before which {before} are computed"
            )
        else:
            for weight in weights:
                require_number(self, "weights", weight, low=-1e6, high=1e6)
            return
        raise OptionError(f"LinearPlan: weights has {problem}.")

    @property
    def _last(self) -> float:
        return math.inf if self.steps is None else self.steps - 1

    def neutral(self) -> Self:
        """The plan that computes every step."""
        return replace(self, compute=None, share=None, weights=())

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the stack.

        Raises:
            AccelUnsupportedError: if the model has no stack of blocks.
        """
        blocks = model.require_blocks("LinearPlan", 1)
        policy = self._policy()
        rule = StackRule(policy=policy, predictor=self.predictor, min_steps=self._min_steps)
        yield from StackCache(rule, blocks).bind(model)

    def price(self, model: ModelSites, run: Run) -> Run:
        """The stack runs at the computed evaluations only."""
        blocks = model.require_blocks("LinearPlan", 1)
        policy = self._policy()
        return stack_run(run, blocks, policy, self.predictor, min_steps=self._min_steps)

    def _policy(self) -> Planned | Spread:
        if self.share is not None:
            return Spread(share=self.share, power=self.power)
        return self._of_known_number()

    @property
    def _min_steps(self) -> int:
        return 0 if self.share is None else _FEW

    def _of_known_number(self) -> Planned:
        predictors = {step: Weighted(weights) for step, weights in self.weights}
        compute = None if self.compute is None else frozenset(self.compute)
        return Planned(compute=compute, steps=self.steps, predictors=predictors)
