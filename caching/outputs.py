"""The engine of module caches: outputs of attention and MLPs, kept by module and guidance branch.

Which evaluation computes follows from the schedule alone and is the same for every branch; nothing
waits for the device. A module whose own state forbids reuse computes on its own.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from accel.layers import Call
from accel.method import Binding
from accel.sites import ModelSites, Site, Streams
from caching.finite import FiniteWatch
from caching.fixed_steps import Place
from caching.guards import must_compute, warn_non_finite
from caching.measure import place
from caching.prediction import read_prediction
from caching.predictor import Predictor
from caching.slots import Kept, Slot, Slots, signature_of
from caching.snapshot import Snapshot

_EVERY_BRANCH = "every branch"


class Refreshed(NamedTuple):
    """An output of which some of the picture's tokens were computed anew.

    Attributes:
        output: of the module.
        run: how many of them were computed, of one row.
        tokens: how many there are, 0 if none of them could be computed alone.
    """

    output: Any
    run: int
    tokens: int


class Refresher(Protocol):
    """Computes some tokens of a module's output between its computations."""

    def computed(self, call: Call, slot: Slot, output: Any) -> None:
        """Is told of a whole output, before it takes the place of the kept one."""

    def answer(self, call: Call, slot: Slot, kept: Kept) -> Refreshed:
        """An output made from the newest kept one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules that compute at the same evaluations.

    Attributes:
        name: what the report calls them.
        sites: the modules.
        interval: evaluations from one computation to the next; 1 leaves the modules alone.
        stretch: how much longer the interval is at the schedule's begin, and shorter at its end: it
            is divided by 1 - stretch to 1 + stretch, and rounded.
        window: the part of the trained schedule in which they may reuse, as shares (low, high) that
            are themselves outside.
        residual: whether what is kept is what a block adds to its streams, not its output.
        refresher: what answers between computations, if it is not the rule's predictor.
    """

    name: str
    sites: tuple[Site, ...]
    interval: int
    window: tuple[float, float] = (-math.inf, math.inf)
    residual: bool = False
    stretch: float = 0.0
    refresher: Refresher | None = None

    def interval_at(self, place: Place) -> int:
        """The interval at this evaluation."""
        if not self.stretch or not place.num_steps:
            return self.interval
        past = place.step / place.num_steps
        return max(1, round(self.interval / (1 + self.stretch * (2 * past - 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """What a module cache needs to know.

    Attributes:
        groups: the modules and their intervals.
        depth: how many computed outputs each module keeps.
        predictor: what predicts at an evaluation whose newest output is so many evaluations old.
        warmup, tail, min_steps: see `must_compute`.
    """

    groups: tuple[Group, ...]
    depth: int
    predictor: Callable[[Call, int], Predictor]
    warmup: int
    tail: int
    min_steps: int


@dataclass(slots=True)
class _Plan:
    """What the schedule says for the current evaluation, for every branch alike."""

    step: int = -1
    forced: bool = False
    reasons: list[str | None] = field(default_factory=list)
    computed: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Tally:
    """What one branch's newest denoiser call did."""

    calls: int = 0
    step: int = -1
    again: bool = False
    half: int | None = None
    note: str = ""
    refusal: str = ""
    ran: int = 0
    skipped: int = 0
    groups: set[int] = field(default_factory=set)
    # By group: modules' worth of tokens that ran, those tokens, and of how many.
    refreshed: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    watch: FiniteWatch = field(default_factory=FiniteWatch)
    broken: int = -1


class OutputCache:
    """Answers for modules between their computations.

    Attributes:
        modules: how many there are.
    """

    def __init__(self, rule: OutputRule) -> None:
        self.rule = rule
        self.modules = sum(len(group.sites) for group in rule.groups)
        self._unhooked = sum(len(group.sites) for group in rule.groups if group.interval == 1)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the denoiser and of every module that may be answered for."""
        yield Binding(model.denoiser, self._denoise)
        for number, group in enumerate(self.rule.groups):
            hook = self._block if group.residual else self._module
            # Where nothing is ever skipped, the modules are left alone.
            for site in group.sites if group.interval > 1 else ():
                yield Binding(site, partial(hook, number=number))

    def announce(self, call: Call, half: int | None, note: str) -> None:
        """Says that the coming call runs on one half of its batch only, and what to report.

        Args:
            call: the denoiser call.
            half: 0 or 1 for the half that runs, None for all of it.
            note: what else was decided for this call, for the report.
        """
        tally = call.shared(self, _Tally)
        tally.half, tally.note = half, note

    def refresh(self, call: Call, reason: str) -> None:
        """Has every module compute at this evaluation, in every branch."""
        plan = self._plan(call)
        plan.reasons = [known or reason for known in plan.reasons]
        plan.computed = dict.fromkeys(range(len(plan.reasons)), call.step)

    def _denoise(self, call: Call) -> Any:
        tally = self._begin(call)
        output = call.proceed()
        prediction = read_prediction(output)
        if prediction is not None and tally.ran:
            tally.watch.note(call.step, prediction)
        self._report(call, tally)
        tally.half, tally.note = None, ""
        return output

    def _begin(self, call: Call) -> _Tally:
        tally = call.shared(self, _Tally)
        tally.calls += 1
        # A second call of one branch in one evaluation is something else (a perturbed pass): it may
        # neither take nor leave anything.
        tally.again, tally.step = tally.step == call.step, call.step
        tally.refusal, tally.ran, tally.skipped = "", 0, 0
        tally.groups.clear()
        tally.refreshed.clear()
        broken = tally.watch.broken()
        if broken is not None:
            tally.broken = broken
            warn_non_finite(call)
        call.expect(reuse=None in self._plan(call).reasons)
        return tally

    def _plan(self, call: Call) -> _Plan:
        plan = call.generation.state((id(self), "", _EVERY_BRANCH), _Plan)
        if plan.step == call.step:
            return plan
        rule = self.rule
        placed = must_compute(call, warmup=rule.warmup, tail=rule.tail, min_steps=rule.min_steps)
        plan.step, plan.forced = call.step, placed is not None
        plan.reasons = [
            placed or due(group, plan.computed.get(number), call)
            for number, group in enumerate(rule.groups)
        ]
        plan.computed |= {
            number: call.step for number, reason in enumerate(plan.reasons) if reason is not None
        }
        return plan

    def _module(self, call: Call, *, number: int) -> Any:
        tally = call.shared(self, _Tally)
        slots = call.local(self, partial(Slots, self.rule.depth))
        slot = slots.turn(tally.calls)
        signature = signature_of(call.args, call.kwargs)
        kept = self._usable(call, tally, number, slot.usable(signature, tally.half, call.keep))
        refresher = self.rule.groups[number].refresher
        if kept and refresher is not None:
            return _refresh(tally, number, refresher.answer(call, slot, kept[-1]))
        if kept:
            return slot.answer(kept, self._predictor(call, kept), place(call))
        output = call.proceed()
        if not tally.again:
            if refresher is not None:
                refresher.computed(call, slot, output)
            slot.record(signature, call.step, place(call), output, call.keep)
        return output

    def _block(self, call: Call, *, number: int) -> Any:
        tally = call.shared(self, _Tally)
        slot = call.local(self, partial(Slots, self.rule.depth)).turn(tally.calls)
        signature = signature_of(call.args, call.kwargs)
        kept = self._usable(call, tally, number, slot.usable(signature, tally.half, call.keep))
        if kept:
            answer = slot.answer(kept, self._predictor(call, kept), place(call))
            return call.write(call.streams + Streams(*answer))
        before = Snapshot.take(call.streams, copied=slot.copied)
        output = call.proceed()
        if before.intact and not tally.again:
            residual = call.read(output) - before.streams
            parts = residual.hidden, residual.context
            slot.record(signature, call.step, place(call), parts, call.keep)
        slot.copied = slot.copied or not before.intact
        return output

    def _usable(self, call: Call, tally: _Tally, number: int, kept: list[Kept]) -> list[Kept]:
        """The outputs to predict from, none if the module must compute; counts which it was."""
        if self._plan(call).reasons[number] is None:
            finite = [item for item in kept if item.step > tally.broken]
            refusal = "non-finite" if kept and not finite else None
            refusal = refusal or self._refusal(call, tally, number, finite)
            if refusal is None:
                tally.groups.add(number)
                tally.skipped += 1
                return finite
            tally.refusal = refusal
        tally.ran += 1
        return []

    def _refusal(self, call: Call, tally: _Tally, number: int, kept: list[Kept]) -> str | None:
        if tally.again:
            return "called again in this step"
        if not kept:
            return "nothing to reuse yet"
        if call.step - kept[-1].step >= self.rule.groups[number].interval_at(call):
            return "missed its computation"
        return None

    def _predictor(self, call: Call, kept: list[Kept]) -> Predictor:
        return self.rule.predictor(call, call.step - kept[-1].step)

    def _report(self, call: Call, tally: _Tally) -> None:
        rule, plan = self.rule, self._plan(call)
        names = [self._named(tally, number) for number in sorted(tally.groups)]
        if names:
            action, reason = rule.predictor(call, 1).action, " and ".join(names)
        elif tally.refusal:
            action, reason = "forced", tally.refusal
        else:
            reasons = dict.fromkeys(reason for reason in plan.reasons if reason is not None)
            action, reason = "forced" if plan.forced else "computed", ", ".join(reasons)
        if tally.half is not None and not names:
            action = "reused"
        # What ran of a module's tokens counts as so much of the module.
        partly = math.ceil(sum(part for part, _, _ in tally.refreshed.values()))
        skipped, left = tally.skipped - partly, self._unhooked + tally.ran + partly
        blocks = call.generation.timeline.blocks
        # Half of a batch counts as half of the parts.
        blocks_saved, saved = (0, 0) if tally.half is None else (blocks // 2, left // 2)
        call.decide(
            action,
            "; ".join(filter(None, (tally.note, reason))),
            blocks_run=blocks - blocks_saved,
            blocks_skipped=blocks_saved,
            modules_run=left - saved,
            modules_skipped=skipped + saved,
            tokens_run=sum(run for _, run, _ in tally.refreshed.values()),
            tokens_skipped=sum(tokens - run for _, run, tokens in tally.refreshed.values()),
        )

    def _named(self, tally: _Tally, number: int) -> str:
        name = self.rule.groups[number].name
        _, run, tokens = tally.refreshed.get(number, (0.0, 0, 0))
        return f"{name} {run / tokens:.1%} computed" if tokens else name


def _refresh(tally: _Tally, number: int, refreshed: Refreshed) -> Any:
    """The output; counts its tokens."""
    output, run, tokens = refreshed
    if tokens:
        modules, ran, all_ = tally.refreshed.get(number, (0.0, 0, 0))
        tally.refreshed[number] = (modules + run / tokens, ran + run, all_ + tokens)
    return output


def due(group: Group, computed: int | None, at: Place) -> str | None:
    """Why these modules compute at this evaluation, or None if they need not."""
    low, high = group.window
    if group.interval == 1:
        return "interval 1"
    if at.time is None and (low, high) != (-math.inf, math.inf):
        return "place on the schedule unknown"
    if at.time is not None and not low < at.time < high:
        return "outside of the window"
    if computed is None or at.step - computed >= group.interval_at(at):
        return "interval over"
    return None


def parts_of(model: ModelSites) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
    """The blocks that have no MLP of their own, and the modules of all others.

    The former end in one projection of attention and MLP together, so they can only rest as a
    whole.
    """
    with_mlp = {_parent(site) for site in model.mlp}
    whole = tuple(site for site in model.blocks if site.path not in with_mlp)
    inside = {site.path for site in whole}
    parts = (*model.attention, *model.temporal, *model.cross, *model.mlp)
    return whole, tuple(site for site in parts if _parent(site) not in inside)


def _parent(site: Site) -> str:
    return site.path.rpartition(".")[0]
