"""The picture in blocks of tokens that follow each other: the base of Jenga, SpargeAttn, Radial."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel.errors import OptionError
from accel.method import require_number
from sparse_attn.kernels.permute import cluster_stats
from sparse_attn.plan.curve import Integers, hilbert_ranks
from sparse_attn.plan.plan import Plan
from sparse_attn.plan.segments import Segments, make_plan, sort_tokens, unsorted
from sparse_attn.problem import Problem
from sparse_attn.sparse_method import SparseMethod

_UNIT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMethod(SparseMethod):
    """Base of the methods that decide over blocks.

    Attributes:
        block: tokens in each block, from 1, fewer in the last.
    """

    block: int = 128

    def _check(self) -> None:
        require_number(self, "block", self.block, low=1, whole=True)

    def unfit(self, problem: Problem) -> str | None:
        """A picture of a single block."""
        if problem.place.length > self.block:
            return None
        return f"the picture's {problem.place.length} tokens are one block of {self.block}"


def require_share(owner: object, name: str, value: float, *, most: float = 1.0) -> None:
    """Checks a share that must be more than 0.

    Raises:
        OptionError: if it is no number, 0 or less, or more than `most`.
    """
    require_number(owner, name, value, low=0.0, high=most)
    if value == 0:
        raise OptionError(f"{type(owner).__name__}: {name} is {value!r}; expected more than 0.")


def raster(tokens: int) -> Integers:
    """Every token at its own place."""
    return np.arange(tokens)


def curve_of(problem: Problem) -> Integers:
    """The places of the picture's tokens on the space-filling curve, or their own if it is unknown.

    How the tokens lie is not known for some models.
    """
    lattice = problem.place.lattice
    return raster(problem.place.length) if lattice is None else hilbert_ranks(lattice)


def block_segments(
    problem: Problem, ranks: Integers, block: int
) -> tuple[Segments, Segments, Segments]:
    """Queries [G], keys [G], and keys by the heads that they have themselves [Gk], in blocks.

    Args:
        problem: the attention.
        ranks: [P] the place of each of the picture's tokens in the order that is cut into blocks.
        block: tokens of each.
    """
    batch, heads, _, _ = problem.attention.query.shape
    kv_heads = problem.attention.key.shape[1]
    labels = torch.from_numpy(ranks // block).to(torch.int32).to(problem.device)
    count = -(-problem.place.length // block)
    every = labels.expand(batch, -1)
    start, tokens = problem.place.start, problem.tokens
    # Waits for the device, which a permutation of everything would cost as well.
    queries = unsorted(sort_tokens(every, count, start=start, tokens=tokens))
    keys = unsorted(
        sort_tokens(every, count, start=start, tokens=tokens, valid=problem.attention.valid)
    )
    return queries.shared_by(heads), keys.shared_by(heads), keys.shared_by(kv_heads)


def block_plan(problem: Problem, keep: Tensor, ranks: Integers, block: int) -> Plan:
    """The plan in which blocks see each other as a static pattern [C, C] or each head's says."""
    queries, keys, _ = block_segments(problem, ranks, block)
    return make_plan(keep.expand(problem.groups, -1, -1), queries, keys)


def on_device(pattern: NDArray[np.bool_], problem: Problem) -> Tensor:
    """A static pattern where the attention is computed."""
    return torch.from_numpy(pattern).to(problem.device)


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """What stands for blocks of queries or keys.

    Attributes:
        mean: [G, C, D] of each block's tokens.
        alike: [G, C] mean cosine of any two of them, each with itself included, up to 1.
    """

    mean: Tensor
    alike: Tensor


def pool(x: Tensor, segments: Segments, groups: int) -> Pooled:
    """The means of blocks and how alike their tokens are, for every head that uses them.

    Args:
        x: [Gx, N, D] queries or keys.
        segments: of the Gx heads.
        groups: G, heads that use them.
    """
    order = segments.order
    if order is None:
        order = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    unit = x.float() / torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True).clamp(min=_UNIT)
    # The mean cosine of all pairs is the squared length of the mean direction.
    mean, direction = (cluster_stats(part, order, segments.sizes)[0] for part in (x, unit))
    share = groups // len(x)
    return Pooled(
        segments.parts(mean).repeat_interleave(share, 0),
        segments.parts(direction).square().sum(-1).repeat_interleave(share, 0),
    )
