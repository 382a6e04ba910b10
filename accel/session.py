"""One denoiser's generations: the branch of a call, what methods remember, what is reported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from accel.clock import Clock
from accel.errors import AccelBusyError
from accel.layers import Call
from accel.report import Decision, Timeline
from accel.store import Lane, Store
from accel.work import Inputs, Work

if TYPE_CHECKING:
    from accel.engine import Engine

Memo = TypeVar("Memo")

# What the prompt is called, first where a model takes several parts of one.
_CONDITIONING = (
    "encoder_hidden_states",
    "class_labels",
    "encoder_hidden_states_t5",
    "cap_feats",
    "text_bth",
    "proj_embedding",
    "encodings_and_masks",
    "input_ids",
)


@dataclass(slots=True, kw_only=True, eq=False)
class Seen:
    """What a generation asked of its denoiser, from which its cost can be worked out.

    Attributes:
        inputs: of the calls of its first evaluation, in form only.
        evaluations: how many there were; times: see `Clock.times`.
        device, dtype: of the sample.
        works: what each call does, filled in by whoever asks first.
    """

    inputs: tuple[Inputs, ...]
    evaluations: int
    times: tuple[float, ...]
    device: torch.device
    dtype: torch.dtype
    works: tuple[Work, ...] = ()


class Generation:
    """State of one denoiser during one pipeline call; all of it is dropped when the call ends."""

    def __init__(self, clock: Clock, timeline: Timeline, store: Store | None = None) -> None:
        self.clock = clock
        self.timeline = timeline
        self.store = store
        self.thread = get_ident()
        self.branch = "0"
        self.context_name: str | None = None
        self._states: dict[tuple[int, str, str], Any] = {}
        self._branches = _Branches(clock)
        self._first_step: int | None = None
        self._inputs: list[Inputs] = []
        self._place = torch.device("cpu"), torch.float32

    @property
    def step(self) -> int:
        """Evaluations so far."""
        return self.clock.step

    @property
    def num_steps(self) -> int | None:
        """Evaluations that this generation will make, if known."""
        return self.clock.num_steps

    @property
    def sigma(self) -> float | None:
        """Noise level of the current evaluation, if known."""
        return self.clock.sigma

    @property
    def time(self) -> float | None:
        """Place of the current evaluation on the trained schedule, if known."""
        return self.clock.time

    @property
    def lane(self) -> Lane:
        """Whose features are kept now."""
        return id(self), self.branch

    def state(self, key: tuple[int, str, str], factory: Callable[[], Memo]) -> Memo:
        """The state kept under a key, made by `factory` at first use."""
        try:
            memo: Memo = self._states[key]
        except KeyError:
            memo = self._states.setdefault(key, factory())
        return memo

    def decide(self, action: str, reason: str, **numbers: Any) -> None:
        """Notes a decision for the current denoiser call."""
        self.timeline.add(
            Decision(step=self.step, branch=self.branch, action=action, reason=reason, **numbers)
        )

    def enter(self, call: Call) -> None:
        """Finds out the branch of a denoiser call."""
        self.clock.settle(call.argument("timestep"))
        conditioning = next(
            (value for name in _CONDITIONING if (value := call.argument(name)) is not None), None
        )
        self.branch = self._branches.find(self.context_name, conditioning)
        if self._first_step is None:
            self._first_step, self._place = self.step, _place(call)
        if self.step == self._first_step:
            self._inputs.append(Inputs.like(call.args, call.kwargs))

    def seen(self) -> Seen | None:
        """What it asked of the denoiser, or None if that was nothing, or nothing to be kept."""
        # Objects of the pipeline's own, such as key/value caches, may hold much.
        if not self._inputs or not all(inputs.light for inputs in self._inputs):
            return None
        return Seen(
            inputs=tuple(self._inputs),
            evaluations=self.num_steps or self.step,
            times=self.clock.times,
            device=self._place[0],
            dtype=self._place[1],
        )

    def close(self) -> None:
        """Sums up and drops all state."""
        self.timeline.bytes_held = sum(
            getattr(state, "nbytes", 0) for state in self._states.values()
        )
        if self.store is not None:
            self.timeline.note_memory(self.store, self.store.refused.get(id(self), {}))
        self._states.clear()
        self._branches = _Branches(self.clock)


def _place(call: Call) -> tuple[torch.device, torch.dtype]:
    """Where and in what a denoiser call computes."""
    hidden: Any = call.hidden
    hidden = hidden[0] if isinstance(hidden, (list, tuple)) else hidden
    return _device(call), hidden.dtype if isinstance(hidden, Tensor) else torch.float32


def _device(call: Call) -> torch.device:
    """Where a denoiser call computes: where its first tensor is, alone or in a list."""
    waiting = [*call.args, *call.kwargs.values()]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, (list, tuple)):
            waiting[:0] = value
    return torch.device("cpu")


class _Branches:
    """Tells guidance branches apart: by the pipeline's name, the conditioning, else the order.

    Order alone mixes the branches up when guidance is applied on only some steps. The conditioning
    tensor of a branch is the same object at every step in most pipelines; it is held here, so its
    identity cannot be reused.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: list[Any] = []
        self._step = -1
        self._ordinal = 0
        self._named: set[str] = set()
        self._identity_holds = False

    def find(self, name: str | None, conditioning: Any) -> str:
        """The branch of a denoiser call that starts now."""
        if self._step != self._clock.step:
            self._start_step()
        if name is not None:
            return self._by_name(name)
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        for index, known in enumerate(self._known):
            if known is conditioning:
                self._identity_holds = self._identity_holds or self._step > 0
                return str(index)
        if conditioning is not None and (self._step == 0 or self._identity_holds):
            self._known.append(conditioning)
            return str(len(self._known) - 1)
        return str(ordinal)

    def _start_step(self) -> None:
        self._step = self._clock.step
        self._ordinal = 0
        self._named.clear()

    def _by_name(self, name: str) -> str:
        # A pipeline that steps copies of its scheduler is not seen stepping; a name that comes
        # again tells.
        if name in self._named and not self._clock.steps_seen:
            self._clock.advance()
            self._start_step()
        self._named.add(name)
        return name


class Session:
    """What is alive on one denoiser: at most one generation, by one thread."""

    def __init__(self, name: str, owner: "Engine") -> None:
        self.name = name
        self.owner = owner
        self.generation: Generation | None = None
        self.enabled = True
        # Of the newest generation.
        self.seen: Seen | None = None
        self._lock = RLock()

    @contextmanager
    def open(
        self, clock: Clock, timeline: Timeline, store: Store | None = None, *, wait: bool = True
    ) -> Iterator[Generation | None]:
        """A generation on this denoiser, whose features go to the store if there is one.

        A second thread waits its turn, or is refused if `wait` is off.

        Raises:
            AccelBusyError: if another thread is generating and `wait` is off.
        """
        if not self._lock.acquire(blocking=wait):
            raise AccelBusyError(
                f"{self.name} is in the middle of a generation in another thread. Wait for it, or "
                "give each thread a pipeline with a denoiser of its own."
            )
        outer = self.generation
        try:
            self.generation = Generation(clock, timeline, store) if self.enabled else None
            yield self.generation
        finally:
            if self.generation is not None:
                self.generation.close()
                self.seen = self.generation.seen() or self.seen
            self.generation = outer
            self._lock.release()

    def track(self, call: Call) -> Any:
        """Outermost hook of the denoiser: settles the branch, then times and counts the call."""
        generation = call.generation
        generation.enter(call)
        timeline = generation.timeline
        before = len(timeline.decisions)
        with timeline.denoiser_watch(_device(call)):
            output = call.proceed()
        timeline.calls += 1
        if len(timeline.decisions) == before:
            generation.decide("computed", "no method decided", blocks_run=timeline.blocks)
        return output

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        """Names the guidance branch of the denoiser calls inside."""
        generation = self.generation
        if generation is None or generation.thread != get_ident():
            yield
            return
        outer, generation.context_name = generation.context_name, name
        try:
            yield
        finally:
            generation.context_name = outer
