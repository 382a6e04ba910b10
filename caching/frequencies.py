"""Low and high frequencies of latents, also of latents that a model handles as tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel.layers import Call

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


def find_grid(call: Call) -> Grid | None:
    """How the tokens of a denoiser call lie, as its other arguments tell, or None.

    Flux and Chroma hand over the tokens' places, Qwen-Image and LTX the size of the grid. Waits for
    the device where the places have to be read.
    """
    places, shapes = call.argument("img_ids"), call.argument("img_shapes")
    if isinstance(places, Tensor):
        # [N, 3] or, in a batch, [B, N, 4]: frame or picture, row, column.
        table = places[0] if places.dim() == _TOKENS_DIM else places
        rows, columns = (table[:, 1:3].amax(dim=0) + 1).int().tolist()
        return Grid(1, rows, columns, 2)
    if shapes is not None:
        first = _first_shape(shapes)
        return None if first is None else Grid(*first, 2)
    sides = [call.argument(name) for name in ("num_frames", "height", "width")]
    if all(isinstance(side, int) for side in sides):
        return Grid(*sides, 1)
    return None


def _first_shape(shapes: Any) -> Sequence[int] | None:
    while isinstance(shapes, (list, tuple)) and shapes and not isinstance(shapes[0], int):
        shapes = shapes[0]
    valid = isinstance(shapes, (list, tuple)) and len(shapes) == 3  # noqa: PLR2004 -- frames, height, width
    return shapes if valid else None


def split(latents: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor]:
    """The low and the high frequencies of every frame, which add up to the latents.

    Low is what lies within a circle of a fifth of the shorter side around frequency 0.

    Args:
        latents: [..., H, W], or tokens [B, N, C] if there is a grid.
        grid: how the tokens lie.
    """
    pictures = latents.float() if grid is None else _unpacked(latents.float(), grid)
    height, width = pictures.shape[-2:]
    rows = torch.fft.fftfreq(height, 1 / height, device=latents.device)
    columns = torch.fft.rfftfreq(width, 1 / width, device=latents.device)
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
