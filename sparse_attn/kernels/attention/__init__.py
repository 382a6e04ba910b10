"""Attention over a list of tiles."""

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import checks, target
from sparse_attn.kernels.attention import reference
from sparse_attn.kernels.attention.launch import Indices, Operands, attend
from sparse_attn.kernels.attention.settings import HEAD_DIMS
from sparse_attn.tiles import TileList

__all__ = ["HEAD_DIMS", "attend_tiles"]

_NAME = "attend_tiles"


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
    """The attention that the list names, and the log of each query's sum of weights.

    Where there are indices, the list speaks of places, and tokens are read from where they are:
    nothing is copied into another order, and the output is in the tokens' own. Scores, softmax and
    sums are float32 also for 16-bit inputs; the weights are rounded to the inputs' dtype before
    they meet the values. The list is trusted: `tiles.check()` tells whether it may be.

    Args:
        q: [B, H, N, D] of any strides. On a GPU D is 64, 72, 80, 96 or 128.
        k: [B, Hk, M, D], where Hk divides H.
        v: the same for values.
        tiles: for G = B * H heads, N queries and M keys.
        scale: factor on the scores, more than 0.
        q_index: [G, N] which query stands at each place, every one once; None where they stay.
        kv_index: [G, M] the same for keys and values.

    Returns:
        [B, H, N, D] in the dtype of q, and the base-2 logarithm of the sum of
        exp(scale * q @ k), [B, H, N] in float32. A query that sees nothing gets 0 and minus
        infinity.

    Raises:
        OptionError: for shapes, dtypes or devices that do not go together, head dimensions that
            no kernel is made for, a scale of 0 or less, and tensors that need a gradient.
    """
    _check(q, k, v, tiles)
    if not scale > 0:
        raise OptionError(f"{_NAME}: scale is {scale}; expected a number above 0.")
    for what, index, length in (
        ("q_index", q_index, q.shape[2]),
        ("kv_index", kv_index, k.shape[2]),
    ):
        if index is not None:
            checks.require_shape(_NAME, what, index, (tiles.heads, length))
            checks.require_integers(_NAME, {what: index}, q.device)
    if not target.runs_kernel(q):
        return reference.attend_tiles(
            q, k, v, tiles, scale=scale, q_index=q_index, kv_index=kv_index
        )
    checks.require_head_dim(_NAME, q.shape[-1], HEAD_DIMS)
    indices = Indices(*(i if i is None else _places_last(i) for i in (q_index, kv_index)))
    with torch.no_grad():
        return attend(Operands(q, k, v, indices, scale), tiles)


def _places_last(index: Tensor) -> Tensor:
    return index if index.stride(-1) == 1 else index.contiguous()


def _check(q: Tensor, k: Tensor, v: Tensor, tiles: TileList) -> None:
    tensors = {"q": q, "k": k, "v": v}
    checks.require_dims(_NAME, tensors, 4)
    checks.require_floats(_NAME, tensors, q.device)
    checks.require_one_dtype(_NAME, tensors)
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    for what in ("k", "v"):
        checks.require_shape(_NAME, what, tensors[what], (batch, kv_heads, keys, head_dim))
    if not kv_heads or heads % kv_heads:
        raise OptionError(
            f"{_NAME}: q has {heads} heads and k {kv_heads}; expected a number that divides those."
        )
    checks.require_device(_NAME, {"tiles": tiles.head}, q.device)
    found, expected = (tiles.heads, tiles.queries, tiles.keys), (batch * heads, queries, keys)
    if found != expected:
        raise OptionError(
            f"{_NAME}: the list is for (heads, queries, keys) = {found}; expected {expected}."
        )
