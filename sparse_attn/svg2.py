"""SVG2: queries and keys in clusters of similar ones, of which the heaviest pairs are computed."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from accel.method import Tunable
from sparse_attn.plan.budget import keep_density, keep_share, mass_left
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.segments import make_plan
from sparse_attn.problem import Problem
from sparse_attn.semantic import SemanticMethod, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class SVG2(SemanticMethod):
    """Computes, for each cluster of queries, the clusters of keys that hold most of its softmax.

    Each head's queries and keys are clustered by k-means after rotary embedding. Centroids and
    sizes estimate how the softmax's mass is spread over the clusters of keys, and the smallest set
    that holds `top_p` of it is computed exactly.

    Source: arXiv 2505.18875; `top_p` and `min_kc_ratio` are its code's, which takes 300 to 400
    clusters of queries, 1000 of keys, and from 10% to 35% of dense steps for different models.
    Departures: the number of clusters goes with the tokens, and queries have finer ones; first
    centroids are spread over the sequence and moved for 5 steps of k-means, not 50; tokens are
    assigned anew only every few evaluations or where the clusters' means have drifted, and means
    are always of the current tokens; guidance branches and entries of a batch have clusters of
    their own; clusters of keys are ordered so that those that are seen together are one run;
    `density` and `error`.
    """

    source: ClassVar[str] = "arXiv 2505.18875"
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("top_p", 0.5, 0.99, "down"),
        Tunable("dense_steps", 0.0, 0.4, "down"),
    )

    def _choose(
        self, problem: Problem, queries: Side, keys: Side, scores: Tensor, share: float | Tensor
    ) -> Plan:
        del problem
        keep = heaviest(self, queries, keys, scores, share)
        return make_plan(keep, queries.segments, keys.segments)


def heaviest(
    method: SemanticMethod, queries: Side, keys: Side, scores: Tensor, share: float | Tensor
) -> Tensor:
    """The pairs of clusters that a method's budget pays for, bool [G, QC, KC].

    Args:
        method: its budget is `density`, or else the share.
        queries: in clusters.
        keys: likewise.
        scores: [G, QC, KC] log2 of each key cluster's weight for each query cluster.
        share: of the mass that is kept; [G] where every head has its own.
    """
    if method.density is None:
        return keep_share(scores, share, least=method.min_kc_ratio)
    # The same share of mass in all rows of a head, so large that the density is met.
    return keep_density(mass_left(scores), method.density, queries.sizes, keys.sizes)
