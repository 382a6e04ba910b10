"""Attention over tiles is dense attention under the list's mask, whichever way it is computed."""

import math
from dataclasses import replace

import pytest
import torch

from accel.errors import OptionError
from sparse_attn.kernels.attention import HEAD_DIMS, attend_tiles, reference
from sparse_attn.kernels.attention.launch import (
    Indices,
    Operands,
    describable,
    in_order,
    run,
)
from sparse_attn.kernels.attention.settings import Setting, Three, Way
from sparse_attn.tiles import TileList
from tests.kernels.support import (
    DEVICE,
    HALF_AND_FULL,
    Shape,
    assert_attention,
    inputs,
    mask_of,
    orders,
    seeded,
    tile_list,
)

# Small, so that short sequences have full tiles, tails and several tiles for each row.
SMALL = Setting(32, 16, 4, 2)


@pytest.mark.parametrize("dtype", HALF_AND_FULL, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim_and_dtype_is_dense_attention(head_dim: int, dtype: torch.dtype) -> None:
    random = seeded(head_dim)
    shape = Shape(head_dim=head_dim)
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random, dtype)
    found = run(Operands(q, k, v, Indices(), 0.11), tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 0.11)


@pytest.mark.parametrize("seed", range(4))
def test_random_lists_with_groups_of_heads_and_indices(seed: int) -> None:
    random = seeded(seed)
    shape = Shape(batch=2, heads=4, kv_heads=2, queries=53, keys=61)
    tiles, (q, k, v) = tile_list(shape, random, 0.3), inputs(shape, random)
    q_index = orders(tiles.heads, shape.queries, random) if seed % 2 else None
    kv_index = orders(tiles.heads, shape.keys, random) if seed > 1 else None
    found = run(Operands(q, k, v, Indices(q_index, kv_index), 0.2), tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles, q_index, kv_index), 0.2)


@pytest.mark.parametrize("gathered", [False, True])
def test_any_strides_are_taken_as_they_are(gathered: bool) -> None:
    random, shape = seeded(7), Shape(batch=2)
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random)
    q = q.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    k = torch.stack([k, k], -1)[..., 1]
    v = v.transpose(2, 3).contiguous().transpose(2, 3).flip(0)
    index = orders(tiles.heads, 2 * shape.queries, random) if gathered else None
    q_index = None if index is None else index.argsort(1).argsort(1)[:, ::2].argsort(1).argsort(1)
    found = run(Operands(q, k, v, Indices(q_index), 0.1), tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles, q_index), 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_public_function_takes_indices_of_either_integer(dtype: torch.dtype) -> None:
    random, shape = seeded(3), Shape(head_dim=80)
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random, dtype)
    q_index, kv_index = (orders(tiles.heads, n, random) for n in (shape.queries, shape.keys))
    found = attend_tiles(q, k, v, tiles, scale=0.1, q_index=q_index.int(), kv_index=kv_index)
    assert_attention(found, q, k, v, mask_of(tiles, q_index, kv_index), 0.1)


def test_keys_that_no_one_sees_may_be_anything() -> None:
    q, k, v = inputs(Shape(heads=1, kv_heads=1), seeded(5))
    tiles = TileList.from_blocks(
        torch.tensor([[[True, False, True, False]]]),
        torch.tensor([[37]]),
        torch.tensor([[5, 11, 19, 10]]),
    ).to(DEVICE)
    unseen = ~mask_of(tiles)[0, 0]
    dirty_k, dirty_v = k.clone(), v.clone()
    dirty_k[..., unseen, :], dirty_v[..., unseen, :] = math.nan, math.inf
    found = run(Operands(q, dirty_k, dirty_v, Indices(), 0.1), tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 0.1)


def test_queries_in_no_row_are_written_as_seeing_nothing() -> None:
    q, k, v = inputs(Shape(heads=1, kv_heads=1), seeded(6))
    one = [torch.tensor([n], dtype=torch.int32) for n in (0, 3, 20, 0, 1, 2, 30)]
    tiles = TileList(1, 37, 45, *one).to(DEVICE)
    out, lse = run(Operands(q, k, v, Indices(), 0.1), tiles, SMALL)
    assert_attention((out, lse), q, k, v, mask_of(tiles), 0.1)
    assert bool((lse[0, 0, :3] == -math.inf).all())
    assert not bool(lse[0, 0, 3:23].isinf().any())


def test_an_empty_list_leaves_zeros() -> None:
    shape = Shape()
    q, k, v = inputs(shape, seeded(6))
    tiles = TileList(2, 37, 45, *(torch.empty(0, dtype=torch.int32, device=DEVICE),) * 7)
    out, lse = attend_tiles(q, k, v, tiles, scale=0.1)
    assert not bool(out.any())
    assert bool((lse == -math.inf).all())


def test_large_scores_neither_overflow_nor_vanish() -> None:
    random, shape = seeded(8), Shape()
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random, torch.float16)
    q, k = q * 40, k * 40
    found = run(Operands(q, k, v, Indices(), 1.0), tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 1.0)


def test_elements_past_two_to_the_31st_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the pages that are written exist, so that nothing may fill the rest.
    monkeypatch.setattr("torch.utils.deterministic.fill_uninitialized_memory", False)
    shape = Shape(heads=1, kv_heads=1, keys=36)
    q, k, v = inputs(shape, seeded(9), torch.float16)
    far = torch.empty_strided(k.shape, (0, 0, 1 << 26, 1), dtype=k.dtype, device=DEVICE).copy_(k)
    tiles = tile_list(shape, seeded(9))
    found = run(Operands(q, far, v, Indices(), 0.1), tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 0.1)


@pytest.mark.parametrize("dtype", [*HALF_AND_FULL, torch.float64], ids=str)
def test_the_reference_is_dense_attention(dtype: torch.dtype) -> None:
    random, shape = seeded(1), Shape(batch=2, heads=4, head_dim=20)
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random, dtype)
    q_index, kv_index = (orders(tiles.heads, n, random) for n in (shape.queries, shape.keys))
    found = reference.attend_tiles(q, k, v, tiles, scale=0.3, q_index=q_index, kv_index=kv_index)
    assert_attention(found, q, k, v, mask_of(tiles, q_index, kv_index), 0.3)


def test_the_reference_holds_few_scores_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    random, shape = seeded(2), Shape()
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random)
    whole = reference.attend_tiles(q, k, v, tiles, scale=0.3)
    monkeypatch.setattr(reference, "_SCORES", 64)
    parts = reference.attend_tiles(q, k, v, tiles, scale=0.3)
    torch.testing.assert_close(parts, whole)


DESCRIBED = replace(SMALL, way=Way.DESCRIPTORS)
SPECIALIZED = replace(SMALL, way=Way.SPECIALIZED)
# Blackwell and Hopper have the hardware; the interpreter stands in for it.
has_descriptors = pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.get_device_capability() < (9, 0),
    reason="the card reads no descriptors",
)


@has_descriptors
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(64, torch.float32), (72, torch.bfloat16), (96, torch.float16), (128, torch.bfloat16)],
    ids=str,
)
def test_keys_through_descriptors_are_the_same_keys(head_dim: int, dtype: torch.dtype) -> None:
    random = seeded(head_dim)
    shape = Shape(batch=2, heads=4, kv_heads=2, head_dim=head_dim)
    tiles, (q, k, v) = tile_list(shape, random, 0.3), inputs(shape, random, dtype)
    k = k.transpose(1, 2).contiguous().transpose(1, 2)
    q_index = orders(tiles.heads, shape.queries, random)
    operands = Operands(q, k, v, Indices(q_index), 0.2)
    assert describable(operands)
    found = run(operands, tiles, DESCRIBED)
    assert_attention(found, q, k, v, mask_of(tiles, q_index), 0.2)


@has_descriptors
def test_descriptors_keep_garbage_behind_a_run_out() -> None:
    q, k, v = inputs(Shape(heads=1, kv_heads=1), seeded(5))
    keep = torch.tensor([[[True, False]]])
    tiles = TileList.from_blocks(keep, torch.tensor([[37]]), torch.tensor([[21, 24]])).to(DEVICE)
    dirty_k, dirty_v = k.clone(), v.clone()
    dirty_k[:, :, 21:], dirty_v[:, :, 21:] = math.nan, math.inf
    found = run(Operands(q, dirty_k, dirty_v, Indices(), 0.1), tiles, DESCRIBED)
    assert_attention(found, q, k, v, mask_of(tiles), 0.1)


@has_descriptors
@pytest.mark.parametrize("head_dim", [64, 80])
def test_warps_apart_compute_lists_of_full_tiles(head_dim: int) -> None:
    random, shape = seeded(2), Shape(heads=4, queries=50, keys=64, head_dim=head_dim)
    q, k, v = inputs(shape, random, torch.float16)
    keep = torch.rand(4, 3, 4, generator=random) < 0.5
    keep[0, 0] = False
    sizes = torch.tensor([[32, 0, 18]] * 4), torch.full((4, 4), 16)
    tiles = TileList.from_blocks(keep, *sizes).to(DEVICE)
    found = run(Operands(q, k, v, Indices(), 0.2), tiles, SPECIALIZED)
    assert_attention(found, q, k, v, mask_of(tiles), 0.2)


@pytest.mark.parametrize("why", ["index", "tails", "layout"])
def test_warps_apart_refuse_what_they_cannot_read(why: str) -> None:
    random, shape = seeded(2), Shape(keys=64)
    q, k, v = inputs(shape, random)
    run_length = 15 if why == "tails" else 16
    tiles = TileList.from_blocks(
        torch.ones(2, 1, 2, dtype=torch.bool).tril(),
        torch.full((2, 1), 37),
        torch.tensor([[run_length, 64 - run_length]] * 2),
    ).to(DEVICE)
    index = orders(2, 37, random) if why == "index" else None
    q = q.transpose(2, 3).contiguous().transpose(2, 3) if why == "layout" else q
    with pytest.raises(OptionError, match="takes q, k and v without indices, rows of whole 16 by"):
        run(Operands(q, k, v, Indices(index), 0.1), tiles, SPECIALIZED)


def test_descriptors_read_whole_16_bytes_only() -> None:
    q, k, v = inputs(Shape(batch=2), seeded(0), torch.float16)
    assert describable(Operands(q, k, v, Indices(), 0.1))
    wide = torch.zeros(2, 2, 45, 68, dtype=k.dtype, device=DEVICE)
    for other in (wide[..., :64], wide[..., 2:66], k.transpose(2, 3), k[:1].expand(2, -1, -1, -1)):
        assert not describable(Operands(q, other, v, Indices(), 0.1))
        assert not describable(Operands(q, k, other, Indices(), 0.1))
    assert not describable(Operands(q, k, v, Indices(kv=orders(4, 45, seeded(0))), 0.1))


def test_keys_copied_into_order_give_the_same_attention() -> None:
    random, shape = seeded(4), Shape(batch=2)
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random)
    kv_index = orders(tiles.heads, shape.keys, random)
    operands = Operands(q, k, v, Indices(kv=kv_index), 0.2)
    copied = in_order(operands)
    assert copied.indices.kv is None
    found = run(copied, tiles, SMALL)
    assert_attention(found, q, k, v, mask_of(tiles, kv_index=kv_index), 0.2)
    shared = replace(operands, k=k[:, :1], v=v[:, :1])
    assert in_order(shared) is shared


@has_descriptors
@pytest.mark.parametrize("width", [64, 65])
def test_hoppers_settings_take_descriptors_where_the_layout_allows(monkeypatch, width) -> None:
    monkeypatch.setattr("sparse_attn.kernels.attention.launch.described", lambda *_: True)
    ways = []

    def settings(arch: str, head_dim: int, dtype: torch.dtype, way: Way) -> Three:
        ways.append(way)
        return (replace(SMALL, way=way),) * 3

    monkeypatch.setattr("sparse_attn.kernels.attention.launch.settings_for", settings)
    random, shape = seeded(4), Shape()
    tiles, (q, k, v) = tile_list(shape, random), inputs(shape, random, torch.float16)
    rows = torch.zeros(1, 2, 45, width, dtype=k.dtype, device=DEVICE)
    k = rows[..., :64].copy_(k)
    kv_index = orders(2, 45, random)
    index = kv_index if width == 64 else None
    found = attend_tiles(q, k, v, tiles, scale=0.2, kv_index=index)
    assert_attention(found, q, k, v, mask_of(tiles, kv_index=index), 0.2)
    assert ways == [Way.DESCRIPTORS if width == 64 else Way.POINTERS]
