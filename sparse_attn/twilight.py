"""Twilight: single keys chosen by their share of the softmax, among what was chosen by clusters."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from accel.method import Tunable
from sparse_attn.blocks import require_share
from sparse_attn.kernels.top_p import keep_mass
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.segments import segment_of_places, with_text
from sparse_attn.problem import Problem
from sparse_attn.semantic import LOG2E, SemanticMethod, Side
from sparse_attn.svg2 import heaviest
from sparse_attn.tiles import TileList


@dataclass(frozen=True, slots=True, kw_only=True)
class Twilight(SemanticMethod):
    """SVG2 with a second filter: of the keys chosen by clusters, those that hold most of the mass.

    The mean of a cluster of queries says how much each single key weighs. By bisection of a
    threshold, without sorting, the smallest set that holds `token_p` of the mass is kept.

    Source: arXiv 2502.02770, which puts this behind any selector; 0.95 is within its range for
    language models. Departures: the selector in front is SVG2's; the estimate is in full precision,
    not from 4-bit keys; queries share it by cluster. It takes memory in proportion to the clusters
    of queries times the keys.

    Attributes:
        token_p: share of the mass of the keys chosen by clusters that is kept, above 0.
    """

    top_p: float = 0.98
    token_p: float = 0.95

    source: ClassVar[str] = "arXiv 2502.02770"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("token_p", 0.5, 0.99, "down"),
        Tunable("top_p", 0.5, 0.99, "down"),
    )

    def _check(self) -> None:
        SemanticMethod._check(self)  # noqa: SLF001 -- its own base
        require_share(self, "token_p", self.token_p)

    def neutral(self) -> Self:
        """Filters that let everything through."""
        return replace(self, top_p=1.0, density=None, token_p=1.0)

    @property
    def computes_all(self) -> bool:
        """Whether both filters let everything through."""
        return self.token_p >= 1 and (self.top_p if self.density is None else self.density) >= 1

    def _choose(
        self, problem: Problem, queries: Side, keys: Side, scores: Tensor, share: float | Tensor
    ) -> Plan:
        clusters = with_text(heaviest(self, queries, keys, scores, share))
        order, sizes = keys.segments.order, keys.segments.sizes
        assert order is not None, "clustered tokens have an order"
        places = segment_of_places(sizes)
        seen = clusters.gather(2, places[:, None].expand(-1, clusters.shape[1], -1))
        key = problem.key.repeat_interleave(len(order) // len(problem.key), 0)
        key = key.gather(1, order[..., None].expand_as(key)).to(queries.mean.dtype)
        weights = queries.mean @ key.mT * (problem.scale * LOG2E)
        # Text and padding are no matter of choice.
        count = keys.sizes.shape[1]
        chosen = (places > 0) & (places <= count)
        weights = weights.masked_fill(~(queries.segments.parts(seen) & chosen[:, None]), -math.inf)
        keep = keep_mass(weights, self.token_p) if self.token_p < 1 else weights > -math.inf
        queries.segments.parts(seen).logical_and_(keep | ~chosen[:, None])
        tiles = TileList.from_blocks(seen, queries.segments.sizes, torch.ones_like(order))
        return Plan(tiles, queries.segments.order, order)
