"""What the pseudo-keys of a tail weigh, all at once: for checks and for sampled queries."""

import math

from torch import Tensor

from sparse_attn.plan.plan import Tail

LOG2E = math.log2(math.e)


def tail_scores(q: Tensor, tail: Tail, scale: float) -> Tensor:
    """log2 weights [G, N, K] of pseudo-keys for queries, minus infinity where not skipped.

    Args:
        q: [G, N, D] fp32 or fp64, in the order that the tail's segments are in.
        tail: the pseudo-keys.
        scale: of the scores.
    """
    scores = q @ tail.keys.to(q.dtype).mT * (scale * LOG2E)
    if tail.variance is not None:
        scores = scores + q.square() @ tail.variance.to(q.dtype).mT * (scale**2 / 2 * LOG2E)
    scores = scores + tail.bias.to(q.dtype)[:, None]
    rows = tail.segments.long()[..., None].expand(-1, -1, scores.shape[-1])
    return scores.masked_fill(~tail.skipped.gather(1, rows), -math.inf)
