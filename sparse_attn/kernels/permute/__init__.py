"""Tokens in the order of their clusters, and what the clusters are like."""

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import checks, target
from sparse_attn.kernels.permute import reference

__all__ = ["cluster_stats", "permute_with_stats", "sort_by_label"]

# Tokens of a tile of the counting sort, of a chunk that they are compared with, and its warps.
TILE, CHUNK, WARPS = 512, 16, 8
# Tokens of a cluster that are summed at a time.
ROWS = 32
_WIDEST = 256


def sort_by_label(labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """The tokens in the order of their labels, int64 [G, N], and each label's count.

    Tokens of one label keep their order. A counting sort: time and memory grow with N and K.

    Args:
        labels: [G, N] int32 or int64, from 0 up to, not including, `clusters`. They are trusted.
        clusters: K, at least 1.

    Returns:
        int64 [G, N] which token stands at each place, and int32 [G, K] sizes.

    Raises:
        OptionError: for labels that are not integers of this shape, and less than one cluster.
    """
    checks.require_dims("sort_by_label", {"labels": labels}, 2)
    checks.require_integers("sort_by_label", {"labels": labels}, labels.device)
    if clusters < 1:
        raise OptionError(f"sort_by_label: clusters is {clusters}; expected at least 1.")
    if not labels.numel() or not target.runs_kernel(labels):
        return reference.sort_by_label(labels, clusters)
    return _sort(labels if labels.stride(1) == 1 else labels.contiguous(), clusters)


def cluster_stats(x: Tensor, order: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each cluster's tokens, and of their squares: two of [G, K, D] in float32.

    Empty clusters have 0. In float64 the reference answers in float64.

    Args:
        x: [G, N, D] tokens of any strides, D up to 256 on a GPU.
        order: [G, N] which token stands at each place, as `sort_by_label` gives it.
        sizes: [G, K] tokens of each cluster, which stand behind one another.

    Raises:
        OptionError: for shapes, dtypes or devices that do not go together, and tensors that need
            a gradient.
    """
    _check("cluster_stats", x, order, sizes)
    if not target.runs_kernel(x):
        return reference.cluster_stats(x, order, sizes)
    return _gather("cluster_stats", x, order, sizes, None)


def permute_with_stats(x: Tensor, order: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tokens in that order, [G, N, D], and what `cluster_stats` says, from one reading.

    Raises:
        OptionError: as `cluster_stats`.
    """
    _check("permute_with_stats", x, order, sizes)
    if not target.runs_kernel(x):
        return reference.take_tokens(x, order), *reference.cluster_stats(x, order, sizes)
    copy = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return copy, *_gather("permute_with_stats", x, order, sizes, copy)


def _check(name: str, x: Tensor, order: Tensor, sizes: Tensor) -> None:
    checks.require_dims(name, {"x": x}, 3)
    checks.require_dims(name, {"order": order, "sizes": sizes}, 2)
    checks.require_floats(name, {"x": x}, x.device)
    checks.require_integers(name, {"order": order, "sizes": sizes}, x.device)
    checks.require_shape(name, "order", order, tuple(x.shape[:2]))
    checks.require_shape(name, "sizes", sizes, (x.shape[0], sizes.shape[1]))


def _sort(labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    from sparse_attn.kernels.permute.kernel import count_labels, place_tokens

    groups, tokens = labels.shape
    tiles = -(-tokens // TILE)
    counts = torch.zeros(groups, tiles, clusters, dtype=torch.int32, device=labels.device)
    common = (tokens, clusters, labels.stride(0))
    count_labels[(tiles, groups)](labels, counts, *common, BT=TILE, num_warps=4, **target.OPTIONS)
    # A label's tokens begin behind those of smaller labels, and a tile's behind earlier tiles'.
    by_label = counts.transpose(1, 2).flatten(1)
    first = (by_label.cumsum(1) - by_label).to(torch.int32)
    first = first.view(groups, clusters, tiles).transpose(1, 2).contiguous()
    order = torch.empty(groups, tokens, dtype=torch.int64, device=labels.device)
    place_tokens[(tiles, groups)](
        labels, first, order, *common, BT=TILE, BC=CHUNK, num_warps=WARPS, **target.OPTIONS
    )
    return order, counts.sum(1).to(torch.int32)


def _gather(
    name: str, x: Tensor, order: Tensor, sizes: Tensor, copy: Tensor | None
) -> tuple[Tensor, Tensor]:
    from sparse_attn.kernels.permute.kernel import sum_clusters

    groups, clusters = sizes.shape
    checks.require_head_dim(name, x.shape[2], range(1, _WIDEST + 1))
    shape = (groups, clusters, x.shape[2])
    mean, square = (torch.zeros(shape, dtype=torch.float32, device=x.device) for _ in range(2))
    sizes = sizes.contiguous()
    arithmetic = target.arithmetic(x.dtype, target.architecture(x.device))
    if mean.numel():
        sum_clusters[(clusters, groups)](
            *(x, order.contiguous(), sizes.cumsum(1) - sizes, sizes, mean, square),
            *(mean if copy is None else copy, x.shape[1], clusters, *x.stride()),
            **target.widths(x.shape[2]),
            BN=ROWS,
            COPY=copy is not None,
            LOW=arithmetic["LOW"],
            WORK=arithmetic["WORK"],
            num_warps=4,
            **target.OPTIONS,
        )
    return mean, square
