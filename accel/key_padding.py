"""Attention masks that say of each key whether it is there, told from those that say more."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.sites import versions_of

# Scores this far down weigh nothing beside others: models write -10000, -inf or a dtype's least
# number, rounded to their dtype.
_NOTHING = -1000.0
_MASK_DIM = 4


def valid_keys(mask: Tensor, rows: int, keys: int) -> Tensor | str:
    """Which keys are there, [rows, keys] of bool, or why that is not all that a mask says.

    Waits for the device, unless the mask is one of bool with one row for all heads and queries.

    Args:
        mask: as `scaled_dot_product_attention` takes it, for `rows` samples and `keys` keys: True,
            or 0 where a key counts; False, or a number of -1000 or less where it does not.
        rows: samples of the batch.
        keys: of each.
    """
    if mask.dim() > _MASK_DIM or not (mask.dtype is torch.bool or mask.is_floating_point()):
        return f"its mask is {mask.dim()}-dimensional, of {mask.dtype}"
    mask = mask[(None,) * (_MASK_DIM - mask.dim())]
    if _several(mask, 2):
        return "its mask has a row for each query"
    heads = mask[:, :, 0]
    first = heads[:, 0]
    valid = first if mask.dtype is torch.bool else first == 0
    problems = []
    if _several(mask, 1):
        problems.append((heads != first[:, None]).any())
    if valid is not first:
        problems.append((~valid & ~(first <= _NOTHING)).any())
        # Where no key counts, numbers other than minus infinity leave all of them.
        problems.append(~valid.any(dim=-1).all())
    if problems and bool(torch.stack(problems).any()):
        return "its mask is not of keys that are there and keys that are not"
    return valid.expand(rows, keys)


def _several(mask: Tensor, dim: int) -> bool:
    """Whether a mask holds more than one row along a dimension."""
    return mask.shape[dim] != 1 and mask.stride(dim) != 0


@dataclass(slots=True)
class KnownMasks:
    """What was found of the masks of one denoiser call, which hands all its blocks the same."""

    # The masks are held, so that nothing else can be where they are.
    found: dict[Any, tuple[Tensor, Tensor | str]] = field(default_factory=dict)

    def valid_keys(self, mask: Tensor, rows: int, keys: int) -> Tensor | str:
        """As the function of this name says, found once."""
        version = versions_of((mask,))
        known = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, version, rows, keys)
        if known not in self.found:
            self.found[known] = (mask, valid_keys(mask, rows, keys))
        return self.found[known][1]
