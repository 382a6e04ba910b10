"""Which model evaluation a generation is at, counted from the scheduler's own calls.

Timesteps are never read back: Heun repeats them and `.item()` waits for the device. Each
`scheduler.step` follows one evaluation of the model, so counting those calls is exact for every
scheduler.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from accel.copies import Overlay

_LARGEST_ANGLE = math.pi / 2
# Pipelines hand timesteps on as they are, or as shares of the trained ones, maybe in bfloat16.
_SCALES = (1.0, 1e-3)
_ROUNDED = 4e-3


class Clock:
    """Counts the model evaluations of one generation and knows how many there will be.

    Attributes:
        scheduler: what counts, or None where somebody's own loop does.
        after_step: called after every `scheduler.step`, when the clock has moved on: with the
            clock, the latents that went in and those that came out, which may be written into.
    """

    def __init__(
        self, num_steps: int | None = None, known_num_steps: Callable[[], int | None] | None = None
    ) -> None:
        self.step = 0
        self.steps_seen = 0
        self.num_steps = num_steps
        self.scheduler: Any = None
        self.after_step: list[Callable[[Clock, Tensor, Tensor], None]] = []
        # What the pipeline last handed to its scheduler: the guided prediction.
        self.prediction: Any = None
        self._offset = 0
        self._sigmas: tuple[float, ...] = ()
        self._times: tuple[float, ...] = ()
        self._begin_index: Callable[[], int | None] = lambda: None
        self._known_num_steps = known_num_steps or (lambda: None)

    def advance(self) -> None:
        """Moves on to the next evaluation."""
        self.step += 1

    @property
    def sigma(self) -> float | None:
        """Noise level of the current evaluation, or None where the schedule is unknown."""
        index = self._offset + self.step
        return self._sigmas[index] if index < len(self._sigmas) else None

    @property
    def starts_late(self) -> bool:
        """Whether the generation leaves out the start of the schedule, as image-to-image does."""
        return self._offset > 0

    @property
    def time(self) -> float | None:
        """Timestep of the current evaluation as a share of the trained ones, 1 (noise) to 0.

        Without a scheduler, evaluations are taken to be evenly spaced; None where not even their
        number is known.
        """
        return self.time_at(self.step)

    def time_at(self, step: int) -> float | None:
        """The same of evaluation `step`."""
        index = self._offset + step
        if index < len(self._times):
            return self._times[index]
        if self._times or self.num_steps is None:
            return None
        return max(0.0, 1 - step / self.num_steps)

    @property
    def times(self) -> tuple[float, ...]:
        """The same of every evaluation; empty where it is not known of one."""
        found = [self.time_at(step) for step in range(self.num_steps or 0)]
        known = tuple(time for time in found if time is not None)
        return known if len(known) == len(found) else ()

    def settle(self, timestep: Any = None) -> None:
        """Fixes the number of evaluations and the first one's place; called at the first one.

        Only then has the pipeline cut its schedule: at its start (image-to-image) or at its end
        (a base model before a refiner). Pipelines tell how much is left by their own count of
        timesteps, and where it begins by the scheduler's begin index; where that is not set, the
        first timestep decides, which is read only in this case.

        Args:
            timestep: what the denoiser is told, scaled or not, if it is known.
        """
        if self.step or not self._sigmas:
            return
        total, late = len(self._sigmas), self._begin_index()
        told = self._known_num_steps()
        left = told if told is not None and 0 < told <= total else total - (late or 0)
        if late is None and left < total:
            late = 0 if self._is_first(timestep) else total - left
        self.num_steps, self._offset = left, late or 0

    def _is_first(self, timestep: Any) -> bool:
        first = self.scheduler.timesteps[0]
        if timestep is None or not float(first):
            return False
        ratio = float(torch.as_tensor(timestep).flatten()[0]) / float(first)
        return any(math.isclose(ratio, scale, rel_tol=_ROUNDED) for scale in _SCALES)

    def watch(self, scheduler: Any, stack: ExitStack) -> None:
        """Wraps `set_timesteps` and `step` of this scheduler until the stack closes."""
        original_set, original_step = scheduler.set_timesteps, scheduler.step
        self.scheduler = scheduler
        self._begin_index = lambda: getattr(scheduler, "begin_index", None)

        # Pipelines inspect the signatures of both, which functools.wraps keeps.
        @functools.wraps(original_set)
        def set_timesteps(*args: Any, **kwargs: Any) -> Any:
            result = original_set(*args, **kwargs)
            self.step, self._sigmas = 0, noise_levels(scheduler)
            self._times = trained_times(scheduler, self._sigmas)
            return result

        @functools.wraps(original_step)
        def step(*args: Any, **kwargs: Any) -> Any:
            result = original_step(*args, **kwargs)
            self.prediction = args[0] if args else kwargs.get("model_output")
            self.steps_seen += 1
            self.advance()
            if self.after_step:
                given = inspect.signature(original_step).bind(*args, **kwargs).arguments
                for listener in self.after_step:
                    listener(self, given["sample"], result[0])
            return result

        overlay = Overlay(scheduler, {"set_timesteps": set_timesteps, "step": step})
        stack.callback(overlay.remove)
        stack.callback(setattr, self, "prediction", None)


def trained_times(scheduler: Any, sigmas: Sequence[float]) -> tuple[float, ...]:
    """Every evaluation's timestep as a share of those that the model was trained on, 1 to 0.

    Where the scheduler's timesteps are something else (logarithms of sigma, angles), the place is
    that of a flow with the same ratio of noise to signal: sigma / (1 + sigma).
    """
    steps = scheduler.timesteps.tolist()
    trained = getattr(getattr(scheduler, "config", None), "num_train_timesteps", None)
    known = trained is not None and len(steps) > 0
    if known and min(steps) >= 0 and _LARGEST_ANGLE < max(steps) <= trained:
        return tuple(step / trained for step in steps)
    return tuple(sigma / (1 + sigma) for sigma in sigmas)


def noise_levels(scheduler: Any) -> tuple[float, ...]:
    """The noise level sigma at every evaluation of a scheduler whose timesteps are set.

    Schedulers without sigmas tell by their cumulative alphas: sigma = sqrt((1 - a) / a). Where
    there are neither, the evaluations are numbered downwards, so that gaps between them still
    count.
    """
    timesteps = scheduler.timesteps
    count = len(timesteps)
    sigmas = getattr(scheduler, "sigmas", None)
    if sigmas is not None and len(sigmas) >= count:
        return tuple(sigmas[:count].tolist())
    alphas = getattr(scheduler, "alphas_cumprod", None)
    if alphas is None:
        return tuple(float(count - index) for index in range(count))
    chosen = alphas[torch.as_tensor(timesteps, device="cpu").long().clamp(0, len(alphas) - 1)]
    return tuple(((1 - chosen) / chosen).sqrt().tolist())
