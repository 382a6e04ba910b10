"""Who knows what to do with which model of the zoo.

For every name one module or object offers what `Family` lists, and where the model draws also what
`Drawing` lists. It imports nothing heavy until it is asked.
"""

import pkgutil
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch

from accel.errors import OptionError, nearest
from accel.zoo.scenes import Split

FAMILIES = {
    "scenes-flux": "accel.zoo.scenes_flux",
    "scenes-unet": "accel.zoo.scenes_unet",
    "scenes-video": "accel.zoo.video.scenes_video",
    "tiny-llada": "accel.zoo.language.family:LLADA",
    "tiny-sdar": "accel.zoo.language.family:SDAR",
    "tiny-dream": "accel.zoo.language.family:DREAM",
}
"""Where every model's family is, whether the model is shipped already or still to be trained."""

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
    """What is offered for every model.

    `PUBLISHER` is the module whose command line puts a trained model into the zoo.
    """

    PUBLISHER: str

    def load(self, folder: Path, torch_dtype: torch.dtype) -> Any:
        """The model in `folder`, ready to be called."""
        ...

    def prompts(self, count: int, split: Split) -> list[str]:
        """Fixed prompts; ValueError if there are not so many."""
        ...

    def reads(self) -> str:
        """What prompts may be made of, in a line."""
        ...

    def evaluate(self, count: int | None, out: Path, only: list[str] | None) -> Path:
        """Measure the model; returns the record."""
        ...

    def train(self, minutes: float, out: Path) -> Path:
        """Train anew or go on; returns the model's folder."""
        ...


class Drawing(Family, Protocol):
    """What is offered for a pipeline that makes pictures or clips."""

    ABOUT: About

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


def family(name: str) -> Family:
    """What is offered for `name`.

    Raises:
        OptionError: nothing is.
    """
    if name not in FAMILIES:
        raise OptionError(
            f"The zoo has no model {name!r}; it has {', '.join(FAMILIES)}.{nearest(name, FAMILIES)}"
        )
    return cast("Family", pkgutil.resolve_name(FAMILIES[name]))


def drawing(name: str) -> Drawing:
    """What is offered for `name`, which draws.

    Raises:
        OptionError: there is no such model, or it writes text.
    """
    found = family(name)
    if not hasattr(found, "ABOUT"):
        raise OptionError(f"{name} is a language model; it makes no pictures.")
    return cast("Drawing", found)


def load_pipeline(folder: Path, torch_dtype: torch.dtype) -> Any:
    """The stock diffusers pipeline in `folder`, on the CPU."""
    from diffusers import DiffusionPipeline

    with warnings.catch_warnings():
        # Older releases of diffusers know no other name for it.
        warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)
        return DiffusionPipeline.from_pretrained(
            folder, torch_dtype=torch_dtype, local_files_only=True
        )


def in_words(words: Sequence[str]) -> str:
    """How a model that knows only these words says so."""
    return f"the words {' '.join(words)}"


def check_words(name: str, prompt: str) -> None:
    """Nothing, if the model knows every word of `prompt`.

    Raises:
        OptionError: it does not; the message has the unknown words and the known ones.
    """
    known = drawing(name).words()
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
