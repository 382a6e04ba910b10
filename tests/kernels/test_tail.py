"""Attention to pseudo-keys is attention to every key of a cluster, moved to its centroid."""

import math

import pytest
import torch
from torch import Tensor

from sparse_attn.kernels.attention import HEAD_DIMS
from sparse_attn.kernels.tail import attend_tail, reference
from sparse_attn.plan.plan import Tail
from tests.kernels.support import DEVICE, HALF_AND_FULL, assert_within, orders, seeded

GROUPS, QUERIES, CLUSTERS = 4, 75, 40


def _tail(head_dim: int, *, variance: bool, dtype: torch.dtype = torch.float32) -> Tail:
    random = seeded(head_dim)
    shape = (GROUPS, CLUSTERS, head_dim)
    sizes = torch.randint(0, 9, shape[:2], generator=random)
    spread = torch.rand(shape, generator=random) if variance else None
    return Tail(
        keys=torch.randn(shape, generator=random).to(DEVICE, dtype),
        values=torch.randn(shape, generator=random).to(DEVICE, dtype),
        bias=sizes.log2().to(DEVICE),
        variance=None if spread is None else spread.to(DEVICE),
        skipped=_skipped(random),
        segments=torch.randint(0, 6, (GROUPS, QUERIES), generator=random).sort(1)[0].to(DEVICE),
    )


def _skipped(random: torch.Generator) -> Tensor:
    skipped = torch.rand(GROUPS, 6, CLUSTERS, generator=random) < 0.6
    skipped[:, 2] = False
    return skipped.to(DEVICE)


def _query(head_dim: int, dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(2, QUERIES, GROUPS // 2, head_dim, generator=seeded(1))
    return drawn.transpose(1, 2).to(DEVICE, dtype)


def _defined(
    q: Tensor, tail: Tail, scale: float, q_index: Tensor | None, low: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """The definition, in float64; for another `low` in float32, with operands rounded to it."""
    work = torch.float64 if low == torch.float64 else torch.float32
    rows = q.flatten(0, 1).to(work)
    if q_index is not None:
        rows = torch.stack([rows[g][q_index[g]] for g in range(GROUPS)])
    keys, values = (t.to(low).to(work) for t in (tail.keys, tail.values))
    scores = scale * rows @ keys.transpose(1, 2)
    if tail.variance is not None:
        scores += scale**2 / 2 * rows.square() @ tail.variance.to(work).transpose(1, 2)
    weights = scores.exp() * torch.exp2(tail.bias.to(work))[:, None]
    segments = tail.segments[..., None].expand(-1, -1, CLUSTERS)
    weights = weights * tail.skipped.gather(1, segments)
    lse, top = weights.sum(-1).log2(), weights.amax(-1, keepdim=True).clamp(min=1e-30)
    weights = weights / top
    total = weights.sum(-1, keepdim=True).clamp(min=1e-30)
    out = (weights.to(low).to(work) @ values) / total
    if q_index is not None:
        back = q_index.argsort(1)
        out = torch.stack([out[g][back[g]] for g in range(GROUPS)])
        lse = lse.gather(1, back)
    return out.view(q.shape), lse.view(q.shape[:3])


@pytest.mark.parametrize("variance", [False, True], ids=["plain", "variance"])
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [*((dim, torch.float32) for dim in HEAD_DIMS), (64, torch.bfloat16), (96, torch.float16)],
    ids=str,
)
def test_pseudo_keys_weigh_as_much_as_their_clusters(head_dim, dtype, variance) -> None:
    q, tail = _query(head_dim, dtype), _tail(head_dim, variance=variance)
    q_index = orders(GROUPS, QUERIES, seeded(3)) if variance else None
    out, lse = attend_tail(q, tail, scale=0.15, q_index=q_index)
    exact, exact_lse = _defined(q, tail, 0.15, q_index)
    low, low_lse = _defined(q, tail, 0.15, q_index, dtype)
    seen = ~exact_lse.isinf()
    assert out.dtype == dtype
    assert bool((out[~seen] == 0).all())
    assert torch.equal(lse.isinf(), ~seen)
    assert_within(out, exact, low.to(dtype))
    assert_within(lse[seen], exact_lse[seen], low_lse[seen])


@pytest.mark.parametrize("dtype", [*HALF_AND_FULL, torch.float64], ids=str)
def test_the_reference_is_the_definition(dtype: torch.dtype, monkeypatch) -> None:
    monkeypatch.setattr(reference, "_SCORES", 50 * CLUSTERS)
    q, tail = _query(20, dtype), _tail(20, variance=True)
    q_index = orders(GROUPS, QUERIES, seeded(3))
    out, lse = reference.attend_tail(q, tail, scale=0.15, q_index=q_index)
    exact, exact_lse = _defined(q, tail, 0.15, q_index)
    seen = ~exact_lse.isinf()
    assert bool((out[~seen] == 0).all())
    assert torch.equal(lse.isinf(), ~seen)
    torch.testing.assert_close(lse[seen].double(), exact_lse[seen], atol=1e-5, rtol=1e-6)
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), exact, atol=step + 1e-6, rtol=step)


def test_a_cluster_of_equal_keys_is_those_keys() -> None:
    q = _query(64, torch.float32)
    key, value = torch.ones(1, 64, device=DEVICE), torch.full((1, 64), 3.0, device=DEVICE)
    tail = Tail(
        keys=key.expand(GROUPS, 1, 64),
        values=value.expand(GROUPS, 1, 64),
        bias=torch.full((GROUPS, 1), 2.0, device=DEVICE),
        variance=None,
        skipped=torch.ones(GROUPS, 1, 1, dtype=torch.bool, device=DEVICE),
        segments=torch.zeros(GROUPS, QUERIES, dtype=torch.int64, device=DEVICE),
    )
    out, lse = attend_tail(q, tail, scale=0.1)
    expected = (4 * (0.1 * q.double().sum(-1)).exp()).log2()
    torch.testing.assert_close(lse.double(), expected, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(out, torch.full_like(out, 3.0))
    assert math.isfinite(float(out.sum()))
