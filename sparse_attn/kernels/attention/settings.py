"""Block sizes for each architecture, head dimension, dtype and amount of waste.

Never for a length of sequence: another resolution or number of frames compiles nothing anew.
What stands here was chosen by what the compilers say (registers, spills, shared memory) and by
how much waste a block size has on clusters of usual sizes.
"""

from dataclasses import dataclass

import torch

HEAD_DIMS = (64, 72, 80, 96, 128)

# Waste of the large blocks, computed scores over wanted ones, up to which they are taken, and up
# to which the medium ones are.
_WASTE = (1.25, 1.6)


@dataclass(frozen=True, slots=True)
class Setting:
    """How an attention kernel is compiled.

    Attributes:
        block_m, block_n: queries and keys of a tile.
        warps, stages: of a program, and loads in flight.
        descriptors: whether keys come by tensor descriptors where their layout allows it.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    descriptors: bool = False


# For large, medium and small waste.
_Three = tuple[Setting, Setting, Setting]

_SETTINGS: dict[tuple[str, bool, bool], _Three] = {
    # architecture, float32, head_dim above 64
    ("sm80", False, False): (Setting(128, 64, 4, 3), Setting(64, 64, 4, 3), Setting(64, 32, 4, 3)),
    ("sm80", False, True): (Setting(128, 64, 8, 2), Setting(64, 64, 4, 2), Setting(64, 32, 4, 3)),
    ("sm80", True, False): (Setting(64, 32, 4, 2), Setting(64, 32, 4, 2), Setting(32, 16, 4, 2)),
    ("sm80", True, True): (Setting(64, 32, 8, 2), Setting(64, 32, 8, 2), Setting(32, 16, 4, 2)),
    ("sm90", False, False): (
        Setting(128, 128, 8, 3, descriptors=True),
        Setting(128, 64, 8, 3, descriptors=True),
        Setting(64, 64, 4, 3, descriptors=True),
    ),
    ("sm90", False, True): (
        Setting(128, 128, 8, 2, descriptors=True),
        Setting(128, 64, 8, 3, descriptors=True),
        Setting(64, 64, 4, 3, descriptors=True),
    ),
    ("sm90", True, False): (Setting(64, 32, 4, 2), Setting(64, 32, 4, 2), Setting(32, 16, 4, 2)),
    ("sm90", True, True): (Setting(64, 32, 8, 2), Setting(64, 32, 8, 2), Setting(32, 16, 4, 2)),
    ("gfx942", False, False): (
        Setting(128, 64, 4, 2),
        Setting(64, 64, 4, 2),
        Setting(64, 32, 4, 2),
    ),
    ("gfx942", False, True): (Setting(128, 64, 8, 2), Setting(64, 64, 4, 2), Setting(64, 32, 4, 2)),
    ("gfx942", True, False): (Setting(64, 32, 4, 1), Setting(64, 32, 4, 1), Setting(32, 16, 4, 1)),
    ("gfx942", True, True): (Setting(64, 32, 4, 1), Setting(64, 32, 4, 1), Setting(32, 16, 4, 1)),
}
# Cards for desks share the instructions of others, but not their shared memory.
_SAME = {"sm86": "sm80", "sm100": "sm90", "cpu": "sm80"}


def settings_for(arch: str, head_dim: int, dtype: torch.dtype) -> _Three:
    """The settings for little, medium and much waste."""
    return _SETTINGS[_SAME.get(arch, arch), dtype == torch.float32, head_dim > 64]


def bucket(waste: float) -> int:
    """Which of the three settings this much waste of the first one calls for."""
    return sum(waste > limit for limit in _WASTE)
