"""Low and high frequencies of latents, also of latents that a model handles as tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_TOKENS_DIM = 3


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
        table = places[0] if places.dim() == _TOKENS_DIM else places
        rows, columns = (table[:, 1:3].amax(dim=0) + 1).int().tolist()
        return Grid(1, rows, columns, 2)
    if shapes is not None:
        first = _first_shape(shapes)
        return None if first is None else Grid(*first, 2)
    sides = _sides([argument(name) for name in ("num_frames", "height", "width")])
    return None if sides is None else Grid(*sides, 1)


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


def split(latents: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor]:
    """The low and the high frequencies of every frame, which add up to the latents.

    Low is what lies within a circle of a fifth of the shorter side around frequency 0.

    Args:
        latents: [..., H, W], or tokens [B, N, C] if there is a grid.
        grid: how the tokens lie.
    """
    pictures = latents.float() if grid is None else _unpacked(latents.float(), grid)
    height, width = pictures.shape[-2:]
    # Frequencies run up to half of the side and down again; a real picture needs half of a row.
    down = torch.arange(height, device=latents.device)
    rows = torch.minimum(down, height - down)
    columns = torch.arange(width // 2 + 1, device=latents.device)
    inside = rows[:, None] ** 2 + columns**2 <= (min(height, width) // 5) ** 2
    low = torch.fft.irfft2(torch.fft.rfft2(pictures) * inside, s=(height, width))
    if grid is not None:
        low = _packed(low, grid)
    return low, latents.float() - low


def _unpacked(tokens: Tensor, grid: Grid) -> Tensor:
    frames, height, width, patch = grid
    patches = tokens.view(len(tokens), frames, height, width, -1, patch, patch)
    pictures = patches.permute(0, 1, 4, 2, 5, 3, 6)
    return pictures.reshape(len(tokens), frames, -1, height * patch, width * patch)


def _packed(pictures: Tensor, grid: Grid) -> Tensor:
    frames, height, width, patch = grid
    patches = pictures.view(len(pictures), frames, -1, height, patch, width, patch)
    return patches.permute(0, 1, 3, 5, 2, 4, 6).reshape(len(pictures), grid.tokens, -1)
