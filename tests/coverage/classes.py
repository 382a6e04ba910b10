"""The denoiser classes that the installed diffusers has, by name."""

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from diffusers import ModelMixin

# Where diffusers keeps its denoisers.
_PACKAGES = ("diffusers.models.transformers", "diffusers.models.unets")
_OLD = "diffusers.pipelines.deprecated"
# Denoisers that it keeps elsewhere, beside the pipelines or models that need them.
_ELSEWHERE = (
    ("diffusers.models.transformers.dual_transformer_2d", "DualTransformer2DModel"),
    ("diffusers.models.controlnets.controlnet_xs", "UNetControlNetXSModel"),
    ("diffusers.pipelines.audioldm2.modeling_audioldm2", "AudioLDM2UNet2DConditionModel"),
    (f"{_OLD}.unidiffuser.modeling_uvit", "UTransformer2DModel"),
    (f"{_OLD}.unidiffuser.modeling_uvit", "UniDiffuserModel"),
    (f"{_OLD}.versatile_diffusion.modeling_text_unet", "UNetFlatConditionModel"),
    (f"{_OLD}.wuerstchen.modeling_wuerstchen_diffnext", "WuerstchenDiffNeXt"),
    (f"{_OLD}.wuerstchen.modeling_wuerstchen_prior", "WuerstchenPrior"),
)
# Other things that live among them: weights for another model, which denoise nothing themselves.
_NOT_DENOISERS = frozenset({"MotionAdapter"})


@functools.cache
def model_classes() -> dict[str, Any]:
    """Returns every denoiser class, sorted by name."""
    found = {cls.__name__: cls for package in _PACKAGES for cls in _models_of(package)}
    found |= {name: getattr(importlib.import_module(path), name) for path, name in _ELSEWHERE}
    return {name: found[name] for name in sorted(found) if name not in _NOT_DENOISERS}


def _models_of(package: str) -> Iterator[type]:
    folder = importlib.import_module(package)
    for info in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for item in vars(module).values():
            defined_here = getattr(item, "__module__", "") == module.__name__
            if isinstance(item, type) and issubclass(item, ModelMixin) and defined_here:
                yield item


def model_class(name: str) -> Any:
    """Returns the class of this name."""
    return model_classes()[name]
