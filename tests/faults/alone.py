"""A guidance branch replayed without the others: what it must compute beside them, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import accel
from accel.method import Method
from caching import FirstBlockCache
from tests.tiny import Case, Pipeline

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0, max_streak=2)
CallRecord = tuple[dict[str, Any], Tensor]


@contextmanager
def recording(pipe: Pipeline, case: Case) -> Iterator[list[CallRecord]]:
    """Records the keyword arguments and the output of every denoiser call."""
    calls: list[CallRecord] = []

    def note(_: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        assert not args
        calls.append((kwargs, output[0].clone()))

    handle = case.denoiser(pipe).register_forward_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def replayed_alone(
    case: Case, calls: list[CallRecord], steps: list[int], method: Method = SKIPPING
) -> list[Tensor]:
    """Returns what one branch computes when there is no other, at the evaluations it had."""
    denoiser = case.denoiser(case.make())
    handle = accel.patch(denoiser, method)
    outputs = []
    with torch.no_grad(), handle.generation(6):
        for step in range(6):
            if step in steps:
                kwargs, _ = calls[steps.index(step)]
                outputs.append(denoiser(**kwargs)[0])
            handle.advance()
    return outputs
