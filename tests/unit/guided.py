"""A denoiser and a pipeline small enough to compute guidance by hand, in every order of calls."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from tests.unit.toys import Adding

COND, UNCOND = 1.0, 0.0
CHECKS = (torch.arange(10)[:, None] + torch.arange(10)) % 2 * 2.0 - 1.0


class Painter(nn.Module):
    """Predicts its input plus its text's number times a pattern of one frequency."""

    def __init__(self, pattern: Tensor | None = None, attn: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Adding(attn=attn) for _ in range(2))
        self.pattern = torch.ones(10, 10) if pattern is None else pattern
        self.rows: list[int] = []

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> tuple[Tensor]:
        self.rows.append(len(hidden_states))
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return (hidden_states + encoder_hidden_states[:, :, None, None] * self.pattern,)

    @contextlib.contextmanager
    def cache_context(self, name: str) -> Iterator[None]:
        """Does what diffusers' cache mixin does without a cache: nothing."""
        del name
        yield


def cfg(u: Tensor, c: Tensor) -> Tensor:
    """Returns the usual guided prediction."""
    return u + 3.0 * (c - u)


class MiniPipe:
    """Guidance as pipelines do it: in one batch or in two calls, in either order, named or not."""

    def __init__(
        self,
        transformer: nn.Module,
        order: str = "uc",
        *,
        batched: bool = True,
        named: bool = False,
        guide: Callable[[Tensor, Tensor], Tensor] = cfg,
    ) -> None:
        self.transformer = transformer
        self.scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        self.components = {"transformer": transformer, "scheduler": self.scheduler}
        self.order, self.batched, self.named, self.guide = order, batched, named, guide
        self.text = {
            "u": torch.full((1, 1), UNCOND),
            "c": torch.full((1, 1), COND),
        }
        self.seen: list[dict[str, Tensor]] = []
        self.inputs: list[Tensor] = []

    def predict(self, latents: Tensor, order: str) -> dict[str, Tensor]:
        """Returns the prediction of each branch."""
        if self.batched:
            text = torch.cat([self.text[key] for key in order])
            (out,) = self.transformer(torch.cat([latents] * len(order)), text)
            return dict(zip(order, out.chunk(len(order)), strict=True))
        found = {}
        for key in order:
            name = {"u": "uncond", "c": "cond"}[key]
            context = self.transformer.cache_context(name) if self.named else None
            with context or contextlib.nullcontext():
                (found[key],) = self.transformer(latents, self.text[key])
        return found

    @torch.no_grad()
    def __call__(
        self, *, num_inference_steps: int = 12, guided: Callable[[int], bool] = lambda _: True
    ) -> Any:
        """Returns the latents; `guided` tells at which steps there is guidance."""
        self.seen, self.inputs, self.transformer.rows = [], [], []
        self.scheduler.set_timesteps(num_inference_steps)
        latents = torch.linspace(-1, 1, 100).view(1, 1, 10, 10)
        for step, timestep in enumerate(self.scheduler.timesteps):
            self.inputs.append(latents)
            found = self.predict(latents, self.order if guided(step) else "c")
            self.seen.append(found)
            guess = self.guide(found["u"], found["c"]) if "u" in found else found["c"]
            latents = self.scheduler.step(guess, timestep, latents, return_dict=False)[0]
        return latents
