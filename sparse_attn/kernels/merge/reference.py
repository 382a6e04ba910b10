"""Two parts of one attention as one, in plain torch."""

import torch
from torch import Tensor


def merge_parts(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """The attention over the keys of both parts, in the first part's dtype, and its LSE.

    Args:
        o1: [..., N, D] output of one part.
        lse1: [..., N] log2 of its sum of exponentials, minus infinity where it is empty.
        o2: output of the other part.
        lse2: its LSE.
    """
    most = torch.maximum(lse1, lse2)
    safe = most.where(most.isfinite(), 0)
    first, second = torch.exp2(lse1 - safe), torch.exp2(lse2 - safe)
    total = first + second
    share = (first / total.where(total > 0, 1))[..., None]
    rest = (second / total.where(total > 0, 1))[..., None]
    out = o1.to(share.dtype) * share + o2.to(share.dtype) * rest
    return out.to(o1.dtype), safe + torch.log2(total)
