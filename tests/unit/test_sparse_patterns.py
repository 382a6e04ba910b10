"""Static patterns: a curve that keeps neighbours together, bands, and windows that shrink."""

from itertools import pairwise

import numpy as np
import pytest

from sparse_attn.plan.bands import _windows, band, radial
from sparse_attn.plan.curve import frames_last_ranks, hilbert_ranks, neighbour_blocks


@pytest.mark.parametrize("lattice", [(1, 1, 1), (3, 5, 7), (1, 9, 4), (8, 8, 8), (2, 16, 3)])
def test_the_curve_visits_every_token_once(lattice: tuple[int, int, int]) -> None:
    ranks = hilbert_ranks(lattice)
    assert sorted(ranks.tolist()) == list(range(int(np.prod(lattice))))


@pytest.mark.parametrize("side", [2, 4, 8])
def test_on_a_cube_each_token_is_next_to_the_one_before(side: int) -> None:
    order = hilbert_ranks((side, side, side)).argsort()
    cells = np.stack(np.unravel_index(order, (side, side, side)))
    assert np.abs(np.diff(cells, axis=1)).sum(0).tolist() == [1] * (side**3 - 1)


def _spread(ranks: np.ndarray, lattice: tuple[int, int, int], block: int) -> float:
    """Returns the mean squared distance of tokens from the middle of their block."""
    cells = np.stack(np.unravel_index(ranks.argsort(), lattice)).astype(float)
    total = 0.0
    for start in range(0, cells.shape[1], block):
        part = cells[:, start : start + block]
        total += ((part - part.mean(1, keepdims=True)) ** 2).sum()
    return total / cells.shape[1]


@pytest.mark.parametrize("lattice", [(9, 15, 26), (5, 24, 40)])
def test_blocks_of_the_curve_are_more_compact_than_of_the_raster(
    lattice: tuple[int, int, int],
) -> None:
    raster = np.arange(np.prod(lattice))
    assert _spread(hilbert_ranks(lattice), lattice, 64) < _spread(raster, lattice, 64) / 2


def test_neighbours_are_blocks_that_share_a_face() -> None:
    # A row of 8 tokens: the curve visits them in order, so blocks of 2 form a chain.
    touch = neighbour_blocks((1, 1, 8), 2)
    ranks = hilbert_ranks((1, 1, 8)).tolist()
    blocks = [rank // 2 for rank in ranks]
    expected = np.eye(4, dtype=bool)
    for left, right in pairwise(blocks):
        expected[left, right] = expected[right, left] = True
    assert np.array_equal(touch, expected)
    assert np.array_equal(neighbour_blocks((3, 6, 5), 16), neighbour_blocks((3, 6, 5), 16).T)


def test_frames_of_one_position_follow_each_other() -> None:
    # Tokens are numbered by frame, row, column; two frames of one row of three.
    assert frames_last_ranks((2, 1, 3)).tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("density", [0.05, 0.25, 0.3, 0.7])
def test_a_band_has_its_density(density: float) -> None:
    assert band(200, density).mean() == pytest.approx(density, abs=0.006)


def test_a_band_is_about_the_diagonal_and_may_be_everything_or_the_diagonal() -> None:
    assert band(4, 10 / 16).astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 1, 1, 1],
        [0, 0, 1, 1],
    ]
    assert band(7, 1.0).all()
    assert np.array_equal(band(7, 0.01), np.eye(7, dtype=bool))


def test_windows_halve_as_the_distance_doubles_then_frames_are_left_out() -> None:
    # 1000 tokens a frame have 10 bits: 512 at distance 1, 256 at 2 and 3, 128 at 4 to 7.
    width, every = _windows(17, 1000, 128, 1.0)
    assert width.tolist() == [1000, 512, 256, 256, *[128] * 13]
    # At 8 the window would be 64, half a block: every second frame. At 16 every fourth.
    assert every.tolist() == [1] * 8 + [2] * 8 + [4]


def test_radial_sees_itself_the_first_frame_and_what_is_near() -> None:
    lattice = (9, 16, 16)
    pattern = radial(lattice, 32, 1.0, 1 / 3)
    frame = 256 // 32
    assert pattern.shape == (72, 72)
    assert pattern.diagonal().all()
    assert pattern[:, :frame].all()
    # Within a frame all is seen; one frame on, what is within half a frame.
    assert pattern[frame : 2 * frame, frame : 2 * frame].all()
    next_frame = pattern[frame, 2 * frame : 3 * frame]
    assert next_frame[0]
    shares = [
        pattern[frame : 2 * frame, (1 + d) * frame : (2 + d) * frame].mean() for d in range(4)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[3] < shares[0]


def test_more_decay_and_less_coverage_see_more() -> None:
    def seen(decay: float, least: float) -> float:
        return float(radial((8, 11, 13), 16, decay, least).mean())

    assert seen(0.5, 0.5) < seen(1.0, 0.5) < seen(2.0, 0.5)
    assert seen(1.0, 0.8) < seen(1.0, 0.5) < seen(1.0, 0.1)
