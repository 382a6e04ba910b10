"""What a backend is, and how queries and keys come into the order of a plan and back."""

from typing import Protocol

import torch
from torch import Tensor

from sparse_attn.kernels.merge import merge_parts
from sparse_attn.kernels.tail import attend_tail
from sparse_attn.plan.plan import Plan


class Backend(Protocol):
    """Computes the scores that a plan asks for, and no others."""

    @property
    def name(self) -> str:
        """What it is chosen and reported by."""

    def refuses(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Why it cannot take these tensors, in a few words, or None if it can."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output [B, H, N, D] in q's dtype and LSE [B, H, N], both in the original order.

        The LSE is fp32 and in base 2, minus infinity where a query sees nothing.

        Args:
            q: [B, H, N, D] of any strides.
            k: [B, Hk, M, D], where Hk divides H.
            v: likewise.
            plan: what is computed.
            scale: of the scores.
        """


def ordered(x: Tensor, order: Tensor | None, heads: int) -> Tensor:
    """The tokens of every head in the order of a plan, [G, N, D], contiguous.

    Without an order, heads that share keys stay together: the result has the heads of `x`.

    Args:
        x: [B, Hx, N, D].
        order: [G, N] which token stands at each place, or None for as they are.
        heads: H, of which each head of `x` serves H / Hx.
    """
    flat = x.flatten(0, 1)
    if order is None:
        return flat.contiguous()
    share = heads // x.shape[1]
    if x.device.type != "cpu":
        heads_of_x = torch.arange(len(order), device=x.device)[:, None] // share
        return flat[heads_of_x, order.long()]
    # Row by row, which on a CPU is a plain copy of each; indexing goes element by element.
    out = x.new_empty(*order.shape, x.shape[-1])
    for head, places in enumerate(order):
        torch.index_select(flat[head // share], 0, places, out=out[head])
    return out


def restored(x: Tensor, order: Tensor | None) -> Tensor:
    """The tokens of every head back in the original order.

    Args:
        x: [G, N, ...] in the order of a plan.
        order: [G, N] which original token stands at each place, or None for as they are.
    """
    if order is None:
        return x
    index = order.long()
    out = torch.empty_like(x)
    if x.dim() == index.dim():
        return out.scatter_(1, index, x)
    for head, places in enumerate(index):
        out[head].index_copy_(0, places, x[head])
    return out


def finished(
    out: Tensor, lse: Tensor, q: Tensor, plan: Plan, scale: float
) -> tuple[Tensor, Tensor]:
    """Output [B, H, N, D] and LSE [B, H, N] in the original order, the plan's tail included.

    Args:
        out: [G, N, D] of the plan's tiles, in its order.
        lse: [G, N] of them.
        q: [B, H, N, D].
        plan: what was computed.
        scale: of the scores.
    """
    out = restored(out, plan.q_order).view(*q.shape[:-1], -1)
    lse = restored(lse, plan.q_order).view(q.shape[:-1])
    if plan.tail is None:
        return out, lse
    rest, rest_lse = attend_tail(q, plan.tail, scale=scale, q_index=plan.q_order)
    return merge_parts(out, lse, rest, rest_lse)


def shared_heads(q: Tensor, k: Tensor) -> int:
    """How many heads of the queries use one of the keys."""
    return q.shape[1] // k.shape[1]
