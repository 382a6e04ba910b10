"""What the zoo holds, and how it is loaded."""

import hashlib
import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, overload

import torch

from accel.errors import AccelError, OptionError, nearest
from accel.zoo.families import FAMILIES, family
from accel.zoo.language.loading import LanguageModel
from accel.zoo.scenes import Split

HERE = Path(__file__).parent
CARD_FILE = "card.json"
_SPLITS = ("train", "held_out")

Kind = Literal["image", "language", "video"]


@dataclass(frozen=True, slots=True)
class Card:
    """What a zoo model is, how it is called, where it comes from and what it reaches.

    `call` holds the recommended keyword arguments: of the pipeline's call, or of `Plan` for a
    language model; `seconds` how long each part was trained; `figures` accuracies in 0..1 and PSNR
    in dB; `files` every file's size in bytes, relative to the model's folder, and `sha256` its
    checksum.
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
    sha256: dict[str, str]
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
        OptionError: there is no such model, or it has not been trained yet.
    """
    known = names()
    if name in FAMILIES and name not in known:
        raise OptionError(
            f"{name} does not come with this copy of accel. Train it: `accel zoo train {name}`."
        )
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
def load(name: str, torch_dtype: torch.dtype = ...) -> Any: ...


def load(name: str, torch_dtype: torch.dtype = torch.float32) -> Any:
    """A stock diffusers pipeline on the CPU, or a language model with its tokenizer.

    Weights are stored in fp16. `card(name).call` holds the arguments that a pipeline was tuned for;
    those that make pictures work without, too.

    Raises:
        OptionError: there is no such model.
        AccelError: one of its files is missing or is not the one that was published. Nothing was
            loaded then.
    """
    about = card(name)
    _check_files(folder(name), about)
    return family(name).load(folder(name), torch_dtype)


def _check_files(root: Path, described: Card) -> None:
    for relative, expected in described.files.items():
        path = root / relative
        if not path.is_file():
            raise AccelError(f"{path} is missing. {_REINSTALL}")
        found = path.stat().st_size
        if found != expected:
            raise AccelError(
                f"{path} has {found} bytes where {expected} are expected; it is truncated, changed "
                f"or a Git LFS pointer. {_REINSTALL}"
            )
        digest, published = checksum(path), described.sha256.get(relative)
        if digest != published:
            raise AccelError(
                f"{path} has the SHA-256 {digest} where {published} is expected; its content is "
                f"not what was published. {_REINSTALL}"
            )


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def prompts(name: str, n: int, split: Split = "held_out") -> list[str]:
    """`n` fixed prompts for the model; `held_out` ones are of problems it never trained on.

    Raises:
        OptionError: there is no such model or split, or `n` is out of range.
    """
    card(name)
    if split not in _SPLITS:
        raise OptionError(f"split is {split!r}; expected one of {_SPLITS}.")
    try:
        return family(name).prompts(n, split)
    except ValueError as error:
        raise OptionError(str(error)) from error
