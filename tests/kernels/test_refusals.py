"""What the operations refuse, they refuse with what was found, expected and to do."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import checks
from sparse_attn.kernels.assign import assign
from sparse_attn.kernels.attention import attend_tiles
from sparse_attn.kernels.merge import merge_parts
from sparse_attn.kernels.permute import cluster_stats, permute_with_stats, sort_by_label
from sparse_attn.kernels.tail import attend_tail
from sparse_attn.kernels.top_p import keep_mass
from sparse_attn.plan.plan import Tail
from sparse_attn.tiles import TileList
from tests.kernels.support import DEVICE


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


Q, K = _zeros(1, 4, 5, 64), _zeros(1, 2, 6, 64)
LABELS = _zeros(2, 5, dtype=torch.int64)
TILES = TileList.from_blocks(
    torch.ones(4, 1, 1, dtype=torch.bool),
    torch.full((4, 1), 5),
    torch.full((4, 1), 6),
).to(DEVICE)
TAIL = Tail(
    keys=_zeros(4, 3, 64),
    values=_zeros(4, 3, 64),
    bias=_zeros(4, 3),
    variance=None,
    skipped=_zeros(4, 2, 3, dtype=torch.bool),
    segments=_zeros(4, 5, dtype=torch.int64),
)
ORDER, X = _zeros(2, 5, dtype=torch.int64), _zeros(2, 5, 8)
SIZES = torch.tensor([[5, 0, 0]] * 2, device=DEVICE)


def _attend(q: Tensor = Q, k: Tensor = K, v: Tensor = K, tiles: TileList = TILES, **more: Any):
    return attend_tiles(q, k, v, tiles, **{"scale": 0.1, **more})


def _tail(q: Tensor = Q, scale: float = 0.1, q_index: Tensor | None = None, **more: Any):
    return attend_tail(q, replace(TAIL, **more), scale=scale, q_index=q_index)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "q of three dimensions": (lambda: _attend(Q[0]), r"q has shape \(4, 5, 64\); expected 4 dim"),
    "other head_dim of v": (
        lambda: _attend(v=K[..., :8]),
        r"v has shape .* expected \(1, 2, 6, 64",
    ),
    "heads that do not divide": (
        lambda: _attend(k=_zeros(1, 3, 6, 64), v=_zeros(1, 3, 6, 64)),
        "q has 4 heads and k 3; expected a number that divides those",
    ),
    "no heads of keys": (
        lambda: _attend(k=_zeros(1, 0, 6, 64), v=_zeros(1, 0, 6, 64)),
        "q has 4 heads and k 0",
    ),
    "head_dim without a kernel": (
        lambda: _attend(Q[..., :40], K[..., :40], K[..., :40]),
        "head_dim 40 has no kernel; expected one of 64, 72, 80, 96, 128. Use the torch backend",
    ),
    "mixed dtypes": (lambda: _attend(k=K.half()), "found q float32, k float16, v float32"),
    "integers": (lambda: _attend(Q.long()), "q is torch.int64; expected one of float16, bfloat16"),
    "float64 in a kernel": (lambda: _attend(Q.double()), "expected one of float16, bfloat16, flo"),
    "gradients": (
        lambda: _attend(Q.clone().requires_grad_()),
        r"q requires a gradient, and there is none here. Call it under torch.no_grad\(\)",
    ),
    "another list": (
        lambda: _attend(k=K[:, :, :5], v=K[:, :, :5]),
        r"the list is for \(heads, queries, keys\) = \(4, 5, 6\); expected \(4, 5, 5\)",
    ),
    "another device": (
        lambda: _attend(tiles=TILES.to("meta")),
        f"tiles is on meta; expected {DEVICE}",
    ),
    "a scale of 0": (lambda: _attend(scale=0.0), "scale is 0.0; expected a number above 0"),
    "a scale of NaN": (lambda: _attend(scale=float("nan")), "scale is nan; expected"),
    "an index of another shape": (
        lambda: _attend(q_index=_zeros(4, 6, dtype=torch.int64)),
        r"q_index has shape \(4, 6\); expected \(4, 5\)",
    ),
    "an index of floats": (
        lambda: _attend(kv_index=_zeros(4, 6)),
        "kv_index is torch.float32; expected int32 or int64",
    ),
    "no centroids": (lambda: assign(X, X[:, :0]), "there are no centroids; expected at least 1"),
    "centroids of another width": (
        lambda: assign(X, X[..., :4]),
        r"centroids has shape \(2, 5, 4\); expected \(2, 5, 8\)",
    ),
    "rows wider than the kernel's": (
        lambda: assign(_zeros(1, 2, 257), _zeros(1, 2, 257)),
        "assign: head_dim 257 has no kernel",
    ),
    "no clusters": (lambda: sort_by_label(LABELS, 0), "clusters is 0; expected at least 1"),
    "labels of floats": (lambda: sort_by_label(X[0], 3), "labels is torch.float32; expected int32"),
    "labels of one dimension": (lambda: sort_by_label(LABELS[0], 3), "labels has shape"),
    "an order of another length": (
        lambda: cluster_stats(X, ORDER[:, :4], SIZES),
        r"cluster_stats: order has shape \(2, 4\); expected \(2, 5\)",
    ),
    "sizes of other heads": (
        lambda: permute_with_stats(X, ORDER, SIZES[:1]),
        r"permute_with_stats: sizes has shape \(1, 3\); expected \(2, 3\)",
    ),
    "a share of 0": (lambda: keep_mass(X, 0.0), "p is 0.0; expected a share above 0, up to 1"),
    "a share of NaN": (lambda: keep_mass(X, float("nan")), "p is nan; expected"),
    "scores of two dimensions": (lambda: keep_mass(X[0], 0.5), "scores has shape"),
    "parts of other lengths": (
        lambda: merge_parts(Q, Q[..., 0], Q[:, :, :4], Q[:, :, :4, 0]),
        r"o2 has shape \(1, 4, 4, 64\); expected \(1, 4, 5, 64\)",
    ),
    "an LSE of another shape": (
        lambda: merge_parts(Q, Q[..., 0], Q, Q[..., :2, 0]),
        r"lse2 has shape \(1, 4, 2\); expected \(1, 4, 5\)",
    ),
    "parts of two dtypes": (
        lambda: merge_parts(Q, Q[..., 0], Q.half(), Q[..., 0]),
        "one dtype is needed, found o1 float32, o2 float16",
    ),
    "a tail of other heads": (
        lambda: _tail(values=_zeros(3, 3, 64)),
        r"values has shape \(3, 3, 64\); expected \(4, 3, 64\)",
    ),
    "variances of another width": (lambda: _tail(variance=_zeros(4, 3, 8)), "variance has shape"),
    "skips that are numbers": (
        lambda: _tail(skipped=_zeros(4, 2, 3)),
        "skipped is torch.float32; expected torch.bool",
    ),
    "a tail's scale below 0": (lambda: _tail(scale=-1.0), "scale is -1.0; expected a number above"),
    "a tail's index of floats": (lambda: _tail(q_index=_zeros(4, 5)), "q_index is torch.float32"),
    "a tail's head_dim": (
        lambda: _tail(Q[..., :8], keys=_zeros(4, 3, 8), values=_zeros(4, 3, 8)),
        "attend_tail: head_dim 8 has no kernel",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_found_and_expected(what: str) -> None:
    call, message = REFUSED[what]
    with pytest.raises(OptionError, match=message):
        call()


def test_tensors_that_need_a_gradient_are_taken_without_grad_mode() -> None:
    with torch.no_grad():
        out, _ = _attend(Q.clone().requires_grad_())
    assert not bool(out.any())


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU takes the kernels")
def test_without_the_interpreter_a_cpu_takes_the_reference(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    width = {"keys": _zeros(4, 3, 40), "values": _zeros(4, 3, 40)}
    for dtype in (*checks.DTYPES, torch.float64):
        q, k = (t[..., :40].to(dtype) for t in (Q, K))
        assert _attend(q, k, k)[0].dtype == dtype
        assert _tail(q, **width)[0].dtype == dtype
        assert merge_parts(q, q[..., 0], q, q[..., 0])[0].dtype == dtype
        x = X.to(dtype)
        assert assign(x, x).dtype == torch.int32
        assert keep_mass(x, 0.5).dtype == torch.bool
    assert sort_by_label(LABELS, 3)[1].tolist() == [[5, 0, 0]] * 2
    wide = _zeros(2, 5, 300)
    copy, mean, square = permute_with_stats(wide, ORDER, SIZES)
    assert copy.shape == wide.shape
    assert cluster_stats(wide, ORDER, SIZES)[0].shape == mean.shape == square.shape == (2, 3, 300)
