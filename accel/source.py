"""Where a pipeline comes from: the zoo, a folder, or the Hub; and what it takes, before loading."""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from accel import shot, zoo
from accel.errors import AccelError, OptionError, nearest
from accel.zoo import catalogue

_INDEX = "model_index.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Larger JSON files are vocabularies; their size is enough to tell them apart.
_READ_BYTES = 1 << 20


class SetupError(AccelError):
    """The model could not be loaded; the command line ends with code 3."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A pipeline that has been found but not loaded.

    Attributes:
        name: As shown and as written into files; never a path.
        place: What loads it: a zoo name, a folder, or a Hub id.
        kind: Which of these it is.
        identity: Changes when the model does; the name where nothing more is known.
        class_name: The pipeline's class, or empty where only loading tells.
        call: Arguments that its card recommends for a call.
    """

    name: str
    place: str
    kind: Literal["zoo", "folder", "hub"]
    identity: str
    class_name: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> Mapping[str, Any] | None:
        """Returns the names and defaults that a call takes, or None where only loading tells."""
        import diffusers  # noqa: PLC0415 - slow to import

        found = getattr(diffusers, self.class_name, None) if self.class_name else None
        return None if found is None else shot.call_parameters(found)

    def prompts(self, count: int) -> list[str]:
        """Returns held-out prompts that the model was trained for.

        Raises:
            OptionError: the model is not of the zoo, so nobody knows what it can draw.
        """
        if self.kind != "zoo":
            raise OptionError(
                f"{self.name} has no prompts of its own. Give some with --prompt or --prompts-file."
            )
        return list(zoo.prompts(self.place, count))

    def load(self, device: str = "auto", dtype: str = "auto") -> Any:
        """Returns the pipeline on its device, ready to be called.

        Only safetensors are read and no code of the checkpoint is run.

        Args:
            device: "auto" is the accelerator where there is one; else a name as torch writes it.
            dtype: "auto" is float32 on the CPU and for the zoo, bfloat16 elsewhere.

        Raises:
            SetupError: it cannot be loaded; the reason is in the message.
        """
        place = default_device() if device == "auto" else device
        try:
            with _without_bars():
                pipe = self._load(place, dtype).to(place)
        except AccelError:
            raise
        except Exception as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
            raise SetupError(
                f"Could not load {self.name}: {type(error).__name__}: {reason} (Only safetensors "
                "are read; convert .bin checkpoints first.)"
            ) from error
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def _load(self, place: str, dtype: str) -> Any:
        import diffusers  # noqa: PLC0415 - slow to import

        automatic = torch.bfloat16 if self.kind != "zoo" and place != "cpu" else torch.float32
        chosen = automatic if dtype == "auto" else getattr(torch, dtype)
        if self.kind == "zoo":
            return zoo.load(self.place, chosen)
        with warnings.catch_warnings():
            # Older releases of diffusers know no other name for it.
            warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)
            return diffusers.DiffusionPipeline.from_pretrained(
                self.place,
                torch_dtype=chosen,
                use_safetensors=True,
                local_files_only=self.kind == "folder",
            )


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keeps diffusers from showing a bar for the components that it reads from a disk."""
    from diffusers.utils import logging  # noqa: PLC0415 - slow to import

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def find(model: str) -> Source:
    """Returns the source that `model` names: a model of the zoo, a folder, or a Hub id.

    Raises:
        OptionError: there is no such model, it makes no pictures, or the folder holds no pipeline.
    """
    if model in zoo.names():
        return _zoo_source(model)
    folder = Path(model).expanduser()
    if folder.exists():
        return _folder_source(folder)
    if _HUB_ID.fullmatch(model) and not model.startswith("."):
        return Source(name=model, place=model, kind="hub", identity=model)
    raise OptionError(
        f"There is no model {model!r}.{nearest(model, zoo.names())} Give the folder of a diffusers "
        f"pipeline, a Hub id (owner/name), or a model of the zoo ({', '.join(zoo.names())})."
    )


def default_device() -> str:
    """Returns the accelerator that torch finds, or "cpu"."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def fingerprint(folder: Path) -> str:
    """Returns 16 hexadecimal digits that change with a model folder's settings and file sizes.

    Weights are not read, only measured: an exchange of weights of one size goes unnoticed.
    """
    digest = hashlib.sha256()
    for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
        if path.suffix == ".json" and size <= _READ_BYTES:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _zoo_source(name: str) -> Source:
    folder = catalogue.folder(name)
    if zoo.card(name).kind == "language":
        raise OptionError(
            f"{name} is a language model, and pictures are asked for. Name a pipeline, or use "
            f"accel.zoo.load({name!r}) in Python."
        )
    return Source(
        name=name,
        place=name,
        kind="zoo",
        identity=f"{name}@{fingerprint(folder)}",
        class_name=_class_name(folder),
        call=dict(zoo.card(name).call),
    )


def _folder_source(folder: Path) -> Source:
    if not (folder / _INDEX).is_file():
        raise OptionError(
            f"{folder} holds no {_INDEX}. Expected the folder of a diffusers pipeline, as "
            "save_pretrained writes it."
        )
    return Source(
        name=folder.resolve().name,
        place=str(folder),
        kind="folder",
        identity=f"{folder.resolve().name}@{fingerprint(folder)}",
        class_name=_class_name(folder),
    )


def _class_name(folder: Path) -> str:
    try:
        name = json.loads((folder / _INDEX).read_text(encoding="utf-8")).get("_class_name")
    except (OSError, ValueError, AttributeError) as error:
        raise OptionError(f"{folder / _INDEX} cannot be read: {error}.") from error
    if not isinstance(name, str):
        raise OptionError(
            f"{folder / _INDEX} names the class {name!r}. Pipelines that bring their own code are "
            "not loaded here; load it yourself and call accel.patch(pipe)."
        )
    return name
