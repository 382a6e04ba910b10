"""Which of a module's tokens are the picture's, and how these lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from accel.layers import Call

# Frames, rows and columns of tokens that lie in this order.
Lattice = tuple[int, int, int]

_PACKED_DIM, _IMAGE_DIM, _VIDEO_DIM = 3, 4, 5
# Halvings of the sides down to the deepest level of a UNet.
_LEVELS = (1, 2, 4, 8, 16, 32)


class Text(StrEnum):
    """Where the text stands in a sequence that holds text and picture."""

    FIRST = "in front of the picture"
    LAST = "behind the picture"


class Grid(NamedTuple):
    """How tokens [B, N, C] lie: frames first, then rows, with patches of latents in the channels.

    Attributes:
        frames, height, width: of the grid of tokens, N in all.
        patch: side of a token's patch; a token holds [channels, patch, patch].
    """

    frames: int
    height: int
    width: int
    patch: int

    @property
    def tokens(self) -> int:
        """N."""
        return self.frames * self.height * self.width


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

    def among(self, tokens: int, rows: int, *, text: Text | None) -> Place | None:
        """Where the picture is in a module's sequence, or None if that cannot be told.

        Args:
            tokens: of the sequence.
            rows: of its batch for each of the denoiser's.
            text: where the text stands if there is some in it, or None if that is not known.
        """
        if self.levels is not None:
            level = _level(self.levels, tokens)
            return None if level is None else Place(0, tokens, level)
        if self.tokens == tokens:
            return Place(0, tokens, self.lattice)
        if self.tokens is not None and text is not None and tokens > self.tokens:
            start = tokens - self.tokens if text is Text.FIRST else 0
            return Place(start, self.tokens, self.lattice)
        frame = self.frame
        if frame is not None and rows > 1 and tokens == frame[1] * frame[2]:
            return Place(0, tokens, frame)
        return None


def find_grid(argument: Callable[[str], Any]) -> Grid | None:
    """How the tokens of a denoiser call lie, as its other arguments tell, or None.

    Flux and Chroma hand over the tokens' places, Qwen-Image and LTX the size of the grid. Waits for
    the device where the places have to be read.

    Args:
        argument: returns the call's argument of a name, or None.
    """
    places, shapes = argument("img_ids"), argument("img_shapes")
    if isinstance(places, Tensor):
        # [N, 3] or, in a batch, [B, N, 4]: frame or picture, row, column.
        table = places[0] if places.dim() == _PACKED_DIM else places
        rows, columns = (table[:, 1:3].amax(dim=0) + 1).int().tolist()
        return Grid(1, rows, columns, 2)
    if shapes is not None:
        first = _first_shape(shapes)
        return None if first is None else Grid(*first, 2)
    sides = _sides([argument(name) for name in ("num_frames", "height", "width")])
    return None if sides is None else Grid(*sides, 1)


def picture_of(call: "Call", config: Any, *, unet: bool) -> Picture:
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


def _first_shape(shapes: Any) -> tuple[int, int, int] | None:
    while isinstance(shapes, (list, tuple)) and shapes and isinstance(shapes[0], (list, tuple)):
        shapes = shapes[0]
    return _sides(shapes)


def _sides(numbers: Any) -> tuple[int, int, int] | None:
    valid = isinstance(numbers, (list, tuple)) and len(numbers) == 3  # noqa: PLR2004 -- frames, height, width
    if not valid or not all(isinstance(number, int) for number in numbers):
        return None
    frames, height, width = numbers
    return frames, height, width
