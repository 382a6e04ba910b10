"""The few heaviest that have most of the mass."""

import torch
from torch import Tensor

from accel.errors import OptionError
from sparse_attn.kernels import checks, target
from sparse_attn.kernels.top_p import reference

__all__ = ["keep_mass"]

_NAME = "keep_mass"
# Weights that a program looks at at a time.
CHUNK = 2048


def keep_mass(scores: Tensor, p: float) -> Tensor:
    """Which weights of each row to keep, bool [G, R, K], so that they have a share of its mass.

    Kept are all weights from a threshold up, the highest one at which their sum reaches `p` of
    the row's: the smallest such set, but that equal weights are kept or left together. Weights
    of 0 are never kept. Sums are float32; a set that misses or has the share by rounding alone
    may come out either way.

    Args:
        scores: [G, R, K] base-2 logarithms of the weights, of any strides; minus infinity for
            what must not be kept, and nothing is where a row has nothing else.
        p: the share, above 0, up to 1, which keeps every weight that float32 tells from 0
            beside the row's largest.

    Raises:
        OptionError: for a share outside its range, scores that are not floats of three
            dimensions, and those that need a gradient.
    """
    checks.require_dims(_NAME, {"scores": scores}, 3)
    checks.require_floats(_NAME, {"scores": scores}, scores.device)
    if not 0 < p <= 1:
        raise OptionError(f"{_NAME}: p is {p}; expected a share above 0, up to 1.")
    if not scores.numel():
        return torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    if not target.runs_kernel(scores):
        return reference.keep_mass(scores, p)
    return _launch(scores, p)


def _launch(scores: Tensor, p: float) -> Tensor:
    from sparse_attn.kernels.top_p.kernel import keep_share

    groups, rows, clusters = scores.shape
    keep = torch.empty(scores.shape, dtype=torch.int8, device=scores.device)
    chunk = min(CHUNK, max(16, 1 << (clusters - 1).bit_length()))
    keep_share[(rows, groups)](
        *(scores, keep, float(p), rows, clusters, *scores.stride()),
        BK=chunk,
        ALL=p >= 1,
        num_warps=4,
        **target.OPTIONS,
    )
    return keep.view(torch.bool)
