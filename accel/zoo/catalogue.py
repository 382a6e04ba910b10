"""What the zoo holds, and how it is loaded."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accel.errors import AccelError, OptionError, nearest
from accel.zoo.scenes import Split, sample_scenes

if TYPE_CHECKING:
    from diffusers import FluxPipeline

HERE = Path(__file__).parent
CARD_FILE = "card.json"
_SPLITS = ("train", "held_out")


@dataclass(frozen=True, slots=True)
class Card:
    """What a zoo pipeline is, how it is called, where it comes from and what it reaches.

    `call` holds the recommended keyword arguments of the pipeline's call; `seconds` how long each
    part was trained; `figures` accuracies in 0..1 and PSNR in dB; `files` every file's size in
    bytes, relative to the pipeline's folder.
    """

    name: str
    summary: str
    call: dict[str, Any]
    licence: str
    data: str
    recipe: str
    seconds: dict[str, float]
    figures: dict[str, Any]
    files: dict[str, int]


def names() -> tuple[str, ...]:
    """The names that `load` accepts, sorted."""
    return tuple(sorted(path.parent.name for path in HERE.glob(f"*/{CARD_FILE}")))


def card(name: str) -> Card:
    """The card of `name`.

    Raises:
        OptionError: there is no such pipeline.
        AccelError: its card cannot be read.
    """
    path = folder(name) / CARD_FILE
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return Card(
            name=name, **{f.name: entries[f.name] for f in fields(Card) if f.name != "name"}
        )
    except (ValueError, KeyError) as error:
        raise AccelError(f"{path} is damaged ({error!r}). {_REINSTALL}") from error


_REINSTALL = "Restore it: reinstall accel, or run `git checkout` on it in a source tree."


def folder(name: str) -> Path:
    """Where the pipeline's files lie.

    Raises:
        OptionError: there is no such pipeline.
    """
    known = names()
    if name not in known:
        raise OptionError(
            f"The zoo has no pipeline {name!r}; it has {', '.join(known)}.{nearest(name, known)}"
        )
    return HERE / name


def load(name: str, torch_dtype: torch.dtype = torch.float32) -> "FluxPipeline":
    """A stock diffusers pipeline on the CPU, with 64 x 64 pixels as its default size.

    The weights are stored in fp16. A plain `pipe(prompt)` works; `card(name).call` holds the
    arguments that the pipeline was tuned for.

    Raises:
        OptionError: there is no such pipeline.
        AccelError: one of its files is missing or has the wrong size. Nothing was loaded then.
    """
    _check_files(folder(name), card(name).files)
    from diffusers import FluxPipeline

    # The argument for the type changed its name between diffusers releases; `to` did not.
    pipe = FluxPipeline.from_pretrained(folder(name), local_files_only=True).to(torch_dtype)
    pipe.default_sample_size = card(name).call["height"] // pipe.vae_scale_factor
    loaded: FluxPipeline = pipe
    return loaded


def _check_files(root: Path, sizes: dict[str, int]) -> None:
    for relative, expected in sizes.items():
        path = root / relative
        if not path.is_file():
            raise AccelError(f"{path} is missing. {_REINSTALL}")
        found = path.stat().st_size
        if found != expected:
            raise AccelError(
                f"{path} has {found} bytes where {expected} are expected; it is truncated, changed "
                f"or a Git LFS pointer. {_REINSTALL}"
            )


def prompts(name: str, n: int, split: Split = "held_out") -> list[str]:
    """`n` fixed prompts for the pipeline; `held_out` ones name combinations it never trained on.

    Raises:
        OptionError: there is no such pipeline or split, or `n` is out of range.
    """
    folder(name)
    if split not in _SPLITS:
        raise OptionError(f"split is {split!r}; expected one of {_SPLITS}.")
    try:
        return [scene.caption() for scene in sample_scenes(n, split)]
    except ValueError as error:
        raise OptionError(str(error)) from error
