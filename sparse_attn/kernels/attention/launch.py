"""Starts the attention kernel: which settings, in which order, with which pointers."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.kernels import target
from sparse_attn.kernels.attention.settings import Setting, bucket, settings_for
from sparse_attn.tiles import TileList


@dataclass(frozen=True, slots=True, eq=False)
class Indices:
    """Which token stands at each place, [G, N] and [G, M]; None where they stay."""

    q: Tensor | None = None
    kv: Tensor | None = None


def choose(q: Tensor, tiles: TileList) -> Setting:
    """The setting for this architecture, head dimension, dtype and waste."""
    options = settings_for(target.architecture(q.device), q.shape[-1], q.dtype)
    return options[bucket(tiles.waste(options[0].block_m, options[0].block_n))]


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: TileList,
    scale: float,
    indices: Indices,
    setting: Setting,
) -> tuple[Tensor, Tensor]:
    """Runs the kernel. Everything was checked before."""
    # Most plans leave no query out, but finding out would wait for the device.
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float32, device=q.device)
    cut = tiles.cut(setting.block_m, setting.block_n)
    if cut.rows:
        _by_pointers(q, k, v, out, lse, cut, scale, indices, setting)
    return out, lse


def _by_pointers(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cut: TileList,
    scale: float,
    indices: Indices,
    setting: Setting,
) -> None:
    from sparse_attn.kernels.attention.kernel import attend_rows

    heads, queries = q.shape[1:3]
    attend_rows[(cut.rows,)](
        *(q, k, v, out, lse),
        *(lse if index is None else index for index in (indices.q, indices.kv)),
        *_row_arguments(cut, k, setting.block_n),
        scale * math.log2(math.e),
        *(heads, heads // k.shape[1], queries),
        *(0 if index is None else index.stride(0) for index in (indices.q, indices.kv)),
        *(*q.stride(), *k.stride(), *v.stride(), *out.stride()),
        **target.widths(q.shape[-1]),
        BM=setting.block_m,
        BN=setting.block_n,
        STAGES=setting.stages,
        Q_GATHER=indices.q is not None,
        KV_GATHER=indices.kv is not None,
        **target.arithmetic(q.dtype, target.architecture(q.device)),
        num_warps=setting.warps,
    )


def _row_arguments(cut: TileList, k: Tensor, block_n: int) -> tuple[Tensor, ...]:
    full = torch.cat([cut.kv_len.new_zeros(1), (cut.kv_len == block_n).cumsum(0)])
    begin, end = cut.begin.long(), cut.end.long()
    until = (begin + full[end] - full[begin]).to(torch.int32)
    rows = (cut.head, cut.q_start, cut.q_len, cut.begin, until, cut.end)
    return (order_of(cut, k), *rows, cut.kv_start, cut.kv_len)


def order_of(cut: TileList, k: Tensor) -> Tensor:
    """The order in which programs take the rows: the longest first, so that none ends late.

    Where the keys and values of all heads do not fit in the cache for all processors, one head
    follows the other. Rows cut from one stay neighbours.
    """
    length = (cut.end - cut.begin).long()
    size = 2 * k.numel() * k.element_size()
    if k.device.type == "cuda" and size > torch.cuda.get_device_properties(k.device).L2_cache_size:
        length = length - cut.head.long() * (len(cut.kv_len) + 1)
    return length.argsort(descending=True, stable=True).to(torch.int32)
