"""A starting point for the autoencoder from which minutes of CPU training are enough.

Trained from random weights, its group normalisations first hide the ground's colour, and hundreds
of steps go into undoing that. Here some channels are set so that the whole is, from the start, an
average over 2 x 2 pixels followed by an enlargement. Two devices make normalisation and SiLU
transparent: a signal travels as a pair (s, -s), for silu(s) - silu(-s) = s, and shares its group
with constants (K, -K) that fix the group's variance.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

GROUPS = 4
CONSTANT = 3.0
FIRST_LOG_VARIANCE = -6.0


@torch.no_grad()
def start_as_average(vae: "AutoencoderKL") -> None:
    """Set weights in place: latents 0-2 are the mean red, green and blue of 2 x 2 pixels."""
    for name, module in vae.named_modules():
        if name.endswith(("resnets.0", "resnets.1")):
            nn.init.zeros_(module.conv2.weight)
            nn.init.zeros_(module.conv2.bias)
    encoder, decoder = vae.encoder, vae.decoder
    down, up = encoder.down_blocks, decoder.up_blocks
    _pass(encoder.conv_in, 3)
    _pass(down[0].downsamplers[0].conv, 3, taps=((0, 0), (0, 1), (1, 0), (1, 1)))
    _pass_paired(down[1].resnets[0].conv_shortcut, encoder.conv_norm_out)
    _unpair(encoder.conv_out)
    latents = encoder.conv_out.out_channels // 2
    encoder.conv_out.weight[latents:] = 0
    encoder.conv_out.bias[latents:] = FIRST_LOG_VARIANCE
    _pass(decoder.conv_in, 3)
    _pass(up[0].upsamplers[0].conv, 3)
    _pass_paired(up[1].resnets[0].conv_shortcut, decoder.conv_norm_out)
    _unpair(decoder.conv_out)


def _pass(conv: nn.Conv2d, signals: int, taps: tuple[tuple[int, int], ...] = ((1, 1),)) -> None:
    """Let the first `signals` channels through, as the mean over `taps` of the 3 x 3 window."""
    conv.weight[:signals] = 0
    _bias(conv)[:signals] = 0
    for channel in range(signals):
        for row, column in taps:
            conv.weight[channel, channel, row, column] = 1 / len(taps)


def _pass_paired(shortcut: nn.Conv2d, norm: nn.GroupNorm) -> None:
    """Fill the first group with (s, -s) of three signals and constants, and undo its scaling."""
    size = norm.num_channels // norm.num_groups
    shortcut.weight[:size] = 0
    _bias(shortcut)[:size] = 0
    for channel in range(3):
        shortcut.weight[2 * channel, channel] = 1
        shortcut.weight[2 * channel + 1, channel] = -1
    _bias(shortcut)[6:size] = CONSTANT * _signs(size - 6)
    norm.weight[:size] = CONSTANT * ((size - 6) / size) ** 0.5


def _unpair(conv: nn.Conv2d) -> None:
    """Read the three pairs at the centre of the window; other channels start almost unread."""
    conv.weight *= 0.1
    conv.weight[:3] = 0
    _bias(conv)[:3] = 0
    for channel in range(3):
        conv.weight[channel, 2 * channel, 1, 1] = 1
        conv.weight[channel, 2 * channel + 1, 1, 1] = -1


def _bias(conv: nn.Conv2d) -> Tensor:
    return cast("Tensor", conv.bias)


def _signs(count: int) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(count) % 2)
