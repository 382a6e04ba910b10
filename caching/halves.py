"""Guidance in one batch: which half is which, and a denoiser call on one half alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from accel.sites import Site

# Tables of places, the same for the whole batch, whatever their first side.
_UNBATCHED = ("img_ids", "txt_ids", "image_rotary_emb", "rotary_emb")
_TABLE_DIM = 2
_TEXT = "encoder_"
# What of the guided prediction its two parts may leave unexplained, and the least that the smaller
# weight must be of the larger one: with a scale of 1 there is no unconditional part.
_UNEXPLAINED = 0.05
_SMALLEST_WEIGHT = 0.05


def unconditional_of(first: Tensor, second: Tensor, guided: Any) -> int | None:
    """Which of two predictions was the unconditional one: 0, 1, or None if that is not clear.

    Guidance computes u + w (c - u) with w > 1. So the prediction that the pipeline went on with is
    a sum of both in which the conditional one has the larger weight, and the other the opposite
    sign. Any scaling of the result, also a negative one, leaves that as it is. Waits for the
    device.

    Args:
        first: what the denoiser returned for one.
        second: what it returned for the other, alike in shape.
        guided: what the scheduler was handed; may lack channels (learned variance) of the others.
    """
    if not isinstance(guided, Tensor):
        return None
    first, second = (_like(tensor, guided) for tensor in (first, second))
    if first.shape != guided.shape or second.shape != guided.shape:
        return None
    base, step, target = (x.detach().float().flatten() for x in (first, second - first, guided))
    pairs = ((base, base), (base, step), (step, step), (base, target), (step, target))
    dots = torch.stack([torch.dot(x, y.to(x.device)) for x, y in (*pairs, (target, target))])
    aa, ad, dd, ag, dg, gg = dots.tolist()
    det = aa * dd - ad * ad
    if not det > 0:
        return None
    along, across = (ag * dd - dg * ad) / det, (dg * aa - ag * ad) / det
    weights = (along - across, across)
    small, large = sorted(weights, key=abs)
    explained = gg - along * ag - across * dg <= _UNEXPLAINED * gg
    if not explained or not small * large < -_SMALLEST_WEIGHT * large * large:
        return None
    return weights.index(small)


def _like(tensor: Tensor, guided: Tensor) -> Tensor:
    same = tensor.dim() == guided.dim() and tensor.dim() > 1
    return tensor[:, : guided.shape[1]] if same else tensor


def half_call(
    site: Site, args: Sequence[Any], kwargs: Mapping[str, Any], rows: int, half: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the same call for half of its batch.

    Args:
        site: whose arguments they are.
        args: those by position.
        kwargs: those by name.
        rows: size of the batch.
        half: 0 for its first half, 1 for its second.
    """
    names = {index: name for name, index in site.positions.items()}
    positional = tuple(
        _half(names.get(index, ""), value, rows, half) for index, value in enumerate(args)
    )
    return positional, {name: _half(name, value, rows, half) for name, value in kwargs.items()}


def _of_frames(name: str, value: Tensor, rows: int) -> bool:
    """Whether this is a text for every frame of every clip, as AnimateDiff hands it in."""
    return name.startswith(_TEXT) and value.dim() > 0 and value.shape[0] % rows == 0


def _half(name: str, value: Any, rows: int, half: int) -> Any:
    if isinstance(value, Tensor):
        table = name in _UNBATCHED and value.dim() <= _TABLE_DIM
        batched = value.dim() > 0 and value.shape[0] == rows and not table
        return value.chunk(2)[half] if batched or _of_frames(name, value, rows) else value
    if type(value) is dict:
        return {key: _half(key, item, rows, half) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_half(name, item, rows, half) for item in value)
    return value
