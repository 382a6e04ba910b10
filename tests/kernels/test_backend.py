"""The Triton backend carries out whole plans, and says what it cannot take."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sparse_attn.backends.triton import TritonBackend
from sparse_attn.kernels import target
from sparse_attn.plan.plan import Plan, Tail
from sparse_attn.tiles import TileList
from tests.kernels.support import (
    DEVICE,
    Shape,
    assert_attention,
    inputs,
    mask_of,
    orders,
    seeded,
    tile_list,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_plan_with_orders_is_dense_attention_in_the_tokens_order() -> None:
    random, shape = seeded(0), Shape(batch=2, heads=2, kv_heads=1, head_dim=72)
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random)
    q_order, kv_order = (orders(tiles.heads, n, random) for n in (shape.queries, shape.keys))
    found = TritonBackend().attend(q, k, v, Plan(tiles, q_order, kv_order), scale=0.2)
    assert_attention(found, q, k, v, mask_of(tiles, q_order, kv_order), 0.2)


def test_skipped_clusters_of_equal_keys_lose_nothing_to_their_stand_ins() -> None:
    # Every key of a cluster is its centroid, so that the tail is exact and the sum is dense.
    random, shape = seeded(1), Shape(queries=20, keys=24)
    q, k, v = inputs(shape, random)
    centroids = (k[:, :, ::6], v[:, :, ::6])
    k, v = (t.repeat_interleave(6, 2) for t in centroids)
    keep = torch.rand(2, 2, 4, generator=random) < 0.5
    tiles = TileList.from_blocks(keep, torch.full((2, 2), 10), torch.full((2, 4), 6)).to(DEVICE)
    q_order = orders(2, 20, random)
    tail = Tail(
        keys=centroids[0][0],
        values=centroids[1][0],
        bias=torch.full((2, 4), 6.0, device=DEVICE).log2(),
        variance=None,
        skipped=~keep.to(DEVICE),
        segments=torch.arange(2, device=DEVICE).repeat_interleave(10).expand(2, -1),
    )
    found = TritonBackend().attend(q, k, v, Plan(tiles, q_order, tail=tail), scale=0.2)
    everything = torch.ones(2, 20, 24, dtype=torch.bool, device=DEVICE)
    assert_attention(found, q, k, v, everything, 0.2)


def test_what_it_takes_it_does_not_refuse() -> None:
    assert TritonBackend().refuses(*inputs(Shape(), seeded(0))) is None


def test_refusals_name_the_reason() -> None:
    q, k, v = inputs(Shape(), seeded(0))
    refuses = TritonBackend().refuses
    assert refuses(q[..., :40], k, v) == "head_dim 40 is none of 64, 72, 80, 96, 128"
    assert refuses(q.double(), k, v) == (
        "no kernel for torch.float64 with keys torch.float32 and values torch.float32"
    )
    assert refuses(q, k.half(), v) == (
        "no kernel for torch.float32 with keys torch.float16 and values torch.float32"
    )
    assert refuses(q.requires_grad_(), k, v) == "a gradient is needed, and the kernels have none"
    assert refuses(q.to("meta"), k, v) == (
        "Triton does not interpret meta"
        if target.interpreting()
        else "Triton compiles for CUDA and ROCm devices, not for meta"
    )


def test_devices_that_triton_does_not_compile_for_are_named(monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    expected = "Triton compiles for CUDA and ROCm devices, not for cpu"
    assert target.missing(torch.device("cpu")) == expected


def test_a_missing_triton_is_named(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert target.missing(torch.device("cpu")) == "Triton is not installed"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 5), "a card is older than compute capability 8.0"),
        ((8, 0), None),
    ],
)
def test_cards_are_told_apart_by_their_capability(monkeypatch, capability, expected) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    assert target.missing(torch.device("cuda", 0)) == expected


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((8, 0), "sm80"),
        ((8, 6), "sm86"),
        ((8, 9), "sm86"),
        ((9, 0), "sm90"),
        ((10, 0), "sm100"),
        ((10, 3), "sm100"),
        ((12, 0), "sm86"),
    ],
)
def test_architectures_share_settings_by_class(monkeypatch, capability, expected) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    target._compiled_for.cache_clear()
    assert target.architecture(torch.device("cuda", 0)) == expected
    monkeypatch.setattr(torch.version, "hip", "6.2")
    target._compiled_for.cache_clear()
    assert target.architecture(torch.device("cuda", 0)) == "gfx942"
    target._compiled_for.cache_clear()


def test_importing_the_package_and_its_backend_loads_no_triton() -> None:
    program = (
        "import sparse_attn, sparse_attn.backends.triton, sys\n"
        "import sparse_attn.kernels.assign, sparse_attn.kernels.permute\n"
        "import sparse_attn.kernels.top_p\n"
        "print('triton' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
