"""Two parts of one softmax, over different keys, as if it had been one."""

import torch
from torch import Tensor

from sparse_attn.kernels import checks, target
from sparse_attn.kernels.merge import reference

__all__ = ["merge_parts"]

_NAME = "merge_parts"
ROWS = 32
_WIDEST = 256


def merge_parts(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    """The output and LSE of an attention over the keys of both parts.

    Args:
        o1: [B, H, N, D] output of one part, of any strides, D up to 256 on a GPU.
        lse1: [B, H, N] its LSE in base 2; minus infinity where it saw nothing.
        o2: output of the other part, in the same dtype.
        lse2: its LSE.

    Returns:
        [B, H, N, D] in the dtype of `o1`, and float32 [B, H, N]; 0 and minus infinity where
        neither part saw anything.

    Raises:
        OptionError: for shapes, dtypes or devices that do not go together, and tensors that need
            a gradient.
    """
    outs, lses = {"o1": o1, "o2": o2}, {"lse1": lse1, "lse2": lse2}
    checks.require_dims(_NAME, outs, 4)
    checks.require_floats(_NAME, {**outs, **lses}, o1.device)
    checks.require_one_dtype(_NAME, outs)
    checks.require_shape(_NAME, "o2", o2, tuple(o1.shape))
    for what, lse in lses.items():
        checks.require_shape(_NAME, what, lse, tuple(o1.shape[:3]))
    if not o1.numel() or not target.runs_kernel(o1):
        return reference.merge_parts(o1, lse1, o2, lse2)
    checks.require_head_dim(_NAME, o1.shape[3], range(1, _WIDEST + 1))
    return _launch(o1, lse1.float().contiguous(), o2, lse2.float().contiguous())


def _launch(o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor) -> tuple[Tensor, Tensor]:
    from sparse_attn.kernels.merge.kernel import merge_rows

    batch, heads, tokens, head_dim = o1.shape
    out = torch.empty_like(o1)
    lse = torch.empty(o1.shape[:3], dtype=torch.float32, device=o1.device)
    arithmetic = target.arithmetic(o1.dtype, target.architecture(o1.device))
    merge_rows[(-(-tokens // ROWS), batch * heads)](
        *(o1, lse1, o2, lse2, out, lse, heads, tokens),
        *(*o1.stride(), *o2.stride(), *out.stride()),
        **target.widths(head_dim),
        BN=ROWS,
        LOW=arithmetic["LOW"],
        WORK=arithmetic["WORK"],
        num_warps=4,
        **target.OPTIONS,
    )
    return out, lse
