"""Which tokens are worth computing anew: scores, ages, a bonus for each cell, the choice.

Pure functions of tensors that know no model. A higher score always means that a token is computed
sooner, and age raises it. Source: ToCa, arXiv 2410.05317, section 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from accel.picture_tokens import Lattice


def pooled(importance: Tensor, copies: int) -> Tensor:
    """Mean importance [B / copies, N] of the tokens of each sample.

    Args:
        importance: [B, N].
        copies: how often every sample is in the batch, all of them in turn (a batch with guidance
            holds each twice); divides B.
    """
    return importance.view(copies, -1, importance.shape[1]).mean(dim=0)


def spread(indices: Tensor, rows: int) -> Tensor:
    """The indices [R, K] of samples for a batch [rows, K] of copies of them; undoes `pooled`."""
    return indices.repeat(rows // len(indices), 1)


def scored(importance: Tensor, ages: Tensor, *, interval: int, age_weight: float) -> Tensor:
    """Scores [R, N]: importance of norm 1 in each sample, and age.

    Args:
        importance: [R, N], 0 or more.
        ages: [R, N], evaluations since a token was computed.
        interval: the age at which `age_weight` is what age adds.
        age_weight: 0 or more.
    """
    return F.normalize(importance, dim=1) + age_weight * ages / interval


def with_cell_bonus(scores: Tensor, lattice: Lattice, *, cell: int, bonus: float) -> Tensor:
    """The scores [R, N], raised by a share `bonus` for the best token of every square cell.

    It spreads the choice over the picture. Where sides are no multiples of the cell's, the cells at
    the right and at the bottom are smaller; the published code refuses such grids.

    Args:
        scores: [R, N], 0 or more.
        lattice: how the N tokens lie; cells do not reach over frames.
        cell: side of a cell in tokens, from 1.
        bonus: share of its own score that the best token gets.
    """
    frames, height, width = lattice
    below, beside = -height % cell, -width % cell
    planes = scores.view(-1, frames, height, width)
    padded = F.pad(planes, (0, beside, 0, below), value=-torch.inf)
    down, across = (height + below) // cell, (width + beside) // cell
    cells = padded.view(-1, frames, down, cell, across, cell).transpose(3, 4).flatten(4)
    best = torch.zeros_like(cells).scatter_(-1, cells.argmax(dim=-1, keepdim=True), bonus)
    raised = best.view(*best.shape[:4], cell, cell).transpose(3, 4).reshape_as(padded)
    factor = 1 + raised[..., :height, :width]
    return torch.mul(planes, factor).view_as(scores)


def choose(scores: Tensor, count: int, *, ages: Tensor, max_age: int) -> Tensor:
    """Indices [R, count] of the tokens to compute, ascending.

    Those of `max_age` or older go first, the oldest of them before all; then the highest scores. So
    no token gets older than `max_age` plus N / count evaluations, rounded up, whatever its score.

    Args:
        scores: [R, N].
        count: how many, from 1 to N.
        ages: [R, N], evaluations since a token was computed.
        max_age: from 1.
    """
    above = scores.amax(dim=1, keepdim=True) + ages
    order = torch.where(ages >= max_age, above, scores)
    return order.topk(count, dim=1).indices.sort(dim=1).values


def take(tokens: Tensor, indices: Tensor) -> Tensor:
    """The tokens [B, K, C] at these indices [B, K] of tokens [B, N, C]."""
    return tokens.gather(1, indices[..., None].expand(-1, -1, tokens.shape[2]))


def put(tokens: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """A copy of tokens [B, N, C] with these values [B, K, C] at these indices [B, K]."""
    return tokens.scatter(1, indices[..., None].expand_as(values), values.to(tokens.dtype))
