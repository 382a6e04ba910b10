"""What keeping a share of the mass is, in plain torch on any device."""

import torch
from torch import Tensor


def keep_mass(scores: Tensor, p: float) -> Tensor:
    """Sorts each row's weights and keeps them until the share is reached, with all equals.

    The sort is what the kernel avoids; on a CPU it costs less than thirty passes over the row.
    """
    work = torch.float64 if scores.dtype == torch.float64 else torch.float32
    top = scores.amax(-1, keepdim=True).to(work)
    # Where a row has nothing, any finite number keeps (-inf) - (-inf) = NaN away.
    weights = torch.exp2(scores.to(work) - top.where(top.isfinite(), torch.zeros_like(top)))
    if p >= 1:
        return weights > 0
    falling = weights.sort(-1, descending=True).values
    mass = falling.cumsum(-1)
    # What comes before the one that reaches the share does not reach it.
    short = (mass < p * mass[..., -1:]).sum(-1, keepdim=True)
    least = falling.gather(-1, short.clamp(max=scores.shape[-1] - 1))
    return (weights >= least) & (weights > 0)
