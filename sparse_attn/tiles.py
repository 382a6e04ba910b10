"""Which scores are computed: for each run of queries, the runs of keys that it sees.

The one format between the plans, which choose, and the backends, which compute.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from accel.errors import OptionError


@dataclass(frozen=True, slots=True, eq=False)
class TileList:
    """Rows of score tiles, in the order of permuted queries and keys.

    A row is a run of queries of one head and all runs of keys that it sees: `kv_start[i]` and
    `kv_len[i]` for `i` from `begin` up to, not including, `end`. Rows may share a whole list of
    runs, so that what holds for every head is stored once. Queries in no row see nothing: their
    output is 0 and their LSE is minus infinity. All tensors are int32 on one device.

    Attributes:
        heads: heads times batch; queries, keys: tokens of one head.
        head: [R] which head, batch entries outermost.
        q_start, q_len: [R] first query and number of queries.
        begin, end: [R] its runs of keys.
        kv_start, kv_len: [E] first key and number of keys.
    """

    heads: int
    queries: int
    keys: int
    head: Tensor
    q_start: Tensor
    q_len: Tensor
    begin: Tensor
    end: Tensor
    kv_start: Tensor
    kv_len: Tensor

    @classmethod
    def from_blocks(cls, keep: Tensor, q_sizes: Tensor, kv_sizes: Tensor) -> Self:
        """The tiles of blocks that follow each other.

        Neighbouring kept blocks become one run, and empty blocks nothing.

        Args:
            keep: [G, Q, K] bool, which key blocks each query block of each head sees.
            q_sizes: [G, Q] tokens of each query block, which may be 0.
            kv_sizes: [G, K] tokens of each key block, which may be 0.
        """
        heads, q_blocks, _ = keep.shape
        upto, starts, lengths = _runs(keep & (kv_sizes > 0)[:, None], kv_sizes)
        begin = torch.cat([upto.new_zeros(1), upto[:-1]])
        some = (q_sizes > 0).flatten()
        every = torch.arange(heads, device=keep.device).repeat_interleave(q_blocks)
        firsts = _starts(q_sizes).flatten()
        rows = (tensor[some] for tensor in (every, firsts, q_sizes.flatten(), begin, upto))
        return cls(
            heads,
            int(q_sizes[0].sum()),
            int(kv_sizes[0].sum()),
            *(tensor.to(torch.int32) for tensor in (*rows, starts, lengths)),
        )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.head)

    @property
    def seen(self) -> Tensor:
        """[R] keys that each row sees, int64."""
        total = torch.cat([self.kv_len.new_zeros(1, dtype=torch.int64), self.kv_len.cumsum(0)])
        return total[self.end.long()] - total[self.begin.long()]

    def density(self) -> float:
        """Share of all scores that are computed, 0 to 1. Waits for the device."""
        scores = (self.seen * self.q_len).sum()
        return float(scores) / (self.heads * self.queries * self.keys)

    def waste(self, block_m: int, block_n: int) -> float:
        """Scores that tiles of this size compute for each one asked for, from 1 up.

        Waits for the device.
        """
        total = torch.cat([self.kv_len.new_zeros(1, dtype=torch.int64), _up(self.kv_len, block_n)])
        total = total.cumsum(0)
        padded = total[self.end.long()] - total[self.begin.long()]
        asked = (self.seen * self.q_len).sum()
        return float((padded * _up(self.q_len, block_m)).sum() / asked.clamp(min=1))

    def cut(self, block_m: int, block_n: int) -> Self:
        """The same scores in rows of at most `block_m` queries and runs of at most `block_n` keys.

        Within a row the runs of full length come first, so that a kernel can take them without a
        mask. The rows cut from one keep sharing its runs.
        """
        parts = -(-self.kv_len // block_n)
        entry, nth = _spread(parts)
        start = self.kv_start[entry] + nth * block_n
        length = (self.kv_len[entry] - nth * block_n).clamp(max=block_n)
        upto = torch.cat([parts.new_zeros(1, dtype=torch.int64), parts.cumsum(0)])
        begin, end = upto[self.begin.long()], upto[self.end.long()]
        start, length = _full_first(start, length, begin, end, block_n)
        row, piece = _spread(-(-self.q_len // block_m))
        return type(self)(
            self.heads,
            self.queries,
            self.keys,
            self.head[row],
            (self.q_start[row] + piece * block_m).to(torch.int32),
            (self.q_len[row] - piece * block_m).clamp(max=block_m).to(torch.int32),
            begin[row].to(torch.int32),
            end[row].to(torch.int32),
            start.to(torch.int32),
            length.to(torch.int32),
        )

    def to(self, device: torch.device | str) -> Self:
        """The same list on another device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)

    def check(self) -> None:
        """Checks that every row and run lies inside and that no score is asked for twice.

        Waits for the device; for tests and for plans of one's own.

        Raises:
            OptionError: naming the first row that is wrong.
        """
        self._check_rows()
        order = (self.head.long() * self.queries + self.q_start).argsort()
        head, start, stop = (t[order] for t in (self.head, self.q_start, self.q_start + self.q_len))
        self._refuse(
            torch.cat([stop[:-1] > start[1:], stop.new_zeros(1, dtype=torch.bool)])
            & torch.cat([head[:-1] == head[1:], stop.new_zeros(1, dtype=torch.bool)]),
            "shares queries with another row",
            order,
        )
        rows, nth = _spread(self.end - self.begin)
        entry = self.begin.long()[rows] + nth
        begin, length = self.kv_start[entry], self.kv_len[entry]
        outside = (begin < 0) | (length < 1) | (begin + length > self.keys)
        self._refuse(outside, f"sees keys outside of the {self.keys} that there are", rows)
        order = (rows * self.keys + begin).argsort()
        rows, begin, stop = rows[order], begin[order], (begin + length)[order]
        twice = (rows[:-1] == rows[1:]) & (stop[:-1] > begin[1:])
        self._refuse(twice, "sees a key twice", rows)

    def _check_rows(self) -> None:
        lengths = {
            len(getattr(self, name)) for name in ("head", "q_start", "q_len", "begin", "end")
        }
        if len(lengths) != 1 or len(self.kv_start) != len(self.kv_len):
            raise OptionError(
                f"TileList: the rows' tensors have lengths {sorted(lengths)} and the runs' "
                f"{len(self.kv_start)} and {len(self.kv_len)}; expected one length each."
            )
        outside = (self.head < 0) | (self.head >= self.heads)
        self._refuse(outside, f"belongs to none of the {self.heads} heads")
        outside = (self.q_start < 0) | (self.q_len < 1) | (self.q_start + self.q_len > self.queries)
        self._refuse(outside, f"has queries outside of the {self.queries} that there are")
        wrong = (self.begin < 0) | (self.end < self.begin) | (self.end > len(self.kv_len))
        self._refuse(wrong, f"has runs outside of the {len(self.kv_len)} that there are")

    def _refuse(self, wrong: Tensor, what: str, rows: Tensor | None = None) -> None:
        if not bool(wrong.any()):
            return
        first = int(wrong.nonzero()[0, 0])
        raise OptionError(f"TileList: row {first if rows is None else int(rows[first])} {what}.")


def _runs(seen: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many runs there are up to each row's last, [G * Q], and where all start and how long.

    Args:
        seen: [G, Q, K] bool, never where a block is empty.
        sizes: [G, K].
    """
    heads, q_blocks, kv_blocks = seen.shape
    # Empty blocks do not tear a run apart: what counts is the last block that has tokens.
    place = torch.arange(kv_blocks, device=seen.device).where(sizes > 0, -1)
    before = torch.cat([place.new_full((heads, 1), -1), place[:, :-1].cummax(1).values], 1)
    follows = seen.gather(2, before.clamp(min=0)[:, None].expand_as(seen))
    first = seen & ~(follows & (before >= 0)[:, None])
    group, row, block = first.nonzero(as_tuple=True)
    rows = group * q_blocks + row
    covered = (seen * sizes[:, None]).cumsum(2)
    # Where a run starts, what was covered before it is known; the next run's start, or the row's
    # end, tells its length.
    done = covered[group, row, block] - sizes[group, block]
    last = torch.ones_like(rows, dtype=torch.bool)
    last[:-1] = rows[1:] != rows[:-1]
    until = torch.where(last, covered[..., -1].flatten()[rows], done.roll(-1))
    upto = torch.bincount(rows, minlength=heads * q_blocks).cumsum(0)
    return upto, _starts(sizes)[group, block], until - done


def _starts(sizes: Tensor) -> Tensor:
    return sizes.cumsum(1) - sizes


def _up(lengths: Tensor, block: int) -> Tensor:
    return (-(-lengths.long() // block)) * block


def _spread(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For every piece of every entry: which entry, and the how manieth piece."""
    counts = counts.long()
    entry = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return entry, torch.arange(len(entry), device=counts.device) - first[entry]


def _full_first(
    start: Tensor, length: Tensor, begin: Tensor, end: Tensor, block: int
) -> tuple[Tensor, Tensor]:
    # Rows may share runs, but only whole lists of them, so each list is ordered once.
    owner = torch.zeros(len(start) + 1, dtype=torch.int64, device=start.device)
    owner[begin] = 1
    owner[end] = 1
    group = owner[:-1].cumsum(0)
    order = (group * 2 + (length < block)).argsort(stable=True)
    return start[order], length[order]
