"""Plans carried out by our Triton kernels, on CUDA and ROCm."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.kernels import checks, target
from sparse_attn.kernels.attention import HEAD_DIMS, attend_tiles
from sparse_attn.kernels.merge import merge_parts
from sparse_attn.kernels.tail import attend_tail
from sparse_attn.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Gathers tokens inside of the kernels and stores the output where it belongs."""

    name: str = "triton"

    def refuses(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Why it cannot take these tensors, or None where it can."""
        if (reason := target.missing(q.device)) is not None:
            return reason
        if q.shape[-1] not in HEAD_DIMS:
            return f"head_dim {q.shape[-1]} is none of {', '.join(map(str, HEAD_DIMS))}"
        if q.dtype not in checks.DTYPES or {k.dtype, v.dtype} != {q.dtype}:
            return f"no kernel for {q.dtype} with keys {k.dtype} and values {v.dtype}"
        if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
            return "a gradient is needed, and the kernels have none"
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The attention that the plan names, [B, H, N, D] in the tokens' own order, and its LSE.

        Raises:
            OptionError: as `attend_tiles` and `attend_tail`.
        """
        out, lse = attend_tiles(
            q, k, v, plan.tiles, scale=scale, q_index=plan.q_order, kv_index=plan.kv_order
        )
        if plan.tail is None:
            return out, lse
        rest, rest_lse = attend_tail(q, plan.tail, scale=scale, q_index=plan.q_order)
        return merge_parts(out, lse, rest, rest_lse)
