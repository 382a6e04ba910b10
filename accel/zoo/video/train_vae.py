"""Train the video autoencoder on rendered clips: `python -m accel.zoo.video.train_vae`."""

import argparse
import logging
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from accel.zoo.train_vae import fit
from accel.zoo.video.blueprint import new_video_vae
from accel.zoo.video.clips import FRAMES, Clip, random_clip, render_clip, sample_clips
from accel.zoo.video.vae_start import start_as_average

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

MINUTES = 12.0
SIDE = 32
# Three times as much loses more of what `start_as_average` gives than minutes bring back.
PEAK_LR = 4e-4
# Frames and windows of a batch, in turns: all about as many pixels, and few, since many steps count
# for more. Short ones show more garments, long ones keep later frames from drifting away.
TURNS = ((5, 4), (9, 2), (FRAMES, 1))
HALVED_EVERY = 4
POOL = 256
FIRST = 32
LOOKS = 4
MEASURED = 64

log = logging.getLogger(__name__)


def halved(videos: Tensor) -> Tensor:
    """Videos [B, 3, F, H, W] at half their sides, box filtered."""
    return functional.avg_pool3d(videos, (1, 2, 2))


def render_clips(clips: Sequence[Clip], rng: np.random.Generator, frames: int = FRAMES) -> Tensor:
    """The clips with garments of the training split, [B, 3, F, 64, 64] in 0..1."""
    drawn = np.stack([render_clip(clip, rng, "train", frames)[0] for clip in clips])
    return torch.from_numpy(drawn).permute(0, 4, 1, 2, 3)


class Windows:
    """Square parts of rendered clips, where there is something to see.

    Most of a clip is plain background, from which an autoencoder learns little, so of a few windows
    the one with most in it is taken.
    """

    def __init__(self, seed: int) -> None:
        self._noise = np.random.default_rng(seed)
        self._chance = random.Random(seed)
        self._clips = deque((self._fresh() for _ in range(FIRST)), maxlen=POOL)

    def batch(self, step: int) -> Tensor:
        """[B, 3, F, 32, 32] in -1..1; in every fourth step whole clips at half size."""
        self._clips.append(self._fresh())
        frames, count = TURNS[step % len(TURNS)]
        drawn = [self._chance.choice(self._clips)[:, :frames] for _ in range(count)]
        if step % HALVED_EVERY == HALVED_EVERY - 1:
            return halved(torch.stack(drawn))
        return torch.stack([self._window(clip) for clip in drawn])

    def _fresh(self) -> Tensor:
        return render_clips([random_clip(self._chance)], self._noise)[0] * 2 - 1

    def _window(self, clip: Tensor) -> Tensor:
        height, width = clip.shape[-2:]
        tops = [self._chance.randrange(height - SIDE + 1) for _ in range(LOOKS)]
        lefts = [self._chance.randrange(width - SIDE + 1) for _ in range(LOOKS)]
        windows = [
            clip[..., top : top + SIDE, left : left + SIDE]
            for top, left in zip(tops, lefts, strict=True)
        ]
        return max(windows, key=lambda window: float(window.std()))


def train(minutes: float, seed: int = 0) -> "AutoencoderKLWan":
    """An autoencoder trained for `minutes`, its means and deviations set from measured latents."""
    torch.manual_seed(seed)
    vae = new_video_vae()
    start_as_average(vae)
    fit(vae, Windows(seed).batch, minutes, PEAK_LR)
    return normalised(vae, np.random.default_rng(seed))


def normalised(vae: "AutoencoderKLWan", rng: np.random.Generator) -> "AutoencoderKLWan":
    """The same autoencoder, configured so that each channel of its latents is standardised."""
    latents = encode(vae, render_clips(sample_clips(MEASURED, "train"), rng))
    vae.register_to_config(
        latents_mean=latents.mean((0, 2, 3, 4)).tolist(),
        latents_std=latents.std((0, 2, 3, 4)).tolist(),
    )
    return vae


@torch.no_grad()
def encode(vae: "AutoencoderKLWan", videos: Tensor) -> Tensor:
    """Latent means of videos [B, 3, F, H, W] in 0..1, scaled as the pipeline's, [B, 8, F', ...]."""
    with torch.autocast("cpu", torch.bfloat16):
        parts = [
            vae.encode(part * 2 - 1).latent_dist.mean.float() for part in torch.split(videos, 8)
        ]
    mean, deviation = (
        torch.tensor(values)[:, None, None, None]
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (torch.cat(parts) - mean) / deviation


@torch.no_grad()
def psnr(vae: "AutoencoderKLWan", videos: Tensor) -> float:
    """How well videos in 0..1 come back, in dB."""
    decoded = vae.decode(vae.encode(videos * 2 - 1).latent_dist.mean).sample
    error = (decoded - (videos * 2 - 1)).square().mean() / 4
    return float(-10 * error.log10())


def new_or_trained_vae(folder: Path | None, out: Path) -> "AutoencoderKLWan":
    """The autoencoder in `folder`, else the one in `out`/vae, which is trained if there is none."""
    from diffusers import AutoencoderKLWan

    place = folder or out / "vae"
    if folder is None and not place.exists():
        train(MINUTES).save_pretrained(place)
    vae: AutoencoderKLWan = AutoencoderKLWan.from_pretrained(place).float().eval()
    return vae


def main() -> None:
    """Train and save the autoencoder as a diffusers folder in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    vae = train(options.minutes)
    vae.save_pretrained(options.out)
    held_out = render_clips(sample_clips(8), np.random.default_rng(1))
    log.info("held out: %.2f dB", psnr(vae, held_out))


if __name__ == "__main__":
    main()
