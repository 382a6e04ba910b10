"""Who knows what to do with which model of the zoo.

For every name one module offers what `Family` lists. It imports nothing heavy until it is asked.
"""

import importlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch

from accel.errors import OptionError, nearest
from accel.zoo.scenes import Split

MODULES = {
    "scenes-flux": "accel.zoo.scenes_flux",
    "scenes-unet": "accel.zoo.scenes_unet",
    "scenes-video": "accel.zoo.video.scenes_video",
}
"""The module of every model, shipped already or still to be trained."""

_WORD = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class About:
    """What stands on a model's card whatever it has learnt.

    `call` holds recommended arguments without guidance, `example` a prompt for its README, and
    `part` what the model makes one of.
    """

    summary: str
    licence: str
    data: str
    recipe: str
    call: Mapping[str, Any]
    guidance: str
    example: str
    part: Literal["image", "video"] = "image"


class Family(Protocol):
    """What a module offers for its model."""

    ABOUT: About

    def load(self, folder: Path, torch_dtype: torch.dtype) -> Any:
        """The model in `folder`, ready to be called."""
        ...

    def prompts(self, count: int, split: Split) -> list[str]:
        """Fixed prompts; ValueError if there are not so many."""
        ...

    def words(self) -> list[str]:
        """Every word that the model was trained on, sorted."""
        ...

    def understood(self, prompt: str) -> bool:
        """Whether the prompt is a sentence like those that the model was trained on."""
        ...

    def check_call(self, call: Mapping[str, Any]) -> None:
        """Nothing; OptionError where the model cannot take a size."""
        ...

    def check_output(self, path: Path) -> None:
        """Nothing; OptionError where the file's suffix fits nothing that the model makes."""
        ...

    def save(self, output: Any, path: Path) -> None:
        """Write what one call returned."""
        ...

    def evaluate(self, count: int | None, out: Path, only: list[str] | None) -> Path:
        """Measure the model; returns the record."""
        ...

    def train_pipeline(self, minutes: float, out: Path) -> Path:
        """Train anew or go on; returns the model's folder."""
        ...


def family(name: str) -> Family:
    """What is offered for `name`.

    Raises:
        OptionError: nothing is.
    """
    if name not in MODULES:
        raise OptionError(
            f"The zoo makes no pictures with {name!r}; it does with {', '.join(MODULES)}."
            f"{nearest(name, MODULES)}"
        )
    return cast("Family", importlib.import_module(MODULES[name]))


def load_pipeline(folder: Path, torch_dtype: torch.dtype) -> Any:
    """The stock diffusers pipeline in `folder`, on the CPU."""
    from diffusers import DiffusionPipeline

    with warnings.catch_warnings():
        # Older releases of diffusers know no other name for it.
        warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)
        return DiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch_dtype, local_files_only=True
        )


def check_words(name: str, prompt: str) -> None:
    """Nothing, if the model knows every word of `prompt`.

    Raises:
        OptionError: it does not; the message has the unknown words and the known ones.
    """
    known = family(name).words()
    unknown = sorted({word for word in _WORD.findall(prompt.lower()) if word not in known})
    if unknown:
        raise OptionError(
            f"{name} never saw the {'word' if len(unknown) == 1 else 'words'} "
            f"{', '.join(unknown)}.{nearest(unknown[0], known)} It knows: {', '.join(known)}."
        )


def check_sides(name: str, call: Mapping[str, Any], multiple: int, most: int) -> None:
    """Nothing, if height and width of `call` are sizes that the model can take.

    Raises:
        OptionError: one is no multiple of `multiple` pixels, or above `most`.
    """
    for side in ("width", "height"):
        value = call.get(side)
        if value is not None and not (0 < value <= most and value % multiple == 0):
            raise OptionError(
                f"{side} is {value}; {name} takes multiples of {multiple} pixels up to {most}, and "
                "was trained at 64."
            )


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Nothing, if `path` ends in one of `suffixes`.

    Raises:
        OptionError: it does not.
    """
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"{path} ends in {path.suffix!r}; expected one of {', '.join(suffixes)}.")
