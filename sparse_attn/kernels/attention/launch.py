"""Starts the attention kernel: which settings, in which order, with which pointers."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import target
from sparse_attn.kernels.attention.settings import Setting, Way, bucket, described, settings_for
from sparse_attn.tiles import TileList


@dataclass(frozen=True, slots=True, eq=False)
class Indices:
    """Which token stands at each place, [G, N] and [G, M]; None where they stay."""

    q: Tensor | None = None
    kv: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """What a kernel reads: q, k and v of [B, H, N, D] and [B, Hk, M, D], and in which order."""

    q: Tensor
    k: Tensor
    v: Tensor
    indices: Indices
    scale: float


def attend(operands: Operands, tiles: TileList) -> tuple[Tensor, Tensor]:
    """Runs the kernel with the settings for these operands. Everything was checked before."""
    arch, dtype = target.architecture(operands.q.device), operands.q.dtype
    way = Way.POINTERS
    if described(arch, dtype):
        operands = in_order(operands)
        if describable(operands):
            way = Way.DESCRIPTORS
    options = settings_for(arch, operands.q.shape[-1], dtype, way)
    waste = tiles.waste(options[0].block_m, options[0].block_n)
    return run(operands, tiles, options[bucket(waste)])


def in_order(operands: Operands) -> Operands:
    """The operands with keys and values copied into the order that the list speaks of.

    Descriptors read neighbours, and are so much faster that the copy pays. Where heads share keys
    that each wants in an order of its own, nothing is copied.
    """
    index, k = operands.indices.kv, operands.k
    if index is None or k.shape[1] != operands.q.shape[1]:
        return operands
    places = index.view(*k.shape[:3], 1).long().expand(k.shape)
    k, v = (tensor.gather(2, places) for tensor in (k, operands.v))
    return replace(operands, k=k, v=v, indices=Indices(operands.indices.q))


def describable(operands: Operands) -> bool:
    """Whether descriptors can read the keys and values: by whole 16 bytes, neighbours together."""
    return operands.indices.kv is None and all(map(_by_16_bytes, (operands.k, operands.v)))


def _by_16_bytes(tensor: Tensor) -> bool:
    steps = (tensor.data_ptr(), *(s * tensor.element_size() for s in tensor.stride()[:-1]))
    return tensor.stride(-1) == 1 and all(step > 0 and step % 16 == 0 for step in steps)


def run(operands: Operands, tiles: TileList, setting: Setting) -> tuple[Tensor, Tensor]:
    """Runs the kernel with this setting, which must suit the operands.

    Raises:
        OptionError: for `Way.SPECIALIZED` with indices, runs of keys that tiles do not fill, or a
            layout that descriptors cannot read.
    """
    q = operands.q
    # Most plans leave no query out, but finding out would wait for the device.
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:3], -math.inf, dtype=torch.float32, device=q.device)
    cut = tiles.cut(setting.block_m, setting.block_n)
    if cut.rows:
        launch = {
            Way.POINTERS: _by_pointers,
            Way.DESCRIPTORS: _by_descriptors,
            Way.SPECIALIZED: _specialized,
        }[setting.way]
        launch(operands, cut, setting, out, lse)
    return out, lse


def _by_pointers(
    operands: Operands, cut: TileList, setting: Setting, out: Tensor, lse: Tensor
) -> None:
    from sparse_attn.kernels.attention.kernel import attend_rows

    q, k, v, indices = operands.q, operands.k, operands.v, operands.indices
    attend_rows[(cut.rows,)](
        *(q, k, v, out, lse),
        *(lse if index is None else index for index in (indices.q, indices.kv)),
        *_row_arguments(cut, k, setting.block_n),
        *_scalars(operands),
        *(0 if index is None else index.stride(0) for index in (indices.q, indices.kv)),
        *(*q.stride(), *k.stride(), *v.stride(), *out.stride()),
        Q_GATHER=indices.q is not None,
        KV_GATHER=indices.kv is not None,
        **_constants(q, setting),
    )


def _by_descriptors(
    operands: Operands, cut: TileList, setting: Setting, out: Tensor, lse: Tensor
) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    from sparse_attn.kernels.attention.kernel import attend_described_rows

    q, index = operands.q, operands.indices.q
    widths = target.widths(q.shape[-1])
    attend_described_rows[(cut.rows,)](
        q,
        *(
            TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 1, setting.block_n, width])
            for t in (operands.k, operands.v)
            for width in (widths["D1"], widths["D2"] or widths["D1"])
        ),
        *(out, lse, lse if index is None else index),
        *_row_arguments(cut, operands.k, setting.block_n),
        *_scalars(operands),
        0 if index is None else index.stride(0),
        *(*q.stride(), *out.stride()),
        Q_GATHER=index is not None,
        **_constants(q, setting),
    )


def _specialized(
    operands: Operands, cut: TileList, setting: Setting, out: Tensor, lse: Tensor
) -> None:
    import triton

    from sparse_attn.kernels.attention.kernel import attend_specialized_rows

    q, k, v = operands.q, operands.k, operands.v
    indexed = operands.indices.q is not None or not describable(operands)
    if indexed or not _by_16_bytes(q) or bool((cut.kv_len < setting.block_n).any()):
        raise OptionError(
            "attend_tiles: the specialised kernel takes q, k and v without indices, rows of whole "
            f"16 bytes, and runs of whole tiles of {setting.block_n} keys. Use another way."
        )
    # Descriptors made on the device need room there; Triton asks for it through this function.
    triton.set_allocator(lambda size, _, __: torch.empty(size, dtype=torch.int8, device=q.device))
    attend_specialized_rows[(cut.rows,)](
        *(q, k, v, out, lse),
        *_row_arguments(cut, k, setting.block_n),
        *(*_scalars(operands), k.shape[2]),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()),
        **_constants(q, setting),
    )


def _scalars(operands: Operands) -> tuple[float, int, int, int]:
    heads, queries = operands.q.shape[1:3]
    return operands.scale * math.log2(math.e), heads, heads // operands.k.shape[1], queries


def _constants(q: Tensor, setting: Setting) -> dict[str, Any]:
    return {
        **target.widths(q.shape[-1]),
        **target.arithmetic(q.dtype, target.architecture(q.device)),
        "BM": setting.block_m,
        "BN": setting.block_n,
        "STAGES": setting.stages,
        "num_warps": setting.warps,
        **target.OPTIONS,
    }


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
