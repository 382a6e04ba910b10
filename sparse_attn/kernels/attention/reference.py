"""What attention over a list of tiles is, in plain torch on any device."""

import math

import torch
from torch import Tensor

from sparse_attn.tiles import TileList

# Scores held at a time: 64 MiB in float32.
_SCORES = 1 << 24


def attend_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: TileList,
    *,
    scale: float,
    q_index: Tensor | None = None,
    kv_index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Row by row of the list: a softmax over the keys that it names.

    Computes in float64 for float64 and in float32 otherwise. Holds one row's keys and a chunk of
    its scores, never all scores of a head.
    """
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float32, device=q.device)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    rows = torch.stack([tiles.head, tiles.q_start, tiles.q_len, tiles.begin, tiles.end], 1)
    runs = list(zip(tiles.kv_start.tolist(), tiles.kv_len.tolist(), strict=True))
    for head, start, length, begin, end in rows.tolist():
        keys = _places(runs[begin:end], q.device)
        if kv_index is not None:
            keys = kv_index[head, keys]
        queries = torch.arange(start, start + length, device=q.device)
        if q_index is not None:
            queries = q_index[head, queries]
        b, h = divmod(head, heads)
        b_k, b_v = (t[b, h // group].index_select(0, keys).to(work) for t in (k, v))
        for part in torch.split(queries, max(1, _SCORES // max(1, len(keys)))):
            b_out, b_lse = _softmax(q[b, h].index_select(0, part).to(work), b_k, b_v, scale)
            out[b, h].index_copy_(0, part, b_out.to(q.dtype))
            lse[b, h].index_copy_(0, part, b_lse.float())
    return out, lse


def _places(runs: list[tuple[int, int]], device: torch.device) -> Tensor:
    ranges = [torch.arange(start, start + length) for start, length in runs]
    return torch.cat([torch.empty(0, dtype=torch.int64), *ranges]).to(device)


def _softmax(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if not len(k):
        return torch.zeros_like(q), q.new_full((len(q),), -math.inf)
    scores = (q @ k.T) * (scale * math.log2(math.e))
    top = scores.amax(1, keepdim=True)
    weights = torch.exp2(scores - top)
    total = weights.sum(1, keepdim=True)
    return (weights @ v) / total, (top + torch.log2(total))[:, 0]
