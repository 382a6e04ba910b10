"""A starting point for the video autoencoder from which minutes of CPU training are enough.

Some channels are set so that the whole is, from the start, an average over 2 x 2 pixels and an
enlargement of it: latents 0 to 2 are the later frame's mean red, green and blue, latents 3 to 5 the
earlier frame's. As in `accel.zoo.vae_start` a signal passes normalisation and SiLU as a pair
(s, -s), for silu(s) - silu(-s) = s; the normalisation is over all channels here, so constants
(K, -K) in the channels that are left fix its scale.
"""

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

SIGNALS = 6
COLOURS = 3
CONSTANT = 3.0
FIRST_LOG_VARIANCE = -6.0

_AVERAGE = ((0, 0), (0, 1), (1, 0), (1, 1))
_MIDDLE = ((1, 1),)
_NOW, _BEFORE = -1, -2


@torch.no_grad()
def start_as_average(vae: "AutoencoderKLWan") -> None:
    """Set weights in place."""
    for name, module in vae.named_modules():
        if name.endswith(("conv2", "proj")):
            _silence(module, module.weight.shape[0])
    _start_encoder(vae.encoder, vae.config.z_dim)
    _start_decoder(vae.decoder)
    for conv in (vae.quant_conv, vae.post_quant_conv):
        _silence(conv, conv.weight.shape[0])
        for channel in range(conv.weight.shape[0]):
            conv.weight[channel, channel] = 1


def _start_encoder(encoder: Any, latents: int) -> None:
    resample, widening = encoder.down_blocks[1], encoder.down_blocks[2]
    _silence(encoder.conv_in, COLOURS)
    _route(encoder.conv_in, _MIDDLE, range(COLOURS), range(COLOURS))
    # The very first frame goes without `time_conv`; it counts as both of its frames.
    spatial = resample.resample[1]
    _silence(spatial, SIGNALS)
    _route(spatial, _AVERAGE, range(COLOURS), range(COLOURS))
    _route(spatial, _AVERAGE, range(COLOURS, SIGNALS), range(COLOURS))
    _silence(resample.time_conv, SIGNALS)
    for channel in range(COLOURS):
        resample.time_conv.weight[channel, channel, _NOW] = 1
        resample.time_conv.weight[COLOURS + channel, channel, _BEFORE] = 1
    _pair(widening.conv_shortcut, encoder.norm_out, SIGNALS)
    _unpair(encoder.conv_out, SIGNALS)
    encoder.conv_out.weight[latents:] = 0
    _bias(encoder.conv_out)[latents:] = FIRST_LOG_VARIANCE


def _start_decoder(decoder: Any) -> None:
    sampler = decoder.up_blocks[0].upsamplers[0]
    _silence(decoder.conv_in, SIGNALS)
    _route(decoder.conv_in, _MIDDLE, range(SIGNALS), range(SIGNALS))
    # The first half of the channels that come out is the earlier frame of the two.
    later = sampler.time_conv.weight.shape[0] // 2
    _silence(sampler.time_conv, sampler.time_conv.weight.shape[0])
    for channel in range(COLOURS):
        sampler.time_conv.weight[channel, COLOURS + channel, _NOW] = 1
        sampler.time_conv.weight[later + channel, channel, _NOW] = 1
    spatial = sampler.resample[1]
    _silence(spatial, spatial.weight.shape[0])
    _pair(spatial, decoder.norm_out, COLOURS)
    _unpair(decoder.conv_out, COLOURS)


def _silence(conv: nn.Module, channels: int) -> None:
    """Let the first `channels` outputs be 0."""
    weights = cast("Tensor", conv.weight)
    weights[:channels] = 0
    _bias(conv)[:channels] = 0


def _route(
    conv: nn.Module, taps: tuple[tuple[int, int], ...], outputs: range, inputs: range
) -> None:
    """Let inputs through to outputs, as the mean over `taps` of the current frame's window."""
    weights = _current(conv)
    for after, before in zip(outputs, inputs, strict=True):
        for row, column in taps:
            weights[after, before, row, column] = 1 / len(taps)


def _pair(conv: nn.Module, norm: Any, signals: int) -> None:
    """Put out (s, -s) of each signal, constants elsewhere, and undo the scaling of `norm`."""
    weights, size = _current(conv), len(_bias(conv))
    _silence(conv, size)
    centre = weights.shape[-1] // 2
    for channel in range(signals):
        weights[2 * channel, channel, centre, centre] = 1
        weights[2 * channel + 1, channel, centre, centre] = -1
    constants = size - 2 * signals
    _bias(conv)[2 * signals :] = CONSTANT * (1.0 - 2.0 * (torch.arange(constants) % 2))
    norm.gamma[:] = CONSTANT * (constants / size) ** 0.5


def _unpair(conv: nn.Module, signals: int) -> None:
    """Read the pairs at the centre of the window; other channels start almost unread."""
    cast("Tensor", conv.weight).mul_(0.1)
    _silence(conv, signals)
    weights = _current(conv)
    for channel in range(signals):
        weights[channel, 2 * channel, 1, 1] = 1
        weights[channel, 2 * channel + 1, 1, 1] = -1


def _current(conv: nn.Module) -> Tensor:
    """The weights [out, in, rows, columns] for the current frame, which is the last of three."""
    weights = cast("Tensor", conv.weight)
    return weights[:, :, -1] if isinstance(conv, nn.Conv3d) else weights


def _bias(conv: nn.Module) -> Tensor:
    return cast("Tensor", conv.bias)
