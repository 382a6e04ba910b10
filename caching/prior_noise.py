"""A little of the initial noise, given back to the latents in the second half of the schedule."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from accel.clock import Clock
from accel.layers import Call
from accel.session import Generation


@dataclass(slots=True)
class _Injection:
    """What is added during one generation, and whether it is time."""

    noise: Tensor | None = None
    active: bool = False
    # The noise level in the middle of the training's schedule, or None where none can be told.
    middle: float | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the noise."""
        return 0 if self.noise is None else self.noise.nbytes


class PriorNoise:
    """Adds `strength` times the initial noise to the latents of every evaluation below t = T / 2.

    Faster Diffusion (arXiv 2312.09608) gives texture back in this way. There, latents are scaled as
    DDIM does; where the scheduler adds noise to an unscaled image, as Euler does, the noise is
    scaled alike. It begins with the first evaluation that reused something, so that a schedule
    which computes throughout stays exact, and is left out of runs that start from an image.
    """

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def watch(self, call: Call, *, active: bool) -> None:
        """Notes that an evaluation begins, and whether it is one that reuses."""
        if self.strength == 0:
            return
        key = (id(self), "", "every branch")
        injection = call.generation.state(key, partial(self._start, call.generation))
        if active and not injection.active:
            injection.active = True
            if injection.middle is None:
                call.generation.timeline.warn(
                    "prior noise was left out: the scheduler tells no cumulative alphas"
                )

    def _start(self, generation: Generation) -> _Injection:
        clock = generation.clock
        injection = _Injection(middle=_middle_sigma(clock.scheduler))
        if injection.middle is not None and not clock.starts_late:
            clock.after_step.append(partial(self._add, injection))
        return injection

    def _add(self, injection: _Injection, clock: Clock, sample: Tensor, latents: Tensor) -> None:
        scale = float(getattr(clock.scheduler, "init_noise_sigma", 1.0))
        if injection.noise is None:
            injection.noise = sample.detach() / scale
        sigma, middle = clock.sigma, injection.middle
        if injection.active and sigma is not None and middle is not None and sigma < middle:
            grown = 1.0 if scale == 1.0 else math.sqrt(1.0 + sigma**2)
            latents.add_(injection.noise, alpha=self.strength * grown)


def _middle_sigma(scheduler: Any) -> float | None:
    alphas = getattr(scheduler, "alphas_cumprod", None)
    if alphas is None:
        return None
    alpha = float(alphas[len(alphas) // 2])
    return math.sqrt((1 - alpha) / alpha)
