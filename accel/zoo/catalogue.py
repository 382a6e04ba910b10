"""What the zoo holds, and how it is loaded."""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from accel.errors import AccelError, OptionError, nearest
from accel.zoo.language.loading import LanguageModel, load_language
from accel.zoo.language.tasks import sample_items
from accel.zoo.scenes import Split, sample_scenes

if TYPE_CHECKING:
    from diffusers import FluxPipeline

HERE = Path(__file__).parent
CARD_FILE = "card.json"
_SPLITS = ("train", "held_out")

Kind = Literal["image", "language"]


@dataclass(frozen=True, slots=True)
class Card:
    """What a zoo model is, how it is called, where it comes from and what it reaches.

    `call` holds the recommended keyword arguments: of the pipeline's call, or of `Plan` for a
    language model; `seconds` how long each part was trained; `figures` accuracies in 0..1 and PSNR
    in dB; `files` every file's size in bytes, relative to the model's folder.
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
    kind: Kind = "image"


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
        asked = [f for f in fields(Card) if f.default is MISSING or f.name in entries]
        return Card(name=name, **{f.name: entries[f.name] for f in asked if f.name != "name"})
    except (ValueError, KeyError) as error:
        raise AccelError(f"{path} is damaged ({error!r}). {_REINSTALL}") from error


_REINSTALL = "Restore it: reinstall accel, or run `git checkout` on it in a source tree."


def folder(name: str) -> Path:
    """Where the model's files lie.

    Raises:
        OptionError: there is no such model.
    """
    known = names()
    if name not in known:
        raise OptionError(
            f"The zoo has no model {name!r}; it has {', '.join(known)}.{nearest(name, known)}"
        )
    return HERE / name


@overload
def load(
    name: Literal["tiny-llada", "tiny-sdar", "tiny-dream"], torch_dtype: torch.dtype = ...
) -> LanguageModel: ...


@overload
def load(name: str, torch_dtype: torch.dtype = ...) -> "FluxPipeline": ...


def load(name: str, torch_dtype: torch.dtype = torch.float32) -> "FluxPipeline | LanguageModel":
    """A stock diffusers pipeline on the CPU, or a language model with its tokenizer.

    Weights are stored in fp16. A pipeline has 64 x 64 pixels as its default size, so that a plain
    `pipe(prompt)` works; `card(name).call` holds the arguments that it was tuned for.

    Raises:
        OptionError: there is no such model.
        AccelError: one of its files is missing or has the wrong size. Nothing was loaded then.
    """
    about = card(name)
    _check_files(folder(name), about.files)
    if about.kind == "language":
        return load_language(folder(name), torch_dtype)
    from diffusers import FluxPipeline

    # The argument for the type changed its name between diffusers releases; `to` did not.
    pipe = FluxPipeline.from_pretrained(folder(name), local_files_only=True).to(torch_dtype)
    pipe.default_sample_size = about.call["height"] // pipe.vae_scale_factor
    return pipe


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
    """`n` fixed prompts for the model; `held_out` ones are of problems it never trained on.

    Raises:
        OptionError: there is no such model or split, or `n` is out of range.
    """
    kind = card(name).kind
    if split not in _SPLITS:
        raise OptionError(f"split is {split!r}; expected one of {_SPLITS}.")
    try:
        if kind == "language":
            return [item.prompt for item in sample_items(n, split)]
        return [scene.caption() for scene in sample_scenes(n, split)]
    except ValueError as error:
        raise OptionError(str(error)) from error
