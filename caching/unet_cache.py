"""The engine of UNet caches: evaluations that run whole, and others in which a part rests."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.sites import Streams
from caching.finite import Finite, total
from caching.guards import place_computes, warn_non_finite
from caching.snapshot import Snapshot
from caching.unet import UNetPath

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
    """

    warmup: int
    tail: int
    min_steps: int
    newest_whole: Callable[[int, int | None], int | None]
    never_rests: bool

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


@dataclass(slots=True)
class Memory:
    """State of one guidance branch during one generation."""

    kept: dict[tuple[int, int], Snapshot] = field(default_factory=dict)
    # A scalar for each, not finite as soon as the feature is not.
    totals: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    # The evaluation that the kept features are from, and the form of its latents.
    step: int = -1
    form: tuple[torch.Size, torch.dtype, torch.device] | None = None
    finite: Finite | None = None
    # Whether a block was seen to write into its input, so that what is kept must be a copy.
    copied: bool = False
    # Of the current denoiser call:
    rests: bool = False
    keeps: bool = False
    blank: Tensor | None = None

    def keep(
        self, call: Call, key: tuple[int, int], feature: Tensor, *, written: bool = False
    ) -> None:
        """Keeps a feature, or a copy of it if somebody is known to write into it.

        Where there is no room for one of them, all are useless and none is kept.
        """
        if not self.keeps:
            return
        self.kept.pop(key, None)
        kept = Snapshot.shelve(
            Streams(feature.detach()),
            call.keep,
            "feature {} {}".format(*key),
            copied=written or self.copied,
        )
        if kept is None:
            self.drop()
            self.keeps = False
            return
        self.kept[key], self.totals[key] = kept, total(feature)

    def feature(self, key: tuple[int, int], *, written: bool = False) -> Tensor:
        """A kept feature, or a copy of it if somebody is known to write into it."""
        kept = self.kept[key].streams.hidden
        return kept.clone() if written or self.copied else kept

    def shape(self, key: tuple[int, int]) -> torch.Size:
        """The shape of a kept feature."""
        return self.kept[key].streams.shape

    def drop(self) -> None:
        """Forgets the features."""
        self.kept.clear()
        self.totals.clear()
        self.step, self.finite = -1, None

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        return sum(snapshot.streams.nbytes for snapshot in self.kept.values())


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
        return call.shared(self, Memory)

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
        refusal = self._refusal(call, memory)
        memory.rests = refusal is None
        call.expect(reuse=memory.rests)
        if refusal is None:
            # What stands for features that nobody reads. A sum of blanks is a blank.
            memory.blank = call.hidden.new_zeros(1)
            call.decide(
                "reused",
                f"features of evaluation {memory.step}",
                blocks_run=self.layers_at_work,
                blocks_skipped=self.layers - self.layers_at_work,
            )
            return self.run_partly(call, memory)
        action = "computed" if refusal == _SCHEDULED else "forced"
        call.decide(action, refusal, blocks_run=self.layers)
        return self.run_whole(call, memory)

    def run_whole(self, call: Call, memory: Memory) -> Any:
        """The output of a whole run, of which something is kept if that will be reused."""
        memory.drop()
        # What the next evaluation will not reuse is not worth keeping.
        memory.keeps = self.rule.whole(call.step + 1, call.num_steps) is None
        output = call.proceed()
        if memory.kept:
            memory.step, memory.form = call.step, _form(call.hidden)
            memory.finite = Finite(memory.totals.values())
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
        if memory.form != _form(call.hidden):
            return "shape, dtype or device changed"
        return self._spoilt(call, memory)

    def _spoilt(self, call: Call, memory: Memory) -> str | None:
        if not all(kept.intact for kept in memory.kept.values()):
            memory.copied = True
            return "a block wrote into its input"
        if memory.finite is not None and memory.finite.refuted():
            warn_non_finite(call)
            return "non-finite"
        return None


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
