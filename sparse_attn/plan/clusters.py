"""Clusters of each head's queries or keys: k-means, seeded and the same for the same seed."""

import torch
from torch import Tensor

from sparse_attn.kernels.assign import assign
from sparse_attn.kernels.permute import cluster_stats, sort_by_label
from sparse_attn.plan.samples import spread_rows

_POWER_STEPS = 4


def first_centroids(x: Tensor, count: int, seed: int) -> Tensor:
    """Distinct rows of every head, [G, count, D], spread over the sequence.

    The sequence is cut into `count` stretches and one row is drawn from each, so that no part of a
    clip is without a centroid. (SVG2 draws rows with replacement, and takes fifty steps to get over
    it.)

    Args:
        x: [G, N, D] vectors.
        count: from 1 to N.
        seed: of the draw.
    """
    groups, tokens, width = x.shape
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(groups, count, generator=generator)
    rows = spread_rows(share, tokens)
    return x.gather(1, rows.to(x.device)[..., None].expand(-1, -1, width))


def lloyd(x: Tensor, centroids: Tensor, steps: int) -> Tensor:
    """Centroids [G, K, D] after so many steps of k-means. Empty clusters keep theirs.

    Args:
        x: [G, N, D] vectors.
        centroids: [G, K, D] to start from.
        steps: how many.
    """
    for _ in range(steps):
        order, sizes = sort_by_label(assign(x, centroids), centroids.shape[1])
        mean, _ = cluster_stats(x, order, sizes)
        centroids = torch.where((sizes > 0)[..., None], mean.to(centroids.dtype), centroids)
    return centroids


def in_series(centroids: Tensor) -> Tensor:
    """The same centroids [G, K, D], similar ones next to each other.

    Keys are stored in this order, so that clusters that are seen together are one run. The set is
    halved along its widest direction, and each half again, until single ones are left.
    """
    groups, count, width = centroids.shape
    levels = (count - 1).bit_length()
    padded = torch.zeros(groups, 1, 2**levels, width, device=centroids.device)
    padded[:, 0, :count] = centroids
    index = torch.arange(2**levels, device=centroids.device).expand(groups, 1, -1)
    direction: Tensor | None = None
    for _ in range(levels):
        real = index < count
        direction = _widest(padded, real, direction)
        along = (padded @ direction[..., None])[..., 0].masked_fill(~real, torch.inf)
        order = along.argsort(dim=-1, stable=True)
        padded = padded.gather(2, order[..., None].expand_as(padded))
        index = index.gather(2, order)
        halves = padded.shape[1] * 2
        padded = padded.reshape(groups, halves, -1, width)
        index = index.reshape(groups, halves, -1)
    flat = index.reshape(groups, -1)
    order = flat[flat < count].view(groups, count)
    return centroids.gather(1, order[..., None].expand_as(centroids))


def _widest(x: Tensor, real: Tensor, before: Tensor | None) -> Tensor:
    """The direction [G, S, D] in which each set varies most, on the side of its parent's."""
    weight = real[..., None].to(x.dtype)
    centred = (x - (x * weight).sum(2, keepdim=True) / weight.sum(2, keepdim=True).clamp(min=1)) * (
        weight
    )
    far = (
        centred.square().sum(-1).argmax(-1, keepdim=True)[..., None].expand(-1, -1, -1, x.shape[3])
    )
    direction = centred.gather(2, far)[:, :, 0]
    for _ in range(_POWER_STEPS):
        direction = (centred.mT @ (centred @ direction[..., None]))[..., 0]
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    if before is not None:
        side = (direction * before.repeat_interleave(2, 1)).sum(-1, keepdim=True)
        direction = torch.where(side < 0, -direction, direction)
    return direction


def drift(fresh: Tensor, assigned: Tensor, sizes: Tensor) -> Tensor:
    """How far centroids have moved since their tokens were assigned, a scalar from 0 up.

    It is a share of the distance of the centroids from their common mean, squares averaged over all
    tokens and heads.

    Args:
        fresh: [G, K, D] means of the same tokens now.
        assigned: [G, K, D] the centroids that they were assigned to.
        sizes: [G, K] of the clusters.
    """
    weight = sizes[..., None].float()
    moved = ((fresh.float() - assigned.float()).square() * weight).sum()
    mean = (fresh.float() * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
    spread = ((fresh.float() - mean).square() * weight).sum()
    return (moved / spread.clamp(min=1e-12)).sqrt()
