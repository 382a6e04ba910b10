"""When a cache must compute, whatever its indicator says.

Shared by every method that skips between steps.
"""

from accel.layers import Call


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
