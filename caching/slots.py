"""Where the outputs of one module are kept, whatever their form, and when they may be used."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.sites import Streams
from caching.predictor import Predictor, Sample
from caching.snapshot import Keep, Snapshot, as_they_are

Signature = tuple[tuple[torch.Size, torch.dtype, torch.device], ...]
# The class of an output and which of its parts are None.
Form = tuple[type, tuple[bool, ...]]


def signature_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
    """Shape, dtype and device of every tensor that a call is handed directly."""
    return tuple(
        (value.shape, value.dtype, value.device)
        for value in (*args, *kwargs.values())
        if isinstance(value, Tensor)
    )


def _halved(whole: Signature, half: Signature) -> bool:
    """Whether the second call is like the first on half of the batch."""
    if len(whole) != len(half) or whole == half:
        return False
    return all(
        a[1:] == b[1:] and (a[0] == b[0] or _rows(a[0]) == (2 * _rows(b[0])[0], *_rows(b[0])[1:]))
        for a, b in zip(whole, half, strict=True)
    )


def _rows(shape: torch.Size) -> tuple[int, ...]:
    return tuple(shape) or (0,)


@dataclass(slots=True)
class Kept:
    """One computed output.

    Attributes:
        signature: of the inputs that it was computed from.
        step: the evaluation.
        sigma: its noise level.
        parts: the tensors, None where the module returned None.
    """

    signature: Signature
    step: int
    sigma: float
    parts: tuple[Snapshot | None, ...]

    @property
    def intact(self) -> bool:
        """Whether nobody has written into it since."""
        return all(part is None or part.intact for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.streams.nbytes for part in self.parts if part is not None)

    def narrow(self, signature: Signature, half: int, keep: Keep) -> None:
        """Keeps only this half of the batch, copied so that the other half is freed.

        Does nothing if not every part has a row for each of the inputs', or where there is no room
        for a half beside the whole.
        """
        rows = {shape[0] for shape, _, _ in self.signature if len(shape)}
        shapes = (part.streams.shape for part in self.parts if part is not None)
        if any(shape[0] not in rows or shape[0] % 2 for shape in shapes):
            return
        halves = (
            None if part is None else Streams(part.streams.hidden.chunk(2)[half])
            for part in self.parts
        )
        parts = shelve(halves, keep, "half", copied=True)
        if parts is not None:
            self.parts, self.signature = parts, signature


def shelve(
    parts: Iterable[Streams | None], keep: Keep, what: str, *, copied: bool
) -> tuple[Snapshot | None, ...] | None:
    """All parts of an output kept, or None if there is no room for one of them."""
    found: list[Snapshot | None] = []
    for index, part in enumerate(parts):
        if part is None:
            found.append(None)
            continue
        kept = Snapshot.shelve(part, keep, f"{what} {index}", copied=copied)
        if kept is None:
            return None
        found.append(kept)
    return tuple(found)


@dataclass(slots=True)
class Slot:
    """The newest outputs of one of the calls that a module gets in a denoiser call.

    Attributes:
        number: which of the calls, from 0.
    """

    depth: int
    number: int = 0
    form: Form = (Tensor, ())
    kept: deque[Kept] = field(default_factory=deque)
    # Whether somebody was seen to write into an output, so that copies must be kept and handed out.
    copied: bool = False

    def usable(
        self, signature: Signature, half: int | None, keep: Keep = as_they_are
    ) -> list[Kept]:
        """The newest outputs that belong to inputs like these, oldest first.

        Args:
            signature: of the inputs.
            half: which half of a batch runs now, 0 or 1, or None if all of it does; outputs of
                the whole batch are cut to it.
            keep: `Call.keep` of the module's call.
        """
        if not all(kept.intact for kept in self.kept):
            self.copied = True
            self.kept.clear()
        found: list[Kept] = []
        for kept in reversed(self.kept):
            if half is not None and _halved(kept.signature, signature):
                kept.narrow(signature, half, keep)
            if kept.signature != signature:
                break
            found.append(kept)
        return found[::-1]

    def record(
        self,
        signature: Signature,
        step: int,
        sigma: float,
        output: Any,
        keep: Keep = as_they_are,
    ) -> None:
        """Keeps an output, if it is a tensor or a plain sequence of tensors and None.

        Where there is no room for it nothing is kept, since older ones would be too old.
        """
        parts = (output,) if isinstance(output, Tensor) else output
        if not _plain(parts):
            self.kept.clear()
            return
        cls = Tensor if isinstance(output, Tensor) else type(output)
        form = (cls, tuple(part is None for part in parts))
        if form != self.form or not self._related(signature):
            self.kept.clear()
        # Two outputs at one place on the schedule tell nothing of how it goes on.
        if self.kept and self.kept[-1].sigma == sigma:
            self.kept.pop()
        while len(self.kept) >= self.depth:
            self.kept.popleft()
        self.form = form
        streams = (None if part is None else Streams(part.detach()) for part in parts)
        kept = shelve(streams, keep, f"output {self.number}", copied=self.copied)
        if kept is None:
            self.kept.clear()
        else:
            self.kept.append(Kept(signature, step, sigma, kept))

    def answer(self, kept: Sequence[Kept], predictor: Predictor, sigma: float) -> Any:
        """An output in the module's own form, predicted from these."""
        cls, absent = self.form
        parts = tuple(
            None if gone else self._predict(index, kept, predictor, sigma)
            for index, gone in enumerate(absent)
        )
        return parts[0] if cls is Tensor else cls(parts)

    def renew(self, kept: Kept, output: Tensor, keep: Keep = as_they_are) -> None:
        """Puts an output, a single tensor, in the place of a kept one that it was made from.

        Where there is no room for it, nothing is kept.
        """
        parts = shelve(
            (Streams(output.detach()),), keep, f"output {self.number}", copied=self.copied
        )
        if parts is None:
            self.kept.clear()
        else:
            kept.parts = parts

    def _related(self, signature: Signature) -> bool:
        if not self.kept:
            return True
        newest = self.kept[-1].signature
        return newest == signature or _halved(newest, signature) or _halved(signature, newest)

    def _predict(
        self, index: int, kept: Sequence[Kept], predictor: Predictor, sigma: float
    ) -> Tensor:
        samples = [
            Sample(item.sigma, part.streams)
            for item in kept
            if (part := item.parts[index]) is not None
        ]
        value = predictor.predict(samples, sigma).hidden
        # What is kept must not be handed out where writing into it could go unnoticed.
        lent = value is samples[-1].value.hidden and (self.copied or value.is_inference())
        return value.clone() if lent else value


def _plain(parts: Any) -> bool:
    return (
        type(parts) in (tuple, list)
        and any(isinstance(part, Tensor) for part in parts)
        and all(part is None or isinstance(part, Tensor) for part in parts)
    )


@dataclass(slots=True)
class Slots:
    """The slots of one module in one guidance branch, one for each call within a denoiser call."""

    depth: int
    _slots: list[Slot] = field(default_factory=list)
    _call: int = -1
    _cursor: int = 0

    def turn(self, call: int) -> Slot:
        """The slot of the module's next call within denoiser call number `call`."""
        if call != self._call:
            self._call, self._cursor = call, 0
        if self._cursor == len(self._slots):
            self._slots.append(Slot(self.depth, len(self._slots)))
        self._cursor += 1
        return self._slots[self._cursor - 1]

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        return sum(kept.nbytes for slot in self._slots for kept in slot.kept)
