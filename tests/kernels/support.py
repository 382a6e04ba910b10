"""Random lists and tensors, the dense answer in float64, and how far from it one may be."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.tiles import TileList

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF_AND_FULL = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of an attention: batch, heads, heads of keys, queries, keys, head dimension."""

    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    queries: int = 37
    keys: int = 45
    head_dim: int = 64


def seeded(seed: int) -> torch.Generator:
    """Returns a generator of its own, so that no test depends on another."""
    return torch.Generator().manual_seed(seed)


def sizes(groups: int, total: int, parts: int, random: torch.Generator) -> Tensor:
    """Returns [groups, parts] unequal sizes that add up to the total, some of them 0."""
    weights = torch.rand(groups, parts, generator=random) ** 2
    weights[:, -2] = 0.0
    drawn = torch.multinomial(weights, total, replacement=True, generator=random)
    return torch.stack([row.bincount(minlength=parts) for row in drawn])


def tile_list(shape: Shape, random: torch.Generator, density: float = 0.5) -> TileList:
    """Returns a list of unequal and empty clusters; the first head's first cluster sees nothing."""
    groups = shape.batch * shape.heads
    keep = torch.rand(groups, 4, 6, generator=random) < density
    q_sizes = sizes(groups, shape.queries, 4, random)
    first = int(q_sizes[0].argmax())
    keep[0, first] = False
    tiles = TileList.from_blocks(keep, q_sizes, sizes(groups, shape.keys, 6, random))
    tiles.check()
    return tiles.to(DEVICE)


def inputs(
    shape: Shape, random: torch.Generator, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v."""

    def draw(heads: int, tokens: int) -> Tensor:
        size = (shape.batch, heads, tokens, shape.head_dim)
        return torch.randn(size, generator=random).to(DEVICE, dtype)

    return (
        draw(shape.heads, shape.queries),
        draw(shape.kv_heads, shape.keys),
        draw(shape.kv_heads, shape.keys),
    )


def orders(groups: int, length: int, random: torch.Generator) -> Tensor:
    """Returns [groups, length] a permutation for each head."""
    drawn = [torch.randperm(length, generator=random) for _ in range(groups)]
    return torch.stack(drawn).to(DEVICE)


def mask_of(
    tiles: TileList, q_index: Tensor | None = None, kv_index: Tensor | None = None
) -> Tensor:
    """Returns [G, N, M] which scores of which tokens a list asks for."""
    mask = torch.zeros(tiles.heads, tiles.queries, tiles.keys, dtype=torch.bool)
    rows = (tiles.head, tiles.q_start, tiles.q_len, tiles.begin, tiles.end)
    for head, start, length, begin, end in zip(*(t.tolist() for t in rows), strict=True):
        queries = torch.arange(start, start + length)
        if q_index is not None:
            queries = q_index[head].cpu()[queries]
        for run in range(begin, end):
            first, count = int(tiles.kv_start[run]), int(tiles.kv_len[run])
            keys = torch.arange(first, first + count)
            if kv_index is not None:
                keys = kv_index[head].cpu()[keys]
            mask[head, queries[:, None], keys[None]] = True
    return mask.to(tiles.head.device)


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
    work: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Returns masked attention and its LSE in base 2, from all scores at once.

    With `work` float32 the weights are rounded to the inputs' dtype, and so is the output: what
    the most careful kernel for such inputs computes.
    """
    group = q.shape[1] // k.shape[1]
    b_q, b_k, b_v = q.to(work), *(t.repeat_interleave(group, 1).to(work) for t in (k, v))
    scores = (b_q @ b_k.transpose(-1, -2)) * (scale * math.log2(math.e))
    scores = scores.masked_fill(~mask.view(scores.shape), -math.inf)
    top = scores.amax(-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp2(scores - top)
    total = weights.sum(-1, keepdim=True)
    lse = (top + total.log2())[..., 0]
    if work == torch.float32:
        weights = weights.to(q.dtype).to(work)
    out = (weights @ b_v) / total.clamp(min=1e-300 if work == torch.float64 else 1e-30)
    return (out if work == torch.float64 else out.to(q.dtype)), lse


def assert_attention(
    found: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    scale: float,
) -> None:
    """Checks output and LSE against float64, within twice what rounding alone costs."""
    out, lse = dense(q, k, v, mask, scale)
    low_out, low_lse = dense(q, k, v, mask, scale, torch.float32)
    blind = ~mask.any(-1).view(lse.shape)
    assert found[0].dtype == q.dtype
    assert found[0].shape == q.shape
    assert found[1].dtype == torch.float32
    assert bool((found[0][blind] == 0).all())
    assert bool((found[1][blind] == -math.inf).all())
    assert_within(found[0], out, low_out)
    assert_within(found[1][~blind], lse[~blind], low_lse[~blind])


def assert_within(found: Tensor, exact: Tensor, rounded: Tensor) -> None:
    """Checks that `found` is as close to `exact` as `rounded` is, but for a factor.

    The factor is for another order of summation; in 16 bits, where the rounding of the inputs
    dominates, 2 is plenty, and in float32 errors add up as chance has it.
    """
    error = (found.double() - exact).abs().max()
    allowed = (rounded.double() - exact).abs().max()
    factor = 4 if found.dtype == torch.float32 else 2
    assert float(error) <= factor * float(allowed) + 1e-7, (float(error), float(allowed))
