"""The models of the zoo as a benchmark sees them: what to ask, how to draw it, what is right."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

import accel.zoo
from accel.zoo.judge import Judge
from accel.zoo.scenes import Scene, sample_scenes
from accel.zoo.video.clips import Clip, sample_clips
from accel.zoo.video.scoring import clip_figures

_FIRST_SEED = 1000
_judge = cache(Judge.load)


@dataclass(frozen=True, slots=True)
class Task:
    """A held-out prompt with a seed, and what it asks for."""

    prompt: str
    seed: int
    wanted: Any


class Subject(Protocol):
    """What a benchmark needs to know of a model."""

    model: str
    call: dict[str, Any]

    def wanted(self, count: int) -> Sequence[Any]:
        """What the first held-out prompts ask for."""

    def drawn(self, output: Any) -> Tensor:
        """[F, 3, H, W] in 0..1 of a pipeline's output: one picture, or the frames of a video."""

    def right(self, drawn: Tensor, wanted: Any) -> dict[str, list[float]]:
        """By question, what is right: 0 or 1 an item, or a share."""


def tasks(subject: Subject, prompts: int, seeds: int) -> list[Task]:
    """Every held-out prompt with every seed: first all with one seed, then with another."""
    asked = accel.zoo.prompts(subject.model, prompts)
    pairs = list(zip(asked, subject.wanted(prompts), strict=True))
    return [
        Task(prompt, _FIRST_SEED + 100 * seed + index, wanted)
        for seed in range(seeds)
        for index, (prompt, wanted) in enumerate(pairs)
    ]


def draw(subject: Subject, pipe: Any, task: Task, steps: int | None = None) -> Tensor:
    """What a pipeline makes of a task, in as many steps as the subject's call or as given."""
    call = subject.call if steps is None else {**subject.call, "num_inference_steps": steps}
    generator = torch.Generator("cpu").manual_seed(task.seed)
    return subject.drawn(pipe(task.prompt, generator=generator, output_type="pt", **call))


@dataclass(frozen=True, slots=True)
class Pictures:
    """A model that draws scenes."""

    model: str
    call: dict[str, Any]

    def wanted(self, count: int) -> Sequence[Scene]:
        return sample_scenes(count)

    def drawn(self, output: Any) -> Tensor:
        images: Tensor = output.images
        return images.float().cpu()

    def right(self, drawn: Tensor, wanted: Scene) -> dict[str, list[float]]:
        found = _judge().score(drawn, [wanted])
        return {
            "kind": [float(right) for right in found.kind_right],
            "colour": [float(right) for right in found.colour_right],
        }


@dataclass(frozen=True, slots=True)
class Videos:
    """A model that draws moving scenes."""

    model: str
    call: dict[str, Any]

    def wanted(self, count: int) -> Sequence[Clip]:
        return sample_clips(count)

    def drawn(self, output: Any) -> Tensor:
        frames: Tensor = output.frames[0]
        return frames.float().cpu()

    def right(self, drawn: Tensor, wanted: Clip) -> dict[str, list[float]]:
        found = clip_figures(_judge(), drawn[None], [wanted])
        return {name: [found[name]] for name in ("kind", "colour", "direction")}


def subject_of(model: str, steps: int | None) -> Subject:
    """The subject for a model with its recommended call, in `steps` steps if given."""
    card = accel.zoo.card(model)
    call = dict(card.call) if steps is None else {**card.call, "num_inference_steps": steps}
    return Videos(model, call) if card.kind == "video" else Pictures(model, call)
