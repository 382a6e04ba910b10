"""What one attention computes: tiles, the order they stand in, and what replaces skipped keys."""

from dataclasses import dataclass

from torch import Tensor

from sparse_attn.tiles import TileList


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """Pseudo-keys that stand in one softmax for the key clusters that a query does not see.

    A cluster scores `scale * log2(e) * q.k + bias`, in log2 units, plus, where there is a
    variance, `scale**2 / 2 * log2(e) * sum(q**2 * variance)`: the second-order term of the mean
    of an exponential.

    Attributes:
        keys, values: [G, K, D] centroids of the clusters.
        bias: [G, K] log2 of each cluster's size, minus infinity for empty ones.
        variance: [G, K, D] of the keys of each cluster, or None for no second-order term.
        skipped: [G, R, K] bool, which clusters each segment of queries does not see.
        segments: [G, N] which row of `skipped` the query at each permuted place belongs to.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor
    variance: Tensor | None
    skipped: Tensor
    segments: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Which scores one attention computes.

    Attributes:
        tiles: runs of keys for runs of queries, in permuted order.
        q_order: [G, N] which original query stands at each place, or None for as they are.
        kv_order: [G, M] which original key stands at each place, or None for as they are.
        tail: what stands in for the keys that are skipped, or None for nothing.
    """

    tiles: TileList
    q_order: Tensor | None = None
    kv_order: Tensor | None = None
    tail: Tail | None = None
