"""A swap whose copies happen as late as they may: what a side stream may do, without a device."""

import torch
from torch import Tensor

from accel.store import Swap


class LateSwap(Swap):
    """Copies only when somebody waits for it; until then what was asked for is NaN.

    Attributes:
        log: "out" and "back", in the order in which they were asked for.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self._asked: list[tuple[Tensor, Tensor]] = []
        self._done = 0

    def out(self, tensor: Tensor) -> Tensor:
        """NaN on the host."""
        self.log.append("out")
        return self._later(tensor)

    def back(self, host: Tensor, device: torch.device) -> Tensor:
        """NaN on the device."""
        del device
        self.log.append("back")
        return self._later(host)

    def mark(self) -> int:
        """How many copies were asked for."""
        return len(self._asked)

    def wait(self, mark: int) -> None:
        """Makes the copies up to there, in order."""
        for target, source in self._asked[self._done : mark]:
            target.copy_(source)
        self._done = max(self._done, mark)

    def _later(self, source: Tensor) -> Tensor:
        # Labels are kept as well, and whole numbers have no NaN.
        poison = torch.nan if source.is_floating_point() else torch.iinfo(source.dtype).max
        target = torch.full_like(source, poison)
        self._asked.append((target, source))
        return target
