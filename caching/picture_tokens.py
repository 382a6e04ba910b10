"""Which of a module's tokens are the picture's, and how these lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from accel.layers import Call
from caching.frequencies import find_grid
from caching.token_scores import Lattice

_PACKED_DIM, _IMAGE_DIM, _VIDEO_DIM = 3, 4, 5
# Halvings of the sides down to the deepest level of a UNet.
_LEVELS = (1, 2, 4, 8, 16, 32)


class Place(NamedTuple):
    """Where the picture's tokens are among a module's.

    Attributes:
        start: the first of them.
        length: how many.
        lattice: how they lie, or None if that is not known.
    """

    start: int
    length: int
    lattice: Lattice | None


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of one denoiser call.

    Attributes:
        tokens: in the sequence that the model handles, or None if it is not known.
        lattice: how they lie, or None.
        levels: the sides of the latents where a UNet handles them in several resolutions.
        frame: tokens of one frame, where a model may handle the frames apart.
    """

    tokens: int | None = None
    lattice: Lattice | None = None
    levels: tuple[int, int] | None = None
    frame: Lattice | None = None

    def among(self, tokens: int, rows: int, *, text_first: bool) -> Place | None:
        """Where the picture is in a module's input, or None if that cannot be told.

        Args:
            tokens: of the module's input.
            rows: of its batch for each of the denoiser's.
            text_first: whether the module is handed the text in front of the picture.
        """
        if self.levels is not None:
            level = _level(self.levels, tokens)
            return None if level is None else Place(0, tokens, level)
        if self.tokens == tokens:
            return Place(0, tokens, self.lattice)
        if self.tokens is not None and text_first and tokens > self.tokens:
            return Place(tokens - self.tokens, self.tokens, self.lattice)
        frame = self.frame
        if frame is not None and rows > 1 and tokens == frame[1] * frame[2]:
            return Place(0, tokens, frame)
        return None


def picture_of(call: Call, config: Any, *, unet: bool) -> Picture:
    """The picture that a denoiser call is handed, as its arguments and the model's config tell.

    Waits for the device where places of tokens have to be read.

    Args:
        call: the denoiser call.
        config: of the model; patch sizes and the number of channels are looked up.
        unet: whether the model is a UNet.
    """
    hidden: Any = call.hidden
    if not isinstance(hidden, Tensor):
        return Picture()
    if hidden.dim() == _PACKED_DIM:
        grid = find_grid(call.argument)
        fits = grid is not None and grid.tokens == hidden.shape[1]
        return Picture(hidden.shape[1], grid[:3] if grid is not None and fits else None)
    if hidden.dim() not in (_IMAGE_DIM, _VIDEO_DIM):
        return Picture()
    height, width = hidden.shape[-2:]
    if unet:
        return Picture(levels=(height, width))
    patch = _patch(config)
    if patch is None:
        return Picture()
    frames = _frames(hidden.shape, getattr(config, "in_channels", None))
    lattice = (-(-frames // patch[0]), height // patch[1], width // patch[2])
    return Picture(lattice[0] * lattice[1] * lattice[2], lattice, frame=(1, *lattice[1:]))


def _frames(shape: Sequence[int], channels: Any) -> int:
    """Frames of [B, C, H, W], [B, C, F, H, W] or [B, F, C, H, W]."""
    if len(shape) == _IMAGE_DIM:
        return 1
    return shape[1] if shape[2] == channels != shape[1] else shape[2]


def _patch(config: Any) -> tuple[int, int, int] | None:
    """Frames, rows and columns of a patch."""
    size = getattr(config, "patch_size", None)
    if isinstance(size, int):
        frames = getattr(config, "patch_size_t", None)
        return (frames if isinstance(frames, int) else 1, size, size)
    if isinstance(size, (list, tuple)) and len(size) == 3:  # noqa: PLR2004 -- frames, rows, columns
        return (size[0], size[1], size[2])
    return None


def _level(sides: tuple[int, int], tokens: int) -> Lattice | None:
    # Convolutions of stride 2 round up.
    lattices = [(1, -(-sides[0] // level), -(-sides[1] // level)) for level in _LEVELS]
    return next((found for found in lattices if found[1] * found[2] == tokens), None)
