"""What a denoiser does in one call, module by module: FLOPs by part, bytes moved, launches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor


class Part(StrEnum):
    """What work is done for; how it grows with the picture differs from part to part."""

    CORE = "attention core"
    PROJECTIONS = "attention projections"
    CROSS = "cross-attention"
    MLP = "mlps"
    CONVOLUTION = "convolutions"
    REST = "embeddings and the rest"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one module does itself, without the modules inside of it, over all its calls.

    Attributes:
        flops: floating-point operations by part; a multiplication and its addition are two.
        moved: bytes read and written by operations that count no FLOPs (norms, activations, sums).
        launches: operations, an attention counted as one.
        weights: bytes of its own parameters.
        output: bytes of the tensors that it returned last.
    """

    flops: Mapping[Part, float] = field(default_factory=dict)
    moved: float = 0.0
    launches: float = 0.0
    weights: float = 0.0
    output: int = 0

    def plus(self, other: "Entry", sign: int = 1) -> "Entry":
        """Both added up; weights and output are those of the newer one."""
        flops = dict(self.flops)
        for part, count in other.flops.items():
            flops[part] = flops.get(part, 0.0) + sign * count
        return Entry(
            flops,
            self.moved + sign * other.moved,
            self.launches + sign * other.launches,
            other.weights if sign > 0 else self.weights,
            other.output if sign > 0 else self.output,
        )

    def minus(self, other: "Entry") -> "Entry":
        """What came since the other."""
        return self.plus(other, -1)

    def scaled(self, shares: Mapping[Part, float], rest: float) -> "Entry":
        """Each part's FLOPs times its share, all else times `rest`. The weights stay."""
        flops = {part: count * shares.get(part, 1.0) for part, count in self.flops.items()}
        return replace(self, flops=flops, moved=self.moved * rest)


# Not slotted: what is summed up is kept.
@dataclass(frozen=True)
class Work:
    """What one call of a denoiser does.

    Attributes:
        model: the denoiser's class name.
        entries: by path of the module below the denoiser, whose own is "".
        tokens: tokens of one picture or clip in the first block (in a UNet places of the latents).
        context_tokens: tokens of the text that attend together with them, 0 where there are none.
        batch: pictures in the call, guidance branches counted.
    """

    model: str
    entries: Mapping[str, Entry]
    tokens: int = 0
    context_tokens: int = 0
    batch: int = 1

    @cached_property
    def flops(self) -> dict[Part, float]:
        """FLOPs by part; every part is there."""
        found = dict.fromkeys(Part, 0.0)
        for entry in self.entries.values():
            for part, count in entry.flops.items():
                found[part] += count
        return found

    @property
    def total(self) -> float:
        """All FLOPs."""
        return sum(self.flops.values())

    @property
    def moved(self) -> float:
        """Bytes of activations read and written by operations that count no FLOPs."""
        return sum(entry.moved for entry in self.entries.values())

    @property
    def launches(self) -> float:
        """Operations."""
        return sum(entry.launches for entry in self.entries.values())

    @property
    def weights(self) -> float:
        """Bytes of the parameters of all modules that run."""
        return sum(entry.weights for entry in self.entries.values())

    def below(self, paths: Iterable[str]) -> "Work":
        """Only what these modules and those inside of them do."""
        inside = _inside(paths)
        return self._of({path: entry for path, entry in self.entries.items() if inside(path)})

    def without(self, paths: Iterable[str]) -> "Work":
        """What is left where these modules do not run."""
        inside = _inside(paths)
        return self._of({path: entry for path, entry in self.entries.items() if not inside(path)})

    def scaled(
        self, shares: Mapping[Part, float], *, rest: float = 1.0, below: Iterable[str] = ("",)
    ) -> "Work":
        """The same with each part's FLOPs times its share, in these modules.

        Args:
            shares: by part, from 0 up; parts that are left out stay.
            rest: the share of bytes moved.
            below: paths of modules; all if left out.
        """
        inside = _inside(below)
        return self._of(
            {
                path: entry.scaled(shares, rest) if inside(path) else entry
                for path, entry in self.entries.items()
            }
        )

    def output(self, path: str) -> int:
        """Bytes that a module returned, 0 if it did not run."""
        return self.entries[path].output if path in self.entries else 0

    def _of(self, entries: Mapping[str, Entry]) -> "Work":
        return replace(self, entries=entries)


def _inside(paths: Iterable[str]) -> Callable[[str], bool]:
    roots = frozenset(paths)

    def inside(path: str) -> bool:
        while path not in roots:
            if not path:
                return False
            path = path.rpartition(".")[0]
        return True

    return inside


@dataclass(frozen=True, slots=True)
class Moment:
    """One evaluation of a generation, as the schedule alone tells it.

    Attributes:
        step: counted from 0.
        num_steps: how many there are.
        time: place on the trained schedule, 1 (noise) to 0.
    """

    step: int
    num_steps: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one guidance branch does over a generation: what methods put a price on.

    Attributes:
        evaluations: the work of each.
        times: the place of each on the trained schedule; evenly spaced if left empty.
        held: bytes of features kept from one evaluation for others.
        notes: what the numbers leave out, in words.
    """

    evaluations: tuple[Work, ...]
    times: tuple[float, ...] = ()
    held: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, work: Work, steps: int, times: tuple[float, ...] = ()) -> Self:
        """A run of `steps` evaluations that all do the whole work."""
        return cls(evaluations=(work,) * steps, times=times)

    @property
    def moments(self) -> Iterator[Moment]:
        """Every evaluation's place."""
        steps = len(self.evaluations)
        for step in range(steps):
            known = step < len(self.times)
            yield Moment(step, steps, self.times[step] if known else 1 - step / steps)

    @property
    def whole(self) -> Work:
        """The first evaluation, which no method shortens between steps."""
        return self.evaluations[0]

    def without(self, paths: Iterable[str], steps: Iterable[int]) -> "Run":
        """The same where these modules do not run at these evaluations."""
        resting, paths = frozenset(steps), tuple(paths)
        # Most evaluations are alike, and so is what is left of them.
        left = {id(work): work.without(paths) for work in self.evaluations} if resting else {}
        return replace(
            self,
            evaluations=tuple(
                left[id(work)] if step in resting else work
                for step, work in enumerate(self.evaluations)
            ),
        )

    def changed(self, change: Callable[[Work], Work], steps: Iterable[int]) -> "Run":
        """The same with `change` applied to the work of these evaluations."""
        chosen = frozenset(steps)
        new = {id(work): change(work) for work in self.evaluations} if chosen else {}
        return replace(
            self,
            evaluations=tuple(
                new[id(work)] if step in chosen else work
                for step, work in enumerate(self.evaluations)
            ),
        )

    def holding(self, count: int) -> "Run":
        """The same with so many bytes more kept."""
        return replace(self, held=self.held + count)

    def noted(self, note: str) -> "Run":
        """The same with one more note."""
        return replace(self, notes=(*self.notes, note))

    @property
    def flops(self) -> float:
        """FLOPs of all evaluations."""
        totals = {id(work): work.total for work in self.evaluations}
        return sum(totals[id(work)] for work in self.evaluations)


@dataclass(frozen=True, slots=True)
class Form:
    """What is known of a tensor without holding it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of one call: as they are, or in form only."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def like(cls, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Self:
        """A call's arguments with forms in the place of tensors, however deep."""
        named = {key: _mapped(value, _form) for key, value in kwargs.items()}
        return cls(tuple(_mapped(value, _form) for value in args), named)

    def on_meta(self) -> "Inputs":
        """The same with tensors on the meta device in the place of forms and of tensors."""
        named = {key: _mapped(value, _hollow) for key, value in self.kwargs.items()}
        return Inputs(tuple(_mapped(value, _hollow) for value in self.args), named)

    @property
    def light(self) -> bool:
        """Whether nothing in it is more than a form or a plain value, so that it may be kept."""
        return all(map(_light, (*self.args, *self.kwargs.values())))


def _form(value: Any) -> Any:
    return Form(tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value


def _hollow(value: Any) -> Any:
    if isinstance(value, (Form, Tensor)):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    return value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(entry, change) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(entry, change) for entry in value)
    return change(value)


_PLAIN = (Form, bool, int, float, str, type(None), torch.dtype, torch.device)


def _light(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_light, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_light, value))
    return isinstance(value, _PLAIN)
