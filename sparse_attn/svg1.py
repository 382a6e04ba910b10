"""SVG1: every head looks along a frame or along time, and which of them is measured."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from accel.method import Tunable, require_number
from sparse_attn.blocks import BlockMethod, on_device, raster, require_share
from sparse_attn.plan.bands import band
from sparse_attn.plan.curve import frames_last_ranks
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.samples import attend_scores, sample_rows, scores_of
from sparse_attn.plan.segments import make_plan, sort_tokens
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import lattice_needed


@dataclass(frozen=True, slots=True, kw_only=True)
class SVG1(BlockMethod):
    """Computes a band of scores: around the diagonal of frames, or of positions.

    Spatial heads see what is near in the order of frames, rows and columns; temporal heads what is
    near where all frames of one position follow each other. At every evaluation sampled queries
    tell, for each head, which of the two errs less.

    Source: arXiv 2502.01776; the density is its code's for Wan (HunyuanVideo 0.25). Departures:
    queries are sampled from the whole picture, the same in every head; the band is of blocks; no
    sink in the first frame.

    Attributes:
        density: share of the picture's scores in the band, above 0.
        rows: queries that are sampled, from 1.
    """

    density: float = 0.3
    rows: int = 64

    source: ClassVar[str] = "arXiv 2502.01776"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("density", 0.1, 0.8, "down"),
        Tunable("dense_steps", 0.0, 0.4, "down"),
    )

    def _check(self) -> None:
        BlockMethod._check(self)  # noqa: SLF001 -- its own base
        require_share(self, "density", self.density)
        require_number(self, "rows", self.rows, low=1, whole=True)

    def neutral(self) -> Self:
        """The band that holds everything."""
        return replace(self, density=1.0)

    @property
    def computes_all(self) -> bool:
        """Whether the band holds everything."""
        return self.density >= 1

    @property
    def expected_density(self) -> float:
        """The band's."""
        return self.density

    def unfit(self, problem: Problem) -> str | None:
        """A picture of a single block, or one whose lattice is not known."""
        return lattice_needed(problem) or BlockMethod.unfit(self, problem)

    def plan(self, problem: Problem) -> Plan:
        """What is computed."""
        lattice = problem.place.lattice
        assert lattice is not None, "`unfit` says so otherwise"
        spatial, temporal = (
            torch.from_numpy(ranks // self.block).to(problem.device)
            for ranks in (raster(problem.place.length), frames_last_ranks(lattice))
        )
        count = -(-problem.place.length // self.block)
        keep = on_device(band(count, self.density), problem)
        errors = self._errors(problem, keep, (spatial, temporal))
        labels = torch.where((errors[1] < errors[0])[:, None], temporal, spatial).to(torch.int32)
        heads = problem.attention.query.shape[1]
        start, tokens = problem.place.start, problem.tokens
        queries = sort_tokens(labels, count, start=start, tokens=tokens)
        keys = sort_tokens(labels, count, start=start, tokens=tokens, valid=problem.valid(heads))
        return make_plan(keep.expand(problem.groups, -1, -1), queries, keys)

    def _errors(
        self, problem: Problem, keep: Tensor, orders: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Squared error [G] of the band in either order, at sampled queries."""
        places = sample_rows(problem.place.length, self.rows, problem.seed(self.seed))
        places = places.to(problem.device)
        q = problem.query[:, places + problem.place.start]
        valid = problem.valid(problem.attention.query.shape[1])
        scores = scores_of(q, problem.key, scale=problem.scale, valid=valid)
        exact = attend_scores(scores, problem.value)
        found = []
        for labels in orders:
            seen = keep.new_ones(len(places), problem.tokens)
            problem.picture(seen)[:] = keep[labels[places]][:, labels]
            out = attend_scores(scores.masked_fill(~seen, -math.inf), problem.value)
            found.append((out - exact).square().sum((1, 2)))
        return found[0], found[1]
