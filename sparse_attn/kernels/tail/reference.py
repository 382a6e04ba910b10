"""Attention to the pseudo-keys that stand in for skipped clusters, in plain torch."""

import math

import torch
from torch import Tensor

from sparse_attn.plan.plan import Tail

LOG2E = math.log2(math.e)


def tail_scores(q: Tensor, tail: Tail, scale: float) -> Tensor:
    """log2 weights of all pseudo-keys for all queries, minus infinity where not skipped.

    Args:
        q: [G, N, D] in permuted order, fp32 or fp64.
        tail: the pseudo-keys.
        scale: of the scores.
    """
    scores = q @ tail.keys.to(q.dtype).mT * (scale * LOG2E)
    if tail.variance is not None:
        scores += q.square() @ tail.variance.to(q.dtype).mT * (scale**2 / 2 * LOG2E)
    scores += tail.bias.to(q.dtype)[:, None]
    rows = tail.segments.long()[..., None].expand(-1, -1, scores.shape[-1])
    return scores.masked_fill(~tail.skipped.gather(1, rows), -math.inf)


def attend_tail(q: Tensor, tail: Tail, *, scale: float) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, D] in q's dtype and LSE [B, H, N], both in the order of the queries given.

    Args:
        q: [B, H, N, D] queries in permuted order.
        tail: the pseudo-keys.
        scale: of the scores.
    """
    wide = q.double() if q.dtype == torch.float64 else q.float()
    scores = tail_scores(wide.flatten(0, 1), tail, scale)
    most = scores.amax(-1, keepdim=True)
    weights = torch.exp2(scores - most.where(most.isfinite(), 0))
    total = weights.sum(-1, keepdim=True)
    out = weights / total.where(total > 0, 1) @ tail.values.to(wide.dtype)
    lse = (most.where(most.isfinite(), 0) + torch.log2(total)).view(q.shape[:-1])
    return out.view(q.shape).to(q.dtype), lse.float()
