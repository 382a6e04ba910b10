"""Tile lists say exactly which scores are computed, also when cut."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.tiles import TileList

HEADS, QUERIES, KEYS = 2, 13, 17


def scores(tiles: TileList) -> Tensor:
    """Returns how often each score is asked for, [heads, queries, keys]."""
    asked = torch.zeros(tiles.heads, tiles.queries, tiles.keys, dtype=torch.int64)
    for row in range(tiles.rows):
        first, length = int(tiles.q_start[row]), int(tiles.q_len[row])
        for run in range(int(tiles.begin[row]), int(tiles.end[row])):
            start, count = int(tiles.kv_start[run]), int(tiles.kv_len[run])
            asked[int(tiles.head[row]), first : first + length, start : start + count] += 1
    return asked


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Returns kept blocks and sizes, some of them 0, that add up to the tokens of every head."""

    def sizes(total: int) -> Tensor:
        cuts = st.lists(st.integers(0, total), min_size=4, max_size=4).map(sorted)
        edges = [[0, *draw(cuts), total] for _ in range(HEADS)]
        return torch.tensor(edges).diff(dim=1)

    keep = st.lists(st.booleans(), min_size=HEADS * 25, max_size=HEADS * 25)
    return torch.tensor(draw(keep)).view(HEADS, 5, 5), sizes(QUERIES), sizes(KEYS)


def spelt_out(keep: Tensor, q_sizes: Tensor, kv_sizes: Tensor) -> Tensor:
    """Returns the kept scores, token by token."""
    pairs = zip(keep, q_sizes, kv_sizes, strict=True)
    return torch.stack([k.repeat_interleave(q, 0).repeat_interleave(n, 1) for k, q, n in pairs])


@given(blocks())
@settings(max_examples=60, deadline=None)
def test_blocks_become_exactly_their_scores(drawn: tuple[Tensor, Tensor, Tensor]) -> None:
    tiles = TileList.from_blocks(*drawn)
    tiles.check()
    assert torch.equal(scores(tiles), spelt_out(*drawn).long())
    assert tiles.density() == pytest.approx(float(spelt_out(*drawn).double().mean()), abs=1e-6)


@given(blocks(), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_cutting_changes_no_score_and_puts_full_tiles_first(
    drawn: tuple[Tensor, Tensor, Tensor], block_m: int, block_n: int
) -> None:
    cut = TileList.from_blocks(*drawn).cut(block_m, block_n)
    cut.check()
    assert torch.equal(scores(cut), spelt_out(*drawn).long())
    assert not cut.rows or int(cut.q_len.max()) <= block_m
    for begin, end in zip(cut.begin, cut.end, strict=True):
        lengths = cut.kv_len[begin:end]
        assert bool((lengths <= block_n).all())
        full = (lengths == block_n).int()
        assert bool((full.diff() <= 0).all())


def test_kept_neighbours_are_one_run_also_across_an_empty_block() -> None:
    keep = torch.tensor([[[True, True, False, True]]])
    tiles = TileList.from_blocks(keep, torch.tensor([[5]]), torch.tensor([[3, 4, 0, 6]]))
    assert tiles.kv_start.tolist() == [0]
    assert tiles.kv_len.tolist() == [13]


def test_waste_counts_what_tiles_compute_beyond_what_was_asked() -> None:
    keep = torch.tensor([[[True, False, True]]])
    tiles = TileList.from_blocks(keep, torch.tensor([[10]]), torch.tensor([[3, 4, 6]]))
    # 10 queries round up to 16, runs of 3 and 6 keys to 4 and 8: 16 · 12 scores for 10 · 9.
    assert tiles.waste(16, 4) == pytest.approx(16 * 12 / 90)


def a_list(**changes: list[int]) -> TileList:
    """Returns a right list of two rows, with some of its tensors replaced."""
    keep = torch.tensor([[[True, False, True], [False, True, False]]])
    right = TileList.from_blocks(keep, torch.tensor([[4, 4]]), torch.tensor([[2, 3, 4]]))
    fresh: dict[str, Any] = {
        name: torch.tensor(value, dtype=torch.int32) for name, value in changes.items()
    }
    return dataclasses.replace(right, **fresh)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": [0]}, "lengths"),
        ({"head": [0, 1]}, "row 1 belongs to none of the 1 heads"),
        ({"q_start": [0, 5]}, "row 1 has queries outside of the 8"),
        ({"q_start": [0, 3]}, "row 0 shares queries"),
        ({"end": [2, 4]}, "row 1 has runs outside of the 3"),
        ({"kv_start": [0, 5, 7]}, "row 1 sees keys outside of the 9"),
        ({"kv_start": [6, 5, 2]}, "row 0 sees a key twice"),
    ],
)
def test_a_wrong_list_is_refused_with_its_row(changes: dict[str, list[int]], message: str) -> None:
    a_list().check()
    with pytest.raises(OptionError, match=message):
        a_list(**changes).check()


def test_a_list_of_nothing_has_no_rows_and_density_zero() -> None:
    tiles = TileList.from_blocks(
        torch.zeros(1, 2, 2, dtype=torch.bool), torch.tensor([[4, 4]]), torch.tensor([[4, 4]])
    )
    tiles.check()
    assert tiles.density() == 0.0
    assert tiles.cut(2, 2).rows == 4


def test_moving_a_list_moves_every_tensor_of_it() -> None:
    moved = a_list().to("meta")
    tensors = [value for value in vars_of(moved) if isinstance(value, Tensor)]
    assert len(tensors) == 7
    assert all(tensor.is_meta for tensor in tensors)


def vars_of(tiles: TileList) -> list[Any]:
    """Returns the values of its fields."""
    return [getattr(tiles, field.name) for field in dataclasses.fields(tiles)]
