"""Caches of other libraries on the same pipeline: found before patching, removed if asked."""

import importlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from accel.errors import ConflictError

_HOOK_WORDS = ("cache", "fbc", "broadcast")


def _diffusers_hooks(module: nn.Module) -> Iterator[tuple[Any, str]]:
    for child in module.modules():
        registry = child.__dict__.get("_diffusers_hook")
        for name in tuple(getattr(registry, "hooks", ())):
            if any(word in name for word in _HOOK_WORDS):
                yield registry, name


def _find(target: Any, module: nn.Module) -> str | None:
    if getattr(module, "is_cache_enabled", False):
        return "diffusers' cache (enable_cache)"
    if any(True for _ in _diffusers_hooks(module)):
        return "a caching hook of diffusers"
    if getattr(target, "_is_cached", False) or getattr(module, "_is_cached", False):
        return "cache-dit"
    return None


def require_no_foreign_cache(target: Any, module: nn.Module, *, replace: bool) -> None:
    """Makes sure that no other library caches on this denoiser; removes it if `replace`.

    Raises:
        ConflictError: if one does and `replace` is off, or if it could not be removed.
    """
    found = _find(target, module)
    if found is None:
        return
    if not replace:
        raise ConflictError(
            f"{type(module).__name__} already runs under {found}; two caches would skip the same "
            "blocks. Disable it, or pass replace=True."
        )
    _remove(target, module)
    if (left := _find(target, module)) is not None:
        raise ConflictError(
            f"{left} could not be removed from {type(module).__name__}; disable it by hand."
        )


# Any: `disable_cache` comes from a mixin of diffusers.
def _remove(target: Any, module: Any) -> None:
    if getattr(module, "is_cache_enabled", False):
        module.disable_cache()
    for registry, name in list(_diffusers_hooks(module)):
        registry.remove_hook(name, recurse=False)
    if _find(target, module) == "cache-dit":
        importlib.import_module("cache_dit").disable_cache(target)
