"""Attention over tiles is dense attention under the list's mask, whichever way it is computed."""

import math

import pytest
import torch

from sparse_attn.kernels.attention import HEAD_DIMS, attend_tiles, reference
from sparse_attn.kernels.attention.launch import Indices, run
from sparse_attn.kernels.attention.settings import Setting
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
    found = run(q, k, v, tiles, 0.11, Indices(), SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 0.11)


@pytest.mark.parametrize("seed", range(4))
def test_random_lists_with_groups_of_heads_and_indices(seed: int) -> None:
    random = seeded(seed)
    shape = Shape(batch=2, heads=4, kv_heads=2, queries=53, keys=61)
    tiles, (q, k, v) = tile_list(shape, random, 0.3), inputs(shape, random)
    q_index = orders(tiles.heads, shape.queries, random) if seed % 2 else None
    kv_index = orders(tiles.heads, shape.keys, random) if seed > 1 else None
    found = run(q, k, v, tiles, 0.2, Indices(q_index, kv_index), SMALL)
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
    found = run(q, k, v, tiles, 0.1, Indices(q_index), SMALL)
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
    found = run(q, dirty_k, dirty_v, tiles, 0.1, Indices(), SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 0.1)


def test_queries_in_no_row_are_written_as_seeing_nothing() -> None:
    q, k, v = inputs(Shape(heads=1, kv_heads=1), seeded(6))
    one = [torch.tensor([n], dtype=torch.int32) for n in (0, 3, 20, 0, 1, 2, 30)]
    tiles = TileList(1, 37, 45, *one).to(DEVICE)
    out, lse = run(q, k, v, tiles, 0.1, Indices(), SMALL)
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
    found = run(q, k, v, tiles, 1.0, Indices(), SMALL)
    assert_attention(found, q, k, v, mask_of(tiles), 1.0)


def test_elements_past_two_to_the_31st_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the pages that are written exist, so that nothing may fill the rest.
    monkeypatch.setattr("torch.utils.deterministic.fill_uninitialized_memory", False)
    shape = Shape(heads=1, kv_heads=1, keys=36)
    q, k, v = inputs(shape, seeded(9), torch.float16)
    far = torch.empty_strided(k.shape, (0, 0, 1 << 26, 1), dtype=k.dtype, device=DEVICE).copy_(k)
    tiles = tile_list(shape, seeded(9))
    found = run(q, far, v, tiles, 0.1, Indices(), SMALL)
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
