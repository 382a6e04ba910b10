"""The engine of whole-stack caches: one decision a call, residuals by segment."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.sites import ModelSites, Site, Streams
from caching.finite import Finite
from caching.guards import control, given, must_compute, warn_non_finite
from caching.measure import place, relative_change
from caching.policy import Answer, Ask, Policy
from caching.predictor import Predictor, Sample, append, total_of
from caching.snapshot import Snapshot

NON_FINITE = "non-finite"
# A ControlNet whose residuals grow or shrink tenfold since the last compute does not just drift.
_SWITCHED = 10.0
_FOLLOWS = "as the other branch of this step"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRule:
    """What every stack cache needs to know; see `FirstBlockCache` for the meaning of each."""

    policy: Policy
    predictor: Predictor
    tail_blocks: int = 0
    warmup: int = 0
    tail: int = 0
    max_streak: int | None = None
    min_steps: int = 0
    joint: bool = True


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a denoiser call was given beside the picture."""

    kinds: dict[str, Any]
    control: Tensor | None


@dataclass(slots=True)
class _Memory:
    """State of one guidance branch during one generation."""

    state: Any
    residuals: dict[int, deque[Sample]] = field(default_factory=dict)
    # The newest values of a segment, predictions included, where the predictor wants them.
    trail: dict[int, deque[Sample]] = field(default_factory=dict)
    # The same, looked at without waiting, where the policy measures nothing.
    watch: Finite | None = None
    streak: int = 0
    # What inputs the model had at the last compute, and how strong a ControlNet was.
    given: _Inputs | None = None
    # Whether a block was seen to write into its input, so that snapshots must be copies.
    copied: bool = False
    # Of the current denoiser call:
    skip: bool = False
    predictor: Predictor | None = None
    start: Snapshot | None = None
    entry: dict[int, Snapshot] = field(default_factory=dict)
    skipped: dict[int, Streams] = field(default_factory=dict)
    check: bool = False
    now: _Inputs | None = None

    def totals(self) -> list[Tensor]:
        """A scalar for each kept residual, not finite as soon as the residual is not."""
        rows = self.residuals.values()
        return [s.total for samples in rows for s in samples if s.total is not None]

    def finite(self) -> Tensor | None:
        """A scalar that is not finite as soon as a kept residual is not, in either stream."""
        totals = self.totals()
        return sum(totals[1:], totals[0]) if totals else None

    def intact(self, snapshot: Snapshot | None) -> Streams | None:
        """The kept streams, or None if there are none or a block wrote into them."""
        if snapshot is None or snapshot.intact:
            return None if snapshot is None else snapshot.streams
        self.copied = True
        return None

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        rows = (*self.residuals.values(), *self.trail.values())
        kept = {id(sample.value): sample.value.nbytes for row in rows for sample in row}
        return sum(kept.values()) + int(self.state.nbytes)


@dataclass(slots=True)
class _Verdict:
    """What the first guidance branch of a step decided; with `joint`, the others follow."""

    step: int = -1
    skip: bool = False


class StackCache:
    """Runs the head blocks, decides, and computes or predicts what lies between them and the tail.

    Blocks that carry their streams alike form a segment with one residual: from the input of its
    first block to the output of its last, so what a model adds between blocks (ControlNet) stays in
    it.
    """

    def __init__(self, rule: StackRule, blocks: Sequence[Site]) -> None:
        self.rule = rule
        self._policy = rule.policy
        first, last = rule.policy.head, len(blocks) - rule.tail_blocks
        self._all = blocks
        self._head = blocks[:first]
        self._segments = segments_of(blocks[first:last])
        self._skippable = last - first
        self._blocks = len(blocks)
        self._now: _Memory | None = None

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser, the head and the middle."""
        yield Binding(model.denoiser, self._begin)
        yield from self._deciders()
        # Where nothing is ever skipped, the middle is left alone.
        for number, segment in enumerate(self._segments if self._policy.engages else ()):
            for index, site in enumerate(segment):
                ends = (index == 0, index == len(segment) - 1)
                yield Binding(site, partial(self._middle, number=number, ends=ends))
        if self._policy.engages:
            yield from self._policy.watch(self._all, lambda call: self._memory(call).state)

    def _deciders(self) -> Iterator[Binding]:
        if not self._head:
            yield Binding(self._all[0], self._before)
        elif len(self._head) == 1:
            yield Binding(self._head[0], partial(self._probe, first=True))
        else:
            yield Binding(self._head[0], self._start)
            yield Binding(self._head[-1], partial(self._probe, first=False))

    def _memory(self, call: Call) -> _Memory:
        # Asked for by every block, so looked up once a denoiser call; a lock keeps those apart.
        return call.shared(self, self._new_memory) if self._now is None else self._now

    def _new_memory(self) -> _Memory:
        return _Memory(self._policy.new_state())

    def _begin(self, call: Call) -> Any:
        memory = self._memory(call)
        # A model may leave blocks out of a call (skip-layer guidance), so nothing of an earlier
        # call may survive.
        memory.skip, memory.start, memory.check = False, None, False
        memory.now = _Inputs(given(call), control(call)) if self._policy.engages else None
        self._now = memory
        if call.generation.store is not None:
            call.expect(reuse=self._timely(call) is None)
        try:
            return call.proceed()
        finally:
            self._now = memory.start = None
            memory.entry.clear()
            memory.skipped.clear()

    def _before(self, call: Call) -> Any:
        memory = self._memory(call)
        self._decide(memory, Ask(call, None, memory.finite))
        return call.proceed()

    def _start(self, call: Call) -> Any:
        memory = self._memory(call)
        if self._policy.engages:
            memory.start = Snapshot.take(Streams(call.hidden), copied=memory.copied)
        return call.proceed()

    def _probe(self, call: Call, *, first: bool) -> Any:
        memory = self._memory(call)
        output = self._start(call) if first else call.proceed()
        start, after = memory.intact(memory.start), call.read(output).hidden
        same = start is not None and start.hidden.shape == after.shape
        change = (after - start.hidden).detach() if start is not None and same else None
        self._decide(memory, Ask(call, change, memory.finite))
        return output

    def _decide(self, memory: _Memory, ask: Ask) -> None:
        call, rule = ask.call, self.rule
        verdict = call.generation.state((id(self), "", "every branch"), _Verdict)
        first = verdict.step != call.step
        follows = rule.joint and not first
        answer = self._guarded(memory, ask, follows=follows and not verdict.skip)
        if answer is None:
            answer = self._policy.judge(memory.state, ask)
        if first:
            verdict.step, verdict.skip = call.step, answer.reuse
        elif follows and verdict.skip and not (answer.reuse or answer.firm):
            answer = Answer(reuse=True, reason=_FOLLOWS, value=answer.value)
        memory.skip = answer.reuse
        if not answer.reuse:
            memory.given = memory.now
        self._policy.decided(memory.state, ask, reuse=answer.reuse)
        self._note(call, memory, answer)

    def _guarded(self, memory: _Memory, ask: Ask, *, follows: bool) -> Answer | None:
        """Why the call computes whatever the policy says, or None if the policy decides."""
        rule, placed = self.rule, self._placed(memory, ask)
        if not self._policy.engages:
            return Answer(reuse=False, reason=self._policy.idle, firm=True)
        if placed is not None:
            return _forced(placed)
        if follows:
            # Where the first branch computed, this one need not be measured: no wait for the
            # device.
            return Answer(reuse=False, reason=_FOLLOWS, firm=True)
        if rule.max_streak is not None and memory.streak >= rule.max_streak:
            return _forced(f"{memory.streak} skips in a row")
        if _switched(memory, reads=self._policy.measures):
            return _forced("ControlNet switched on or off")
        return None if self._policy.measures else _unmeasured(memory, ask)

    def _placed(self, memory: _Memory, ask: Ask) -> str | None:
        """Why the place in the schedule, or what is missing, has the call computed."""
        if self._head and ask.change is None:
            return _no_change(memory)
        placed = self._timely(ask.call)
        if placed is None and len(memory.residuals) < len(self._segments):
            return "nothing to reuse yet"
        if placed is None and _other_inputs(memory):
            return "other inputs"
        return placed

    def _timely(self, call: Call) -> str | None:
        """Why the place in the schedule has the call computed, or None."""
        rule = self.rule
        return must_compute(call, warmup=rule.warmup, tail=rule.tail, min_steps=rule.min_steps)

    def _note(self, call: Call, memory: _Memory, answer: Answer) -> None:
        skipped = self._skippable if answer.reuse else 0
        broken = answer.value is not None and not math.isfinite(answer.value)
        if broken or answer.reason == NON_FINITE:
            warn_non_finite(call)
            memory.residuals.clear()
            memory.trail.clear()
        if answer.reuse:
            memory.predictor = self._policy.predictor(call, self.rule.predictor)
            action = memory.predictor.action
        else:
            action = "computed" if answer.chosen else "forced"
        call.expect(reuse=answer.reuse)
        memory.check = memory.streak > 0 and not answer.reuse
        memory.streak = memory.streak + 1 if answer.reuse else 0
        call.decide(
            action,
            answer.reason,
            value=None if broken else answer.value,
            blocks_run=self._blocks - skipped,
            blocks_skipped=skipped,
        )

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
            predictor = memory.predictor or self.rule.predictor
            residual = self._predict(memory, predictor, number, call)
            memory.skipped[number] = call.streams + residual
        return call.write(memory.skipped.pop(number) if ends[1] else call.streams)

    def _predict(self, memory: _Memory, predictor: Predictor, number: int, call: Call) -> Streams:
        trail = memory.trail.get(number, ())
        residual = predictor.predict(memory.residuals[number], place(call), trail)
        self._follow(memory, number, call, residual)
        return residual

    def _follow(self, memory: _Memory, number: int, call: Call, newest: Streams) -> None:
        if length := self.rule.predictor.trail:
            trail = memory.trail.setdefault(number, deque(maxlen=length))
            append(call, trail, Sample(place(call), newest), "guess")

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
        samples = memory.residuals.setdefault(number, deque(maxlen=self._depth))
        if samples and not samples[-1].value.matches(residual):
            samples.clear()
            memory.trail.pop(number, None)
        if number == 0 and memory.check and samples:
            self._check(call, memory, samples, residual)
        newest = append(
            call, samples, Sample(place(call), residual, total_of(residual)), "residual"
        )
        if newest is None:
            # A call skips all segments or none.
            memory.residuals.clear()
            return
        if number == 0:
            self._policy.recorded(memory.state, call, newest.value)
        if not self._policy.measures:
            memory.watch = Finite(memory.totals())
        self._follow(memory, number, call, newest.value)

    def _check(
        self, call: Call, memory: _Memory, samples: Sequence[Sample], truth: Streams
    ) -> None:
        predictor = self._policy.predictor(call, self.rule.predictor)
        guess = predictor.predict(samples, place(call), memory.trail.get(0, ()))
        error = relative_change(guess.hidden, truth.hidden)
        call.generation.timeline.measure_later("error", error)
        self._policy.missed(memory.state, error)

    @property
    def _depth(self) -> int:
        return max(self.rule.predictor.depth, self._policy.depth)


def _forced(reason: str) -> Answer:
    return Answer(reuse=False, reason=reason, firm=True, chosen=False)


def _no_change(memory: _Memory) -> str:
    """Why what the head blocks changed is not known."""
    if memory.start is None:
        return "a head block did not run"
    intact = memory.start.intact
    return "head blocks changed the shape" if intact else "a block wrote into its input"


def _other_inputs(memory: _Memory) -> bool:
    """Whether the model is given other kinds of inputs than at the last compute."""
    was, now = memory.given, memory.now
    return was is None or now is None or was.kinds != now.kinds


def _switched(memory: _Memory, *, reads: bool) -> bool:
    """Whether a ControlNet was switched on or off since the last compute.

    Waits for the device, so only policies that do so anyway look, and everybody on a CPU.
    """
    was = None if memory.given is None else memory.given.control
    now = None if memory.now is None else memory.now.control
    if was is None or now is None or not (reads or now.device.type == "cpu"):
        return False
    return bool((now > _SWITCHED * was) | (was > _SWITCHED * now))


def _unmeasured(memory: _Memory, ask: Ask) -> Answer | None:
    """What a policy that measures nothing cannot see: another shape, a residual of no use."""
    if not memory.residuals[0][-1].value.like(ask.call.hidden):
        return _forced("shape, dtype or device changed")
    refuted = memory.watch is not None and memory.watch.refuted()
    return _forced(NON_FINITE) if refuted else None


def segments_of(blocks: Sequence[Site]) -> list[list[Site]]:
    """Runs of blocks that carry their streams alike, each of which has one residual."""
    segments: list[list[Site]] = []
    for site in blocks:
        if segments and (last := segments[-1][-1]).io == site.io and last.segment == site.segment:
            segments[-1].append(site)
        else:
            segments.append([site])
    return segments
