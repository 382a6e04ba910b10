"""The prediction in what a denoiser returns: found, replaced, and watched for non-finite values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def read_prediction(output: Any) -> Tensor | None:
    """The tensor that a denoiser returns alone, or in a tuple or mapping of that one entry.

    None if there is another tensor beside it or none at all: then it is not known what an answer
    in the denoiser's place would have to hold.
    """
    if isinstance(output, Mapping):
        output = tuple(output.values())
    parts = output if isinstance(output, (tuple, list)) else (output,)
    tensors = [part for part in parts if part is not None]
    only = tensors[0] if len(tensors) == 1 else None
    return only if isinstance(only, Tensor) else None


def write_prediction(output: Any, prediction: Tensor) -> Any:
    """A denoiser's output like this one, with another prediction in it."""
    if isinstance(output, Tensor):
        return prediction
    if isinstance(output, Mapping):
        swapped = {name: _swap(part, prediction) for name, part in output.items()}
        return type(output)(**swapped)
    return type(output)(_swap(part, prediction) for part in output)


def _swap(part: Any, prediction: Tensor) -> Any:
    return part if part is None else prediction


class FiniteWatch:
    """Finds out whether predictions were finite, without ever waiting for their device.

    What a device has not answered yet counts as finite; the answer is there an evaluation later.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[tuple[int, Tensor, torch.cuda.Event | None]] = []

    def note(self, step: int, prediction: Tensor) -> None:
        """Asks for the prediction of an evaluation."""
        # A sum is not finite as soon as one element is not, and costs a single pass.
        finite = torch.isfinite(prediction.detach().sum(dtype=torch.float32))
        if not finite.is_cuda:
            self._pending.append((step, finite, None))
            return
        answer = torch.empty_like(finite, device="cpu", pin_memory=True)
        answer.copy_(finite, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves the constructor bare
        event.record()
        self._pending.append((step, answer, event))

    def broken(self) -> int | None:
        """The newest evaluation that is known by now not to have been finite, or None."""
        asked, self._pending = self._pending, []
        broken = None
        for step, finite, event in asked:
            if event is not None and not event.query():  # type: ignore[no-untyped-call]  # torch leaves it bare
                self._pending.append((step, finite, event))
            elif not bool(finite):
                broken = step
        return broken
