"""The handle that `patch` returns: reports, status, on and off, and the undo."""

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from accel.clock import Clock
from accel.copies import Overlay
from accel.engine import Engine
from accel.errors import OptionError
from accel.memory import LightCache
from accel.method import Method, for_denoiser
from accel.report import Report

_PATCH_KEY = "_accel_patch"
_KEPT_REPORTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is patched on a pipeline or denoiser, in words: `print(accel.status(pipe))`."""

    patched: bool
    enabled: bool = False
    methods: tuple[str, ...] = ()
    denoisers: tuple[str, ...] = ()
    hooked_modules: int = 0
    generations: int = 0
    cost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.patched:
            return "\n".join(("not patched", *self.notes))
        state = "on" if self.enabled else "off (call enable())"
        lines = (
            f"accel     {state}, {self.generations} generations so far",
            f"methods   {', '.join(self.methods) or 'none'}",
            f"denoisers {', '.join(self.denoisers)}; {self.hooked_modules} modules hooked",
        )
        costs = (f"cost      {cost}" for cost in self.cost)
        return "\n".join((*lines, *costs, *(f"note      {note}" for note in self.notes)))


class Patch:
    """The handle of a patched pipeline or denoiser. As a context manager it unpatches at the end.

    Attributes:
        methods: what is installed.
        memory: the memory options, if there are any.
        targets: the pipelines (or the denoiser) that this patch drives.
        reports: the newest reports, oldest first; one a denoiser and generation.
        wait: whether a second thread waits for the denoiser (default) or gets an `AccelBusyError`.
    """

    def __init__(
        self,
        target: Any,
        denoisers: dict[str, nn.Module],
        methods: tuple[Method, ...],
        *,
        strict: bool,
        memory: LightCache | None = None,
        note: str = "",
    ) -> None:
        self.methods = methods
        self.memory = memory
        self.targets: list[Any] = [target]
        self.reports: deque[Report] = deque(maxlen=_KEPT_REPORTS)
        self.wait = True
        self._denoisers = denoisers
        self._strict = strict
        self._note = note
        self._generations = 0
        self._clock: Clock | None = None
        self._undo = ExitStack()
        self._engines: dict[str, Engine] = {}
        self._parted: list[Overlay] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unpatch()

    @property
    def report(self) -> Report:
        """What the newest generation did; an empty report before the first."""
        return self.reports[-1] if self.reports else Report()

    @property
    def enabled(self) -> bool:
        """Whether generations are accelerated."""
        return bool(self._engines) and all(
            engine.session.enabled for engine in self._engines.values()
        )

    def enable(self) -> None:
        """Accelerates again after `disable`, from the next generation on."""
        for engine in self._engines.values():
            engine.session.enabled = True
        self._decode_in_parts(self.targets)

    def disable(self) -> None:
        """Lets every call through unchanged until `enable`, from the next generation on."""
        for engine in self._engines.values():
            engine.session.enabled = False
        self._decode_as_before()

    def status(self, target: Any = None) -> Status:
        """What this patch holds, seen from one of the pipelines that share the denoiser."""
        notes = [self._note] if self._note else []
        notes += [note for engine in self._engines.values() for note in engine.notes]
        if (
            target is not None
            and not isinstance(target, nn.Module)
            and handle_of(target) is not self
        ):
            notes.append(
                f"patched through another pipeline; calls of this {type(target).__name__} run "
                "unaccelerated until it is patched too"
            )
        return Status(
            patched=bool(self._engines),
            enabled=self.enabled,
            methods=tuple(map(str, self.methods)),
            denoisers=tuple(
                f"{name} ({engine.name})" if name else engine.name
                for name, engine in self._engines.items()
            ),
            hooked_modules=sum(engine.hooked_modules for engine in self._engines.values()),
            generations=self._generations,
            cost=tuple(self._costs()),
            notes=tuple(notes),
        )

    def _costs(self) -> Iterator[str]:
        """Yields what the newest generation of each denoiser was predicted to gain, and took."""
        # Counting FLOPs loads more of torch than `import accel` may.
        from accel.cost import cost_line  # noqa: PLC0415

        for name, engine in self._engines.items():
            if engine.session.seen is not None:
                yield cost_line(
                    engine.session.seen, engine.module, name, self.methods, self.reports
                )

    def serves(
        self,
        denoisers: dict[str, nn.Module],
        methods: tuple[Method, ...],
        memory: LightCache | None,
    ) -> bool:
        """Whether this patch is what patching these denoisers with these options would give."""
        mine = {id(module) for module in self._denoisers.values()}
        same = self.methods == methods and self.memory == memory
        return same and mine == {id(module) for module in denoisers.values()}

    def install(self, more_targets: Iterable[Any] = ()) -> None:
        """Hooks the denoisers and gives the pipelines their clock; a failure undoes all of it."""
        try:
            self._undo.callback(self._engines.clear)
            self._undo.callback(self._decode_as_before)
            for name, module in self._denoisers.items():
                chosen = for_denoiser(self.methods, name)
                if not chosen:
                    continue
                engine = self._engines[name] = Engine(module, chosen, self, strict=self._strict)
                self._undo.callback(engine.remove)
                engine.install()
            for target in [*self.targets, *more_targets]:
                self.drive(target)
        except BaseException:
            self._undo.close()
            raise

    def drive(self, target: Any) -> None:
        """Makes calls of this pipeline open a generation.

        A bare denoiser is driven by `generation()`.
        """
        if all(target is not known for known in self.targets):
            self.targets.append(target)
        if isinstance(target, nn.Module) or handle_of(target) is self:
            return
        cls = type(target)
        driven = _driven(cls, self)
        overlay = Overlay(target, {_PATCH_KEY: self}, cls=cls)
        target.__class__ = driven
        self._undo.callback(_release, target, driven, cls, overlay)
        if self.enabled:
            self._decode_in_parts([target])

    def _decode_in_parts(self, targets: Iterable[Any]) -> None:
        if self.memory is not None:
            for target in targets:
                self._parted.extend(self.memory.lay_over(target))

    def _decode_as_before(self) -> None:
        while self._parted:
            self._parted.pop().remove()

    def suspend(self) -> None:
        """Takes everything off, but remembers from where, for `install`."""
        self._undo.close()

    def unpatch(self) -> None:
        """Takes everything off, bit for bit as before. Safe to call again.

        The handle keeps its reports and lets go of the model.
        """
        self.suspend()
        self.targets.clear()
        self._denoisers = {}

    @contextmanager
    def generation(self, num_steps: int | None = None, *, pipe: Any = None) -> Iterator[Self]:
        """A generation driven by your own loop.

        For every evaluation, call the denoiser, then `advance()`.

        Args:
            num_steps: how many evaluations there will be, if known; guards for the last steps need
                it.
            pipe: the pipeline whose scheduler counts instead (used by patched pipelines).

        Raises:
            AccelBusyError: if another thread is generating with this denoiser and `wait` is off.
            OptionError: if `num_steps` is no whole number of at least 1.
        """
        if num_steps is not None:
            _check_steps(num_steps, "num_steps")
        clock = Clock(num_steps, functools.partial(getattr, pipe, "_num_timesteps", None))
        with ExitStack() as stack:
            # One for all denoisers, since they share the device.
            store = None if self.memory is None else self.memory.open()
            timelines = [engine.open(clock, stack, store) for engine in self._engines.values()]
            stack.callback(setattr, self, "_clock", self._clock)
            self._clock = clock
            if self.enabled and getattr(pipe, "scheduler", None) is not None:
                clock.watch(pipe.scheduler, stack)
            try:
                yield self
            finally:
                stack.close()
                self._generations += 1
                called = [
                    timeline for timeline in timelines if timeline is not None and timeline.calls
                ]
                self.reports.extend(
                    timeline.finish(clock.step, clock.num_steps) for timeline in called
                )

    def advance(self) -> None:
        """Moves a `generation()` of your own on to its next evaluation.

        Raises:
            OptionError: outside of a generation.
        """
        if self._clock is None:
            raise OptionError(
                "advance() was called outside of a generation: `with handle.generation(n): ...` "
                "opens one."
            )
        self._clock.advance()


def handle_of(target: Any) -> Patch | None:
    """The patch that drives this pipeline, or None."""
    return getattr(target, "__dict__", {}).get(_PATCH_KEY)


def _release(target: Any, driven: type, cls: type, overlay: Overlay) -> None:
    # A class that somebody swapped in since stays theirs; ours then opens no generation any more.
    if type(target) is driven:
        target.__class__ = cls
    overlay.remove()


def _driven(cls: type, patch: Patch) -> type:
    """A subclass of `cls`, alike in name and signature, whose call opens a generation."""
    original: Any = cls.__call__

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 -- becomes the special method
        # A pipeline whose steps default to None takes them from its schedule.
        if (steps := kwargs.get("num_inference_steps")) is not None:
            _check_steps(steps, "num_inference_steps")
        if handle_of(self) is not patch:
            return original(self, *args, **kwargs)
        with patch.generation(pipe=self):
            return original(self, *args, **kwargs)

    namespace = {
        "__call__": __call__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    return type(cls.__name__, (cls,), {**namespace, "__doc__": cls.__doc__})


def _check_steps(steps: Any, name: str) -> None:
    # NumPy's whole numbers are as good as Python's.
    if not hasattr(steps, "__index__") or steps < 1:
        raise OptionError(f"{name} is {steps!r}; expected a whole number of at least 1.")
