"""What sorting by label and statistics of clusters are, in plain torch on any device."""

import torch
from torch import Tensor


def sort_by_label(labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """A stable sort, and how often each label occurs."""
    order = labels.argsort(dim=1, stable=True)
    sizes = torch.zeros(len(labels), clusters, dtype=torch.int32, device=labels.device)
    sizes.scatter_add_(1, labels.long(), torch.ones_like(labels, dtype=torch.int32))
    return order, sizes


def cluster_stats(x: Tensor, order: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Means of the tokens and of their squares, by runs of the order; 0 for empty clusters."""
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    groups, clusters = sizes.shape
    place = torch.arange(clusters, device=x.device)
    means = torch.zeros(2, groups, clusters, x.shape[2], dtype=work, device=x.device)
    count = sizes.clamp(min=1)[..., None]
    for g in range(groups):
        label = place.repeat_interleave(sizes[g])
        rows = x[g].index_select(0, order[g]).to(work)
        means[0, g].index_add_(0, label, rows)
        means[1, g].index_add_(0, label, rows.square())
    return means[0] / count, means[1] / count


def take_tokens(x: Tensor, order: Tensor) -> Tensor:
    """The tokens in that order."""
    return x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))
