"""One attention that a method is asked to answer, and what it remembers of the ones before."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from accel.attention import Attention
from accel.layers import Call
from accel.picture_tokens import Place
from accel.sites import Streams

Form = tuple[torch.Size, torch.Size, Place | None, torch.dtype, torch.device]


@dataclass(slots=True)
class Memory:
    """What is kept of one attention of one module and guidance branch, until the generation ends.

    Attributes:
        form: what it is about; for other shapes nothing of it holds.
        kept: tensors by name.
        numbers: by name.
        lists: a number for every head, by name.
    """

    form: Form | None = None
    kept: dict[str, Streams] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    lists: dict[str, list[float]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, for the report."""
        return sum(streams.nbytes for streams in self.kept.values())


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One attention to be answered.

    Attributes:
        call: of the module that asks for it.
        attention: what it asks for.
        place: where the picture's tokens are.
        memory: what is kept of it.
        layer: how many attention modules stand before this one.
    """

    call: Call
    attention: Attention
    place: Place
    memory: Memory
    layer: int

    @property
    def query(self) -> Tensor:
        """[G, N, D]."""
        return self.attention.query.flatten(0, 1)

    @property
    def key(self) -> Tensor:
        """[Gk, N, D]."""
        return self.attention.key.flatten(0, 1)

    @property
    def value(self) -> Tensor:
        """[Gk, N, D]."""
        return self.attention.value.flatten(0, 1)

    @property
    def groups(self) -> int:
        """G, heads times batch."""
        return self.attention.query.shape[0] * self.attention.query.shape[1]

    @property
    def tokens(self) -> int:
        """N."""
        return self.attention.query.shape[2]

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.attention.scale

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return self.attention.query.device

    def picture(self, x: Tensor) -> Tensor:
        """The picture's tokens of [G, N, ...]."""
        return x[:, self.place.start : self.place.start + self.place.length]

    def valid(self, heads: int) -> Tensor | None:
        """[B * heads, N], which keys are no padding, or None for all."""
        valid = self.attention.valid
        return None if valid is None else valid.repeat_interleave(heads, 0)

    def seed(self, method_seed: int) -> int:
        """Another one for every module, attention in it and evaluation."""
        places = (method_seed, self.layer, self.attention.ordinal, self.call.step)
        return hash(places) & 0x7FFFFFFF

    def kept(self, name: str) -> Streams | None:
        """What was kept under this name, if it is still there."""
        return self.memory.kept.get(name)

    def keep(self, name: str, hidden: Tensor, context: Tensor | None = None) -> None:
        """Keeps one or two tensors under a name, in place of what was there, if there is room."""
        self.memory.kept.pop(name, None)
        what = f"{name} {self.attention.ordinal}"
        kept = self.call.keep(Streams(hidden, context), what)
        if kept is not None:
            self.memory.kept[name] = kept
