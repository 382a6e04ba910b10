"""What joining two parts of a softmax is, in plain torch on any device."""

import torch
from torch import Tensor


def merge_parts(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """The parts by their shares of the sum of weights."""
    work = torch.float64 if o1.dtype == torch.float64 else torch.float32
    top = torch.maximum(lse1, lse2).to(work)
    # Where neither part saw anything, any finite number keeps (-inf) - (-inf) = NaN away.
    top = top.where(top.isfinite(), torch.zeros_like(top))
    w1, w2 = (torch.exp2(lse.to(work) - top) for lse in (lse1, lse2))
    total = w1 + w2
    some = total.where(total > 0, torch.ones_like(total))
    out = o1.to(work) * (w1 / some)[..., None] + o2.to(work) * (w2 / some)[..., None]
    return out.to(o1.dtype), (top + torch.log2(total)).float()
