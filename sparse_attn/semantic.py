"""Queries and keys of every head in clusters of similar ones: the base of SVG2 and its kin."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from accel.errors import OptionError
from accel.method import require_number
from sparse_attn.controller import Controller
from sparse_attn.kernels.assign import assign
from sparse_attn.kernels.permute import cluster_stats
from sparse_attn.plan.clusters import drift, first_centroids, in_series, lloyd
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.segments import Segments, sort_tokens
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import Run, SparseMethod

LOG2E = math.log2(math.e)
_INT16 = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The queries or the keys of every head, in clusters.

    Attributes:
        segments: the tokens, sorted.
        mean: [G, C, D] of each cluster, 0 for empty ones, fp32.
        square: [G, C, D] mean of squares likewise.
        statistics: mean and mean of squares of other vectors [Gx, N, D] of the same tokens, by
            the same clusters.
    """

    segments: Segments
    mean: Tensor
    square: Tensor
    statistics: Callable[[Tensor], tuple[Tensor, Tensor]]

    @property
    def sizes(self) -> Tensor:
        """[G, C] tokens of each cluster."""
        return self.segments.picture


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticMethod(SparseMethod):
    """Base of the methods that cluster.

    A picture of fewer tokens than clusters were asked for stays dense, and the report says so.

    Attributes:
        q_clusters: clusters of each head's queries, from 1; None for one for every 128 tokens.
        k_clusters: clusters of each head's keys, from 1; None for one for every 75 tokens.
        top_p: share of the softmax's mass, as the centroids estimate it, that is kept, above 0.
        min_kc_ratio: share of the key clusters that every query cluster sees in any case.
        density: share of the picture's scores that is computed, above 0 to 1, instead of `top_p`.
        error: relative error of every head's output that is steered for, above 0, or None for the
            same budget in every head. Starts from `top_p`.
        first_iterations: steps of k-means at first use.
        iterations: steps of k-means whenever tokens are assigned anew.
        recluster: evaluations after which tokens are assigned anew, from 1.
        max_drift: how far the means of clusters may move, as a share of their spread, before that.
    """

    q_clusters: int | None = None
    k_clusters: int | None = None
    top_p: float = 0.9
    min_kc_ratio: float = 0.1
    density: float | None = None
    error: float | None = None
    first_iterations: int = 5
    iterations: int = 1
    recluster: int = 8
    max_drift: float = 0.1

    def _check(self) -> None:
        tiny = torch.finfo(torch.float32).tiny
        for name in ("q_clusters", "k_clusters"):
            if getattr(self, name) is not None:
                require_number(self, name, getattr(self, name), low=1, whole=True)
        require_number(self, "top_p", self.top_p, low=tiny, high=1.0)
        require_number(self, "min_kc_ratio", self.min_kc_ratio, low=0.0, high=1.0)
        if self.density is not None:
            require_number(self, "density", self.density, low=tiny, high=1.0)
        if self.error is not None:
            require_number(self, "error", self.error, low=tiny)
        if self.density is not None and self.error is not None:
            raise OptionError(
                f"{type(self).__name__}: density is {self.density!r} and error {self.error!r}; "
                "expected one of them, since the budget is either fixed or follows the error."
            )
        for name in ("first_iterations", "iterations"):
            require_number(self, name, getattr(self, name), low=0, whole=True)
        require_number(self, "recluster", self.recluster, low=1, whole=True)
        require_number(self, "max_drift", self.max_drift, low=0.0)

    def neutral(self) -> Self:
        """The budget that pays for everything."""
        return replace(self, top_p=1.0, density=None)

    @property
    def computes_all(self) -> bool:
        """Whether the budget pays for every score."""
        return (self.top_p if self.density is None else self.density) >= 1

    @property
    def expected_density(self) -> float:
        """The density asked for, or a quarter."""
        return 0.25 if self.density is None else self.density

    def clusters(self, tokens: int) -> int:
        """Clusters of queries and keys together."""
        return sum(self._counts(tokens))

    def unfit(self, problem: Problem) -> str | None:
        """Too few tokens for the clusters asked for."""
        most = max(self._counts(problem.place.length))
        if most <= problem.place.length:
            return None
        return f"{most} clusters are more than the picture's {problem.place.length} tokens"

    def answer(self, problem: Problem, run: Run) -> Tensor | None:
        """The attention's output; where an error is steered for, it is looked at."""
        if self.error is None:
            return run(self._planned(problem, self.top_p))[0]
        controller = Controller(self.error)
        shares = controller.shares(problem, self.top_p)
        out = run(self._planned(problem, shares))[0]
        controller.observe(problem, out, shares)
        return out

    def plan(self, problem: Problem) -> Plan:
        """What is computed with the budget that all heads start from."""
        return self._planned(problem, self.top_p)

    def _planned(self, problem: Problem, share: float | Tensor) -> Plan:
        counts = self._counts(problem.place.length)
        queries = self._side(problem, "query clusters", problem.query, counts[0])
        keys = self._side(problem, "key clusters", problem.key, counts[1])
        scores = queries.mean @ keys.mean.mT * (problem.scale * LOG2E)
        scores = scores + keys.sizes.float().log2()[:, None]
        return self._choose(problem, queries, keys, scores, share)

    @abstractmethod
    def _choose(
        self, problem: Problem, queries: Side, keys: Side, scores: Tensor, share: float | Tensor
    ) -> Plan:
        """The plan, from what the centroids say.

        Args:
            problem: the attention.
            queries: in clusters.
            keys: likewise.
            scores: [G, QC, KC] log2 of each key cluster's weight for each query cluster.
            share: of the mass that is kept; [G] where every head has its own.
        """

    def _counts(self, tokens: int) -> tuple[int, int]:
        q_count = max(1, tokens // 128) if self.q_clusters is None else self.q_clusters
        return q_count, max(1, tokens // 75) if self.k_clusters is None else self.k_clusters

    def _side(self, problem: Problem, name: str, x: Tensor, count: int) -> Side:
        centroids, labels, stale = self._labels(problem, name, problem.picture(x), count)
        share = problem.groups // len(x)
        # Padding is no key, but a query as any other.
        queries = name.startswith("query")
        valid = None if queries else problem.valid(len(x) // len(problem.attention.query))
        segments = sort_tokens(
            labels, count, start=problem.place.start, tokens=problem.tokens, valid=valid
        )
        statistics = partial(_statistics, segments, share)
        mean, square = statistics(x)
        numbers = problem.memory.numbers
        numbers[f"{name} drift"] = (
            float(drift(mean[::share], centroids, segments.picture)) if stale else 0.0
        )
        return Side(segments.shared_by(share), mean, square, statistics)

    def _labels(
        self, problem: Problem, name: str, x: Tensor, count: int
    ) -> tuple[Tensor, Tensor, bool]:
        """Centroids, labels of all tokens, and whether these are from an earlier evaluation."""
        numbers, kept, step = problem.memory.numbers, problem.kept(name), problem.call.step
        if kept is None:
            first = first_centroids(x, count, problem.seed(self.seed))
            centroids = in_series(lloyd(x, first.float(), self.first_iterations))
        else:
            due = step - numbers[f"{name} assigned"] >= self.recluster
            labels = kept.context
            assert labels is not None, "labels are kept beside the centroids"
            if not due and numbers[f"{name} drift"] <= self.max_drift:
                return kept.hidden, labels.to(torch.int32), True
            centroids = lloyd(x, kept.hidden.float(), self.iterations)
        labels = assign(x, centroids)
        numbers[f"{name} assigned"] = step
        narrow = labels.to(torch.int16) if count < _INT16 else labels
        problem.keep(name, centroids.to(x.dtype), narrow)
        return centroids, labels, False


def _statistics(segments: Segments, share: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and mean of squares of every part of the picture, [G, C, D]."""
    assert segments.order is not None, "clustered tokens have an order"
    mean, square = (
        segments.parts(each).repeat_interleave(share, 0)
        for each in cluster_stats(x, segments.order, segments.sizes)
    )
    return mean, square
