"""One uniform way to build and run every tiny pipeline of the test bed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from tests.tiny.models import Denoiser

Pipeline = Any
Cfg = Literal["none", "batched", "two-call"]


@dataclass(frozen=True, slots=True)
class Request:
    """What one generation is asked for, before a case turns it into its pipeline's arguments."""

    seed: int
    steps: int
    height: int
    width: int
    batch: int
    guidance: float
    prompt: int

    def randn(self, salt: int, *shape: int) -> Tensor:
        """Returns embedding number `salt` of this prompt; row i is the same in every batch."""
        seeds = (10_000 * self.prompt + 100 * salt + index for index in range(self.batch))
        rows = [torch.randn(*shape, generator=torch.Generator().manual_seed(s)) for s in seeds]
        return torch.stack(rows)

    def generators(self) -> list[torch.Generator]:
        """Returns one generator per image, so that image i has the same noise in every batch."""
        return [torch.Generator().manual_seed(self.seed + index) for index in range(self.batch)]


@dataclass(frozen=True, slots=True)
class Case:
    """A tiny stock pipeline and how to call it."""

    name: str
    make: Callable[[], Pipeline]
    arguments: Callable[[Request], dict[str, Any]]
    cfg: Cfg
    family: Literal["transformer", "unet"] = "transformer"
    sizes: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {"a": (64, 64), "b": (96, 64)}
    )
    guidance: float = 3.0
    other_guidance: float = 1.0
    denoiser_names: tuple[str, ...] = ("transformer",)
    callback: bool = True
    other_scheduler: Callable[[Pipeline], Any] | None = None
    evaluations: Callable[[int], int] = lambda steps: steps
    fewest_steps: int = 1

    def run(
        self,
        pipe: Pipeline,
        *,
        seed: int = 0,
        steps: int = 6,
        size: str = "a",
        batch: int = 1,
        guidance: float | None = None,
        prompt: int = 0,
        **extra: Any,
    ) -> Tensor:
        """Returns the latents (the image, where a pipeline always decodes) of one generation."""
        height, width = self.sizes[size]
        scale = self.guidance if guidance is None else guidance
        request = Request(seed, steps, height, width, batch, scale, prompt)
        arguments = self.arguments(request) | extra
        out = pipe(
            num_inference_steps=steps,
            generator=request.generators(),
            return_dict=False,
            **arguments,
        )[0]
        return out.clone() if isinstance(out, Tensor) else torch.from_numpy(out)

    def denoiser(self, pipe: Pipeline) -> Denoiser:
        """Returns the pipeline's (first) denoiser."""
        return self.denoisers(pipe)[0]

    def denoisers(self, pipe: Pipeline) -> list[Denoiser]:
        """Returns all denoisers of the pipeline, in the order in which it uses them."""
        return [getattr(pipe, name) for name in self.denoiser_names]

    def __str__(self) -> str:
        return self.name
