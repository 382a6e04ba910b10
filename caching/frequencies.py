"""Low and high frequencies of latents, also of latents that a model handles as tokens."""

import torch
from torch import Tensor

from accel.picture_tokens import Grid


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
