"""Features of a UNet, kept from whole runs for the evaluations in which a part of it rests."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from accel.layers import Call
from accel.sites import Streams
from caching.finite import Finite, total
from caching.measure import place
from caching.predictor import Hold, Predictor, Sample
from caching.snapshot import Snapshot

Key = tuple[int, int]


class Feature(NamedTuple):
    """A feature of a whole run, and the evaluation that it is from."""

    step: int
    sample: Sample
    snapshot: Snapshot


@dataclass(slots=True)
class Memory:
    """State of one guidance branch during one generation."""

    predictor: Predictor = field(default=Hold())
    kept: dict[Key, deque[Feature]] = field(default_factory=dict)
    # The newest features of any kind, predictions included, where the predictor wants them.
    trail: dict[Key, deque[Sample]] = field(default_factory=dict)
    # The evaluation that the newest features are from, and the form of its latents.
    step: int = -1
    form: tuple[torch.Size, torch.dtype, torch.device] | None = None
    finite: Finite | None = None
    # Whether a block was seen to write into its input, so that what is kept must be a copy.
    copied: bool = False
    # Of the current denoiser call:
    rests: bool = False
    keeps: bool = False
    blank: Tensor | None = None

    def keep(self, call: Call, key: Key, feature: Tensor, *, written: bool = False) -> None:
        """Keeps a feature, or a copy of it if somebody is known to write into it.

        Where there is no room for one of them, all are useless and none is kept.
        """
        if not self.keeps:
            return
        row = self.kept.setdefault(key, deque())
        if row and row[-1].step == call.step:
            row.pop()
        while len(row) >= self.predictor.depth:
            row.popleft()
        snapshot = Snapshot.shelve(
            Streams(feature.detach()),
            call.keep,
            "feature {} {}".format(*key),
            copied=written or self.copied,
        )
        if snapshot is None:
            self.drop()
            self.keeps = False
            return
        sample = Sample(place(call), snapshot.streams, total(feature))
        row.append(Feature(call.step, sample, snapshot))

    def settle(self, call: Call) -> None:
        """Takes up that a whole run has ended, and what it has kept."""
        if not self.kept:
            return
        self.step = call.step
        self.finite = Finite(
            feature.sample.total for feature in self._features() if feature.sample.total is not None
        )
        for key, row in self.kept.items():
            self._follow(call, key, row[-1].sample.value)

    def feature(self, call: Call, key: Key, *, written: bool = False) -> Tensor:
        """What stands in for a feature in this call; a copy if somebody writes into it."""
        guess = self.guess(call, key)
        self._follow(call, key, guess)
        lent = guess is self.kept[key][-1].sample.value and (written or self.copied)
        return guess.hidden.clone() if lent else guess.hidden

    def guess(self, call: Call, key: Key) -> Streams:
        """What the predictor makes of the kept features."""
        samples = [feature.sample for feature in self.kept[key]]
        return self.predictor.predict(samples, place(call), self.trail.get(key, ()))

    def shape(self, key: Key) -> torch.Size:
        """The shape of a kept feature."""
        return self.kept[key][-1].sample.value.shape

    @property
    def intact(self) -> bool:
        """Whether nobody has written into any of the features."""
        return all(feature.snapshot.intact for feature in self._features())

    def drop(self) -> None:
        """Forgets the features."""
        self.kept.clear()
        self.trail.clear()
        self.step, self.finite = -1, None

    @property
    def nbytes(self) -> int:
        """Bytes held between calls."""
        samples = [feature.sample for feature in self._features()]
        samples += [sample for row in self.trail.values() for sample in row]
        return sum({id(sample.value): sample.value.nbytes for sample in samples}.values())

    def _features(self) -> Iterator[Feature]:
        for row in self.kept.values():
            yield from row

    def _follow(self, call: Call, key: Key, newest: Streams) -> None:
        length = self.predictor.trail
        if length:
            row = self.trail.setdefault(key, deque(maxlen=length))
            if len(row) == length:
                row.popleft()
            kept = call.keep(newest, "guess {} {}".format(*key))
            if kept is not None:
                row.append(Sample(place(call), kept))
