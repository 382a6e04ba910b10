"""Lets a processor that asks diffusers for another attention backend reach torch's for one call.

Nothing is imported from diffusers: where none of it is loaded, there is nothing to lead elsewhere.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from torch import Tensor, nn

from accel.sites import uncompiled

_DISPATCHER = "diffusers.models.attention_dispatch"
_KEY = "_attention_backend"
_NATIVE = "native"
# Those who set it may hand over block masks, which torch's own function does not take.
_LEFT_ALONE = frozenset({"flex"})
_ABSENT = object()


@dataclass(slots=True)
class Detour:
    """A processor that is led through torch.

    Attributes:
        processor: which.
        backend: what it would take by itself.
        entry: what its `__dict__` held for that, if anything.
        users: calls that are going on; threads may share a processor.
    """

    processor: Any
    backend: str
    entry: Any
    users: int = 0

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """What the processor's own backend makes of [B, H, N, D]; options are as torch's."""
        dispatch = sys.modules[_DISPATCHER].dispatch_attention_fn
        streams = (tensor.transpose(1, 2) for tensor in (query, key, value))
        attended: Tensor = dispatch(*streams, attn_mask, backend=self.backend, **options)
        return attended.transpose(1, 2)


_lock = Lock()
_detours: dict[int, Detour] = {}


def processor_of(module: nn.Module) -> Any:
    """What computes the attention of a module of diffusers, or None."""
    return getattr(uncompiled(module), "processor", None)


def backend_of(processor: Any) -> str | None:
    """The backend of diffusers that a processor takes, or None where it does not say."""
    if not hasattr(processor, _KEY):
        return None
    backend = getattr(processor, _KEY)
    dispatcher = sys.modules.get(_DISPATCHER)
    if backend is None and dispatcher is not None:
        backend = dispatcher._AttentionBackendRegistry.get_active_backend()[0]  # noqa: SLF001 -- the only way to ask
    return None if backend is None else str(getattr(backend, "value", backend))


@contextmanager
def through_torch(processor: Any) -> Iterator[Detour | None]:
    """Within, a processor's attention goes through torch's function; None if it does anyhow.

    Where threads share a processor it is put back when the last of them is through. A thread that
    accel does not know of gets torch's attention from it meanwhile.
    """
    with _lock:
        detour = _enter(processor)
    try:
        yield detour
    finally:
        if detour is not None:
            with _lock:
                _leave(detour)


def _enter(processor: Any) -> Detour | None:
    detour = _detours.get(id(processor))
    if detour is None:
        backend = backend_of(processor)
        attributes = getattr(processor, "__dict__", None)
        if attributes is None or backend in {None, _NATIVE, *_LEFT_ALONE}:
            return None
        assert backend is not None, "None is among those above"
        detour = Detour(processor, backend, attributes.get(_KEY, _ABSENT))
        _detours[id(processor)] = detour
        attributes[_KEY] = _NATIVE
    detour.users += 1
    return detour


def _leave(detour: Detour) -> None:
    detour.users -= 1
    if detour.users:
        return
    del _detours[id(detour.processor)]
    attributes = vars(detour.processor)
    # What the user chose meanwhile stays.
    if attributes.get(_KEY) is not _NATIVE:
        return
    if detour.entry is _ABSENT:
        del attributes[_KEY]
    else:
        attributes[_KEY] = detour.entry
