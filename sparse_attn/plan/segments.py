"""The tokens of every head in segments: text, the picture's parts, text again, then padding.

Text sees everything and is seen by everything, whatever a method chooses for the picture. Padding
is seen by nobody.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_attn.kernels.permute import sort_by_label
from sparse_attn.plan.plan import Plan, Tail
from sparse_attn.tiles import TileList

_BEFORE = 1
"""Segments in front of the picture's: the text there."""
_AROUND = 3
"""Segments beside the picture's: text before it, text after it, padding."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The tokens of every head, sorted into segments.

    Attributes:
        order: [G, N] which token stands at each place, or None for as they are.
        sizes: [G, S] tokens of each segment.
    """

    order: Tensor | None
    sizes: Tensor

    def shared_by(self, heads: int) -> "Segments":
        """The segments of so many heads in place of each."""
        if heads == 1:
            return self
        order = None if self.order is None else self.order.repeat_interleave(heads, 0)
        return Segments(order, self.sizes.repeat_interleave(heads, 0))

    @property
    def picture(self) -> Tensor:
        """[G, C] tokens of each part of the picture."""
        return self.parts(self.sizes)

    @property
    def of_tokens(self) -> Tensor:
        """[G, N] the segment of every token, in the original order."""
        places = segment_of_places(self.sizes)
        return places if self.order is None else places.scatter(1, self.order.long(), places)

    def parts(self, x: Tensor) -> Tensor:
        """What concerns the picture's parts of [G, S, ...], which has an entry for each segment."""
        return x[:, _BEFORE : self.sizes.shape[1] - _AROUND + _BEFORE]


def sort_tokens(
    labels: Tensor, count: int, *, start: int, tokens: int, valid: Tensor | None = None
) -> Segments:
    """Tokens in the order of their segments.

    Args:
        labels: [G, P] part of each of the picture's tokens, from 0 up to, not including, `count`.
        count: parts of the picture.
        start: the picture's first token.
        tokens: N, of the picture and the text around it.
        valid: [G, N] which tokens are no padding, or None for all.
    """
    groups, length = labels.shape
    every = labels.new_zeros(groups, tokens)
    every[:, start : start + length] = labels + _BEFORE
    every[:, start + length :] = count + _BEFORE
    if valid is not None:
        every = every.masked_fill(~valid, count + _AROUND - 1)
    order, sizes = sort_by_label(every, count + _AROUND)
    return Segments(order, sizes)


def unsorted(segments: Segments) -> Segments:
    """The same without an order where the tokens already stand in it. Waits for the device."""
    order = segments.order
    if order is None:
        return segments
    places = torch.arange(order.shape[1], device=order.device)
    return Segments(None, segments.sizes) if bool((order == places).all()) else segments


def with_text(keep: Tensor) -> Tensor:
    """Which segments see which, [G, Q + 3, K + 3], from what the picture's parts see of each other.

    Args:
        keep: [G, Q, K] bool.
    """
    groups, queries, keys = keep.shape
    every = keep.new_ones(groups, queries + _AROUND, keys + _AROUND)
    every[:, _BEFORE : queries + _BEFORE, _BEFORE : keys + _BEFORE] = keep
    every[..., -1] = False
    return every


def make_plan(
    keep: Tensor,
    queries: Segments,
    keys: Segments,
    *,
    tail: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> Plan:
    """The plan in which the picture's parts see each other as chosen, and text and all each other.

    Args:
        keep: [G, Q, K] bool, which parts of the picture's keys each part of its queries sees.
        queries: their segments.
        keys: theirs.
        tail: of the picture's key parts the means of keys and values, [G, K, D], and the variance
            of the keys or None. They stand in for what is skipped.
    """
    tiles = TileList.from_blocks(with_text(keep), queries.sizes, keys.sizes)
    stand_in = None if tail is None else _tail(keep, queries, keys, *tail)
    return Plan(tiles, queries.order, keys.order, stand_in)


def _tail(
    keep: Tensor,
    queries: Segments,
    keys: Segments,
    means: Tensor,
    values: Tensor,
    variance: Tensor | None,
) -> Tail:
    sizes = keys.picture
    skipped = keep.new_zeros(keep.shape[0], queries.sizes.shape[1], keep.shape[2])
    skipped[:, _BEFORE : keep.shape[1] + _BEFORE] = ~keep & (sizes > 0)[:, None]
    return Tail(
        keys=means,
        values=values,
        bias=sizes.float().log2(),
        variance=variance,
        skipped=skipped,
        segments=segment_of_places(queries.sizes),
    )


def segment_of_places(sizes: Tensor) -> Tensor:
    """[G, N] the segment of every place, from the sizes [G, S] of segments that follow each other.

    Every head has the same number of places.
    """
    groups, count = sizes.shape
    segments = torch.arange(count, device=sizes.device).repeat(groups)
    return segments.repeat_interleave(sizes.long().flatten()).view(groups, -1)
