"""Jenga's attention carving: blocks of a space-filling curve, chosen by pooled scores."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from accel.method import Tunable, require_number
from sparse_attn.blocks import (
    BlockMethod,
    block_segments,
    on_device,
    pool,
    require_share,
)
from sparse_attn.plan.budget import keep_share, largest
from sparse_attn.plan.curve import hilbert_ranks, neighbour_blocks
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.segments import make_plan
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import lattice_needed

_LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jenga(BlockMethod):
    """Every block of queries sees its best blocks of keys, its neighbours, and all text.

    Tokens follow a space-filling curve through the clip, so that a block is compact in space and
    time. A block of keys is seen if it is among the share `1 - drop_rate` with the highest pooled
    scores, belongs to the smallest set that holds `top_p` of the pooled softmax, or touches the
    block of queries.

    Source: arXiv 2505.16864; the defaults are those of its code for HunyuanVideo, whose second half
    drops 0.85. Departures: the order is Hilbert's curve through the enclosing cube; neighbours
    share a face; tokens are put in order in every module, not once for the model; no full attention
    within the first frame; its progressive resolution is a method of its own.

    Attributes:
        drop_rate: share of the blocks that is left out at most, 0 to 1.
        top_p: share of the pooled softmax's mass that is kept, above 0.
    """

    drop_rate: float = 0.75
    top_p: float = 0.3
    dense_steps: float = 0.1

    source: ClassVar[str] = "arXiv 2505.16864"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("drop_rate", 0.3, 0.9, "up"),
        Tunable("top_p", 0.1, 0.95, "down"),
    )

    def _check(self) -> None:
        BlockMethod._check(self)  # noqa: SLF001 -- its own base
        require_number(self, "drop_rate", self.drop_rate, low=0.0, high=1.0)
        require_share(self, "top_p", self.top_p)

    def neutral(self) -> Self:
        """The carving that leaves everything."""
        return replace(self, drop_rate=0.0)

    @property
    def computes_all(self) -> bool:
        """Whether no block is dropped."""
        return self.drop_rate == 0 or self.top_p == 1

    @property
    def expected_density(self) -> float:
        """The share that is not dropped."""
        return 1 - self.drop_rate

    def unfit(self, problem: Problem) -> str | None:
        """A picture of a single block, or one whose lattice is not known."""
        return lattice_needed(problem) or BlockMethod.unfit(self, problem)

    def plan(self, problem: Problem) -> Plan:
        """What is computed."""
        lattice = problem.place.lattice
        assert lattice is not None, "`unfit` says so otherwise"
        queries, keys, own_keys = block_segments(problem, hilbert_ranks(lattice), self.block)
        own_queries = pool(problem.query, queries, problem.groups)
        pooled = pool(problem.key, own_keys, problem.groups)
        scores = own_queries.mean @ pooled.mean.mT * (problem.scale * _LOG2E)
        scores = scores.masked_fill((keys.picture == 0)[:, None], -math.inf)
        count = max(1, int((1 - self.drop_rate) * scores.shape[-1]))
        keep = largest(scores, count) | keep_share(scores, self.top_p)
        near = on_device(neighbour_blocks(lattice, self.block), problem)
        return make_plan(keep | near, queries, keys)
