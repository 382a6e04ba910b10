"""The engine of UNet caches: evaluations that run whole, and others in which a part rests."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from accel.layers import Call
from accel.method import Binding
from caching.guards import place_computes, warn_non_finite
from caching.measure import relative_change
from caching.predictor import Hold, Predictor
from caching.unet import UNetPath
from caching.unet_memory import Memory

_SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class UNetRule:
    """When the whole UNet runs.

    Attributes:
        warmup, tail, min_steps: as everywhere, see `caching.guards.must_compute`.
        newest_whole: the newest evaluation, up to the first argument, that the method's schedule of
            as many evaluations as the second has run whole; None if the schedule needs their number
            and that is unknown.
        never_rests: whether every evaluation runs whole.
        predictor: what stands in for features between whole runs.
    """

    warmup: int
    tail: int
    min_steps: int
    newest_whole: Callable[[int, int | None], int | None]
    never_rests: bool
    predictor: Predictor = field(default=Hold())

    def whole(self, step: int, steps: int | None) -> str | None:
        """Why evaluation `step` of `steps` runs whole, or None if a part may rest."""
        placed = place_computes(
            step, steps, warmup=self.warmup, tail=self.tail, min_steps=self.min_steps
        )
        if placed is not None:
            return placed
        newest = self.newest_whole(step, steps)
        if newest is None:
            return "number of evaluations unknown"
        return _SCHEDULED if newest == step or self.never_rests else None


class UNetCache(ABC):
    """Decides once a denoiser call whether the deep part of the UNet rests in it.

    What rests and what is kept of a whole run is the subclass's business: it binds `rest_down` and
    `rest` to what rests, and keeps features while `Memory.keeps`.
    """

    def __init__(self, rule: UNetRule, path: UNetPath) -> None:
        self.rule = rule
        self.path = path
        self.layers = path.layers

    @property
    @abstractmethod
    def layers_at_work(self) -> int:
        """Layers that run while the others rest."""

    @property
    @abstractmethod
    def resting_paths(self) -> tuple[str, ...]:
        """The modules that rest while the others run."""

    @property
    @abstractmethod
    def kept_paths(self) -> tuple[str, ...]:
        """The modules whose outputs are kept for those evaluations."""

    @abstractmethod
    def bind_parts(self) -> Iterator[Binding]:
        """Yields the hooks of what rests and of what is kept."""

    @abstractmethod
    def run_partly(self, call: Call, memory: Memory) -> Any:
        """The output of a denoiser call in which a part rests."""

    def bind(self) -> Iterator[Binding]:
        """Yields every hook."""
        yield Binding(self.path.denoiser, self._begin)
        if not self.rule.never_rests:
            yield from self.bind_parts()

    def memory(self, call: Call) -> Memory:
        """What is kept for the branch of a call."""
        return call.shared(self, self._new_memory)

    def _new_memory(self) -> Memory:
        return Memory(self.rule.predictor)

    def rest_down(self, call: Call, *, handed: int) -> Any:
        """A down block that rests hands on as many blanks as it has features."""
        memory = self.memory(call)
        if not memory.rests:
            return call.proceed()
        return memory.blank, (memory.blank,) * handed

    def rest(self, call: Call) -> Any:
        """A mid or up block that rests hands on a blank."""
        memory = self.memory(call)
        return memory.blank if memory.rests else call.proceed()

    def _begin(self, call: Call) -> Any:
        memory = self.memory(call)
        refusal, rested = self._refusal(call, memory), memory.rests
        memory.rests = refusal is None
        call.expect(reuse=memory.rests)
        if refusal is None:
            # What stands for features that nobody reads. A sum of blanks is a blank.
            memory.blank = call.hidden.new_zeros(1)
            call.decide(
                self.rule.predictor.action,
                f"features of evaluation {memory.step}",
                blocks_run=self.layers_at_work,
                blocks_skipped=self.layers - self.layers_at_work,
            )
            return self.run_partly(call, memory)
        action = "computed" if refusal == _SCHEDULED else "forced"
        call.decide(action, refusal, blocks_run=self.layers)
        with self._checked(call, memory) if rested else nullcontext():
            return self.run_whole(call, memory)

    @contextmanager
    def _checked(self, call: Call, memory: Memory) -> Iterator[None]:
        """Compares what would have been predicted for a whole run with what it gives.

        With a memory budget that would be one feature too many.
        """
        if call.generation.store is not None or not memory.kept or memory.form != form_of(call):
            yield
            return
        key = next(iter(memory.kept))
        guess = memory.guess(call, key).hidden
        yield
        if row := memory.kept.get(key):
            error = relative_change(guess, row[-1].sample.value.hidden)
            call.generation.timeline.measure_later("error", error)

    def run_whole(self, call: Call, memory: Memory) -> Any:
        """The output of a whole run, of which something is kept if that will be reused."""
        depth = self.rule.predictor.depth
        # What none of the next evaluations will reuse is not worth keeping.
        memory.keeps = any(
            self.rule.whole(call.step + ahead, call.num_steps) is None
            for ahead in range(1, depth + 1)
        )
        if not memory.keeps or memory.form != form_of(call):
            memory.drop()
        memory.form = form_of(call)
        output = call.proceed()
        memory.settle(call)
        return output

    def _refusal(self, call: Call, memory: Memory) -> str | None:
        """Why this call runs whole, or None if a part rests."""
        whole = self.rule.whole(call.step, call.num_steps)
        if whole is not None:
            return whole
        if memory.step < 0:
            return "nothing to reuse yet"
        # A branch that was absent, as with guidance on some steps only, missed its whole run.
        if memory.step < (self.rule.newest_whole(call.step, call.num_steps) or 0):
            return "kept features are of an older run"
        if memory.form != form_of(call):
            return "shape, dtype or device changed"
        return self._spoilt(call, memory)

    def _spoilt(self, call: Call, memory: Memory) -> str | None:
        if not memory.intact:
            memory.copied = True
            memory.drop()
            return "a block wrote into its input"
        if memory.finite is not None and memory.finite.refuted():
            warn_non_finite(call)
            memory.drop()
            return "non-finite"
        return None


def form_of(call: Call) -> tuple[torch.Size, torch.dtype, torch.device]:
    """What latents must have in common for features of one call to fit another."""
    return call.hidden.shape, call.hidden.dtype, call.hidden.device
