"""Settings depend on architecture, head dimension, dtype and waste, and on nothing else."""

import pytest
import torch

from sparse_attn.kernels import target
from sparse_attn.kernels.attention.launch import order_of
from sparse_attn.kernels.attention.settings import (
    HEAD_DIMS,
    Way,
    bucket,
    described,
    settings_for,
    specialized,
)
from sparse_attn.tiles import TileList
from tests.kernels.support import HALF_AND_FULL

ARCHS = ("sm80", "sm86", "sm90", "sm100", "gfx942", "cpu")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", HALF_AND_FULL, ids=str)
def test_more_waste_never_means_larger_tiles(arch: str, dtype: torch.dtype) -> None:
    ways = [Way.POINTERS, *([Way.DESCRIPTORS] if described(arch, dtype) else [])]
    for way in ways:
        for head_dim in HEAD_DIMS:
            three = settings_for(arch, head_dim, dtype, way)
            areas = [s.block_m * s.block_n for s in three]
            assert areas == sorted(areas, reverse=True)
            assert {s.way for s in three} == {way}


def test_only_hopper_and_blackwell_have_descriptors_and_not_in_float32() -> None:
    with_them = {arch for arch in ARCHS if described(arch, torch.bfloat16)}
    assert with_them == {"sm90", "sm100"}
    assert not any(described(arch, torch.float32) for arch in ARCHS)
    assert specialized("sm90").way is Way.SPECIALIZED


@pytest.mark.parametrize(("waste", "expected"), [(1.0, 0), (1.25, 0), (1.3, 1), (1.7, 2), (9, 2)])
def test_waste_picks_the_setting(waste: float, expected: int) -> None:
    assert bucket(waste) == expected


@pytest.mark.parametrize(
    ("head_dim", "parts"),
    [(8, (16, 0)), (64, (64, 0)), (72, (64, 16)), (80, (64, 16)), (96, (64, 32)), (128, (128, 0))],
)
def test_head_dimensions_are_split_into_powers_of_two(head_dim: int, parts: object) -> None:
    sizes = target.widths(head_dim)
    assert (sizes["D1"], sizes["D2"]) == parts


def test_long_rows_go_first_and_pieces_of_one_stay_neighbours() -> None:
    keep = torch.tensor([[[True, False], [True, True]], [[False, True], [True, True]]])
    tiles = TileList.from_blocks(keep, torch.tensor([[8, 8]] * 2), torch.tensor([[16, 32]] * 2))
    cut = tiles.cut(4, 16)
    order = order_of(cut, torch.zeros(1, 2, 48, 64))
    assert (cut.end - cut.begin)[order].tolist() == [3, 3, 3, 3, 2, 2, 1, 1]
    assert order.tolist() == [2, 3, 6, 7, 4, 5, 0, 1]
