"""A method that hands every self-attention to a function, and attention by its formula."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends
from torch.overrides import TorchFunctionMode

import accel
from accel.attention import Attention, answered, pictured
from accel.layers import Call
from accel.method import Binding, Method
from accel.sites import ModelSites

Answer = Callable[[Attention], Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend(Method):
    """Has `answer` answer, and notes what is not offered if `refusals` is a list."""

    answer: Answer
    refusals: list[str] | None = None
    pictures: bool = True

    def neutral(self) -> Self:
        return self

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        if self.pictures:
            yield Binding(model.denoiser, pictured)
        for site in (*model.attention, *model.temporal):
            yield Binding(site, self._attend)

    def _attend(self, call: Call) -> Any:
        note = None if self.refusals is None else self.refusals.append
        return answered(call, self.answer, refused=note)


@dataclass(slots=True)
class Seen:
    """An answer that looks at all that is offered and leaves it to the model."""

    attentions: list[Attention] = field(default_factory=list)

    def __call__(self, attention: Attention) -> None:
        self.attentions.append(attention)

    def __len__(self) -> int:
        return len(self.attentions)


def looked_at(target: Any, **options: Any) -> tuple[accel.Patch, Seen, list[str]]:
    """Patches so that all offered attention is seen; returns that, and why others were not."""
    seen, refusals = Seen(), list[str]()
    return accel.patch(target, Attend(answer=seen, refusals=refusals), **options), seen, refusals


def by_formula(attention: Attention) -> Tensor:
    """Softmax of the scores in 64 bits, over the keys that are there."""
    groups = attention.query.shape[1] // attention.key.shape[1]
    key, value = (
        part.double().repeat_interleave(groups, dim=1) for part in (attention.key, attention.value)
    )
    scores = attention.scale * attention.query.double() @ key.transpose(2, 3)
    if attention.valid is not None:
        scores = scores.masked_fill(~attention.valid[:, None, None], -torch.inf)
    return (scores.softmax(dim=-1) @ value).to(attention.query.dtype)


def by_formula_in_another_order(attention: Attention) -> Tensor:
    """The same of shuffled tokens, put back: only what is past rotary embeddings allows that."""
    tokens = attention.query.shape[2]
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(tokens))
    shuffled = Attention(
        attention.query[:, :, order],
        attention.key[:, :, order],
        attention.value[:, :, order],
        None,
        attention.scale,
        attention.ordinal,
        None,
        None if attention.valid is None else attention.valid[:, order],
    )
    return by_formula(shuffled)[:, :, order.argsort()]


class Outside(TorchFunctionMode):
    """Counts attention that comes through, by the kernels that torch may choose from."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[set[SDPBackend]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.kernels.append(set(_cur_sdpa_kernel_backends()))
        return func(*args, **(kwargs or {}))
