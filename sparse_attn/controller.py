"""Budgets that follow the error: every few evaluations some queries are computed exactly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.plan.samples import attend_scores, relative_error, sample_rows, scores_of
from sparse_attn.problem import Problem

# What a head may spare changes by these factors at most, faster down than up: clusters are large,
# so that the error jumps when one more is skipped, and a head would sit above its target half of
# the time. It is never more than this.
_DOWN, _UP = 0.4, 1.5
_MOST_SPARED = 0.9
# A head that may spare less than this of its mass goes dense.
_LEAST_SPARED = 0.002


@dataclass(frozen=True, slots=True)
class Controller:
    """Steers the share of mass that every head keeps, so that its error stays at a target.

    The share that a head spares grows while its sampled error is below the target and shrinks while
    it is above: to first order the error is in proportion to it. A head that can spare next to
    nothing goes dense, and stays so for the generation.

    Attributes:
        target: relative L2 error of the output, above 0.
        every: evaluations from one look to the next.
        rows: queries that are sampled of every head.
    """

    target: float
    every: int = 5
    rows: int = 48

    def shares(self, problem: Problem, start: float) -> Tensor:
        """The share of mass that every head keeps now, [G].

        Args:
            problem: the attention.
            start: the share before the first look.
        """
        shares = problem.memory.lists.get("shares")
        if shares is None:
            return torch.full((problem.groups,), start, device=problem.device)
        return torch.tensor(shares, device=problem.device)

    def observe(self, problem: Problem, out: Tensor, shares: Tensor) -> None:
        """Looks at an output, if it is time to, and grants new shares. Waits for the device then.

        Args:
            problem: the attention.
            out: [B, H, N, D], computed with the shares.
            shares: [G].
        """
        numbers = problem.memory.numbers
        due = numbers.get("next look", 0)
        if problem.call.step < due:
            return
        numbers["next look"] = problem.call.step + self.every
        errors = sampled_error(problem, out, self.rows)
        spared = (1 - shares) * (self.target / errors.clamp(min=1e-12)).clamp(_DOWN, _UP)
        spared = spared.clamp(max=_MOST_SPARED)
        over = spared < _LEAST_SPARED
        problem.memory.lists["shares"] = torch.where(over, 1.0, 1 - spared).tolist()
        numbers["error"] = float(errors.max())


def sampled_error(problem: Problem, out: Tensor, count: int) -> Tensor:
    """Relative L2 error of an output at sampled queries of the picture, [G].

    Args:
        problem: the attention.
        out: [B, H, N, D].
        count: queries to sample, the same places in every head.
    """
    rows = sample_rows(problem.place.length, count, problem.seed(1)) + problem.place.start
    rows = rows.to(problem.device)
    heads = problem.attention.query.shape[1]
    scores = scores_of(
        problem.query[:, rows], problem.key, scale=problem.scale, valid=problem.valid(heads)
    )
    return relative_error(out.flatten(0, 1)[:, rows], attend_scores(scores, problem.value))
