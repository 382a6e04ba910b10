"""Attention of a few queries, exactly: what approximations are measured against."""

import math

import torch
from torch import Tensor

_LOG2E = math.log2(math.e)


def sample_rows(tokens: int, count: int, seed: int) -> Tensor:
    """Distinct places of at most `count` of the tokens, sorted, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return spread_rows(torch.rand(min(count, tokens), generator=generator), tokens)


def spread_rows(share: Tensor, tokens: int) -> Tensor:
    """One place from each of as many stretches as there are draws, [..., count], int64.

    Args:
        share: [..., count] draws from 0 to below 1, no more than tokens: how far into its stretch.
        tokens: of the sequence that is cut into stretches.
    """
    edges = torch.arange(share.shape[-1] + 1) * tokens // share.shape[-1]
    return edges[:-1] + (share * edges.diff()).long()


def scores_of(q: Tensor, k: Tensor, *, scale: float, valid: Tensor | None = None) -> Tensor:
    """log2 weights [G, R, M] in fp32 of sampled queries for all keys; padding has minus infinity.

    Args:
        q: [G, R, D] the sampled queries.
        k: [Gk, M, D] keys; each head of theirs serves G / Gk of the queries'.
        scale: of the scores.
        valid: [G, M] which keys are no padding, or None for all.
    """
    keys = k.float().repeat_interleave(len(q) // len(k), 0)
    scores = q.float() @ keys.mT * (scale * _LOG2E)
    return scores if valid is None else scores.masked_fill(~valid[:, None], -math.inf)


def attend_scores(scores: Tensor, v: Tensor) -> Tensor:
    """Output [G, R, D] in fp32 of rows of log2 weights; 0 where all are minus infinity.

    Args:
        scores: [G, R, M].
        v: [Gv, M, D]; each head serves G / Gv of the rows'.
    """
    weights: Tensor = (scores * math.log(2)).softmax(-1).nan_to_num(nan=0.0)
    return torch.bmm(weights, v.float().repeat_interleave(len(scores) // len(v), 0))


def relative_error(found: Tensor, exact: Tensor) -> Tensor:
    """L2 norm of the difference as a share of the exact one's, [G].

    Args:
        found: [G, R, D].
        exact: [G, R, D].
    """
    difference = torch.linalg.vector_norm(found.float() - exact.float(), dim=(1, 2))
    error: Tensor = difference / torch.linalg.vector_norm(exact.float(), dim=(1, 2)).clamp(
        min=1e-12
    )
    return error
