"""Names for methods with settings, and the list of every method.

The only place that knows the method packages.
"""

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from accel.errors import OptionError, nearest
from accel.method import ByModel, Method

PACKAGES = ("caching", "sparse_attn", "token_prune", "dllm")
DEFAULT = "balanced"


def methods() -> dict[str, type[Method]]:
    """Every method by name: what the method packages export."""
    exported = (
        getattr(package, name)
        for package in map(importlib.import_module, PACKAGES)
        for name in package.__all__
    )
    found = [item for item in exported if isinstance(item, type) and issubclass(item, Method)]
    return {cls.__name__: cls for cls in found if not inspect.isabstract(cls)}


_PRESETS = {
    "quality": ("hardly visible differences", 0.6, (2, 8)),
    "balanced": ("small differences, the default", 0.45, (2, 2)),
    "fast": ("visible differences", 0.35, (3, 4)),
}
"""What each preset is for; the share of steps that compute a stack; on a UNet the interval and the
warm-up. A UNet bears less: at an interval of 4, fewer steps with DPM-Solver++ are better.
"""


def presets() -> dict[str, str]:
    """Every preset's name and what it is for."""
    return {name: description for name, (description, *_) in _PRESETS.items()}


def resolve(chosen: Sequence[Any]) -> tuple[Method, ...]:
    """The methods that the arguments of `patch` name.

    Raises:
        OptionError: for an unknown preset, a class instead of an instance, or anything else that is
            no method.
    """
    if not chosen:
        return resolve((DEFAULT,))
    if len(chosen) == 1 and isinstance(chosen[0], str):
        return _preset(chosen[0])
    for item in chosen:
        if not isinstance(item, Method):
            raise OptionError(_not_a_method(item))
    return tuple(chosen)


def _preset(name: str) -> tuple[Method, ...]:
    if name in _PRESETS:
        from caching import DeepCache, FoCa, LinearPlan

        _, share, (interval, warmup) = _PRESETS[name]
        stack = LinearPlan(share=share, predictor=FoCa())
        unet = DeepCache(interval=interval, warmup=warmup, predictor=FoCa())
        return (ByModel(stack=stack, unet=unet),)
    if name in methods():
        raise OptionError(
            f"{name!r} is a method: pass an instance of it, `accel.patch(pipe, {name}(...))`."
        )
    known = ", ".join(_PRESETS)
    raise OptionError(
        f"There is no preset {name!r}.{nearest(name, [*_PRESETS, *methods()])} Presets are {known}."
    )


def _not_a_method(item: Any) -> str:
    if isinstance(item, type) and issubclass(item, Method):
        return f"{item.__name__} is a class: pass an instance of it, `{item.__name__}()`."
    if isinstance(item, str):
        return (
            f"The preset {item!r} cannot be combined with others. Pass it alone, or pass methods."
        )
    return (
        f"{item!r} is no method. Pass instances of `Method`, e.g. `caching.FirstBlockCache()`, or "
        "one preset name."
    )
