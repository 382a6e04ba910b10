"""Frequency bands against known waves, and tokens against the library's own packing."""

import math

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline, LTXPipeline

from accel.picture_tokens import Grid, find_grid
from caching.frequencies import split


def wave(side, cycles):
    phase = 2 * math.pi * cycles * torch.arange(side) / side
    return torch.cos(phase).expand(1, 1, side, side)


@pytest.mark.parametrize(
    ("cycles", "low"), [(0, True), (1, True), (2, True), (3, False), (5, False)]
)
def test_a_wave_is_low_up_to_a_fifth_of_the_side(cycles, low):
    picture = wave(10, cycles)
    parts = split(picture, None)
    torch.testing.assert_close(parts[0] if low else parts[1], picture, atol=1e-5, rtol=0)
    torch.testing.assert_close(sum(parts), picture, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 2, 3, 7, 12), (1, 4, 11, 5)])
def test_bands_are_those_of_the_published_circle_in_the_shifted_spectrum(shape):
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    height, width = shape[-2:]
    rows, columns = np.mgrid[:height, :width]
    radius = min(height, width) // 5
    circle = (rows - height // 2) ** 2 + (columns - width // 2) ** 2 <= radius**2
    shifted = np.fft.fftshift(np.fft.fft2(latents.numpy()), axes=(-2, -1)) * circle
    expected = np.fft.ifft2(np.fft.ifftshift(shifted, axes=(-2, -1)))
    assert np.abs(expected.imag).max() < 1e-6
    low, high = split(latents, None)
    np.testing.assert_allclose(low.numpy(), expected.real, atol=1e-5)
    np.testing.assert_allclose(high.numpy(), latents.numpy() - expected.real, atol=1e-5)


def test_packed_tokens_are_split_as_the_latents_that_they_hold():
    latents = torch.randn(2, 4, 12, 16, generator=torch.Generator().manual_seed(0))
    tokens = FluxPipeline._pack_latents(latents, 2, 4, 12, 16)
    for packed, part in zip(split(tokens, Grid(1, 6, 8, 2)), split(latents, None), strict=True):
        expected = FluxPipeline._pack_latents(part, 2, 4, 12, 16)
        torch.testing.assert_close(packed, expected)


def test_video_tokens_are_split_frame_by_frame():
    latents = torch.randn(1, 4, 3, 10, 10, generator=torch.Generator().manual_seed(0))
    tokens = LTXPipeline._pack_latents(latents, 1, 1)
    for packed, part in zip(split(tokens, Grid(3, 10, 10, 1)), split(latents, None), strict=True):
        torch.testing.assert_close(packed, LTXPipeline._pack_latents(part, 1, 1))


def test_half_precision_is_split_in_single():
    low, high = split(torch.ones(1, 1, 4, 4, dtype=torch.bfloat16), None)
    assert low.dtype == high.dtype == torch.float32


def grid_of(**arguments):
    return find_grid(arguments.get)


def test_the_grid_is_found_in_what_each_family_hands_over():
    ids = FluxPipeline._prepare_latent_image_ids(1, 6, 8, "cpu", torch.float32)
    assert grid_of(img_ids=ids) == Grid(1, 6, 8, 2)
    batched = torch.cat([ids, torch.zeros(48, 1)], dim=1).expand(2, -1, -1)
    assert grid_of(img_ids=batched) == Grid(1, 6, 8, 2)
    assert grid_of(img_shapes=[[(1, 6, 8)]]) == Grid(1, 6, 8, 2)
    assert grid_of(img_shapes=[(1, 6, 8)]) == Grid(1, 6, 8, 2)
    assert grid_of(num_frames=3, height=6, width=8) == Grid(3, 6, 8, 1)
    assert Grid(3, 6, 8, 1).tokens == 144


def test_without_such_arguments_the_grid_is_unknown():
    assert grid_of() is None
    assert grid_of(img_shapes=[]) is None
    assert grid_of(img_shapes="6x8") is None
    assert grid_of(num_frames=3, height=6) is None
