"""Tokens sorted by label, and what each label's tokens have in common, in plain torch."""

import torch
from torch import Tensor


def sort_by_label(labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """The tokens in the order of their labels, int64 [G, N], and sizes, int32 [G, clusters].

    The order is stable.

    Args:
        labels: [G, N] from 0 up to, not including, `clusters`.
        clusters: how many labels there are.
    """
    order = labels.argsort(dim=1, stable=True)
    ones = torch.ones_like(labels, dtype=torch.int32)
    sizes = ones.new_zeros(len(labels), clusters).scatter_add_(1, labels.long(), ones)
    return order, sizes


def cluster_stats(x: Tensor, order: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and mean of squares of every cluster, fp32 [G, K, D] each; 0 for empty clusters.

    Args:
        x: [G, N, D] vectors.
        order: [G, N] the vectors sorted by cluster.
        sizes: [G, K] of the clusters.
    """
    groups, clusters = sizes.shape
    counts = sizes.long().flatten()
    owner = torch.arange(groups * clusters, device=x.device).repeat_interleave(counts)
    base = torch.arange(groups, device=x.device)[:, None] * x.shape[1]
    rows = x.reshape(-1, x.shape[-1])[(order + base).flatten()].float()
    count = counts.clamp(min=1)[:, None]
    total, squares = (
        rows.new_zeros(groups * clusters, x.shape[-1]).index_add_(0, owner, each) / count
        for each in (rows, rows.square())
    )
    return total.view(groups, clusters, -1), squares.view(groups, clusters, -1)
