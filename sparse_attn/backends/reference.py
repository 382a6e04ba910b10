"""The plain computation that every other backend is checked against: all scores, then a mask."""

import math

import torch
from torch import Tensor

from sparse_attn.backends.backend import ordered, restored, shared_heads
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.tails import LOG2E, tail_scores
from sparse_attn.tiles import TileList


class ReferenceBackend:
    """Computes every score in fp32, or fp64 for such queries, and hides what the plan skips."""

    name = "reference"

    def refuses(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:  # noqa: ARG002 -- the protocol
        """None: it takes everything."""
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output [B, H, N, D] in q's dtype and LSE [B, H, N]; see `Backend`."""
        wide = torch.promote_types(q.dtype, torch.float32)
        heads = q.shape[1]
        queries = ordered(q, plan.q_order, heads).to(wide)
        keys, values = (ordered(x, plan.kv_order, heads).to(wide) for x in (k, v))
        if plan.kv_order is None:
            keys, values = (x.repeat_interleave(shared_heads(q, k), 0) for x in (keys, values))
        scores = queries @ keys.mT * (scale * LOG2E)
        scores = scores.masked_fill(~mask_of(plan.tiles), -math.inf)
        if plan.tail is not None:
            scores = torch.cat([scores, tail_scores(queries, plan.tail, scale)], -1)
            values = torch.cat([values, plan.tail.values.to(wide)], 1)
        most = scores.amax(-1, keepdim=True)
        most = most.where(most.isfinite(), 0)
        weights = torch.exp2(scores - most)
        total = weights.sum(-1, keepdim=True)
        out = weights / total.where(total > 0, 1) @ values
        lse = (most + torch.log2(total))[..., 0]
        return (
            restored(out, plan.q_order).view(*q.shape[:-1], -1).to(q.dtype),
            restored(lse, plan.q_order).view(q.shape[:-1]).float(),
        )


def mask_of(tiles: TileList) -> Tensor:
    """Which scores a list asks for, bool [heads, queries, keys] in permuted order."""
    device = tiles.head.device
    rows = torch.arange(tiles.rows, device=device)
    runs = (tiles.end - tiles.begin).long()
    row = rows.repeat_interleave(runs)
    nth = torch.arange(len(row), device=device) - (runs.cumsum(0) - runs)[row]
    entry = tiles.begin.long()[row] + nth
    edges = torch.zeros(tiles.rows, tiles.keys + 1, dtype=torch.int32, device=device)
    ones = torch.ones_like(row, dtype=torch.int32)
    start, stop = tiles.kv_start.long(), (tiles.kv_start + tiles.kv_len).long()
    edges.index_put_((row, start[entry]), ones, accumulate=True)
    edges.index_put_((row, stop[entry]), -ones, accumulate=True)
    seen = edges.cumsum(1)[:, :-1] > 0
    length = tiles.q_len.long()
    row = rows.repeat_interleave(length)
    nth = torch.arange(len(row), device=device) - (length.cumsum(0) - length)[row]
    mask = torch.zeros(tiles.heads, tiles.queries, tiles.keys, dtype=torch.bool, device=device)
    mask[tiles.head.long()[row], tiles.q_start.long()[row] + nth] = seen[row]
    return mask
