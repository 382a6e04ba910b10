"""Whether kept features are finite, found out without waiting for the device."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


class Finite:
    """A check of some tensors that may end after it was asked for.

    On the CPU it has ended at once. On CUDA the sum that tells travels to the host behind the work
    already queued, and until it has arrived the tensors pass for finite. Other devices offer no way
    to ask without waiting, so there they always do.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        # A sum is not finite as soon as one element is not, and costs a single pass.
        totals = [total(tensor) for tensor in tensors if tensor.device.type in ("cpu", "cuda")]
        self._arrived: torch.cuda.Event | None = None
        self._total: Tensor | None = None
        if not totals:
            return
        device = totals[0].device
        together = torch.stack([each.to(device) for each in totals]).sum()
        self._total = together.to("cpu", non_blocking=True)
        if device.type == "cuda":  # pragma: no cover -- needs a CUDA device
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves the constructor bare
            self._arrived.record()

    def refuted(self) -> bool:
        """Whether some element is known not to be finite."""
        if self._total is None or not self.ended:
            return False
        return not math.isfinite(float(self._total))

    @property
    def ended(self) -> bool:
        """Whether the answer will not change any more."""
        if self._arrived is None:
            return True
        return bool(self._arrived.query())  # type: ignore[no-untyped-call]  # pragma: no cover -- needs a CUDA device


class FiniteWatch:
    """Checks of evaluation after evaluation; each is told of once, when its answer is there."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[tuple[int, Finite]] = []

    def note(self, step: int, tensor: Tensor) -> None:
        """Asks for a tensor of this evaluation."""
        self._pending.append((step, Finite([tensor])))

    def broken(self) -> int | None:
        """The newest evaluation that is known by now not to have been finite, or None."""
        asked = self._pending
        self._pending = [item for item in asked if not item[1].ended]
        return max((step for step, finite in asked if finite.refuted()), default=None)


def total(tensor: Tensor) -> Tensor:
    """A scalar that is not finite as soon as one element is not; the total of itself."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().sum(dtype=wide).double()
