"""Inputs kept for later in the same call, safe against blocks that write into their input."""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from accel.sites import Streams


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
        kept = Streams(*(_keep(tensor, copied=copied) for tensor in _tensors(streams)))
        return cls(kept, _versions(kept))

    @property
    def intact(self) -> bool:
        """Whether nobody has written into the kept tensors since."""
        return _versions(self.streams) == self._versions


def _tensors(streams: Streams) -> tuple[Tensor, ...]:
    return (streams.hidden,) if streams.context is None else (streams.hidden, streams.context)


def _keep(tensor: Tensor, *, copied: bool) -> Tensor:
    return tensor.clone() if copied or tensor.is_inference() else tensor


def _versions(streams: Streams) -> tuple[int, ...]:
    return tuple(
        0 if tensor.is_inference() else tensor._version  # noqa: SLF001 -- torch has no public name
        for tensor in _tensors(streams)
    )
