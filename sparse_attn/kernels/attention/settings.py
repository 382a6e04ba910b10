"""Block sizes for each architecture, head dimension, dtype and amount of waste.

Never for a length of sequence: another resolution or number of frames compiles nothing anew.
What stands here was chosen by what the compilers say (registers, spills, shared memory; see
`tests/kernels/compiled.json`) and by how much waste a block size has on clusters of usual sizes.
"""

from dataclasses import dataclass
from enum import Enum

import torch

HEAD_DIMS = (64, 72, 80, 96, 128)

# Waste of the large blocks, computed scores over wanted ones, up to which they are taken, and up
# to which the medium ones are.
_WASTE = (1.25, 1.6)


class Way(Enum):
    """How keys and values come in: by pointers, descriptors, or descriptors and warps apart.

    `SPECIALIZED` is for lists of full tiles without indices. No list is given it by itself.
    """

    POINTERS = "pointers"
    DESCRIPTORS = "descriptors"
    SPECIALIZED = "specialized"


@dataclass(frozen=True, slots=True)
class Setting:
    """How an attention kernel is compiled.

    Attributes:
        block_m, block_n: queries and keys of a tile.
        warps, stages: of a program, and loads in flight.
        way: how keys and values come in.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    way: Way = Way.POINTERS


# For little, medium and much waste.
Three = tuple[Setting, Setting, Setting]


def _described(block_m: int, block_n: int, warps: int, stages: int) -> Setting:
    return Setting(block_m, block_n, warps, stages, Way.DESCRIPTORS)


_MEDIUM, _SMALL = Setting(64, 64, 4, 3), Setting(64, 32, 4, 3)
_TWO_STAGES = Setting(64, 64, 4, 2)
_HOPPER: Three = (Setting(128, 64, 8, 3), _MEDIUM, _SMALL)
_BLACKWELL: Three = (_described(128, 64, 8, 3),) * 2 + (_described(64, 64, 4, 3),)
_DESCRIBED_MEDIUM = (_described(128, 64, 8, 3), _described(64, 64, 4, 3))
_AMD: Three = (Setting(64, 32, 4, 2),) * 3
# For head dimensions of 64, in two parts, and of 128.
_HALF: dict[tuple[str, Way], tuple[Three, Three, Three]] = {
    ("sm80", Way.POINTERS): (
        (Setting(128, 64, 8, 3), _MEDIUM, _SMALL),
        (_TWO_STAGES, _TWO_STAGES, _SMALL),
        (Setting(128, 64, 8, 2), _TWO_STAGES, _SMALL),
    ),
    ("sm90", Way.POINTERS): (_HOPPER,) * 3,
    ("sm90", Way.DESCRIPTORS): (
        (_described(128, 128, 8, 3), *_DESCRIBED_MEDIUM),
        (_described(128, 128, 8, 2), *_DESCRIBED_MEDIUM),
        (_described(128, 128, 8, 2), *_DESCRIBED_MEDIUM),
    ),
    ("sm100", Way.DESCRIPTORS): (_BLACKWELL,) * 3,
    ("gfx942", Way.POINTERS): (_AMD, _AMD, (Setting(128, 64, 8, 2), *_AMD[1:])),
}
# float32 takes twice the room, and each of its products is three.
_FULL: Three = (Setting(32, 16, 8, 2),) * 3
_FULL_AMD: Three = (Setting(64, 16, 4, 1),) * 3
# What is not listed is like another: cards for desks have sm80's instructions.
_LIKE = {"sm86": "sm80", "cpu": "sm80", "sm100": "sm90"}


def described(arch: str, dtype: torch.dtype) -> bool:
    """Whether keys come by descriptors on this architecture, where their layout allows it."""
    return (arch, Way.DESCRIPTORS) in _HALF and dtype != torch.float32


def settings_for(arch: str, head_dim: int, dtype: torch.dtype, way: Way) -> Three:
    """The settings for little, medium and much waste."""
    if dtype == torch.float32:
        return _FULL_AMD if arch == "gfx942" else _FULL
    key = (arch, way) if (arch, way) in _HALF else (_LIKE[arch], way)
    return _HALF[key][(head_dim > HEAD_DIMS[0]) + (head_dim == HEAD_DIMS[-1])]


def specialized(arch: str) -> Setting:
    """The setting in which some warps load and the others compute."""
    return Setting(128, 128, 8 if arch == "sm100" else 4, 2, Way.SPECIALIZED)


def bucket(waste: float) -> int:
    """Which of the three settings this much waste of the first one calls for."""
    return sum(waste > limit for limit in _WASTE)
