"""Inputs kept for later in the same call, safe against blocks that write into their input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from accel.sites import Streams

Keep = Callable[..., Streams | None]
"""What `Call.keep` does."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Streams as they were when taken, and a way to tell whether they still are."""

    streams: Streams
    _versions: tuple[int, ...]

    @classmethod
    def take(cls, streams: Streams, *, copied: bool) -> Self:
        """Keeps the streams themselves, or copies of them if `copied`.

        Tensors of inference mode carry no version to compare, so they are always copied.
        """
        kept = Streams(*(_keep(tensor, copied=copied) for tensor in streams.tensors))
        return cls(kept, kept.versions)

    @classmethod
    def shelve(cls, streams: Streams, keep: Keep, what: str, *, copied: bool) -> Self | None:
        """Keeps the streams beyond the current call, or None if there is no room for them.

        Args:
            streams: what is to be kept.
            keep: `Call.keep` of the call.
            what: they are called in the report.
            copied: as in `take`.
        """
        snapshot = cls.take(streams, copied=copied)
        kept = keep(snapshot.streams, what, shared=not copied)
        return None if kept is None else cls(kept, kept.versions)

    @property
    def intact(self) -> bool:
        """Whether nobody has written into the kept tensors since."""
        return self.streams.versions == self._versions


def as_they_are(streams: Streams, what: str, *, shared: bool) -> Streams:  # noqa: ARG001 -- like Call.keep
    """Keeps streams where they are, whatever they take."""
    return streams


def _keep(tensor: Tensor, *, copied: bool) -> Tensor:
    return tensor.clone() if copied or tensor.is_inference() else tensor
