"""Where a call lies on the schedule, and sizes and changes of features as device scalars."""

import torch
from torch import Tensor

from accel.layers import Call


def place(call: Call) -> float:
    """The noise level; where the schedule is unknown, evaluations are evenly spaced, falling."""
    return float(-call.step) if call.sigma is None else call.sigma


def l1_norm(tensor: Tensor, *, samplewise: bool = False) -> Tensor:
    """The sum of absolute values in at least float32: of everything, or [B] of every sample."""
    axes = tuple(range(1 if samplewise else 0, tensor.dim()))
    wide = torch.promote_types(tensor.dtype, torch.float32)
    size: Tensor = torch.linalg.vector_norm(tensor, 1, dim=axes, dtype=wide)
    return size


def relative_change(new: Tensor, old: Tensor) -> Tensor:
    """mean|new - old| / mean|old|; 0 where both are zero."""
    return l1_norm(new - old) / l1_norm(old).clamp_min(torch.finfo(torch.float32).tiny)
