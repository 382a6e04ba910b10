"""Token Sparse Attention: every head attends over the tokens that matter to it, and no others."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

from accel.method import Tunable, require_number
from sparse_attn.kernels.top_p import keep_mass
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.samples import sample_rows, scores_of
from sparse_attn.plan.segments import sort_tokens, with_text
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import SparseMethod
from sparse_attn.tiles import TileList

# The segments of the picture: what was chosen, and what was not.
_LEFT_OUT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSparse(SparseMethod):
    """Each head's queries, keys and values are cut to the tokens that sampled queries look at.

    Chosen is the smallest set of tokens that holds `1 - tau` of the attention of sampled queries.
    It attends to itself and to the text. Tokens that are left out get nothing from this head: they
    go on by what the block adds their attention to.

    Source: arXiv 2602.03216. Departures: queries are sampled from the whole picture, where language
    models take the last; the default of `tau` is ours; tokens are chosen anew at every evaluation.
    That outputs of left-out tokens are zero suits language models better than pictures.

    Attributes:
        tau: share of the attention that may be left out, 0 (nothing is) to below 1.
        rows: queries that are sampled, from 1.
    """

    tau: float = 0.05
    rows: int = 64

    source: ClassVar[str] = "arXiv 2602.03216"
    tunables: ClassVar[tuple[Tunable, ...]] = (Tunable("tau", 0.005, 0.5, "up"),)

    def _check(self) -> None:
        require_number(self, "tau", self.tau, low=0.0, high=1 - 1e-6)
        require_number(self, "rows", self.rows, low=1, whole=True)

    def neutral(self) -> Self:
        """Nothing is left out."""
        return replace(self, tau=0.0)

    @property
    def computes_all(self) -> bool:
        """Whether nothing is left out."""
        return self.tau == 0

    @property
    def expected_density(self) -> float:
        """Half of the tokens, twice."""
        return 0.25

    def plan(self, problem: Problem) -> Plan:
        """What is computed."""
        start, length = problem.place.start, problem.place.length
        rows = sample_rows(length, self.rows, problem.seed(self.seed)).to(problem.device) + start
        valid = problem.valid(problem.attention.query.shape[1])
        scores = scores_of(problem.query[:, rows], problem.key, scale=problem.scale, valid=valid)
        attention = (scores * math.log(2)).softmax(-1).mean(1)
        importance = problem.picture(attention).log2()
        chosen = keep_mass(importance[:, None], 1 - self.tau)[:, 0]
        labels = (~chosen).to(torch.int32)
        queries = sort_tokens(labels, 2, start=start, tokens=problem.tokens)
        keys = sort_tokens(labels, 2, start=start, tokens=problem.tokens, valid=valid)
        seen = with_text(torch.tensor([[[True, False], [False, False]]], device=labels.device))
        seen[:, _LEFT_OUT] = False
        tiles = TileList.from_blocks(seen.expand(problem.groups, -1, -1), queries.sizes, keys.sizes)
        return Plan(tiles, queries.order, keys.order)
