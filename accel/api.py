"""The verbs: `patch`, `unpatch` and `status`."""

import logging
from collections.abc import Iterable
from typing import Any

from torch import nn

from accel.engine import engine_of
from accel.errors import AccelUnsupportedError, OptionError
from accel.foreign import require_no_foreign_cache
from accel.handle import Patch, Status, handle_of
from accel.memory import LightCache
from accel.method import Method, check_conflicts, check_denoisers
from accel.models import find_denoisers, is_unet
from accel.presets import resolve

_LOG = logging.getLogger("accel")


def patch(
    target: Any,
    *methods: Method | str,
    quality: str | None = None,
    speedup: float | None = None,
    memory: LightCache | None = None,
    strict: bool = True,
    replace: bool = False,
) -> Patch:
    """Accelerates a pipeline or denoiser in place and returns the handle that can undo it.

    Args:
        target: a diffusers pipeline, or a denoiser module that your own loop drives
            (`Patch.generation`).
        methods: `Method`s, or the name of one preset; "balanced" if there are none.
        quality: a quality target such as "psnr>=30", for the tuner.
        speedup: a speed target such as 2.0, for the tuner.
        memory: how the features that the methods keep, and computed steps and decoding, take less
            memory.
        strict: whether a model that cannot be patched raises; otherwise it is left as it is and the
            handle says why.
        replace: whether another library's cache on the same denoiser is removed first.

    Patching twice with equal methods and memory options returns the same handle; with others, the
    old ones are replaced, and stay if the new ones fail.

    Raises:
        OptionError: for an unknown preset, a method or memory option that is none, or a target for
            which there is no tuner.
        AccelUnsupportedError: if the target is no pipeline or denoiser, or a method cannot work on
            it.
        ConflictError: if two methods, or a method and another library's cache, would do the same
            work.
    """
    if quality is not None or speedup is not None:
        raise OptionError(
            "quality= and speedup= need a tuner, and this version has none. Name a preset or "
            "methods; `accel compare` measures what they cost."
        )
    _check_memory(memory)
    chosen = resolve(methods)
    check_conflicts(chosen)
    try:
        denoisers = find_denoisers(target)
        unet = all(is_unet(module) for module in denoisers.values())
        chosen = tuple(method.suited(unet=unet) for method in chosen)
        check_denoisers(chosen, list(denoisers))
        handles = _on(denoisers.values())
        if len(handles) == 1 and handles[0].serves(denoisers, chosen, memory):
            handles[0].drive(target)
            return handles[0]
        for module in denoisers.values():
            require_no_foreign_cache(target, module, replace=replace)
        new = Patch(target, denoisers, chosen, strict=strict, memory=memory)
        return _replace(handles, new)
    except AccelUnsupportedError as error:
        if strict:
            raise
        _LOG.warning("not accelerated: %s", error)
        return Patch(target, {}, chosen, strict=strict, note=str(error))


def _on(denoisers: Iterable[nn.Module]) -> list[Patch]:
    """The patches on any of these denoisers."""
    engines = [engine_of(module) for module in denoisers]
    found = [engine.patch for engine in engines if engine is not None]
    return list({id(patch): patch for patch in found}.values())


def _check_memory(memory: Any) -> None:
    if memory is not None and not isinstance(memory, LightCache):
        raise OptionError(
            f"memory is {memory!r}; expected accel.LightCache(...) with its options, or None."
        )


def _replace(old: list[Patch], new: Patch) -> Patch:
    for handle in old:
        handle.suspend()
    try:
        new.install([target for handle in old for target in handle.targets])
    except BaseException:
        for handle in old:
            handle.install()
        raise
    for handle in old:
        _LOG.info("replaced %s by %s", handle.methods, new.methods)
        handle.unpatch()
    return new


def unpatch(target: Any) -> bool:
    """Takes every patch off a pipeline's denoisers, also one put on through another pipeline.

    Returns whether there was one. The result is bit-identical to never having patched.
    """
    handles = _handles(target)
    for handle in handles:
        handle.unpatch()
    return bool(handles)


def status(target: Any) -> Status:
    """What is patched on a pipeline or denoiser."""
    handles = _handles(target)
    if not handles:
        return Status(patched=False)
    return handles[0].status(target)


def _handles(target: Any) -> list[Patch]:
    own = handle_of(target)
    try:
        found = _on(find_denoisers(target).values())
    except AccelUnsupportedError:
        found = []
    if own is None or any(own is handle for handle in found):
        return sorted(found, key=lambda handle: handle is not own)
    return [own, *found]
