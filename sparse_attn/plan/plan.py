"""What one attention computes, and what stands in for what it skips."""

from dataclasses import dataclass

from torch import Tensor

from sparse_attn.tiles import TileList


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """Skipped key clusters as pseudo-keys in the same softmax.

    Attributes:
        keys, values: [G, K, D] centroids.
        bias: [G, K] log2 of each cluster's size, minus infinity for empty ones.
        variance: [G, K, D] of the keys, for the second-order term, or None.
        skipped: [G, R, K] bool, which clusters each query segment does not see.
        segments: [G, N] the row of `skipped` that holds for each query, in permuted places.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor
    variance: Tensor | None
    skipped: Tensor
    segments: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What one attention computes.

    Attributes:
        tiles: the scores that are computed, in permuted places.
        q_order: [G, N] which original query stands at each place; None where they stay.
        kv_order: [G, M] the same for keys.
        tail: what stands in for the keys that are skipped.
    """

    tiles: TileList
    q_order: Tensor | None = None
    kv_order: Tensor | None = None
    tail: Tail | None = None
