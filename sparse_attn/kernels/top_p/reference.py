"""The smallest sets of items that hold a share of the mass, in plain torch."""

import torch
from torch import Tensor

# The width of the last bracket, as a share of the largest weight: below fp32's own steps.
_HALVINGS = 24


def keep_mass(scores: Tensor, p: float) -> Tensor:
    """The smallest set by thresholds whose mass is at least `p`, bool [G, R, K].

    Items of equal weight are kept or left together. The largest is always kept.

    Args:
        scores: [G, R, K] log2 of the weights; minus infinity for items that may not be kept.
        p: share of the mass of each row, above 0 to 1.
    """
    weights = torch.exp2(scores.float() - scores.float().amax(-1, keepdim=True))
    weights = weights.nan_to_num(nan=0.0)
    wanted = weights.sum(-1, keepdim=True) * p
    low = torch.zeros_like(wanted)
    high = torch.ones_like(wanted)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = weights.where(weights >= middle, 0).sum(-1, keepdim=True) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return (weights >= low) & (weights > 0)
