"""What attention to pseudo-keys is, in plain torch on any device."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sparse_attn.plan.plan import Tail

# Scores held at a time: 64 MiB in float32.
_SCORES = 1 << 24


def attend_tail(
    q: Tensor, tail: "Tail", *, scale: float, q_index: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Head by head and in chunks of queries: a softmax over the clusters that each skips."""
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    chunk = max(1, _SCORES // max(1, tail.keys.shape[1]))
    for g in range(q.shape[0] * q.shape[1]):
        b, h = divmod(g, q.shape[1])
        places = torch.arange(q.shape[2], device=q.device)
        for part in torch.split(places, chunk):
            tokens = part if q_index is None else q_index[g, part].long()
            rows = q[b, h].index_select(0, tokens).to(work)
            scores = _scores(rows, tail, g, scale).masked_fill(
                ~tail.skipped[g, tail.segments[g, part].long()], -math.inf
            )
            b_out, b_lse = _softmax(scores, tail.values[g].to(work))
            out[b, h].index_copy_(0, tokens, b_out.to(q.dtype))
            lse[b, h].index_copy_(0, tokens, b_lse.float())
    return out, lse


def _scores(q: Tensor, tail: "Tail", g: int, scale: float) -> Tensor:
    """[queries, K] logarithms in base 2 of each cluster's whole weight."""
    scores = (q @ tail.keys[g].to(q.dtype).T) * scale
    if tail.variance is not None:
        scores += (q.square() @ tail.variance[g].to(q.dtype).T) * (scale * scale / 2)
    return scores * math.log2(math.e) + tail.bias[g].to(q.dtype)


def _softmax(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    top = scores.amax(1, keepdim=True)
    top = top.where(top > -math.inf, torch.zeros_like(top))
    weights = torch.exp2(scores - top)
    total = weights.sum(1, keepdim=True)
    out = (weights @ values) / total.where(total > 0, torch.ones_like(total))
    return out, (top + torch.log2(total))[:, 0]
