"""The engine of whole-stack caches: probe blocks, one decision a call, residuals by segment."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.sites import ModelSites, Site, Streams, alike
from caching.guards import control, given, must_compute
from caching.predictor import Predictor, Sample
from caching.snapshot import Snapshot

_FOLLOWS = "as the other branch of this step"
# A ControlNet whose residuals grow or shrink tenfold since the last compute does not just drift.
_SWITCHED = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRule:
    """What an indicator cache needs to know; see `FirstBlockCache` for the meaning of each."""

    head: int
    tail_blocks: int
    threshold: float
    warmup: int
    tail: int
    max_streak: int | None
    min_steps: int
    batch: str
    joint: bool
    predictor: Predictor


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a denoiser call was given beside the picture."""

    kinds: dict[str, Any]
    control: Tensor | None


@dataclass(slots=True)
class _Memory:
    """State of one guidance branch during one generation."""

    probe: Tensor | None = None
    # What a change of the probe is relative to; NaN where a kept residual is not finite.
    scale: Tensor | None = None
    residuals: dict[int, deque[Sample]] = field(default_factory=dict)
    finite: Tensor | None = None
    streak: int = 0
    # What inputs the model had at the last compute, and how strong a ControlNet was.
    given: _Inputs | None = None
    # Whether a block was seen to write into its input, so that snapshots must be copies.
    copied: bool = False
    # Of the current denoiser call:
    skip: bool = False
    start: Snapshot | None = None
    entry: dict[int, Snapshot] = field(default_factory=dict)
    skipped: dict[int, Streams] = field(default_factory=dict)
    check: bool = False
    now: _Inputs | None = None

    def intact(self, snapshot: Snapshot | None) -> Streams | None:
        """The kept streams, or None if there are none or a block wrote into them."""
        if snapshot is None or snapshot.intact:
            return None if snapshot is None else snapshot.streams
        self.copied = True
        return None

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        kept = sum(sample.value.nbytes for samples in self.residuals.values() for sample in samples)
        return kept + (0 if self.probe is None else self.probe.nbytes)


@dataclass(slots=True)
class _Verdict:
    """What the first guidance branch of a step decided; with `joint`, the others follow."""

    step: int = -1
    skip: bool = False


class StackCache:
    """Runs `head` blocks; by their change, computes or predicts what lies before the tail.

    Blocks that carry their streams alike form a segment with one residual: from the input of its
    first block to the output of its last, so what a model adds between blocks (ControlNet) stays in
    it.
    """

    def __init__(self, rule: StackRule, blocks: Sequence[Site]) -> None:
        self.rule = rule
        last = len(blocks) - rule.tail_blocks
        self._head = blocks[: rule.head]
        self._segments = _segments(blocks[rule.head : last])
        self._skippable = last - rule.head
        self._blocks = len(blocks)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser, the head and the middle."""
        yield Binding(model.denoiser, self._begin)
        if len(self._head) == 1:
            yield Binding(self._head[0], partial(self._probe, first=True))
        else:
            yield Binding(self._head[0], self._start)
            yield Binding(self._head[-1], partial(self._probe, first=False))
        # Where nothing is ever skipped, the middle is left alone.
        for number, segment in enumerate(self._segments if self.rule.threshold > 0 else ()):
            for index, site in enumerate(segment):
                ends = (index == 0, index == len(segment) - 1)
                yield Binding(site, partial(self._middle, number=number, ends=ends))

    def _memory(self, call: Call) -> _Memory:
        return call.shared(self, _Memory)

    def _begin(self, call: Call) -> Any:
        memory = self._memory(call)
        # A model may leave blocks out of a call (skip-layer guidance), so nothing of an earlier
        # call may survive.
        memory.skip, memory.start, memory.check = False, None, False
        memory.now = _Inputs(given(call), control(call)) if self.rule.threshold > 0 else None
        memory.entry.clear()
        memory.skipped.clear()
        return call.proceed()

    def _start(self, call: Call) -> Any:
        memory = self._memory(call)
        if self.rule.threshold > 0:
            memory.start = Snapshot.take(Streams(call.hidden), copied=memory.copied)
        return call.proceed()

    def _probe(self, call: Call, *, first: bool) -> Any:
        memory = self._memory(call)
        output = self._start(call) if first else call.proceed()
        start, after = memory.intact(memory.start), call.read(output).hidden
        same = start is not None and start.hidden.shape == after.shape
        change = (after - start.hidden).detach() if start is not None and same else None
        self._decide(call, memory, change)
        return output

    def _decide(self, call: Call, memory: _Memory, change: Tensor | None) -> None:
        verdict = call.generation.state((id(self), "", "every branch"), _Verdict)
        first = verdict.step != call.step
        follows = self.rule.joint and not first
        # Where the first branch computed, this one need not be measured: no wait for the device.
        refuse = _FOLLOWS if follows and not verdict.skip else None
        reason, value = self._refusal(call, memory, change, refuse)
        if first:
            verdict.step, verdict.skip = call.step, reason is None
        # Only a measured, finite change can be overruled; every other reason to compute stands.
        elif follows and value is not None and math.isfinite(value):
            reason = None
        memory.skip = reason is None
        if reason is None:
            self._note_reuse(call, memory, value)
        else:
            self._note_compute(call, memory, reason, value)
            memory.probe, memory.scale, memory.given = change, None, memory.now

    def _note_reuse(self, call: Call, memory: _Memory, value: float | None) -> None:
        memory.streak += 1
        below = value is not None and value < self.rule.threshold
        call.decide(
            self.rule.predictor.action,
            f"change below {self.rule.threshold:g}" if below else _FOLLOWS,
            value=value,
            blocks_run=self._blocks - self._skippable,
            blocks_skipped=self._skippable,
        )

    def _note_compute(self, call: Call, memory: _Memory, reason: str, value: float | None) -> None:
        memory.check, memory.streak = memory.streak > 0, 0
        broken = value is not None and not math.isfinite(value)
        if broken:
            call.generation.timeline.warn(
                "non-finite features were computed anew instead of reused"
            )
        asked = reason == _FOLLOWS or (value is not None and value >= self.rule.threshold)
        call.decide(
            "computed" if asked or self.rule.threshold <= 0 else "forced",
            reason,
            value=None if broken else value,
            blocks_run=self._blocks,
        )

    def _refusal(
        self, call: Call, memory: _Memory, change: Tensor | None, refuse: str | None
    ) -> tuple[str | None, float | None]:
        """Why the call computes, None if it does not, and the measured change, if it was asked."""
        rule = self.rule
        if change is None:
            return _no_probe(rule, memory), None
        placed = must_compute(call, warmup=rule.warmup, tail=rule.tail, min_steps=rule.min_steps)
        if placed is not None:
            return placed, None
        if memory.probe is None or len(memory.residuals) < len(self._segments):
            return "nothing to reuse yet", None
        if memory.given is None or memory.now is None or memory.given.kinds != memory.now.kinds:
            return "other inputs", None
        if refuse is not None:
            return refuse, None
        return self._compare(memory, memory.probe, change)

    def _compare(
        self, memory: _Memory, kept: Tensor, change: Tensor
    ) -> tuple[str | None, float | None]:
        rule = self.rule
        if not alike(kept, change):
            return "shape, dtype or device changed", None
        if rule.max_streak is not None and memory.streak >= rule.max_streak:
            return f"{memory.streak} skips in a row", None
        if memory.scale is None:
            memory.scale = _scale(kept, memory.finite, rule.batch)
        value, switched = self._measure(memory, change - kept, memory.scale)
        if switched:
            return "ControlNet switched on or off", None
        if value < rule.threshold:
            return None, value
        return ("non-finite" if math.isnan(value) else f"change at least {rule.threshold:g}"), value

    def _measure(self, memory: _Memory, moved: Tensor, scale: Tensor) -> tuple[float, bool]:
        """The relative change, and whether a ControlNet was switched on or off."""
        value = (_size(moved, self.rule.batch) / scale).max()
        was = None if memory.given is None else memory.given.control
        now = None if memory.now is None else memory.now.control
        if was is None or now is None:
            # The one place where a decision waits for the device, this way or that.
            return float(value), False
        switched = (now > _SWITCHED * was) | (was > _SWITCHED * now)
        measured = torch.stack([value, switched.to(value)]).tolist()
        return measured[0], measured[1] > 0

    def _middle(self, call: Call, *, number: int, ends: tuple[bool, bool]) -> Any:
        memory = self._memory(call)
        # A segment whose first block the model leaves out cannot be skipped as a whole.
        if memory.skip and (ends[0] or number in memory.skipped):
            return self._skip(call, memory, number, ends)
        if ends[0]:
            memory.entry[number] = Snapshot.take(call.streams, copied=memory.copied)
        output = call.proceed()
        if ends[1]:
            self._record(call, memory, number, output)
        return output

    def _skip(self, call: Call, memory: _Memory, number: int, ends: tuple[bool, bool]) -> Any:
        # What leaves the segment is known at its start, before a model can add to the input that
        # skipped blocks hand on.
        if ends[0]:
            residual = self.rule.predictor.predict(memory.residuals[number], _place(call))
            memory.skipped[number] = call.streams + residual
        return call.write(memory.skipped.pop(number) if ends[1] else call.streams)

    def _record(self, call: Call, memory: _Memory, number: int, output: Any) -> None:
        entry = memory.intact(memory.entry.get(number))
        if entry is None:
            memory.residuals.pop(number, None)
            return
        left = call.read(output)
        if left.hidden.shape != entry.hidden.shape:
            call.generation.timeline.warn(
                f"{call.site.path} ends in another shape than the skippable blocks begin in; "
                "another number of head or tail blocks may not"
            )
            memory.residuals.pop(number, None)
            return
        residual = (left - entry).detach()
        samples = memory.residuals.setdefault(number, deque(maxlen=self.rule.predictor.depth))
        if samples and not samples[-1].value.matches(residual):
            samples.clear()
        total = _total(residual)
        memory.finite = total if number == 0 or memory.finite is None else memory.finite + total
        if number == 0 and memory.check and samples:
            self._check(call, samples, residual)
        samples.append(Sample(_place(call), residual))

    def _check(self, call: Call, samples: Sequence[Sample], truth: Streams) -> None:
        guess = self.rule.predictor.predict(samples, _place(call))
        error = (guess.hidden - truth.hidden).abs().mean() / truth.hidden.abs().mean()
        call.generation.timeline.measure_later("error", error)


def _segments(blocks: Sequence[Site]) -> list[list[Site]]:
    segments: list[list[Site]] = []
    for site in blocks:
        if segments and (last := segments[-1][-1]).io == site.io and last.segment == site.segment:
            segments[-1].append(site)
        else:
            segments.append([site])
    return segments


def _place(call: Call) -> float:
    # Where the schedule is unknown, evaluations are evenly spaced.
    return float(-call.step) if call.sigma is None else call.sigma


def _size(tensor: Tensor, batch: str) -> Tensor:
    """The L1 norm in at least float32, over the whole batch or of every sample."""
    axes = tuple(range(1 if batch == "worst" else 0, tensor.dim()))
    wide = torch.promote_types(tensor.dtype, torch.float32)
    size: Tensor = torch.linalg.vector_norm(tensor, 1, dim=axes, dtype=wide)
    return size


def _scale(old: Tensor, finite: Tensor | None, batch: str) -> Tensor:
    # A residual of exactly zero that stays zero has not changed.
    size = _size(old, batch).clamp_min(torch.finfo(torch.float32).tiny)
    return size if finite is None else size + finite * 0


def _total(residual: Streams) -> Tensor:
    # A sum is not finite as soon as one element is not, and costs a single pass.
    total = residual.hidden.sum(dtype=torch.float32)
    if residual.context is None:
        return total
    return total + residual.context.sum(dtype=torch.float32)


def _no_probe(rule: StackRule, memory: _Memory) -> str:
    if rule.threshold <= 0:
        return "threshold 0"
    if memory.start is None:
        return "a head block did not run"
    return (
        "head blocks changed the shape" if memory.start.intact else "a block wrote into its input"
    )
