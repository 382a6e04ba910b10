"""Whether a module computes every token on its own, so that some of them may be computed alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from accel.sites import Kind, Site, uncompiled

_TOKENS_DIM = 3
# Modules that treat every vector along the last axis alike, by their torch class.
_ALONG_CHANNELS = (
    nn.Linear,
    nn.Identity,
    nn.Dropout,
    nn.GELU,
    nn.SiLU,
    nn.ReLU,
    nn.ReLU6,
    nn.Sigmoid,
    nn.Tanh,
    nn.Mish,
    nn.Softplus,
    nn.Hardswish,
    nn.LeakyReLU,
    nn.ELU,
)
_NORMS = (nn.LayerNorm, nn.RMSNorm)
# Modules of several parts tell nothing by these: a mean over tokens needs no module. These were
# read, by class name: each hands its input from part to part, and multiplies or activates it.
_READ = frozenset(
    {
        "ApproximateGELU",
        "AuraFlowFeedForward",
        "FP32SiLU",
        "FeedForward",
        "Flux2FeedForward",
        "Flux2SwiGLU",
        "GEGLU",
        "GELU",
        "GELUTanh",
        "LinearActivation",
        "LoraLayer",
        "PytorchGELUTanh",
        "RMSNorm",
        "SwiGLU",
    }
)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterDict)
# What cross-attention may be handed beside its queries: the same for all of them.
_KEYS = ("encoder_hidden_states",)
_MASKS = ("attention_mask", "encoder_attention_mask")


def mixing(site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a module may need all tokens of this call at once, or None if it does not.

    An MLP is known by its parts: linear maps, activations, dropout and norms along channels, in
    modules whose forward is known. Cross-attention treats its queries alike as long as nothing
    beside them (a mask of their own, rotary embeddings) belongs to single ones.

    Args:
        site: the module; what it is decides what is looked at.
        args: what it is called with by position.
        kwargs: what it is called with by name.
    """
    name = type(uncompiled(site.module)).__name__
    given = dict(zip(site.positions, args, strict=False)) | dict(kwargs)
    hidden = given.pop(site.io.hidden, None)
    if not isinstance(hidden, Tensor) or hidden.dim() != _TOKENS_DIM:
        return f"{name} is not called on a list of tokens"
    if site.kind is Kind.CROSS_ATTENTION:
        return _mixing_queries(name, uncompiled(site.module), given)
    beside = [key for key, value in given.items() if isinstance(value, (Tensor, list, tuple, dict))]
    if beside:
        return f"{name} is also handed {', '.join(beside)}"
    part = mixing_part(site.module)
    return None if part is None else f"{name} holds {type(part).__name__}"


def mixing_part(module: nn.Module) -> nn.Module | None:
    """The first part of a module that is not known to treat each token for itself, if any."""
    return next((part for part in _leaves(uncompiled(module)) if not _pointwise(part)), None)


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its parts, without those inside of a known single one."""
    yield module
    if not isinstance(module, _ALONG_CHANNELS):
        for child in module.children():
            yield from _leaves(child)


def _pointwise(module: nn.Module) -> bool:
    if isinstance(module, _NORMS):
        return len(module.normalized_shape) == 1
    if isinstance(module, (*_ALONG_CHANNELS, *_CONTAINERS)):
        return True
    return any(cls.__name__ in _READ for cls in type(module).__mro__)


def _mixing_queries(name: str, module: Any, given: dict[str, Any]) -> str | None:
    norms = [norm for norm in ("group_norm", "spatial_norm") if getattr(module, norm, None)]
    if norms:
        return f"{name} has a {norms[0]} over all tokens"
    if all(given.get(key) is None for key in _KEYS):
        return f"{name} is handed nothing to attend to but its own tokens"
    for key, value in given.items():
        if isinstance(value, Tensor) and key in _MASKS:
            # [B, T], or [B, ..., 1, T]: a row for each query otherwise.
            if value.dim() > 2 and value.shape[-2] != 1:  # noqa: PLR2004 -- batch and keys
                return f"{name} is handed a mask for each query"
        elif key not in _KEYS and isinstance(value, (Tensor, list, tuple)):
            return f"{name} is also handed {key}"
    return None
