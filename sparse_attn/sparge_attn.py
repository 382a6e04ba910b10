"""SpargeAttn's selection: pooled scores of blocks, where blocks are alike enough to be pooled."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.method import Tunable, require_number
from sparse_attn.blocks import BlockMethod, block_segments, curve_of, pool, require_share
from sparse_attn.plan.budget import keep_share, largest
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.segments import make_plan
from sparse_attn.problem import Problem

_LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpargeAttn(BlockMethod):
    """Every block of queries sees the blocks of keys that hold most of its pooled softmax.

    A block whose tokens are not alike says nothing by its mean: its queries see everything, or its
    keys are seen by all, and the softmax is over the others.

    Source: arXiv 2502.18137; the defaults are its code's. Departures: queries and keys have blocks
    of one size; where the lattice is known, tokens follow a space-filling curve; the skipping of
    products within a block and 8-bit arithmetic are left to the kernels of others.

    Attributes:
        cdf: share of the pooled softmax's mass that is kept, above 0.
        topk: share of the blocks that is kept, above 0, instead of `cdf`.
        similarity: mean cosine of a block's tokens below which it is not pooled, -1 to 1.
    """

    cdf: float = 0.98
    topk: float | None = None
    similarity: float = 0.6
    dense_steps: float = 0.0

    source: ClassVar[str] = "arXiv 2502.18137"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("cdf", 0.7, 0.99, "down"),
        Tunable("similarity", -0.1, 0.8, "down"),
    )

    def _check(self) -> None:
        BlockMethod._check(self)  # noqa: SLF001 -- its own base
        require_share(self, "cdf", self.cdf)
        if self.topk is not None:
            require_share(self, "topk", self.topk)
        require_number(self, "similarity", self.similarity, low=-1.0, high=1.0)

    def neutral(self) -> Self:
        """The selection of everything."""
        return replace(self, cdf=1.0, topk=None)

    @property
    def computes_all(self) -> bool:
        """Whether the selection is of everything."""
        return (self.cdf if self.topk is None else self.topk) >= 1

    @property
    def expected_density(self) -> float:
        """The share asked for, or two fifths."""
        return 0.4 if self.topk is None else self.topk

    def plan(self, problem: Problem) -> Plan:
        """What is computed."""
        queries, keys, own_keys = block_segments(problem, curve_of(problem), self.block)
        # A mean that all keys share changes no softmax, but makes all blocks look alike.
        key = problem.key - problem.key.mean(1, keepdim=True)
        pooled_queries = pool(problem.query, queries, problem.groups)
        pooled_keys = pool(key, own_keys, problem.groups)
        scores = pooled_queries.mean @ pooled_keys.mean.mT * (problem.scale * _LOG2E)
        unlike = (pooled_keys.alike < self.similarity) & (keys.picture > 0)
        ignored = unlike | (keys.picture == 0)
        scores = scores.masked_fill(ignored[:, None], -math.inf)
        if self.topk is None:
            keep = keep_share(scores, self.cdf)
        else:
            keep = largest(scores, max(1, int(self.topk * scores.shape[-1])))
        keep = keep | unlike[:, None] | (pooled_queries.alike < self.similarity)[..., None]
        return make_plan(keep, queries, keys)
