"""What the zoo offers for scenes-unet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accel.zoo import families, pictures

PUBLISHER = "accel.zoo.publish"

ABOUT = families.About(
    summary="A stock StableDiffusionPipeline with the scenes of scenes-flux: a UNet of three "
    "levels that predicts noise, 64 x 64 pixels.",
    licence=pictures.LICENCE,
    data=pictures.DATA,
    recipe="the autoencoder of scenes-flux, then accel.zoo.train_scenes_unet, on two CPU cores; "
    "see there",
    call=pictures.CALL,
    guidance="guidance_scale",
    example=pictures.EXAMPLE,
)

prompts, reads = pictures.prompts, pictures.reads
words, understood = pictures.words, pictures.understood
check_output, save = pictures.check_output, pictures.save


def load(folder: Path, torch_dtype: torch.dtype) -> Any:
    """A stock `StableDiffusionPipeline`, 64 x 64 pixels by default."""
    return families.load_pipeline(folder, torch_dtype)


def check_call(call: Mapping[str, Any]) -> None:
    """Nothing; OptionError where the model cannot take a size."""
    families.check_sides("scenes-unet", call, multiple=8, most=pictures.MOST_PX)


def evaluate(count: int | None, out: Path, only: list[str] | None) -> Path:
    """Measure the model; returns the record."""
    from accel.zoo import evaluate, solvers

    bench = pictures.bench(solvers.noise(), ABOUT.guidance)
    return evaluate.run("scenes-unet", bench, count, out, only)


def train(minutes: float, out: Path) -> Path:
    """Train anew or go on; returns the model's folder."""
    from accel.zoo import train_scenes_unet

    return train_scenes_unet.train_pipeline(minutes, out)
