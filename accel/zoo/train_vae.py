"""Train the zoo's autoencoder on rendered scenes: `python -m accel.zoo.train_vae --minutes 5`."""

import argparse
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from accel.zoo.blueprint import new_vae
from accel.zoo.scenes import random_scene
from accel.zoo.train_judge import channels_last, render_batch
from accel.zoo.vae_start import start_as_average

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

MINUTES = 5.0
BATCH = 8
PEAK_LR = 1.2e-3
KL_WEIGHT = 3e-7
WARMUP_STEPS = 60
HALVED_EVERY = 6
EDGE_WEIGHT = 0.5

log = logging.getLogger(__name__)


def halved(images: Tensor) -> Tensor:
    """The images at half their side, box filtered."""
    return functional.avg_pool2d(images, 2)


def vae_loss(vae: Any, images: Tensor) -> Tensor:
    """L1 on pixels and on their differences, plus a small KL term; images are in -1..1."""
    posterior = vae.encode(images).latent_dist
    decoded = vae.decode(posterior.sample()).sample.float()
    error: Tensor = decoded - images
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    kl: Tensor = posterior.kl().float().mean()
    return error.abs().mean() + EDGE_WEIGHT * edges + KL_WEIGHT * kl


def train(minutes: float, seed: int = 0) -> "AutoencoderKL":
    """An autoencoder trained for `minutes`, its scaling and shift set from measured latents."""
    torch.manual_seed(seed)
    rng, grammar = np.random.default_rng(seed), random.Random(seed)
    vae = new_vae()
    start_as_average(vae)
    channels_last(vae)

    def images(step: int) -> Tensor:
        scenes = [random_scene(grammar) for _ in range(BATCH)]
        drawn = render_batch(scenes, rng, "train") * 2 - 1
        drawn = halved(drawn) if step % HALVED_EVERY == HALVED_EVERY - 1 else drawn
        return drawn.contiguous(memory_format=torch.channels_last)

    fit(vae, images, minutes)
    return normalised(vae, grammar, rng)


def fit(
    vae: Any, images: Callable[[int], Tensor], minutes: float, peak_lr: float = PEAK_LR
) -> None:
    """Train `vae` in place on `images` of each step, in -1..1, for `minutes` of wall clock."""
    vae.train()
    optimizer = torch.optim.AdamW(vae.parameters(), lr=peak_lr, betas=(0.9, 0.98))
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * min(1.0, (step + 1) / WARMUP_STEPS) * (1 - spent)
        with torch.autocast("cpu", torch.bfloat16):
            loss = vae_loss(vae, images(step))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            log.info("step %d loss %.4f spent %.2f", step, loss.item(), spent)
        step += 1
        spent = (time.monotonic() - started) / (60 * minutes)
    vae.eval()


def normalised(
    vae: "AutoencoderKL", grammar: random.Random, rng: np.random.Generator
) -> "AutoencoderKL":
    """The same autoencoder, configured so that scaled latents have mean 0 and variance 1."""
    scenes = [random_scene(grammar) for _ in range(32 * BATCH)]
    means = encode(vae, render_batch(scenes, rng, "train"))
    vae.register_to_config(shift_factor=means.mean().item(), scaling_factor=1 / means.std().item())
    log.info("channel means %s", means.mean((0, 2, 3)).tolist())
    log.info("channel deviations %s", means.std((0, 2, 3)).tolist())
    return vae


@torch.no_grad()
def encode(vae: "AutoencoderKL", images: Tensor) -> Tensor:
    """Latent means of images [B, 3, H, W] in 0..1, scaled as the pipeline's: [B, 4, H/2, W/2]."""
    images = (images * 2 - 1).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        parts = [vae.encode(part).latent_dist.mean.float() for part in torch.split(images, 64)]
    means = torch.cat(parts)
    shift, scale = float(vae.config.shift_factor or 0.0), float(vae.config.scaling_factor)
    return (means - shift) * scale


def new_or_trained_vae(folder: Path | None, out: Path) -> "AutoencoderKL":
    """The autoencoder in `folder`, else the one in `out`/vae, which is trained if there is none."""
    from diffusers import AutoencoderKL

    place = folder or out / "vae"
    if folder is None and not place.exists():
        train(MINUTES).save_pretrained(place)
    vae: AutoencoderKL = AutoencoderKL.from_pretrained(place).float().eval()
    channels_last(vae)
    return vae


def main() -> None:
    """Train and save the autoencoder as a diffusers folder in float32."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    train(options.minutes).save_pretrained(options.out)


if __name__ == "__main__":
    main()
