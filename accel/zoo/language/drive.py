"""How a masked language model is driven: its attention masks, and which output predicts what.

Positions that hold padding are never attended to. Rotary embeddings are relative, so that padding
on the left needs no position ids.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accel.errors import AccelUnsupportedError

_NEEDED = ("mask_token_id", "eos_token_id")


@dataclass(frozen=True, slots=True)
class Drive:
    """What the configuration of a model says about driving it; `block_length` 0 means no blocks."""

    mask_id: int
    end_id: int | None
    block_length: int = 0
    logits_shifted: bool = False

    @classmethod
    def of(cls, model: Any) -> "Drive":
        """The drive of `model`.

        Raises:
            AccelUnsupportedError: its configuration names no mask token.
        """
        config = model.config
        missing = [name for name in _NEEDED if not hasattr(config, name)]
        if missing or config.mask_token_id is None:
            raise AccelUnsupportedError(
                f"The configuration of {type(model).__name__} says nothing of "
                f"{' and '.join(missing or ['mask_token_id'])}; a masked language model needs it. "
                "Set config.mask_token_id to the id of the mask token."
            )
        return cls(
            config.mask_token_id,
            config.eos_token_id,
            getattr(config, "block_length", 0),
            getattr(config, "logits_shifted", False),
        )


def block_ids(valid: Tensor, block_length: int) -> Tensor:
    """The block of every position, [B, N], counted from each row's first valid one."""
    return (valid.long().cumsum(1) - 1).clamp(min=0) // block_length


def may_attend(valid: Tensor, block_length: int = 0) -> Tensor:
    """Which key each query may see, boolean [B, 1, N or 1, N]; `valid` [B, N] is not padding.

    With a `block_length`, keys of later blocks are hidden.
    """
    keys = valid[:, None, None, :]
    if not block_length:
        return keys
    ids = block_ids(valid, block_length)
    return keys & (ids[:, None, None, :] <= ids[:, None, :, None])


def as_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `allowed` and the lowest number of `dtype` elsewhere, to be added to the scores."""
    bias = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return bias.masked_fill(~allowed, torch.finfo(dtype).min)


def aligned_logits(model: Any, drive: Drive, input_ids: Tensor, valid: Tensor) -> Tensor:
    """Logits [B, N, V] of which row i predicts position i, whatever the model's convention."""
    mask: Tensor | None = None
    if drive.block_length:
        mask = as_bias(may_attend(valid, drive.block_length), model.dtype)
    elif not valid.all():
        mask = valid.long()
    logits: Tensor = model(input_ids=input_ids, attention_mask=mask).logits
    if drive.logits_shifted:
        logits = torch.cat((logits[:, :1], logits[:, :-1]), dim=1)
    return logits
