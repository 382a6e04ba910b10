"""Train the judge on real scenes: `python -m accel.zoo.train_judge --minutes 2`."""

import argparse
import json
import logging
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from accel.zoo.judge import WEIGHTS, Judge, Score, judge_loss
from accel.zoo.scenes import Scene, Split, random_scene, render, sample_scenes

BATCH = 72
PEAK_LR = 1e-3
SHEET_SIDE = 8
IMAGE_DIMS = 4

log = logging.getLogger(__name__)


def render_batch(scenes: list[Scene], rng: np.random.Generator, split: Split) -> Tensor:
    """The scenes' pictures, [B, 3, 64, 64] in 0..1."""
    pictures = np.stack([render(scene, rng, split) for scene in scenes])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()


def augment(images: Tensor) -> Tensor:
    """The images with noise, blur and brightness as an imperfect generator might leave them."""
    count = len(images)
    blurred = functional.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    images = torch.lerp(images, blurred, 0.6 * torch.rand(count, 1, 1, 1))
    images = images * (1 + 0.1 * (torch.rand(count, 1, 1, 1) - 0.5))
    return (images + 0.05 * torch.rand(count, 1, 1, 1) * torch.randn_like(images)).clamp(0, 1)


def channels_last(model: nn.Module) -> None:
    """Lay out convolution weights in place as CPUs like them."""
    for weight in model.parameters():
        if weight.ndim == IMAGE_DIMS:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def train(minutes: float, start: Path | None = None, seed: int = 0) -> Judge:
    """A judge trained for `minutes` of wall clock, its learning rate falling to zero.

    `start` holds weights to go on from.
    """
    torch.manual_seed(seed)
    rng, grammar = np.random.default_rng(seed), random.Random(seed)
    judge = (Judge() if start is None else Judge.load(start)).train()
    channels_last(judge)
    optimizer = torch.optim.AdamW(judge.parameters(), lr=PEAK_LR, weight_decay=0.02)
    started, step, spent = time.monotonic(), 0, 0.0
    while spent < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * (1 - spent)
        scenes = [random_scene(grammar) for _ in range(BATCH)]
        images = augment(render_batch(scenes, rng, "train"))
        with torch.autocast("cpu", torch.bfloat16):
            loss = judge_loss(judge, images, scenes)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if step % 100 == 0:
            log.info("step %d loss %.3f spent %.2f", step, loss.item(), spent)
        step += 1
        spent = (time.monotonic() - started) / (60 * minutes)
    judge.eval()
    return judge


def held_out_score(judge: Judge, count: int = 2048) -> Score:
    """How the judge does on held-out combinations drawn with held-out garments."""
    scenes = sample_scenes(count)
    return judge.score(render_batch(scenes, np.random.default_rng(1), "held_out"), scenes)


def save_fixture(folder: Path, count: int = 32) -> None:
    """Write `count` real held-out scenes as one picture sheet, with their captions."""
    scenes = sample_scenes(count)
    images = render_batch(scenes, np.random.default_rng(2), "held_out")
    tiles = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    rows = tiles.reshape(-1, SHEET_SIDE, 64, 64, 3).transpose(0, 2, 1, 3, 4)
    Image.fromarray(rows.reshape(-1, SHEET_SIDE * 64, 3)).save(folder / "real_scenes.png")
    captions = [scene.caption() for scene in scenes]
    (folder / "real_scenes.json").write_text(json.dumps(captions, indent=1) + "\n")


def main() -> None:
    """Train, save weights and fixture, and write the held-out accuracy next to them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--start", type=Path, help="weights to go on from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=WEIGHTS.parent)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    judge = train(options.minutes, options.start, options.seed)
    weights = {name: w.half().contiguous() for name, w in judge.state_dict().items()}
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(weights, options.out / WEIGHTS.name)
    save_fixture(options.out)
    score = held_out_score(Judge.load(options.out / WEIGHTS.name))
    figures = {"kind_accuracy": score.kind_accuracy, "colour_accuracy": score.colour_accuracy}
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    log.info("held out: %s", figures)


if __name__ == "__main__":
    main()
