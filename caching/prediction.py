"""The prediction in what a denoiser returns: found and replaced."""

from collections.abc import Mapping
from typing import Any

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
