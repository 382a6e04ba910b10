"""Where a model can be hooked: sites, the streams through them, and how modules carry those."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from accel.errors import AccelUnsupportedError


class Kind(StrEnum):
    """What part of a denoiser a site is."""

    DENOISER = "denoiser"
    BLOCK = "block"
    ATTENTION = "attention"
    TEMPORAL_ATTENTION = "temporal attention"
    CROSS_ATTENTION = "cross-attention"
    MLP = "mlp"
    DOWN = "down"
    MID = "mid"
    UP = "up"
    LAYER = "layer"


Form = tuple[torch.Size, torch.dtype, torch.device]


def form_of(tensor: Tensor | None) -> Form | None:
    """Shape, dtype and device of a tensor, if there is one."""
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def versions_of(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """How often each tensor has been written into; always 0 for those of inference mode."""
    return tuple(
        0 if tensor.is_inference() else tensor._version  # noqa: SLF001 -- torch has no public name
        for tensor in tensors
    )


@dataclass(frozen=True, slots=True)
class Streams:
    """The visual stream [B, N, C] of a block and, in two-stream blocks, the text stream [B, T, C].

    Adds and subtracts, so that a residual is `after - before` for either kind of block. A stream
    that one side lacks (the last block of an MMDiT returns no text) is absent from the result.
    """

    hidden: Tensor
    context: Tensor | None = None

    def __add__(self, other: "Streams") -> "Streams":
        context = _both(self.context, other.context)
        return Streams(self.hidden + other.hidden, context and context[0] + context[1])

    def __sub__(self, other: "Streams") -> "Streams":
        context = _both(self.context, other.context)
        return Streams(self.hidden - other.hidden, context and context[0] - context[1])

    def detach(self) -> "Streams":
        """The same values without what autograd would need to go back through them."""
        return Streams(
            self.hidden.detach(), None if self.context is None else self.context.detach()
        )

    @property
    def form(self) -> tuple[Form | None, Form | None]:
        """Shape, dtype and device of either stream."""
        return form_of(self.hidden), form_of(self.context)

    def matches(self, other: "Streams") -> bool:
        """Whether one may stand in for the other: both have the same shape, dtype and device."""
        return self.form == other.form

    def like(self, hidden: Tensor | None) -> bool:
        """Whether the visual stream has the shape, dtype and device of this tensor."""
        return self.form[0] == form_of(hidden)

    @property
    def shape(self) -> torch.Size:
        """Shape of the visual stream."""
        form = self.form[0]
        assert form is not None, "there is always a visual stream"
        return form[0]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The streams that there are."""
        return (self.hidden,) if self.context is None else (self.hidden, self.context)

    @property
    def versions(self) -> tuple[int, ...]:
        """How often each has been written into, as far as torch tells."""
        return versions_of(self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all streams."""
        return self.hidden.nbytes + (0 if self.context is None else self.context.nbytes)


def _both(left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if left is None or right is None else (left, right)


def alike(left: Tensor | None, right: Tensor | None) -> bool:
    """Whether both have the same shape, dtype and device, or both are absent."""
    if left is None or right is None:
        return left is right
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device


@dataclass(frozen=True, slots=True)
class BlockIO:
    """Which argument and output position carry `hidden_states` and, if any, the second stream.

    An index of None says that `forward` returns the tensor itself. `context_index` None beside a
    `context` name says that the text goes in but does not come out (cross-attention): then it is no
    stream. `length` is the number of entries where there are more than the streams; what stands in
    those nobody may need.
    """

    hidden: str = "hidden_states"
    hidden_index: int | None = None
    context: str | None = None
    context_index: int | None = None
    length: int | None = None

    def read(self, output: Any) -> Streams:
        """The streams in a block's output."""
        if self.hidden_index is None:
            return Streams(output)
        context = None if self.context_index is None else output[self.context_index]
        return Streams(output[self.hidden_index], context)

    def write(self, streams: Streams) -> Any:
        """An output as the block itself would have returned it."""
        if self.hidden_index is None:
            return streams.hidden
        last = max(self.hidden_index, self.context_index or 0)
        entries: list[Tensor | None] = [None] * (self.length or last + 1)
        entries[self.hidden_index] = streams.hidden
        if self.context_index is not None:
            entries[self.context_index] = streams.context
        return tuple(entries)


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One module that can be hooked, its path below the denoiser, its arguments' positions.

    Blocks of one `segment` pass the same streams from each to the next. Where the number changes,
    others start.
    """

    kind: Kind
    path: str
    module: nn.Module
    io: BlockIO = BlockIO()
    segment: int = 0
    positions: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        names = _parameter_names(self.module)
        object.__setattr__(self, "positions", {name: index for index, name in enumerate(names)})

    def get(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The argument called `name` of a call, or None where the call leaves it out."""
        if name in kwargs:
            return kwargs[name]
        index = self.positions.get(name, len(args))
        return args[index] if index < len(args) else None

    def put(
        self, name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The same call with the argument called `name` replaced."""
        index = self.positions.get(name, len(args))
        if name in kwargs or index >= len(args):
            return args, {**kwargs, name: value}
        return (*args[:index], value, *args[index + 1 :]), kwargs


def uncompiled(module: nn.Module) -> Any:
    """The module itself, or the one that a compiled module wraps."""
    return getattr(module, "_orig_mod", module)


def _parameter_names(module: nn.Module) -> list[str]:
    # A compiled module's forward takes (*args, **kwargs).
    return list(inspect.signature(uncompiled(module).forward).parameters)


@dataclass(frozen=True, slots=True, eq=False)
class ModelSites:
    """Every site of one denoiser, in the order the model runs them. Methods bind to these.

    `attention` is self-attention over one picture or a whole clip, and joint attention over picture
    and text; `temporal` is self-attention over the frames alone; `cross` looks at the text.

    `direct` says that no block needs more than what the block before it returned. Where it is
    False (U-shaped transformers hand early outputs to late blocks), blocks that run behind skipped
    ones would get stale inputs.
    """

    denoiser: Site
    blocks: tuple[Site, ...] = ()
    attention: tuple[Site, ...] = ()
    temporal: tuple[Site, ...] = ()
    cross: tuple[Site, ...] = ()
    mlp: tuple[Site, ...] = ()
    down: tuple[Site, ...] = ()
    mid: tuple[Site, ...] = ()
    up: tuple[Site, ...] = ()
    direct: bool = True

    @property
    def module(self) -> nn.Module:
        """The denoiser."""
        return self.denoiser.module

    @property
    def name(self) -> str:
        """The denoiser's class name."""
        return type(self.denoiser.module).__name__

    def require_blocks(self, method: str, at_least: int) -> tuple[Site, ...]:
        """The blocks of a model that has enough of them.

        Raises:
            AccelUnsupportedError: if the model has fewer than `at_least` transformer blocks in one
                stack.
        """
        if len(self.blocks) >= at_least:
            return self.blocks
        found = f"{len(self.blocks)} blocks" if self.blocks else "no stack of transformer blocks"
        raise AccelUnsupportedError(
            f"{method} needs at least {at_least} transformer blocks in a row, but {self.name} has "
            f"{found}. Choose a method for this kind of model (`accel.methods()` lists them)"
            + (", or fewer head and tail blocks." if self.blocks else ".")
        )

    def require_unet(self, method: str) -> None:
        """Checks that the model has down and up blocks.

        Raises:
            AccelUnsupportedError: if it has none.
        """
        if not self.down or not self.up:
            raise AccelUnsupportedError(
                f"{method} needs the down and up blocks of a UNet, but {self.name} has none. "
                "Choose a method for this kind of model (`accel.methods()` lists them)."
            )

    def require_attention(self, method: str) -> None:
        """Checks that there is attention to hook.

        Raises:
            AccelUnsupportedError: if the model has no attention modules under a known name.
        """
        if self.attention or self.temporal or self.cross:
            return
        raise AccelUnsupportedError(
            f"{method} works on attention modules, but found none in {self.name}. Add the name "
            "that its blocks give them to ATTENTION_NAMES or CROSS_ATTENTION_NAMES in "
            "accel/specs.py."
        )


Hook = Callable[[Any], Any]
