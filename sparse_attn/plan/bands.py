"""Static patterns over blocks of tokens: bands, and windows that shrink with the frames between."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sparse_attn.plan.curve import Integers, Lattice

# Tokens of a block that stand for all of it where a pattern is finer than blocks.
_SAMPLES = 8


@lru_cache(maxsize=32)
def band(blocks: int, density: float) -> NDArray[np.bool_]:
    """Blocks no further from each other than makes this share of all pairs, [C, C].

    Each sees itself in any case.

    Args:
        blocks: how many there are.
        density: share of the pairs, above 0 to 1; at 1 all are seen.
    """
    # A band of half width w leaves two triangles of (C - 1 - w)(C - w) / 2 pairs.
    apart = np.abs(np.subtract.outer(np.arange(blocks), np.arange(blocks)))
    left = (1 - density) * blocks**2
    width = blocks - 0.5 - math.sqrt(0.25 + left)
    return apart <= max(0, round(width))


@lru_cache(maxsize=32)
def radial(lattice: Lattice, block: int, decay: float, least: float) -> NDArray[np.bool_]:
    """Blocks of tokens, frame by frame, within windows that halve as frames are further apart.

    The first frame is seen by all.

    Args:
        lattice: frames, rows and columns.
        block: tokens in each block, fewer in the last.
        decay: factor on the windows' width.
        least: share of a pair's scores that must lie in a window for the pair to be seen.
    """
    frame = lattice[1] * lattice[2]
    tokens = lattice[0] * frame
    starts = np.arange(0, tokens, block)
    sizes = np.minimum(block, tokens - starts)
    # The same number of tokens of every block, evenly spread, stands for it.
    spread = (np.arange(_SAMPLES) + 0.5) / _SAMPLES
    sampled = (starts[:, None] + np.floor(spread * sizes[:, None])).astype(np.int64)
    shares = np.stack([_seen_share(row, sampled, frame, block, decay) for row in sampled])
    sink = starts[None, :] < frame
    return (shares >= least) | sink | np.eye(len(starts), dtype=bool)


def _seen_share(
    row: Integers, sampled: Integers, frame: int, block: int, decay: float
) -> NDArray[np.float64]:
    """Share of one block's scores for every other that lie in a window, [C]."""
    apart = np.abs(row[:, None, None] // frame - sampled // frame)
    near = np.abs(row[:, None, None] % frame - sampled % frame)
    width, every = _windows(int(apart.max()) + 1, frame, block, decay)
    share: NDArray[np.float64] = ((near <= width[apart]) & (apart % every[apart] == 0)).mean((0, 2))
    return share


def _windows(
    frames: int, frame: int, block: int, decay: float
) -> tuple[NDArray[np.float64], Integers]:
    """By frames between: how far tokens may be apart, and every how manieth frame is seen at all.

    The width of the window halves whenever the distance doubles. Where it would be narrower than a
    block it stays one block, and frames are left out instead.
    """
    apart = np.arange(frames)
    group = np.array([int(distance).bit_length() for distance in apart])
    width = 2.0 ** (frame.bit_length() - group) * decay
    every = np.maximum(1, np.floor(block / width)).astype(np.int64)
    width = np.where(apart == 0, frame, np.maximum(width, block))
    every[0] = 1
    return width, every
