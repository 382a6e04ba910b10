"""When a cache must compute, whatever its indicator says.

Shared by every method that skips between steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from accel.layers import Call


def given(call: Call) -> dict[str, Any]:
    """What kind of inputs a denoiser call carries, to be compared with those of another.

    Words and switches count with their value, lists with their length, all else by being there.
    ControlNet residuals that end half-way, or a key/value cache that is written first and read
    later, make a call unlike the one before it, whatever a method measures inside.
    """
    named = dict(zip(call.site.positions, call.args, strict=False)) | dict(call.kwargs)
    return {name: _kind(value) for name, value in named.items() if value is not None}


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
    steps = call.num_steps
    if steps is not None and steps <= min_steps:
        return f"only {steps} steps"
    if call.step < warmup:
        return "warm-up"
    if steps is not None and call.step >= steps - tail:
        return "last steps"
    return None
