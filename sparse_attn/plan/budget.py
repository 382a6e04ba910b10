"""Which scores a budget pays for: a share of the mass of the softmax, or a share of all scores."""

import math

import torch
from torch import Tensor

from sparse_attn.kernels.top_p import keep_mass

_HALVINGS = 30


def mass_left(scores: Tensor) -> Tensor:
    """The share of a row's mass in each item and all smaller ones, [G, R, K] from 0 to 1.

    An item belongs to the smallest set that holds a share p, the item that crosses it included, if
    and only if this is more than 1 - p.

    Args:
        scores: [G, R, K] log2 of the weights.
    """
    weights = (scores.float() * math.log(2)).softmax(-1)
    # Summed from the smallest, so that shares of next to nothing are told apart.
    share, order = weights.sort(dim=-1, stable=True)
    return torch.zeros_like(share).scatter_(-1, order, share.cumsum(-1))


def keep_share(scores: Tensor, p: float | Tensor, *, least: float = 0.0) -> Tensor:
    """The smallest sets that hold a share of each row's mass, bool [G, R, K].

    Args:
        scores: [G, R, K] log2 of the weights.
        p: the share, above 0 to 1; [G] where every head has its own. At 1 everything is kept.
        least: share of the items that is kept in any case, the largest first, rounded down.
    """
    if isinstance(p, Tensor):
        p = p[:, None, None]
        keep = (mass_left(scores) > 1 - p) | (p >= 1) | largest(scores, 1)
    elif p >= 1:
        keep = torch.ones_like(scores, dtype=torch.bool)
    else:
        keep = keep_mass(scores, p)
    return keep | largest(scores, int(least * scores.shape[-1]))


def largest(scores: Tensor, count: int) -> Tensor:
    """The `count` largest items of each row, bool like the scores."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    return keep.scatter_(-1, scores.topk(count, -1).indices, value=True) if count else keep


def keep_density(
    priority: Tensor, density: float | Tensor, q_sizes: Tensor, kv_sizes: Tensor
) -> Tensor:
    """The pairs of highest priority that together are a share of each head's scores, [G, Q, K].

    Every row keeps its highest in any case, also beyond the budget. Pairs of equal priority are
    kept or left together.

    Args:
        priority: [G, Q, K], 0 or more.
        density: the share, above 0 to 1; [G] where every head has its own. At 1 everything is kept.
        q_sizes: [G, Q] queries of each row.
        kv_sizes: [G, K] keys of each column.
    """
    cost = q_sizes.float()[..., None] * kv_sizes.float()[:, None]
    best = largest(priority, 1)
    share = torch.as_tensor(density, dtype=torch.float32, device=cost.device)
    wanted = cost.sum((1, 2)) * share
    # Priorities span many orders of magnitude, so the threshold is sought among their logarithms.
    height = priority.float().clamp(min=torch.finfo(torch.float32).tiny).log2()
    low, high = height.amin((1, 2)), height.amax((1, 2)) + 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        keep = (height >= middle[:, None, None]) | best
        fits = cost.where(keep, 0).sum((1, 2)) <= wanted
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return (height >= high[:, None, None]) | best | (share >= 1).view(-1, 1, 1)


def density_of(keep: Tensor, q_sizes: Tensor, kv_sizes: Tensor) -> Tensor:
    """Share of each head's scores that is kept, [G].

    Args:
        keep: [G, Q, K] bool.
        q_sizes: [G, Q] queries of each row.
        kv_sizes: [G, K] keys of each column.
    """
    seen = keep.float() @ kv_sizes.float()[..., None]
    asked = (seen[..., 0] * q_sizes).sum(1)
    return asked / (q_sizes.sum(1) * kv_sizes.sum(1)).clamp(min=1)
