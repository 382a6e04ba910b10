"""The nearest centroid of every vector, in plain torch."""

import torch
from torch import Tensor


def assign(x: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid of each vector by Euclidean distance, the first of equals, int32 [G, N].

    Args:
        x: [G, N, D] vectors.
        centroids: [G, K, D].
    """
    centroids = centroids.float()
    # |x - c|² up to |x|², which is the same for all centroids.
    half = centroids.square().sum(-1)[:, None] / 2
    return torch.baddbmm(half, x.float(), centroids.mT, alpha=-1).argmin(-1).to(torch.int32)
