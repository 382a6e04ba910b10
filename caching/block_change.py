"""Reuse for a number of steps once the outputs of all blocks have stopped changing."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.sites import Site, Streams
from caching.measure import relative_change
from caching.policy import Answer, Ask
from caching.threshold import Steering, ThresholdPolicy

_TOKENS = 64
_SHARE = 10


@dataclass(slots=True)
class SketchState:
    """Some tokens of every block's output, and how much they changed between computed calls."""

    steering: Steering
    sketches: dict[str, Streams] = field(default_factory=dict)
    changes: list[Tensor] = field(default_factory=list)
    # Evaluations that may still be reused, and the first one that may not.
    left: int = 0
    end: float = math.inf

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        return sum(sketch.nbytes for sketch in self.sketches.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange(ThresholdPolicy):
    """Mean over the blocks of mean|h - h_last| / mean|h_last|."""

    reuse: int | None

    measures: ClassVar[bool] = True

    def new_state(self) -> SketchState:
        """Nothing seen yet."""
        return SketchState(Steering(self.target_error))

    def judge(self, state: SketchState, ask: Ask) -> Answer:
        """Tests once after a computed call, then counts."""
        call = ask.call
        if call.step >= state.end:
            return Answer(reuse=False, reason="second half after reuse began", chosen=False)
        if state.left > 0:
            state.left -= 1
            return Answer(reuse=True, reason="blocks had stopped changing")
        if not state.changes:
            return Answer(reuse=False, reason="due for a test")
        value, limit = self._measure(state, ask), self.limit(state)
        if not math.isfinite(value):
            return Answer(reuse=False, reason="non-finite", value=value, firm=True, chosen=False)
        if value >= limit:
            return Answer(reuse=False, reason=f"change at least {limit:g}", value=value)
        self._begin(state, call)
        return Answer(reuse=True, reason=f"change below {limit:g}", value=value)

    def decided(self, state: SketchState, ask: Ask, *, reuse: bool) -> None:  # noqa: ARG002 -- counts alone
        """A computed call is tested afresh, and one that a guard had computed ends the run."""
        state.changes.clear()
        if not reuse:
            state.left = 0

    def watch(self, blocks: Sequence[Site], state_of: Callable[[Call], Any]) -> Iterator[Binding]:
        """Yields a look at every block's output."""
        for site in blocks:
            yield Binding(site, partial(self._look, state_of))

    def _look(self, state_of: Callable[[Call], Any], call: Call) -> Any:
        output = call.proceed()
        state: SketchState = state_of(call)
        hidden = call.read(output).hidden.detach()
        sketch = hidden[:, :: max(1, hidden.shape[1] // _TOKENS)].clone()
        before = state.sketches.pop(call.site.path, None)
        if before is not None and before.like(sketch):
            state.changes.append(relative_change(sketch, before.hidden))
        before = None
        kept = call.keep(Streams(sketch), "sketch", stays=True)
        if kept is not None:
            state.sketches[call.site.path] = kept
        return output

    def _measure(self, state: SketchState, ask: Ask) -> float:
        change, finite = torch.stack(state.changes).mean(), ask.finite()
        return state.steering.read(change if finite is None else change + finite * 0)

    def _begin(self, state: SketchState, call: Call) -> None:
        steps = call.num_steps
        state.left = (self.reuse or max(1, (steps or _SHARE) // _SHARE)) - 1
        if steps is not None and state.end == math.inf:
            state.end = call.step + math.ceil((steps - call.step) / 2)
