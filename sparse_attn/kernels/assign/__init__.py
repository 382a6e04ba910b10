"""The nearest centroid of each token, the inner step of k-means."""

from typing import Any

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import checks, target
from sparse_attn.kernels.assign import reference

__all__ = ["assign", "settings_for"]

_NAME = "assign"
# Wider rows would need another loop, and no attention has them.
_WIDEST = 256
# Above, blocks of the usual size need more registers than there are.
_WIDE = 128


def assign(x: Tensor, centroids: Tensor) -> Tensor:
    """Each token's nearest centroid, int32 [G, N].

    The nearest is where x @ c - |c|² / 2 is largest, computed in float32 with the centroids
    rounded to the dtype of `x`. Of equally near ones it is the first; where rounding decides, the
    kernel and the reference may differ.

    Args:
        x: [G, N, D] tokens of any strides, D up to 256 on a GPU.
        centroids: [G, K, D], K from 1.

    Raises:
        OptionError: for shapes, dtypes or devices that do not go together, no centroids, and
            tensors that need a gradient.
    """
    tensors = {"x": x, "centroids": centroids}
    checks.require_dims(_NAME, tensors, 3)
    checks.require_floats(_NAME, tensors, x.device)
    groups, tokens, head_dim = x.shape
    clusters = centroids.shape[1]
    checks.require_shape(_NAME, "centroids", centroids, (groups, clusters, head_dim))
    if not clusters:
        raise OptionError(f"{_NAME}: there are no centroids; expected at least 1.")
    if not target.runs_kernel(x):
        return reference.assign(x, centroids)
    checks.require_head_dim(_NAME, head_dim, range(1, _WIDEST + 1))
    rounded = centroids.to(x.dtype)
    half = reference.half_squares(rounded.float())
    labels = torch.empty(groups, tokens, dtype=torch.int32, device=x.device)
    if labels.numel():
        _launch(x, rounded, half, labels)
    return labels


def settings_for(arch: str, head_dim: int, dtype: torch.dtype) -> dict[str, Any]:
    """Block sizes, warps and stages."""
    if dtype == torch.float32:
        return {"BN": 32, "BK": 16, "STAGES": 2, "num_warps": 4}
    if head_dim > _WIDE or arch == "gfx942":
        return {"BN": 64, "BK": 32, "STAGES": 2, "num_warps": 4}
    return {"BN": 128, "BK": 64, "STAGES": 2, "num_warps": 8}


def _launch(x: Tensor, centroids: Tensor, half: Tensor, labels: Tensor) -> None:
    from sparse_attn.kernels.assign.kernel import nearest

    arch = target.architecture(x.device)
    groups, tokens, head_dim = x.shape
    settings = settings_for(arch, head_dim, x.dtype)
    nearest[(-(-tokens // settings["BN"]), groups)](
        *(x, centroids, half, labels, tokens, centroids.shape[1]),
        *(*x.stride(), *centroids.stride()),
        **target.widths(head_dim),
        **target.arithmetic(x.dtype, arch),
        **settings,
        **target.OPTIONS,
    )
