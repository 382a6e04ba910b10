"""The engine of guidance caches: the unconditional prediction rebuilt from the conditional one.

Guidance comes in three forms. In one batch, the conditional half runs alone. In two calls with the
conditional one first, the second is answered without running. In two calls with the unconditional
one first there is nothing yet to rebuild it from: they run, and the report says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.picture_tokens import Grid, find_grid
from accel.sites import ModelSites, Streams, alike
from caching.finite import FiniteWatch
from caching.frequencies import split
from caching.guards import must_compute
from caching.halves import half_call, unconditional_of
from caching.outputs import OutputCache
from caching.prediction import read_prediction, write_prediction
from caching.slots import Signature, signature_of
from caching.snapshot import Snapshot

_CONDITIONAL = frozenset({"cond", "pred_cond"})
_UNCONDITIONAL = frozenset({"uncond", "pred_uncond"})
_ATTEMPTS = 3
_PICTURE_DIM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidanceRule:
    """When the unconditional prediction is rebuilt, and from what.

    Attributes:
        interval: evaluations from one computation of both predictions to the next; 1 is off.
        start: share of the trained schedule below which it begins.
        weights: of the low and of the high frequencies at a place on the schedule.
        warmup, tail, min_steps: see `must_compute`.
    """

    interval: int
    start: float
    weights: Callable[[float], tuple[float, float]]
    warmup: int
    tail: int
    min_steps: int


@dataclass(slots=True)
class _Seen:
    """A denoiser call of the current step that ran."""

    branch: str
    output: Any
    kept: Snapshot | None

    @property
    def prediction(self) -> Tensor | None:
        """What it predicted, or None if that is not a single tensor or was written into."""
        return self.kept.streams.hidden if self.kept is not None and self.kept.intact else None


@dataclass(slots=True)
class _Memory:
    """What is known about guidance in one generation, over all branches."""

    step: int = -1
    calls: list[_Seen] = field(default_factory=list)
    # By branch: in two calls, whether it is the conditional one; in one batch, the batch's size and
    # the half that is.
    roles: dict[str, bool] = field(default_factory=dict)
    halves: dict[tuple[str, int], int] = field(default_factory=dict)
    # Why that is not known, and how often it was looked for, which waits for the device.
    problem: str = ""
    attempts: int = 0
    # Unconditional minus conditional, when, and its two parts once they are asked for.
    difference: Streams | None = None
    measured: int = -1
    # The newest step with guidance in two calls.
    guided: int = -2
    inputs: Signature = ()
    parts: tuple[Streams, Streams] | None = None
    grid: Grid | None = None
    watch: FiniteWatch = field(default_factory=FiniteWatch)

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        held = (self.difference, *(self.parts or ()))
        return sum(streams.nbytes for streams in held if streams is not None)

    def role(self, branch: str) -> bool | None:
        """Whether a branch of its own is the conditional one; None if it is not known."""
        if branch in _CONDITIONAL or branch in _UNCONDITIONAL:
            return branch in _CONDITIONAL
        return self.roles.get(branch)

    def conditional(self) -> _Seen | None:
        """This step's conditional call, if it ran."""
        return next((seen for seen in self.calls if self.role(seen.branch)), None)

    def measure(
        self, call: Call, conditional: Tensor, unconditional: Tensor, inputs: Signature = ()
    ) -> None:
        """Keeps the difference of two predictions of the current step."""
        self.difference = self.parts = None
        if alike(conditional, unconditional):
            difference = (unconditional - conditional).detach()
            self.difference = call.keep(Streams(difference), "difference")
            self.measured, self.inputs = self.step, inputs
            self.watch.note(self.step, difference)


class GuidanceCache:
    """Answers for the unconditional prediction between its computations."""

    def __init__(self, rule: GuidanceRule, modules: OutputCache) -> None:
        self.rule = rule
        self._modules = modules

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hook of the denoiser; those of the module cache must come after it."""
        if self.rule.interval > 1:
            yield Binding(model.denoiser, self._denoise)

    def _denoise(self, call: Call) -> Any:
        memory = call.generation.state((id(self), "", "every branch"), _Memory)
        if memory.step != call.step:
            self._turn(call, memory)
        rows = _rows(call)
        half = memory.halves.get((call.branch, rows))
        if half is not None:
            return self._batch(call, memory, rows, half)
        role = memory.role(call.branch)
        if role is False:
            return self._second(call, memory)
        # Where the other call is about to be computed, too, both do so without extrapolated parts:
        # an error that only one of them makes would stay in the difference.
        if role and memory.guided == call.step - 1 and self._placed(call) is None:
            self._lacking(call, memory, memory.difference)
        return self._run(call, memory, "" if role else memory.problem)

    def _turn(self, call: Call, memory: _Memory) -> None:
        """Learns from the step that has ended, and begins the next."""
        if memory.calls and memory.step == call.step - 1 and memory.attempts < _ATTEMPTS:
            _learn(memory, call.generation.clock.prediction)
            if memory.problem:
                self._complain(call, memory.problem)
        memory.calls.clear()
        memory.step = call.step
        broken = memory.watch.broken()
        if broken is not None and broken >= memory.measured:
            memory.difference = memory.parts = None

    def _run(self, call: Call, memory: _Memory, note: str = "") -> Any:
        """Runs the call as it is."""
        self._modules.announce(call, None, note)
        output = call.proceed()
        prediction = read_prediction(output)
        kept = None if prediction is None else Snapshot.take(Streams(prediction), copied=False)
        memory.calls.append(_Seen(call.branch, output, kept))
        return output

    def _complain(self, call: Call, problem: str) -> None:
        call.generation.timeline.warn(f"the guidance cache did not apply: {problem}")

    def _second(self, call: Call, memory: _Memory) -> Any:
        """An unconditional call of its own."""
        first = memory.conditional()
        if first is None:
            problem = "the unconditional call comes first in a step"
            self._complain(call, problem)
            return self._run(call, memory, problem)
        memory.guided = call.step
        prediction = first.prediction
        if prediction is None:
            return self._run(call, memory, "the conditional prediction is not a tensor of its own")
        refusal = self._placed(call) or self._lacking(call, memory, Streams(prediction))
        if refusal is not None:
            output = self._run(call, memory, refusal)
            if (own := read_prediction(output)) is not None:
                memory.measure(call, prediction, own)
            return output
        blocks = call.generation.timeline.blocks
        call.decide(
            "reused",
            "rebuilt from the conditional call",
            blocks_skipped=blocks,
            modules_skipped=self._modules.modules,
        )
        return write_prediction(first.output, self._rebuilt(call, memory, prediction))

    def _batch(self, call: Call, memory: _Memory, rows: int, half: int) -> Any:
        """A call on both halves of a batch."""
        inputs = signature_of(call.args, call.kwargs)
        like = memory.difference if inputs == memory.inputs else None
        refusal = self._placed(call) or self._lacking(call, memory, like)
        if refusal is not None:
            output = self._run(call, memory, refusal)
            if (both := read_prediction(output)) is not None:
                parts = both.chunk(2)
                memory.measure(call, parts[half], parts[1 - half], inputs)
            return output
        call.args, call.kwargs = half_call(call.site, call.args, call.kwargs, rows, half)
        self._modules.announce(call, half, "unconditional half rebuilt")
        output = call.proceed()
        own = read_prediction(output)
        assert own is not None, "a denoiser returned one prediction before"
        pair = [own, self._rebuilt(call, memory, own)]
        return write_prediction(output, torch.cat(pair if half == 0 else pair[::-1]))

    def _lacking(self, call: Call, memory: _Memory, like: Streams | None) -> str | None:
        """What a prediction like this one lacks to be rebuilt, or None.

        Where a new difference is all that lacks, every module computes.
        """
        if memory.difference is None or like is None or not memory.difference.matches(like):
            lacking = "no difference of the predictions yet"
        elif call.step - memory.measured >= self.rule.interval:
            lacking = "guidance interval over"
        else:
            return None if memory.parts else self._split(call, memory, memory.difference.hidden)
        self._modules.refresh(call, "both predictions are computed")
        return lacking

    def _placed(self, call: Call) -> str | None:
        """Why the place of this evaluation on the schedule has it computed, if it has."""
        rule = self.rule
        placed = must_compute(call, warmup=rule.warmup, tail=rule.tail, min_steps=rule.min_steps)
        if placed is None and call.time is None:
            return "place on the schedule unknown"
        if placed is None and call.time is not None and call.time >= rule.start:
            return "guidance cache not begun"
        return placed

    def _split(self, call: Call, memory: _Memory, difference: Tensor) -> str | None:
        """Takes the difference apart; returns why that is not possible, or None."""
        memory.grid = None
        if difference.dim() < _PICTURE_DIM:
            memory.grid = grid = find_grid(call.argument)
            tokens = 0 if grid is None else grid.tokens
            if grid is None or difference.shape[1] != tokens or difference.shape[2] % grid.patch**2:
                return "how the tokens lie is unknown"
        low, high = split(difference, memory.grid)
        low_kept = call.keep(Streams(low), "low frequencies")
        high_kept = call.keep(Streams(high), "high frequencies")
        if low_kept is None or high_kept is None:
            return "no room for the difference"
        memory.parts = low_kept, high_kept
        return None

    def _rebuilt(self, call: Call, memory: _Memory, conditional: Tensor) -> Tensor:
        assert memory.parts is not None, "the refusal saw to it"
        assert call.time is not None, "the refusal saw to it"
        # The kept parts stay as they were measured: a factor must not grow with the run of skips.
        low, high = self.rule.weights(call.time)
        added = memory.parts[0].hidden * low + memory.parts[1].hidden * high
        return (conditional + added).to(conditional.dtype)


def _rows(call: Call) -> int:
    return len(call.hidden) if isinstance(call.hidden, Tensor) and call.hidden.dim() else 0


def _learn(memory: _Memory, guided: Any) -> None:
    """Finds out from a step's calls and from what became of them which was the conditional one."""
    branches = [seen.branch for seen in memory.calls]
    tensors = [seen.prediction for seen in memory.calls if seen.prediction is not None]
    halved = {branch for branch, _ in memory.halves}
    known = (branch in halved or memory.role(branch) is not None for branch in branches)
    if any(known):
        return
    if len(tensors) < len(branches):
        memory.problem = "the denoiser's output is not a single tensor that stays as it was"
    elif len(tensors) == 1:
        _learn_halves(memory, branches[0], tensors[0], guided)
    elif len(tensors) == len(set(branches)) == 2 and alike(tensors[0], tensors[1]):  # noqa: PLR2004 -- two calls
        found = _look(memory, tensors[0], tensors[1], guided)
        if found is not None:
            memory.roles = {branches[found]: False, branches[1 - found]: True}
    else:
        memory.problem = f"{len(tensors)} calls in a step, and the pipeline names none of them"


def _learn_halves(memory: _Memory, branch: str, both: Tensor, guided: Any) -> None:
    # A pipeline without guidance goes on with as many rows as it got.
    if not isinstance(guided, Tensor) or len(both) != 2 * len(guided):
        return
    first, second = both.chunk(2)
    found = _look(memory, first, second, guided)
    if found is not None:
        memory.halves[branch, len(both)] = 1 - found


def _look(memory: _Memory, first: Tensor, second: Tensor, guided: Any) -> int | None:
    memory.attempts += 1
    found = unconditional_of(first, second, guided)
    memory.problem = "" if found is not None else "which prediction is unconditional is not known"
    if found is not None:
        memory.attempts = 0
    return found
