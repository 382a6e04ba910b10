"""When a cache must compute, whatever its indicator says.

Shared by every method that skips between steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accel.layers import Call


def warn_non_finite(call: Call) -> None:
    """Says in the report that a guard met features that were not finite."""
    call.generation.timeline.warn("non-finite features were computed anew instead of reused")


def given(call: Call) -> dict[str, Any]:
    """What kind of inputs a denoiser call carries, to be compared with those of another.

    Words and switches count with their value, lists with their length, all else by being there. A
    key/value cache that is written first and read later, or an adapter's image that comes in later,
    makes a call unlike the one before it, whatever a method measures inside.
    """
    return {name: _kind(value) for name, value in _named(call) if value is not None}


def control(call: Call) -> Tensor | None:
    """How strong a ControlNet's residuals are in a denoiser call, or None where it has none.

    The first of them stands for all. A ControlNet that a pipeline ends half-way still gives
    residuals, of zero, and what a method measures before they are added does not tell.
    """
    residuals = (value for name, value in _named(call) if "control" in name)
    first = next((tensor for value in residuals for tensor in tensors_in(value)), None)
    return None if first is None else first.detach().abs().mean(dtype=torch.float32)


def _named(call: Call) -> Iterator[tuple[str, Any]]:
    yield from zip(call.site.positions, call.args, strict=False)
    yield from call.kwargs.items()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in an argument, however deep in lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, Sequence)) and not isinstance(value, str):
        parts = value.values() if isinstance(value, Mapping) else value
        yield from (tensor for part in parts for tensor in tensors_in(part))


def _kind(value: Any) -> Any:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {key: _kind(entry) for key, entry in value.items() if entry is not None}
    return len(value) if isinstance(value, Sequence) else type(value)


def must_compute(call: Call, *, warmup: int, tail: int, min_steps: int) -> str | None:
    """Why this evaluation's place in the schedule has it computed, or None if it need not be.

    Args:
        call: any call of the current evaluation.
        warmup: first evaluations that always compute.
        tail: last evaluations that always compute; needs a known number of evaluations.
        min_steps: schedules of at most this many evaluations compute throughout: distilled models
            spend each of them on a large change.
    """
    return place_computes(call.step, call.num_steps, warmup=warmup, tail=tail, min_steps=min_steps)


def place_computes(
    step: int, steps: int | None, *, warmup: int, tail: int, min_steps: int
) -> str | None:
    """Why evaluation `step` of `steps` is computed for its place alone, or None if it need not be.

    The options are those of `must_compute`.
    """
    if steps is not None and steps <= min_steps:
        return f"only {steps} steps"
    if step < warmup:
        return "warm-up"
    if steps is not None and step >= steps - tail:
        return "last steps"
    return None
