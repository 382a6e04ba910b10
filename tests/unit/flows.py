"""Models made of functions, and what one call of them shows."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import accel
from accel.probe import Probe
from accel.sites import ModelSites
from caching import FirstBlockCache
from tests.unit.toys import drive

METHOD = FirstBlockCache(threshold=10, warmup=0, tail=0, min_steps=0)


def found(model: nn.Module, *inputs: Any) -> ModelSites:
    """Returns the sites that one call of the model shows."""
    with Probe(model) as probe:
        output = model(*inputs)
    return probe.sites(lambda: model(*inputs), output)


def runs(sites: ModelSites) -> list[list[str]]:
    """Returns the paths of the blocks by segment."""
    segments: dict[int, list[str]] = {}
    for site in sites.blocks:
        segments.setdefault(site.segment, []).append(site.path)
    return list(segments.values())


def reused(model: nn.Module, first: Any, second: Any, *others: Tensor) -> float:
    """Returns what a reused second step gives, after a probing call and a computed first step."""
    handle = accel.patch(model, METHOD)
    drive(model, handle, [first], *others)
    outputs = drive(model, handle, [first, second], *others)
    assert handle.report.reused == 1
    return float(outputs[1].sum())


class Model(nn.Module):
    """Blocks in a list, and a forward of one's own over them."""

    def __init__(self, blocks: Sequence[nn.Module], forward: Callable[..., Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.over = forward

    def forward(self, hidden_states: Tensor, *others: Any) -> Any:
        return self.over(self.blocks, hidden_states, *others)


class Block(nn.Module):
    """A block that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)


class Renamed(Block):
    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Skipping(Block):
    def forward(self, hidden_states: Tensor, skip: Tensor | None = None) -> Any:
        return self.function(hidden_states) if skip is None else self.function(hidden_states) + skip


class Two(Block):
    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Any:
        return self.function(hidden_states, encoder_hidden_states)


def in_a_row(blocks: nn.ModuleList, stream: Any) -> Any:
    for block in blocks:
        stream = block(stream)
    return stream
