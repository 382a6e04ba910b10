"""Orders of a clip's tokens in which neighbours on the lattice stay close, and their blocks.

All of it depends on the lattice alone and is computed once, on the host.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Lattice = tuple[int, int, int]
Integers = NDArray[np.int64]

_SIDES = 3


@lru_cache(maxsize=32)
def hilbert_ranks(lattice: Lattice) -> Integers:
    """The place of every token on a space-filling curve, [frames * rows * columns].

    It is Hilbert's curve through the smallest cube that holds the lattice, of which only the
    lattice's cells are visited. On a cube whose side is a power of two each token is a neighbour of
    the one before; on other lattices the curve jumps where it left the lattice.

    Source: J. Skilling, Programming the Hilbert curve, 2004.

    Args:
        lattice: frames, rows and columns of tokens that lie in this order.
    """
    cells = np.stack([axis.ravel() for axis in np.indices(lattice)])
    order = _hilbert_index(cells, max(1, (max(lattice) - 1).bit_length())).argsort(kind="stable")
    return _inverse(order)


@lru_cache(maxsize=32)
def frames_last_ranks(lattice: Lattice) -> Integers:
    """The place of every token where the frames of one position follow each other."""
    order = np.arange(np.prod(lattice)).reshape(lattice).transpose(1, 2, 0).ravel()
    return _inverse(order)


@lru_cache(maxsize=32)
def neighbour_blocks(lattice: Lattice, block: int) -> NDArray[np.bool_]:
    """Which blocks of the curve touch each other, [C, C], each itself included.

    Two blocks touch where a token of one is next to one of the other in time, row or column.

    Args:
        lattice: frames, rows and columns.
        block: tokens of the curve in each block, fewer in the last.
    """
    blocks = (hilbert_ranks(lattice) // block).reshape(lattice)
    count = int(blocks.max()) + 1
    touch = np.eye(count, dtype=bool)
    for axis in range(_SIDES):
        ahead = np.moveaxis(blocks, axis, 0)
        touch[ahead[:-1].ravel(), ahead[1:].ravel()] = True
    return touch | touch.T


def _inverse(order: Any) -> Integers:
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _hilbert_index(cells: Integers, bits: int) -> Integers:
    """How far along the curve through a cube of side 2**bits each cell [3, n] comes."""
    x = cells.astype(np.int64).copy()
    for bit in range(bits - 1, 0, -1):
        low = (1 << bit) - 1
        for side in range(_SIDES):
            inside = (x[side] >> bit) & 1 == 1
            swapped = np.where(inside, 0, (x[0] ^ x[side]) & low)
            x[0] ^= np.where(inside, low, swapped)
            x[side] ^= swapped
    for side in range(1, _SIDES):
        x[side] ^= x[side - 1]
    flips = np.zeros_like(x[0])
    for bit in range(bits - 1, 0, -1):
        flips ^= np.where((x[-1] >> bit) & 1 == 1, (1 << bit) - 1, 0)
    x ^= flips
    index: Integers = np.zeros_like(x[0])
    for bit in range(bits - 1, -1, -1):
        for side in range(_SIDES):
            index = (index << 1) | ((x[side] >> bit) & 1)
    return index
