"""Several evaluations of a UNet's way up as one batch, since none of them needs the latents."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from accel.layers import Call
from accel.report import Timeline
from caching.guards import tensors_in

# What a denoiser is given anew for each evaluation. Of these, the outputs depend on the time alone.
_TIME = "timestep"
_FRESH = (
    _TIME,
    "down_block_additional_residuals",
    "down_intrablock_additional_residuals",
    "mid_block_additional_residual",
)


@dataclass(slots=True)
class _Ahead:
    """What was decoded ahead for one guidance branch."""

    key: int = -1
    outputs: dict[int, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    # Rows of latents and evaluations of each in the current denoiser call.
    rows: int = 1
    evaluations: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs that wait."""
        return sum(output[0].nbytes for output in self.outputs.values())


class DecodeAhead:
    """Decodes up to `limit` evaluations in the call of the first, and answers the others from that.

    Args:
        limit: evaluations in a batch; 1 decodes each in its own call.
        rests: whether evaluation `step` of `steps` is decoded from kept features.
    """

    def __init__(self, limit: int, rests: Callable[[int, int | None], bool]) -> None:
        self._limit = limit
        self._rests = rests

    def repeated(self, call: Call, feature: Tensor) -> Tensor:
        """A kept feature once for each evaluation that the current denoiser call decodes."""
        ahead = call.shared(self, _Ahead)
        if ahead.evaluations == 1:
            return feature
        repeated: Tensor = _repeat(feature, ahead.rows, ahead.evaluations)
        return repeated

    def run(self, call: Call, key: int) -> Any:
        """The output of a denoiser call on the features of evaluation `key`."""
        if self._limit == 1:
            return call.proceed()
        ahead = call.shared(self, _Ahead)
        conditions = _conditions(call)
        if ahead.key == key and _same(conditions, ahead.conditions):
            output = ahead.outputs.pop(call.step, None)
            if output is not None:
                return output
        ahead.outputs.clear()
        count = self._run_length(call)
        times = None if count == 1 else _upcoming(call, count)
        if times is None or not _repeatable(call, conditions):
            return call.proceed()
        ahead.key, ahead.conditions = key, conditions
        return _run_batch(call, ahead, times)

    def _run_length(self, call: Call) -> int:
        count = 1
        while count < self._limit and self._rests(call.step + count, call.num_steps):
            count += 1
        return count


def _run_batch(call: Call, ahead: _Ahead, times: Tensor) -> Any:
    rows, count = len(call.hidden), len(times)
    for name, value in ahead.conditions.items():
        call.change(name, _repeat(value, rows, count))
    call.change(_TIME, times.repeat(rows))
    call.change(call.site.io.hidden, _repeat(call.hidden, rows, count))
    ahead.rows, ahead.evaluations = rows, count
    try:
        output = call.proceed()
    finally:
        ahead.evaluations = 1
    samples = output[0].unflatten(0, (rows, count)).unbind(1)
    parts = [_part(output, sample.contiguous()) for sample in samples]
    ahead.outputs.update({call.step + index: part for index, part in enumerate(parts) if index})
    return parts[0]


def _part(output: Any, sample: Tensor) -> Any:
    if isinstance(output, tuple):
        return (sample, *output[1:])
    return type(output)(sample=sample)


def _conditions(call: Call) -> dict[str, Any]:
    """What the output depends on besides the timestep, by argument."""
    names = (
        name for name in call.site.positions if name not in _FRESH and name != call.site.io.hidden
    )
    return {name: value for name in names if (value := call.argument(name)) is not None}


def _upcoming(call: Call, count: int) -> Tensor | None:
    """The timesteps of this evaluation and those behind it, or None where they cannot be told.

    Where in the scheduler's memory the timestep of this call lies tells its place in the schedule,
    so that no timestep is read back from the device.
    """
    timestep, timeline = call.argument(_TIME), call.generation.timeline
    schedule = getattr(call.generation.clock.scheduler, "timesteps", None)
    if not isinstance(schedule, Tensor) or not isinstance(timestep, Tensor):
        _give_up(timeline, "the scheduler's timesteps")
        return None
    if timestep.untyped_storage().data_ptr() != schedule.untyped_storage().data_ptr():
        _give_up(timeline, "timesteps that come straight from the scheduler")
        return None
    place = (timestep.storage_offset() - schedule.storage_offset()) // schedule.stride(0)
    times = schedule[place : place + count]
    return times if len(times) == count else None


def _repeatable(call: Call, conditions: Mapping[str, Any]) -> bool:
    rows = len(call.hidden)
    for name, value in conditions.items():
        tensors = list(tensors_in(value))
        # Attention keywords may hold tensors of any layout, masks for instance.
        if (name == "cross_attention_kwargs" and tensors) or any(
            tensor.dim() == 0 or len(tensor) % rows for tensor in tensors
        ):
            _give_up(call.generation.timeline, f"rows for each sample in `{name}`")
            return False
    return True


def _give_up(timeline: Timeline, missing: str) -> None:
    timeline.warn(f"evaluations were decoded one by one: decoding ahead needs {missing}")


def _repeat(value: Any, rows: int, count: int) -> Any:
    """The same with every row of latents, and what belongs to it, `count` times in a row.

    So what belongs together stays together: attention that takes the halves or thirds of a batch
    for guidance finds them.
    """
    if isinstance(value, Tensor):
        apart = value.reshape(rows, 1, len(value) // rows, *value.shape[1:])
        return apart.expand(-1, count, *apart.shape[2:]).flatten(0, 2)
    if isinstance(value, dict):
        return {name: _repeat(item, rows, count) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_repeat(item, rows, count) for item in value)
    return value


def _same(left: Any, right: Any) -> bool:
    """Whether both hold the very same tensors and equal other values."""
    if isinstance(left, Tensor) or isinstance(right, Tensor) or type(left) is not type(right):
        return left is right
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)
