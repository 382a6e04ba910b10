"""What a pipeline asks of its denoiser in one evaluation, found without running the denoiser."""

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from accel.clock import Clock
from accel.copies import Overlay
from accel.engine import engine_of
from accel.errors import AccelError, AccelUnsupportedError, ConflictError, OptionError
from accel.flops import Counted, count
from accel.models import find_denoisers
from accel.probe import tensors_of
from accel.work import Inputs, Work


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """What a generation asks of one denoiser.

    Attributes:
        module: the denoiser; name: the pipeline's component, "" for a denoiser on its own.
        calls: the work of its calls in one evaluation: guidance in two calls has two.
        evaluations: how many there are; times: the place of each on the trained schedule, as far as
            that is known.
        device, dtype: where and in what it runs.
        others: further denoisers of the pipeline, which the first evaluation did not need.
    """

    module: nn.Module
    name: str
    calls: tuple[Work, ...]
    evaluations: int
    device: torch.device
    dtype: torch.dtype
    times: tuple[float, ...] = ()
    others: tuple[str, ...] = ()


class _Enough(BaseException):
    """Leaves a pipeline's call that has asked for its first evaluation."""


def observe(pipe: Any, **call: Any) -> Observed:
    """What a call of a pipeline with these arguments asks of its denoiser.

    The pipeline prepares everything as always, text encoders included. Its denoiser answers zeros
    of the right shape, and the call ends at the scheduler's first step. A model that looks at the
    values of its inputs runs for this one evaluation.

    Args:
        pipe: an unpatched pipeline; it is left as it was.
        call: its arguments: height, width, num_frames, guidance, batch, steps, as for a picture.

    Raises:
        OptionError: if the pipeline takes no such call.
        AccelUnsupportedError: if it has no denoiser, or one that cannot be counted.
        ConflictError: if it is patched.
    """
    denoisers = find_denoisers(pipe)
    if isinstance(pipe, nn.Module):
        raise OptionError(
            f"{type(pipe).__name__} is a denoiser, and nobody knows what it will be called with. "
            "Pass the pipeline, or count a call: accel.flops.count(model, Inputs.like((), inputs))."
        )
    if any(engine_of(module) is not None for module in denoisers.values()):
        raise ConflictError("Observing needs the pipeline bare; call accel.unpatch(pipe) first.")
    stand_in = _StandIn(denoisers, pipe)
    try:
        with stand_in.laid_over(), torch.no_grad():
            pipe(**call)
    except _Enough:
        pass
    except AccelError:
        raise
    except Exception as error:
        raise OptionError(
            f"{type(pipe).__name__} does not take this call ({', '.join(call) or 'no arguments'}): "
            f"{type(error).__name__}: {error}"
        ) from error
    return stand_in.observed()


class _StandIn:
    """Answers in the place of a pipeline's denoisers, and notes what it was asked."""

    def __init__(self, denoisers: Mapping[str, nn.Module], pipe: Any) -> None:
        self._denoisers = denoisers
        self._pipe = pipe
        self._clock = Clock(None, partial(getattr, pipe, "_num_timesteps", None))
        self._calls: list[tuple[str, Work]] = []
        self._sample = torch.empty(0)

    def laid_over(self) -> ExitStack:
        """Answers for the denoisers, and ends the call at its first step, until it closes."""
        stack = ExitStack()
        for name, module in self._denoisers.items():
            overlay = Overlay(module, {"forward": self._forward(name, module)})
            stack.callback(overlay.remove)
        scheduler = getattr(self._pipe, "scheduler", None)
        if scheduler is not None:
            self._clock.watch(scheduler, stack)
            overlay = Overlay(scheduler, {"step": _ending(scheduler.step)})
            stack.callback(overlay.remove)
        return stack

    def observed(self) -> Observed:
        """What the call asked.

        Raises:
            AccelUnsupportedError: if it asked nothing.
        """
        if not self._calls:
            raise AccelUnsupportedError(
                f"{type(self._pipe).__name__} called none of its denoisers "
                f"({', '.join(self._denoisers)}), so their cost is not known."
            )
        name = self._calls[0][0]
        # Without a scheduler the whole generation went by.
        evaluations = self._clock.num_steps or 1
        return Observed(
            module=self._denoisers[name],
            name=name,
            calls=tuple(work for called, work in self._calls if called == name),
            evaluations=evaluations,
            times=self._clock.times,
            device=self._sample.device,
            dtype=self._sample.dtype,
            others=tuple(other for other in self._denoisers if other != name),
        )

    def _forward(self, name: str, module: nn.Module) -> Any:
        original = module.forward

        # Pipelines look at the signature.
        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._clock.settle(kwargs.get("timestep"))
            self._sample = _largest(args, kwargs)
            counted = self._count(module, original, Inputs(args, kwargs))
            self._calls.append((name, counted.work))
            return _zeros(counted.output, self._sample.device)

        return forward

    def _count(self, module: nn.Module, original: Any, inputs: Inputs) -> Counted:
        try:
            return count(module, inputs)
        except AccelUnsupportedError:
            overlay = Overlay(module, {"forward": original})
            try:
                return count(module, inputs, on_meta=False)
            finally:
                overlay.remove()


def _ending(original: Any) -> Any:
    @functools.wraps(original)
    def step(*_: Any, **__: Any) -> Any:
        raise _Enough

    return step


def _largest(args: Any, kwargs: Any) -> Tensor:
    floats = (t for t in tensors_of([args, kwargs]) if t.is_floating_point())
    return max(floats, key=Tensor.numel, default=torch.empty(0))


def _zeros(output: Any, device: torch.device) -> Any:
    """The same output with zeros in the place of tensors without memory."""
    if isinstance(output, Tensor):
        return torch.zeros(output.shape, dtype=output.dtype, device=device)
    if isinstance(output, Mapping):
        made = {key: _zeros(value, device) for key, value in output.items()}
        return type(output)(**made)
    if isinstance(output, (list, tuple)):
        return type(output)(_zeros(value, device) for value in output)
    return output
