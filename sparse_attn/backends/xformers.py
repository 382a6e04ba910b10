"""Plans computed by xformers: every row's keys gathered, all rows in one block-diagonal call."""

import importlib.util
import math

import torch
from torch import Tensor

from sparse_attn.backends.backend import finished, ordered, shared_heads
from sparse_attn.backends.torch import rows_of
from sparse_attn.plan.plan import Plan

_LOG2E = math.log2(math.e)
_MOST_HEAD_DIM = 256


class XFormersBackend:
    """Hands all rows of all heads to xformers as sequences of different lengths.

    It reads a copy of each row's keys and values, so it takes memory in proportion to the density.
    """

    name = "xformers"

    def refuses(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Why it cannot take these tensors, or None if it can."""
        if importlib.util.find_spec("xformers") is None:
            return "xformers is not installed"
        if q.device.type != "cuda":
            return f"xformers needs a CUDA or ROCm device, not {q.device.type}"
        if q.dtype not in (torch.float16, torch.bfloat16):
            return f"xformers takes float16 and bfloat16, not {q.dtype}"
        if q.shape[-1] % 8 or q.shape[-1] > _MOST_HEAD_DIM or v.shape[-1] != k.shape[-1]:
            return f"xformers takes head_dim up to {_MOST_HEAD_DIM} in steps of 8"
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output [B, H, N, D] in q's dtype and LSE [B, H, N]; see `Backend`."""
        heads = q.shape[1]
        queries = ordered(q, plan.q_order, heads)
        keys, values = (ordered(x, plan.kv_order, heads) for x in (k, v))
        share = 1 if plan.kv_order is not None else shared_heads(q, k)
        out = torch.zeros_like(queries)
        lse = torch.full(queries.shape[:2], -math.inf, device=q.device)
        rows = rows_of(plan.tiles)
        if rows:
            asked = _places([(r.head, r.start, r.stop) for r in rows], queries)
            runs = [(r.head // share, start, stop) for r in rows for start, stop in r.runs]
            seen = _places(runs, keys)
            found, sums = _block_diagonal(
                queries.flatten(0, 1)[asked],
                keys.flatten(0, 1)[seen],
                values.flatten(0, 1)[seen],
                [row.form for row in rows],
                scale,
            )
            out.flatten(0, 1)[asked] = found
            lse.view(-1)[asked] = sums
        return finished(out, lse, q, plan, scale)


def _places(runs: list[tuple[int, int, int]], x: Tensor) -> Tensor:
    """Index of every token of these runs (head, start, stop) among those of all heads."""
    table = torch.tensor(runs).to(x.device)
    length = table[:, 2] - table[:, 1]
    run = torch.arange(len(runs), device=x.device).repeat_interleave(length)
    nth = torch.arange(len(run), device=x.device) - (length.cumsum(0) - length)[run]
    return (table[:, 0] * x.shape[1] + table[:, 1])[run] + nth


def _block_diagonal(
    q: Tensor, k: Tensor, v: Tensor, forms: list[tuple[int, int]], scale: float
) -> tuple[Tensor, Tensor]:
    from xformers.ops import fmha  # noqa: PLC0415 -- optional

    bias = fmha.attn_bias.BlockDiagonalMask.from_seqlens(*map(list, zip(*forms, strict=True)))
    out, lse = fmha.memory_efficient_attention_forward_requires_grad(
        *(x[None, :, None].contiguous() for x in (q, k, v)), attn_bias=bias, scale=scale
    )
    if lse.numel() != len(q):
        raise RuntimeError(
            f"xformers returned an LSE of shape {tuple(lse.shape)} for {len(q)} queries in one "
            "packed sequence; expected one number for each. Use another version of xformers, or "
            "another backend."
        )
    return out[0, :, 0], lse.reshape(-1).float() * _LOG2E
