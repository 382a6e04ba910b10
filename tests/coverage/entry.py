"""How a tiny model of one class is made and called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.coverage.classes import model_class
from tests.tiny.models import POOLED_DIM, TEXT_DIM, Denoiser, shaken

TOKENS = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One class: how to make a tiny model of it, and the keyword arguments of one call.

    Attributes:
        moving: the argument that denoising changes from step to step, the noisy sample.
    """

    name: str
    make: Callable[[], Denoiser]
    inputs: Callable[[], dict[str, Any]]
    moving: str = "hidden_states"

    def at(self, inputs: dict[str, Any], step: int) -> dict[str, Any]:
        """Returns the same call with the sample of another step."""
        return inputs | {self.moving: _moved(inputs[self.moving], step)}

    def __str__(self) -> str:
        return self.name


def _moved(sample: Any, step: int) -> Any:
    if isinstance(sample, list):
        return [_moved(part, step) for part in sample]
    if sample.is_floating_point():
        return sample * (1 - 0.2 * step)
    return sample.roll(step)


def tiny(name: str, **config: Any) -> Callable[[], Denoiser]:
    """Returns a function that makes a random model of this class, the same every time."""

    def make() -> Denoiser:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return shaken(model_class(name)(**config))

    return make


def rand(*shape: int, salt: int = 0) -> Tensor:
    """Returns normal numbers, the same every time."""
    generator = torch.Generator().manual_seed(sum(shape) + 1000 * salt)
    return torch.randn(shape, generator=generator)


def text(dim: int = TEXT_DIM, tokens: int = TOKENS) -> Tensor:
    """Returns a prompt's embeddings."""
    return rand(1, tokens, dim, salt=1)


def pooled(dim: int = POOLED_DIM) -> Tensor:
    """Returns a prompt's embedding as a whole."""
    return rand(1, dim, salt=2)


def at_time(value: float = 500.0) -> Tensor:
    """Returns a batch of one timestep."""
    return torch.tensor([value])


def mask(tokens: int = TOKENS, dtype: torch.dtype = torch.long) -> Tensor:
    """Returns a mask in which every token counts."""
    return torch.ones(1, tokens, dtype=dtype)


def grid(height: int = 4, width: int = 4, axes: int = 3) -> Tensor:
    """Returns the positions [N, axes] of an image's tokens."""
    ids = torch.zeros(height, width, axes)
    ids[..., axes - 2] = torch.arange(height)[:, None]
    ids[..., axes - 1] = torch.arange(width)
    return ids.flatten(0, 1)


def rotary(tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines of rotary positions."""
    angles = torch.outer(torch.arange(tokens), 100.0 ** -torch.arange(0, 1, 2 / dim))
    angles = angles.repeat_interleave(2, dim=-1)
    return angles.cos(), angles.sin()


def flow_inputs(channels: int, axes: int = 3, **others: Any) -> dict[str, Any]:
    """Returns what models shaped like Flux take: packed tokens, and where both streams are."""
    return {
        "hidden_states": rand(1, 16, channels),
        "encoder_hidden_states": text(),
        "timestep": at_time(0.5),
        "img_ids": grid(axes=axes),
        "txt_ids": torch.zeros(TOKENS, axes),
        **others,
    }


def image_inputs(channels: int = 4, **others: Any) -> dict[str, Any]:
    """Returns what models of unpacked images take."""
    return {
        "hidden_states": rand(1, channels, 8, 8),
        "encoder_hidden_states": text(),
        "timestep": at_time(),
        **others,
    }


def video_inputs(channels: int = 4, **others: Any) -> dict[str, Any]:
    """Returns what models of unpacked videos take."""
    return {
        "hidden_states": rand(1, channels, 2, 4, 4),
        "encoder_hidden_states": text(),
        "timestep": at_time(),
        **others,
    }
