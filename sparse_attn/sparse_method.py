"""What every sparse attention shares: when it stays dense, what computes it, what is reported."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from accel.errors import AccelUnsupportedError
from accel.method import Binding, Claim, Method, require_number
from accel.sites import ModelSites
from sparse_attn.backends.choose import check_name
from sparse_attn.plan.plan import Plan
from sparse_attn.problem import Problem

Run = Callable[[Plan], tuple[Tensor, Tensor]]
"""Computes a plan: output [B, H, N, D] and LSE [B, H, N] in base 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMethod(Method):
    """Base of the methods that compute some of the scores of self-attention.

    Text is always seen, and sees everything; padding is seen by nobody. What a method cannot take
    stays dense and is reported with its reason: attention that is causal, has dropout, needs
    gradients or a mask of more than missing keys, whose picture is not found, or that no backend
    gains on. A backend asked for by name that cannot take the tensors is an error. A launch that
    fails falls back to the next backend, once, and is reported.

    Attributes:
        dense_steps: share of the first evaluations that stay dense, 0 to 1. Where the number of
            evaluations is not known it is taken to be 50.
        dense_layers: share of the first attention modules that stay dense, 0 to 1, rounded down.
        min_tokens: sequences of fewer tokens stay dense; None for those that are predicted not to
            gain on this device.
        backend: "triton", "xformers", "torch" or "reference", or None for what suits the device.
        seed: of everything that is drawn.

    Raises:
        OptionError: for a value outside its range.
    """

    dense_steps: float = 0.2
    dense_layers: float = 0.03
    min_tokens: int | None = None
    backend: str | None = None
    seed: int = 0

    order: ClassVar[int] = 300
    claims: ClassVar[frozenset[Claim]] = frozenset({Claim.REPLACES_ATTENTION})

    def __post_init__(self) -> None:
        require_number(self, "dense_steps", self.dense_steps, low=0.0, high=1.0)
        require_number(self, "dense_layers", self.dense_layers, low=0.0, high=1.0)
        if self.min_tokens is not None:
            require_number(self, "min_tokens", self.min_tokens, low=0, whole=True)
        require_number(self, "seed", self.seed, low=0, whole=True)
        check_name(self, self.backend)
        self._check()

    def _check(self) -> None:
        """Checks the options of the method at hand."""

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of its self-attention.

        Raises:
            AccelUnsupportedError: if the model has no self-attention over a picture or clip.
        """
        from sparse_attn.engine import Engine  # noqa: PLC0415 -- it knows what this class is

        if not model.attention:
            raise AccelUnsupportedError(
                f"{type(self).__name__} works on self-attention over a picture or a clip, but "
                f"found none in {model.name}. Add the name that its blocks give it to "
                "ATTENTION_NAMES in accel/specs.py, or choose another method "
                "(`accel.methods()` lists them)."
            )
        yield from Engine(self, len(model.attention)).bind(model)

    @property
    @abstractmethod
    def computes_all(self) -> bool:
        """Whether these settings ask for every score, so that attention is left alone."""

    @property
    def expected_density(self) -> float:
        """Share of the scores that is taken to be computed, where a gain is predicted."""
        return 0.25

    def clusters(self, tokens: int) -> int:  # noqa: ARG002 -- most have none
        """Centroids that every token is compared with."""
        return 0

    def unfit(self, problem: Problem) -> str | None:  # noqa: ARG002 -- most take everything
        """Why this attention has to stay dense, in a few words, or None."""
        return None

    @abstractmethod
    def plan(self, problem: Problem) -> Plan | None:
        """What is computed, or None for everything."""

    def answer(self, problem: Problem, run: Run) -> Tensor | None:
        """The attention's output [B, H, N, D], or None for what the model would have had."""
        plan = self.plan(problem)
        return None if plan is None else run(plan)[0]

    def dense_evaluations(self, steps: int | None) -> int:
        """How many first evaluations stay dense of so many, None where that is not known."""
        return math.ceil(self.dense_steps * (50 if steps is None else steps) - 1e-9)


def lattice_needed(problem: Problem) -> str | None:
    """Why a method that goes by places cannot take this attention, or None if it can."""
    return None if problem.place.lattice else "how the picture's tokens lie is not known"
