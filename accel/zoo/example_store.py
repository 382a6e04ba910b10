"""Training examples kept in memory, as columns of equally shaped tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class ExampleStore:
    """Rows of tensors; the oldest are dropped beyond `capacity`."""

    capacity: int
    _rows: list[tuple[Tensor, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        """How many rows are kept."""
        return len(self._rows)

    def add(self, columns: Sequence[Iterable[Tensor]]) -> None:
        """Append the rows that these columns make up."""
        self._rows.extend(zip(*columns, strict=True))
        del self._rows[: max(0, len(self._rows) - self.capacity)]

    def take(self, rows: Iterable[int]) -> list[Tensor]:
        """The chosen rows, column by column."""
        return [torch.stack(column) for column in zip(*(self._rows[i] for i in rows), strict=True)]
