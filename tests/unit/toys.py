"""Denoisers small enough to compute by hand, in no table of specs, and loops that drive them."""

from typing import Any

import torch
from torch import Tensor, nn

import accel

OPEN: dict[str, Any] = {"warmup": 0, "tail": 0, "min_steps": 0, "max_streak": None}
"""No guard of a stack cache but those that its own inputs trip."""


class Scale(nn.Module):
    """A block that multiplies its stream."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)), requires_grad=False)
        self.calls = 0

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.calls += 1
        return hidden_states * self.factor


class Chain(nn.Module):
    """Blocks one after the other: 1 -> 2 -> 6 -> 30 with factors 2, 3, 5."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scale(factor) for factor in factors)

    def forward(self, hidden_states: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states

    def calls(self) -> list[int]:
        return [block.calls for block in self.blocks]


class Pair(nn.Module):
    """A two-stream block that returns the text first, as Flux does."""

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        return encoder_hidden_states * 3, hidden_states * 2 + encoder_hidden_states.sum()


class PairChain(nn.Module):
    """Three two-stream blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pair() for _ in range(3))

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        for block in self.blocks:
            encoder_hidden_states, hidden_states = block(hidden_states, encoder_hidden_states)
        return hidden_states


def drive(
    model: nn.Module, handle: accel.Patch, inputs: list[Tensor], *others: Tensor
) -> list[Any]:
    """Returns the outputs of one generation that feeds these inputs, one an evaluation."""
    outputs = []
    with handle.generation(len(inputs)):
        for hidden_states in inputs:
            outputs.append(model(hidden_states, *others))
            handle.advance()
    return outputs


def ones(*values: float) -> list[Tensor]:
    """Returns one [1, 1, 1] stream a value."""
    return [torch.full((1, 1, 1), float(value)) for value in values]


class Adding(nn.Module):
    """A block that adds what each of its modules makes of the stream, by the modules' names."""

    def __init__(self, **factors: float) -> None:
        super().__init__()
        for name, factor in factors.items():
            setattr(self, name, Scale(factor))

    def forward(self, hidden_states: Tensor) -> Tensor:
        for module in self.children():
            hidden_states = hidden_states + module(hidden_states)
        return hidden_states


class Tower(nn.Module):
    """Blocks that add, one after the other: two with attn=1 and attn=2 make 1 -> 2 -> 6."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden_states: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states

    def calls(self, name: str) -> list[int]:
        """How often the module of this name ran, block by block."""
        return [getattr(block, name).calls for block in self.blocks]


def probed(model: nn.Module, method: Any, *inputs: Any) -> accel.Patch:
    """Patches a model in no table, and lets its probing call pass."""
    handle = accel.patch(model, method)
    drive(model, handle, ones(1), *inputs)
    for module in model.modules():
        if hasattr(module, "calls") and isinstance(module.calls, int):
            module.calls = 0
    return handle


class Started:
    """A patched chain 1 -> 2 -> 6 -> 30 that has had its probing call."""

    def __init__(self, method: accel.Method) -> None:
        self.model = Chain(2, 3, 5)
        self.handle = accel.patch(self.model, method)
        self.drive(1)

    def drive(self, *inputs: float) -> list[float]:
        """Returns the outputs of one generation."""
        for block in self.model.blocks:
            block.calls = 0
        return [float(output) for output in drive(self.model, self.handle, ones(*inputs))]

    @property
    def pattern(self) -> str:
        """One letter a call of the newest generation: c where it computed, r where it did not."""
        skipped = (decision.blocks_skipped for decision in self.handle.report.decisions)
        return "".join("r" if blocks else "c" for blocks in skipped)

    @property
    def reasons(self) -> list[str]:
        return [decision.reason for decision in self.handle.report.decisions]
