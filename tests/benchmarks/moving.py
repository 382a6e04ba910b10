"""Queries, keys and values of attention that looks for items that move over a ground.

Nothing is learnt here. Tokens of one item are alike, items move from frame to frame, and queries
look for tokens like themselves, each head in its own way and with its own sharpness; rotary
embeddings add where a token is. Between evaluations features drift as they do while noise recedes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_FEATURES = 48
_ITEMS = 20
_SHARPNESS = (1.6, 2.0, 2.4, 1.3)
_NOISE = 0.35


@dataclass(frozen=True, slots=True)
class MovingItems:
    """What is attended to.

    Attributes:
        frames, height, width: how the tokens lie.
        heads: at most 4.
        head_dim: channels of a head.
        evaluations: of one generation.
        drift: share of every token's own noise that changes from one evaluation to the next.
        seed: of everything.
    """

    frames: int
    height: int
    width: int
    heads: int = 4
    head_dim: int = 64
    evaluations: int = 6
    drift: float = 0.1
    seed: int = 0

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.frames * self.height * self.width

    def streams(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values [1, H, N, D] of every evaluation."""
        made = torch.Generator().manual_seed(self.seed)
        places = torch.cartesian_prod(
            torch.arange(self.frames), torch.arange(self.height), torch.arange(self.width)
        ).float()
        items = self._items(places, made)
        own = torch.randn(self.tokens, _FEATURES, generator=made)
        maps = [self._maps(made) for _ in range(self.heads)]
        found = []
        for _ in range(self.evaluations):
            heads = [self._head(items + _NOISE * own, places, *parts) for parts in maps]
            found.append(tuple(torch.stack(part)[None] for part in zip(*heads, strict=True)))
            fresh = torch.randn(self.tokens, _FEATURES, generator=made)
            own = (1 - self.drift) ** 0.5 * own + self.drift**0.5 * fresh
        return found  # type: ignore[return-value]  # three of them in each

    def _items(self, places: Tensor, made: torch.Generator) -> Tensor:
        """[N, F]: what the nearest item's tokens have in common, and a slow change over places."""
        time, row, column = places.T
        size = torch.tensor([self.height, self.width])
        centre = torch.rand(_ITEMS, 2, generator=made) * size
        speed = torch.randn(_ITEMS, 2, generator=made) * torch.tensor([0.5, 1.2])
        radius = 2 + 3 * torch.rand(_ITEMS, generator=made)
        at = centre + time[:, None, None] * speed
        gap = torch.stack([row, column], 1)[:, None] - at
        nearest = (gap.square().sum(-1) / radius.square()).argmin(1)
        lengths = torch.tensor([self.frames, self.height, self.width])
        waves = places / lengths * torch.tensor([3.0, 6.0, 6.0])
        common = torch.randn(_ITEMS, _FEATURES, generator=made)[nearest]
        return common + 0.5 * torch.sin(waves @ torch.randn(3, _FEATURES, generator=made))

    def _maps(self, made: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        shape = (_FEATURES, self.head_dim)
        to_q, other, to_v = (torch.randn(shape, generator=made) / _FEATURES**0.5 for _ in range(3))
        noise = torch.randn(self.tokens, self.head_dim, generator=made)
        return to_q, 0.6 * to_q + 0.8 * other, to_v, 0.5 * noise

    def _head(
        self, features: Tensor, places: Tensor, to_q: Tensor, to_k: Tensor, to_v: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        index = int(to_q[0, 0].abs() * 1e6) % len(_SHARPNESS)
        sharp = _SHARPNESS[index]
        q, k = (_turned(features @ each, places) * sharp for each in (to_q, to_k))
        return q, k, features @ to_v + v


def _turned(x: Tensor, places: Tensor) -> Tensor:
    """Rotary embedding: a quarter of the channels by frame, the rest by row and column."""
    whole = x.shape[1]
    sizes = (whole // 4, whole * 3 // 8, whole - whole // 4 - whole * 3 // 8)
    parts = []
    for part, place in zip(x.split(sizes, 1), places.T, strict=True):
        half = part.shape[1] // 2
        angle = place[:, None] * 100.0 ** (-torch.arange(half) / half)
        first, second = part[:, :half], part[:, half:]
        parts += [first * angle.cos() - second * angle.sin()]
        parts += [first * angle.sin() + second * angle.cos()]
    return torch.cat(parts, 1)
