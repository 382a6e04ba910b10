"""Many prompts to many pictures: planned first, resumable, one file and one manifest line each.

A picture depends on its prompt, seed, arguments, methods and model, and these make its id. Its
noise comes from a CPU generator of its own, so it is the same in every batch. Within a batch the
arithmetic differs in the last bits and a cache decides for all pictures together: use a batch size
of 1 where pictures must not depend on their neighbours.
"""

import gc
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accel import api, png_text
from accel.errors import AccelError, OptionError
from accel.handle import Patch
from accel.manifest import Manifest, digest
from accel.memory import LightCache
from accel.method import Method
from accel.prompts import slug
from accel.record import write_atomically
from accel.report import Report
from accel.shot import frames, pictures
from accel.source import Source

MAX_BATCH_SIZE = 256
MAX_SEED = 2**63 - 1


class StoppedError(AccelError):
    """The run ended before all items were tried; the command line ends with code 1."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One picture to be made."""

    index: int
    prompt: str
    seed: int
    item_id: str

    @property
    def name(self) -> str:
        """The file's name: index, what is left of the prompt, and 8 digits of the id."""
        return f"{self.index:06d}_{slug(self.prompt)}_{self.item_id[:8]}.png"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that decides how the pictures look and where they go.

    Attributes:
        source: The model.
        prompts: One for each picture.
        folder: Where pictures and manifest go.
        methods: The acceleration; empty for none.
        memory: Its memory options.
        arguments: What every call gets besides prompt and generator.
        seed: Seed of the first picture; picture `i` has `seed + i`.
        batch_size: Pictures in one call, 1 to 256.
        metadata: Whether prompt and settings are written into the PNGs.
        max_failures: After so many failed pictures the run stops.

    Raises:
        OptionError: a number lies outside its range.
    """

    source: Source
    prompts: tuple[str, ...]
    folder: Path
    methods: tuple[Method, ...] = ()
    memory: LightCache | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch_size: int = 1
    metadata: bool = True
    max_failures: int = 10

    def __post_init__(self) -> None:
        limits = {
            "batch_size": (1, MAX_BATCH_SIZE),
            "seed": (0, MAX_SEED - len(self.prompts)),
            "max_failures": (1, MAX_SEED),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise OptionError(f"{name} is {value}; expected {low} to {high}.")

    def items(self) -> tuple[Item, ...]:
        """Returns what is to be made, in order."""
        return tuple(self._item(index, prompt) for index, prompt in enumerate(self.prompts))

    def settings(self) -> dict[str, Any]:
        """Returns what all pictures have in common, as plain data without paths."""
        return {
            "model": self.source.identity,
            "methods": [repr(method) for method in self.methods],
            "arguments": dict(self.arguments),
            **({} if self.memory is None else {"memory": repr(self.memory)}),
        }

    def _item(self, index: int, prompt: str) -> Item:
        seed = self.seed + index
        whole = {**self.settings(), "prompt": prompt, "seed": seed, "index": index}
        text = json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return Item(
            index=index,
            prompt=prompt,
            seed=seed,
            item_id=hashlib.sha256(text.encode()).hexdigest(),
        )


@dataclass(slots=True)
class Tally:
    """How many pictures were made, how many failed, and the last reason."""

    made: int = 0
    failed: int = 0
    reason: str = ""


def place(folder: Path, name: str) -> Path:
    """Returns where a file of that name goes.

    Raises:
        OptionError: that would be outside of the folder.
    """
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise OptionError(f"{name!r} would be written outside of {folder}.")
    return path


def run(
    job: Job,
    pipe: Any,
    manifest: Manifest,
    items: Sequence[Item],
    on_item: Callable[[str], None] = lambda _: None,
) -> Tally:
    """Returns how it went, having made the items and written a manifest line for each.

    A picture that fails is noted and the others go on. A batch that fails is halved until the
    picture at fault is alone; one that ran out of memory stays halved for the rest of the run.

    Args:
        job: What the items belong to.
        pipe: The loaded pipeline of `job.source`, not patched.
        manifest: The manifest of `job.folder`.
        items: Those of `job.items()` that are still to be made.
        on_item: Called after every picture with its file name or its fault.

    Raises:
        StoppedError: `job.max_failures` is reached, or the folder cannot be written to any more.
    """
    with _accelerated(job, pipe) as handle:
        maker = _Maker(job, pipe, handle, manifest, on_item)
        waiting = list(items)
        while waiting:
            batch, waiting = waiting[: maker.batch_size], waiting[maker.batch_size :]
            maker.make(batch)
        return maker.tally


def _accelerated(job: Job, pipe: Any) -> AbstractContextManager[Patch | None]:
    return api.patch(pipe, *job.methods, memory=job.memory) if job.methods else nullcontext()


class _Maker:
    """Draws and saves batches, and keeps count."""

    def __init__(
        self,
        job: Job,
        pipe: Any,
        handle: Patch | None,
        manifest: Manifest,
        on_item: Callable[[str], None],
    ) -> None:
        self.batch_size = job.batch_size
        self.tally = Tally()
        self._job = job
        self._pipe = pipe
        self._handle = handle
        self._manifest = manifest
        self._on_item = on_item

    def make(self, items: Sequence[Item]) -> None:
        """Makes all items, in parts where they do not go together."""
        failure = self._try(items)
        if failure is None:
            return
        if len(items) == 1:
            self._fail(items[0], failure)
            return
        half = len(items) // 2
        if _out_of_memory(failure):
            self.batch_size = half
            _free_memory()
        self.make(items[:half])
        self.make(items[half:])

    def _try(self, items: Sequence[Item]) -> Exception | None:
        try:
            self._draw(items)
        except StoppedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next picture may go well
            # The traceback would keep the tensors of the failed call alive.
            return error.with_traceback(None)
        return None

    def _draw(self, items: Sequence[Item]) -> None:
        started = time.perf_counter()
        images = pictures(self._pipe(**self._arguments(items)))
        seconds = (time.perf_counter() - started) / len(items)
        if len(images) != len(items):
            raise AccelError(f"{len(items)} pictures were asked for, {len(images)} came back.")
        report = self._handle.report if self._handle is not None else None
        for item, image in zip(items, images, strict=True):
            self._save(item, image, seconds, report)

    def _arguments(self, items: Sequence[Item]) -> dict[str, Any]:
        arguments = {
            **self._job.arguments,
            "prompt": [item.prompt for item in items],
            "generator": [torch.Generator("cpu").manual_seed(item.seed) for item in items],
        }
        if isinstance(arguments.get("negative_prompt"), str):
            arguments["negative_prompt"] = [arguments["negative_prompt"]] * len(items)
        return arguments

    def _save(self, item: Item, image: Any, seconds: float, report: Report | None) -> None:
        text, shown = {}, frames(image)
        width, height = shown[0].size
        if self._job.metadata:
            text = png_text.texts(self._job, item, self._pipe, (width, height), report)
        content = png_text.encode(shown, text)
        entry = {
            **_about(item),
            "status": "ok",
            "sha256": digest(content),
            "bytes": len(content),
            "width": width,
            "height": height,
            "seconds": round(seconds, 4),
            "reused": report.reused if report is not None else 0,
        }
        try:
            write_atomically(place(self._job.folder, item.name), content)
        except OSError as error:
            raise StoppedError(_unwritable(self._job.folder, error)) from error
        self._note(entry)
        self.tally.made += 1
        self._on_item(item.name)

    def _fail(self, item: Item, failure: Exception) -> None:
        reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
        self._note({**_about(item), "status": "failed", "reason": reason})
        self.tally.failed += 1
        self.tally.reason = reason
        self._on_item(f"failed: {reason}")
        if self.tally.failed >= self._job.max_failures:
            raise StoppedError(
                f"Stopped after {self.tally.failed} failed pictures and {self.tally.made} good "
                f"ones; the last fault was {reason} Start again to try those that are missing."
            )

    def _note(self, entry: Mapping[str, Any]) -> None:
        try:
            self._manifest.append(entry)
        except OSError as error:
            raise StoppedError(_unwritable(self._job.folder, error)) from error


def _about(item: Item) -> dict[str, Any]:
    return {
        "id": item.item_id,
        "index": item.index,
        "name": item.name,
        "seed": item.seed,
        "prompt": item.prompt,
    }


def _unwritable(folder: Path, error: OSError) -> str:
    return f"Cannot write to {folder} any more: {error.strerror}. What was made before is kept."


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "not enough memory" in str(error)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
