"""Plans computed by what torch has on any device; the backend of the CPU.

Every row's keys are put side by side, then attended to at once. That is one copy of each row's
keys and values, and a call of torch's own attention of the size of the row.
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_attn.backends.backend import finished, ordered, shared_heads
from sparse_attn.plan.plan import Plan
from sparse_attn.tiles import TileList

_LOG2E = math.log2(math.e)
# So many elements of keys, values or scores are put side by side at once: they stay in the cache.
_AT_ONCE = 2**21

_Runs = tuple[tuple[int, int], ...]


class Row(NamedTuple):
    """Queries of one head and the runs of keys that they see, in permuted order."""

    head: int
    start: int
    stop: int
    runs: _Runs

    @property
    def form(self) -> tuple[int, int]:
        """Queries and keys: rows alike in both can be computed together."""
        return self.stop - self.start, sum(stop - start for start, stop in self.runs)


class TorchBackend:
    """Gathers each row's keys, then uses fused attention, or on half precision matrix products.

    Half-precision attention of torch is slow on CPUs; there, and on other devices, which return no
    LSE, two matrix products around a softmax in fp32 do it.
    """

    name = "torch"

    def refuses(self, q: Tensor, k: Tensor, v: Tensor) -> str | None:  # noqa: ARG002 -- the protocol
        """None: it takes everything."""
        return None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output [B, H, N, D] in q's dtype and LSE [B, H, N]; see `Backend`."""
        heads = q.shape[1]
        queries = ordered(q, plan.q_order, heads)
        # Keys and values in one tensor, so that each row's are put side by side in one go.
        both = ordered(torch.cat([k, v], -1), plan.kv_order, heads)
        share = 1 if plan.kv_order is not None else shared_heads(q, k)
        out = torch.zeros(*queries.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)
        lse = torch.full(queries.shape[:2], -math.inf, device=q.device)
        fused = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
        attend = _fused if fused else _products
        for batch in _batches(rows_of(plan.tiles), both.shape[-1]):
            asked = torch.stack([queries[row.head, row.start : row.stop] for row in batch])
            seen = _side_by_side(both, batch, share)
            keys, values = seen[..., : k.shape[-1]], seen[..., k.shape[-1] :]
            found, sums = attend(asked, keys, values, scale)
            for row, part, total in zip(batch, found, sums, strict=True):
                out[row.head, row.start : row.stop] = part
                lse[row.head, row.start : row.stop] = total
        return finished(out, lse, q, plan, scale)


def rows_of(tiles: TileList) -> list[Row]:
    """The rows of a list that see anything, on the host. Waits for the device.

    Neighbours that see the same keys are one row.
    """
    table = torch.stack([tiles.head, tiles.q_start, tiles.q_start + tiles.q_len])
    bounds = torch.stack([tiles.begin, tiles.end])
    runs = list(zip(tiles.kv_start.tolist(), (tiles.kv_start + tiles.kv_len).tolist(), strict=True))
    rows: list[Row] = []
    for head, start, stop, begin, end in zip(*table.tolist(), *bounds.tolist(), strict=True):
        if begin == end:
            continue
        row = Row(head, start, stop, tuple(runs[begin:end]))
        last = rows[-1] if rows else None
        if last and (last.head, last.stop, last.runs) == (row.head, row.start, row.runs):
            rows[-1] = last._replace(stop=stop)
        else:
            rows.append(row)
    return rows


def _batches(rows: list[Row], width: int) -> Iterator[list[Row]]:
    """Rows of the same form, as many at once as fit."""
    for (queries, keys), alike in groupby(sorted(rows, key=lambda row: row.form), lambda r: r.form):
        group = list(alike)
        size = max(1, _AT_ONCE // max(keys * width, keys * queries))
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _side_by_side(both: Tensor, batch: list[Row], share: int) -> Tensor:
    slices = [both[row.head // share, start:stop] for row in batch for start, stop in row.runs]
    # A single run needs no copy.
    joined = slices[0] if len(slices) == 1 else torch.cat(slices)
    return joined.view(len(batch), -1, both.shape[-1])


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    # The public name of this drops the LSE.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
    if k.shape[-1] != v.shape[-1]:
        return _products(q, k, v, scale)
    out, lse = attend(q[:, None], k[:, None], v[:, None], scale=scale)
    return out[:, 0], lse[:, 0].float() * _LOG2E


def _products(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    parts = []
    # A row of many queries that sees everything would not fit at once.
    some_queries = max(1, _AT_ONCE // (len(q) * k.shape[1]))
    for some in torch.split(q, some_queries, 1):
        scores = torch.bmm(some, k.mT).float() * (scale * _LOG2E)
        most = scores.amax(-1, keepdim=True)
        weights = torch.exp2(scores - most)
        total = weights.sum(-1, keepdim=True)
        out = torch.bmm(weights.to(v.dtype), v) / total
        parts.append((out.to(q.dtype), (most + torch.log2(total))[..., 0]))
    outs, sums = zip(*parts, strict=True)
    return torch.cat(outs, 1), torch.cat(sums, 1)
