"""DBCache: the first block cache with any number of probed head and refreshed tail blocks."""

from dataclasses import dataclass
from typing import ClassVar

from accel.method import require_number
from caching.first_block_cache import FirstBlockCache


@dataclass(frozen=True, slots=True, kw_only=True)
class DBCache(FirstBlockCache):
    """Runs `head` blocks, tests their change, and on reuse still runs the last `tail_blocks`.

    More head blocks make the test surer, tail blocks mend the reused features; both cost what they
    run. With `head=1, tail_blocks=0` it is `FirstBlockCache`, whose docstring explains the other
    options.

    Source: cache-dit's DBCache (Fn = head, Bn = tail_blocks). Its defaults are 8 head blocks,
    threshold 0.08 and 8 warm-up steps, for models of 57 blocks.

    Attributes:
        head: blocks that always run first, 1 or more.
        tail_blocks: blocks that always run last.
    """

    head: int = 2
    tail_blocks: int = 0

    source: ClassVar[str] = "https://github.com/vipshop/cache-dit (DBCache)"

    def __post_init__(self) -> None:
        FirstBlockCache.__post_init__(self)
        require_number(self, "head", self.head, low=1, whole=True)
        require_number(self, "tail_blocks", self.tail_blocks, low=0, whole=True)

    def probed(self) -> int:
        """The configured head."""
        return self.head

    def refreshed(self) -> int:
        """The configured tail."""
        return self.tail_blocks
