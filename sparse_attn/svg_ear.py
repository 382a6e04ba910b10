"""SVG-EAR: clusters that are skipped count by their centroids; where that errs most is computed."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from accel.method import Tunable, require_number
from sparse_attn.plan.budget import density_of, keep_density
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.samples import attend_scores, relative_error, sample_rows, scores_of
from sparse_attn.plan.segments import make_plan, with_text
from sparse_attn.plan.tails import tail_scores
from sparse_attn.problem import Problem
from sparse_attn.semantic import SemanticMethod, Side
from sparse_attn.svg2 import heaviest

_GATE_ROWS = 32
_GATE_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SVGEAR(SemanticMethod):
    """SVG2 in which clusters that are not computed take part in the softmax by their centroids.

    A skipped cluster is one key, the mean of its keys, with the mean of its values and the weight
    of its number. Its spread raises that weight in second order, where this was seen to help. What
    is computed exactly are the pairs for which the centroid would err most for each score saved.

    Source: arXiv 2603.08982 (centroids and routing by error). Departures: those of SVG2; the term
    of second order, limited to `max_correction` and left out in heads where sampled queries are
    better without it; the error of a pair is estimated from the variances of keys and values in
    closed form, with no probe.

    Attributes:
        second_order: whether the spread of a cluster's keys counts.
        max_correction: what that term may add to a cluster's score for the average query, in nats.
        routing: whether what is computed is chosen by the centroids' error, else by mass.
    """

    second_order: bool = True
    max_correction: float = 1.0
    routing: bool = True

    source: ClassVar[str] = "arXiv 2603.08982"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("top_p", 0.3, 0.99, "down"),
        Tunable("dense_steps", 0.0, 0.4, "down"),
    )

    def _check(self) -> None:
        # What `dataclass` makes of `slots` has no class for a bare `super()`.
        SemanticMethod._check(self)  # noqa: SLF001 -- its own base
        require_number(self, "max_correction", self.max_correction, low=0.0)

    def _choose(
        self, problem: Problem, queries: Side, keys: Side, scores: Tensor, share: float | Tensor
    ) -> Plan:
        values, squares = keys.statistics(problem.value)
        spread = (keys.square - keys.mean.square()).clamp(min=0)
        keep = heaviest(self, queries, keys, scores, share)
        if self.routing:
            budget = density_of(keep, queries.sizes, keys.sizes)
            value_spread = (squares - values.square()).clamp(min=0).sum(-1)
            error = compensation_error(problem.scale, queries, spread, scores, values, value_spread)
            priority = error / keys.sizes.clamp(min=1)[:, None]
            keep = keep_density(priority, budget, queries.sizes, keys.sizes)
        segments = queries.segments, keys.segments
        plain = make_plan(keep, *segments, tail=(keys.mean, values, None))
        if not self.second_order:
            return plain
        limited = spread * self._limit(problem, queries, spread)[..., None]
        bent = make_plan(keep, *segments, tail=(keys.mean, values, limited))
        gates = self._gates(problem, queries, keys, keep, (plain, bent))
        gated = limited * torch.tensor(gates, device=limited.device)[:, None, None]
        assert bent.tail is not None
        return replace(bent, tail=replace(bent.tail, variance=gated))

    def _limit(self, problem: Problem, queries: Side, spread: Tensor) -> Tensor:
        """[G, K] what the spread is scaled by, so that the term stays within its limit."""
        weight = queries.sizes[..., None].float()
        average = (queries.square * weight).sum(1) / weight.sum(1)
        term = (spread @ average[..., None])[..., 0] * (problem.scale**2 / 2)
        return (self.max_correction / term.clamp(min=1e-12)).clamp(max=1)

    def _gates(
        self,
        problem: Problem,
        queries: Side,
        keys: Side,
        keep: Tensor,
        plans: tuple[Plan, Plan],
    ) -> list[float]:
        """1 for heads in which sampled queries are better with the term, else 0."""
        memory = problem.memory
        due = memory.numbers.get("next gate", 0)
        if problem.call.step >= due:
            memory.numbers["next gate"] = problem.call.step + _GATE_EVERY
            plain, bent = compare_tails(problem, queries, keys, keep, plans)
            memory.lists["gates"] = (bent < plain).float().tolist()
        return memory.lists["gates"]


def compensation_error(
    scale: float,
    queries: Side,
    spread: Tensor,
    scores: Tensor,
    values: Tensor,
    value_spread: Tensor,
) -> Tensor:
    """How far a cluster's centroid moves the output if it stands in for it, [G, QC, KC].

    That is its mass times the deviation of its scores times that of its values, for what the one
    has to do with the other is lost, plus the mass that a mean of exponentials has more than the
    exponential of a mean, times how far its values are from the output.

    Args:
        scale: of the scores.
        queries: in clusters.
        spread: [G, KC, D] variance of the keys.
        scores: [G, QC, KC] log2 weights.
        values: [G, KC, D] means.
        value_spread: [G, KC] variance of the values, summed over D.
    """
    mass = (scores * math.log(2)).softmax(-1)
    variance = queries.mean.square() @ spread.mT * scale**2
    out = mass @ values
    apart = torch.cdist(out, values)
    return mass * (variance.sqrt() * value_spread.sqrt()[:, None] + variance / 2 * apart)


def compare_tails(
    problem: Problem, queries: Side, keys: Side, keep: Tensor, plans: tuple[Plan, Plan]
) -> list[Tensor]:
    """Relative errors [G] of the plans, which compute the same pairs, at sampled queries.

    Args:
        problem: the attention.
        queries: in clusters.
        keys: likewise.
        keep: [G, QC, KC] which pairs are computed.
        plans: with different tails.
    """
    rows = sample_rows(problem.place.length, _GATE_ROWS, problem.seed(2)) + problem.place.start
    rows = rows.to(problem.device)
    q = problem.query[:, rows].float()
    valid = problem.valid(problem.attention.query.shape[1])
    scores = scores_of(q, problem.key, scale=problem.scale, valid=valid)
    exact = attend_scores(scores, problem.value)
    segments = queries.segments.of_tokens[:, rows]
    seen = with_text(keep).gather(1, segments[..., None].expand(-1, -1, keep.shape[2] + 3))
    seen = seen.gather(2, keys.segments.of_tokens[:, None].expand(-1, len(rows), -1))
    computed = scores.masked_fill(~seen, -math.inf)
    values = problem.value.float().repeat_interleave(len(q) // len(problem.value), 0)
    errors = []
    for plan in plans:
        assert plan.tail is not None
        tail = replace(plan.tail, segments=segments)
        together = torch.cat([computed, tail_scores(q, tail, problem.scale)], -1)
        out = attend_scores(together, torch.cat([values, plan.tail.values], 1))
        errors.append(relative_error(out, exact))
    return errors
