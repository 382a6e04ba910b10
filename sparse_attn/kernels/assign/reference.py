"""What assigning tokens to centroids is, in plain torch on any device."""

import torch
from torch import Tensor

# Scores held at a time: 64 MiB in float32.
_SCORES = 1 << 24


def assign(x: Tensor, centroids: Tensor) -> Tensor:
    """The index of the nearest centroid, by the largest x @ c - |c|² / 2; the first of equals.

    Centroids are rounded to the dtype of `x`, and so are what the distances are to.
    """
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    c = centroids.to(x.dtype).to(work)
    half = half_squares(c)
    parts = torch.split(x, max(1, _SCORES // max(1, x.shape[0] * c.shape[1])), 1)
    labels = [(p.to(work) @ c.transpose(1, 2)).sub_(half[:, None]).argmax(2) for p in parts]
    return torch.cat(labels, 1).to(torch.int32)


def half_squares(centroids: Tensor) -> Tensor:
    """[G, K] half of each centroid's squared length."""
    return centroids.square().sum(2) / 2
