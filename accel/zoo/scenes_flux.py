"""What the zoo offers for scenes-flux."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accel.zoo import families, pictures
from accel.zoo.scenes import SIDE_PX
from accel.zoo.vocabulary import T5_LENGTH

PUBLISHER = "accel.zoo.publish"

ABOUT = families.About(
    summary="A stock FluxPipeline of 64 x 64 pictures: one or two tinted garments on a ground.",
    licence=pictures.LICENCE,
    data=pictures.DATA,
    recipe="accel.zoo.train_vae, then accel.zoo.train_scenes_flux, on two CPU cores; see there. "
    "The first 7996 s of the denoiser went by before its text encoders were trained on captions "
    "first; the rest goes on from those weights with --start, at --half-share 0.2",
    call={**pictures.CALL, "max_sequence_length": T5_LENGTH},
    guidance="true_cfg_scale",
    example=pictures.EXAMPLE,
)

prompts, reads = pictures.prompts, pictures.reads
words, understood = pictures.words, pictures.understood
check_output, save = pictures.check_output, pictures.save


def load(folder: Path, torch_dtype: torch.dtype) -> Any:
    """A stock `FluxPipeline` with 64 x 64 pixels as its default size."""
    pipe = families.load_pipeline(folder, torch_dtype)
    pipe.default_sample_size = SIDE_PX // pipe.vae_scale_factor
    return pipe


def check_call(call: Mapping[str, Any]) -> None:
    """Nothing; OptionError where the model cannot take a size."""
    families.check_sides("scenes-flux", call, multiple=4, most=pictures.MOST_PX)


def evaluate(count: int | None, out: Path, only: list[str] | None) -> Path:
    """Measure the model; returns the record."""
    from accel.zoo import evaluate, solvers

    bench = pictures.bench(solvers.flow("euler", shift=1.0), ABOUT.guidance)
    return evaluate.run("scenes-flux", bench, count, out, only)


def train(minutes: float, out: Path) -> Path:
    """Train anew or go on; returns the model's folder."""
    from accel.zoo import train_scenes_flux

    return train_scenes_flux.train_pipeline(minutes, out)
