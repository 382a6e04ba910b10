"""Attention to what stands in for the keys that are skipped."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import checks, target
from sparse_attn.kernels.attention.settings import HEAD_DIMS
from sparse_attn.kernels.tail import reference

# Plans are made with kernels, so that kernels must not load plans.
if TYPE_CHECKING:
    from sparse_attn.plan.plan import Tail

__all__ = ["attend_tail", "settings_for"]

_NAME = "attend_tail"


def attend_tail(
    q: Tensor, tail: "Tail", *, scale: float, q_index: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The attention to the centroids of skipped clusters, and its LSE.

    A cluster of n keys weighs what n copies of its centroid would, times, where variances are
    given, exp(scale² / 2 * sum of q² σ²), the second-order term for normal keys.

    Args:
        q: [B, H, N, D] of any strides. On a GPU D is 64, 72, 80, 96 or 128.
        tail: for G = B * H heads; its tensors may have another floating dtype. Centroids are
            rounded to that of q by the kernel.
        scale: factor on the scores, more than 0.
        q_index: [G, N] which token stands at each of the places that `tail.segments` speaks of.

    Returns:
        [B, H, N, D] in the dtype of q and in the tokens' own order, and the base-2 LSE, float32
        [B, H, N]; 0 and minus infinity for queries that skip nothing.

    Raises:
        OptionError: for shapes, dtypes or devices that do not go together, head dimensions that
            no kernel is made for, a scale of 0 or less, and tensors that need a gradient.
    """
    _check(q, tail)
    if not scale > 0:
        raise OptionError(f"{_NAME}: scale is {scale}; expected a number above 0.")
    if q_index is not None:
        checks.require_shape(_NAME, "q_index", q_index, tuple(tail.segments.shape))
        checks.require_integers(_NAME, {"q_index": q_index}, q.device)
    if not q.numel() or not tail.keys.shape[1] or not target.runs_kernel(q):
        return reference.attend_tail(q, tail, scale=scale, q_index=q_index)
    checks.require_head_dim(_NAME, q.shape[3], HEAD_DIMS)
    return _launch(q, tail, scale, q_index)


def _check(q: Tensor, tail: "Tail") -> None:
    checks.require_dims(_NAME, {"q": q}, 4)
    batch, heads, tokens, head_dim = q.shape
    groups = batch * heads
    checks.require_dims(_NAME, {"keys": tail.keys, "skipped": tail.skipped}, 3)
    clusters, segments = tail.keys.shape[1], tail.skipped.shape[1]
    floats = {"keys": tail.keys, "values": tail.values}
    if tail.variance is not None:
        floats["variance"] = tail.variance
    for what, tensor in floats.items():
        checks.require_shape(_NAME, what, tensor, (groups, clusters, head_dim))
    checks.require_shape(_NAME, "bias", tail.bias, (groups, clusters))
    checks.require_shape(_NAME, "skipped", tail.skipped, (groups, segments, clusters))
    checks.require_shape(_NAME, "segments", tail.segments, (groups, tokens))
    checks.require_floats(_NAME, {"q": q, **floats, "bias": tail.bias}, q.device)
    checks.require_integers(_NAME, {"segments": tail.segments}, q.device)
    checks.require_device(_NAME, {"skipped": tail.skipped}, q.device)
    if tail.skipped.dtype != torch.bool:
        raise OptionError(f"{_NAME}: skipped is {tail.skipped.dtype}; expected torch.bool.")


def settings_for(arch: str, dtype: torch.dtype) -> dict[str, Any]:
    """Block sizes, warps, stages, and the precision of the second-order term.

    The term is an approximation of its own, so that one TF32 product will do.
    """
    full, nvidia = dtype == torch.float32, arch.startswith("sm")
    return {
        "BM": 16 if full else 32,
        "BK": 32 if nvidia and not full else 16,
        "STAGES": 1,
        "num_warps": 8,
        "SQUARES": "tf32" if nvidia else "ieee",
    }


def _launch(q: Tensor, tail: "Tail", scale: float, q_index: Tensor | None) -> tuple[Tensor, Tensor]:
    from sparse_attn.kernels.tail.kernel import attend_clusters

    batch, heads, tokens, head_dim = q.shape
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    bias = tail.bias.float().contiguous()
    variance = bias if tail.variance is None else tail.variance.contiguous()
    index = lse if q_index is None else q_index.contiguous()
    arch = target.architecture(q.device)
    settings = settings_for(arch, q.dtype)
    attend_clusters[(-(-tokens // settings["BM"]), batch * heads)](
        *(q, tail.keys.contiguous(), tail.values.contiguous(), bias, variance),
        *(tail.skipped.contiguous().view(torch.int8), tail.segments.contiguous(), index, out, lse),
        *(scale * math.log2(math.e), scale * scale / 2 * math.log2(math.e)),
        *(heads, tokens, tail.keys.shape[1], tail.skipped.shape[1], index.stride(0)),
        *(*q.stride(), *out.stride()),
        **target.widths(head_dim),
        **target.arithmetic(q.dtype, arch),
        **settings,
        **target.OPTIONS,
        Q_GATHER=q_index is not None,
        VARIANCE=tail.variance is not None,
    )
    return out, lse
