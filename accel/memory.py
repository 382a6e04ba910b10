"""Less memory for any cache: features swapped to the host, a budget, chunks, decoding in parts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from accel.copies import Overlay
from accel.errors import OptionError
from accel.layers import Call
from accel.method import Binding, require_number
from accel.pointwise import mixing_part
from accel.sites import ModelSites, Site, uncompiled
from accel.store import Store

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?(B|KiB|MiB|GiB)")
_TOKEN_DIM = 3

# How a decoder works in parts, and the switches of diffusers' decoders for it.
_DECODING: dict[str, tuple[str, ...]] = {
    "whole": (),
    "sliced": ("use_slicing",),
    "tiled": ("use_slicing", "use_tiling", "use_framewise_decoding"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LightCache:
    """Memory options for every cache: `accel.patch(pipe, DeepCache(), memory=LightCache())`.

    Swapped features give the same bits as those that stay. They travel on a stream of their own,
    for which only what is computed from them waits, on the device and never on the host. On a CPU
    both memories are the same, so that swapping only takes more of it.

    Source: arXiv 2510.05367. Departures: serves every cache of this package instead of DeepCache;
    its code offloads whole models and calls that swapping; a budget; chunks are of feed-forwards
    alone, wherever these treat each token for itself, since normalisation over a picture does not.

    What is compared with at every evaluation (the first block's change, modulated inputs) stays on
    the device and counts towards the budget. Outside of it is what has the size of the latents:
    predictions, and the noise that FasterDiffusion adds.

    Attributes:
        swap: whether kept features go to pinned memory of the host while they are not used.
        budget: the most bytes of kept features on the device at any time, as a whole number from 1
            or as "512MiB" or "2GiB"; None has no limit, and swaps everything out at once. What does
            not fit is swapped, and without swapping not kept.
        chunk_tokens: how many tokens, over all pictures and frames, go through a feed-forward at
            once, from 1; None leaves them whole. Equal up to the order of additions.
        decode: "sliced" has the decoder take pictures, and the frames of many video models, one by
            one; "tiled" in tiles too, and in groups of frames where it offers that, which shows a
            little; "whole" leaves it as it is.

    Raises:
        OptionError: for a value outside its range.
    """

    swap: bool = True
    budget: int | str | None = None
    chunk_tokens: int | None = None
    decode: str = "sliced"

    def __post_init__(self) -> None:
        if not isinstance(self.swap, bool):
            raise OptionError(f"LightCache: swap is {self.swap!r}; expected True or False.")
        if isinstance(self.budget, str):
            _parse(self.budget)
        elif self.budget is not None:
            require_number(self, "budget", self.budget, low=1, whole=True)
        if self.chunk_tokens is not None:
            require_number(self, "chunk_tokens", self.chunk_tokens, low=1, whole=True)
        if self.decode not in _DECODING:
            raise OptionError(
                f"LightCache: decode is {self.decode!r}; expected {', '.join(_DECODING)}."
            )

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes."""
        return _parse(self.budget) if isinstance(self.budget, str) else self.budget

    def open(self) -> Store | None:
        """The store of one generation, or None if features are kept as without this."""
        if not self.swap and self.budget is None:
            return None
        return Store(self.budget_bytes, swaps=self.swap)

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        """Yields the hooks of the feed-forwards that can be chunked."""
        for site in model.mlp if self.chunk_tokens is not None else ():
            if mixing_part(site.module) is None:
                yield Binding(site, self._in_chunks)

    def notes(self, model: ModelSites) -> Iterator[str]:
        """Yields what of the options has no effect on a model, in words."""
        if self.chunk_tokens is None:
            return
        left = sorted({_name(site) for site in model.mlp if mixing_part(site.module) is not None})
        if left:
            yield f"not chunked, since their tokens may not be independent: {', '.join(left)}"
        elif not model.mlp:
            yield f"{model.name} has no feed-forwards of their own that could be chunked"

    def lay_over(self, target: Any) -> Iterator[Overlay]:
        """Yields what makes a pipeline's decoders work in parts until it is taken off."""
        components = getattr(target, "components", None)
        for part in components.values() if isinstance(components, dict) else ():
            if isinstance(part, nn.Module):
                wanted = {name: True for name in _DECODING[self.decode] if name in vars(part)}
                changed = {name: True for name in wanted if vars(part)[name] is not True}
                if changed:
                    yield Overlay(part, changed)

    def _in_chunks(self, call: Call) -> Any:
        hidden, limit = call.hidden, self.chunk_tokens
        if limit is None or not _alone(call) or hidden.shape[:2].numel() <= limit:
            return call.proceed()
        outputs: list[Tensor] = []
        for chunk in torch.split(hidden.flatten(0, 1), limit):
            call.change(call.site.io.hidden, chunk.unsqueeze(0))
            outputs.append(call.proceed())
        together = torch.cat(outputs, dim=1)
        return together.view(*hidden.shape[:2], together.shape[-1])


def _parse(text: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    found = 0 if match is None else int(float(match[1]) * _UNITS[match[2]])
    if found < 1:
        raise OptionError(
            f"LightCache: budget is {text!r}; expected bytes as a whole number from 1, or a "
            'number with its unit (B, KiB, MiB, GiB) as in "2GiB".'
        )
    return found


def _alone(call: Call) -> bool:
    """Whether the only tensor that a call is given is [B, N, C]."""
    given = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
    return len(given) == 1 and call.hidden.dim() == _TOKEN_DIM


def _name(site: Site) -> str:
    return type(uncompiled(site.module)).__name__
