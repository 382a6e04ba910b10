"""Attention that is played again: a denoiser that is nothing else, so that methods can be timed."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Streams = tuple[Tensor, Tensor, Tensor]


class _Attention(nn.Module):
    """Attention over what there is for the current evaluation."""

    streams: Streams

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, N, H * D], whatever goes in."""
        out = F.scaled_dot_product_attention(*self.streams)
        return hidden_states + out.transpose(1, 2).flatten(2)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = _Attention()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """The attention's output added to what went in."""
        attended: Tensor = self.attn(hidden_states)
        return attended


class Replay(nn.Module):
    """A denoiser whose two blocks are the same attention: a single block is no stack.

    Args:
        streams: query, key and value [B, H, N, D] of every evaluation.
        lattice: frames, rows and columns of the N tokens, or None to keep that from methods.
    """

    def __init__(self, streams: Sequence[Streams], lattice: tuple[int, int, int] | None) -> None:
        super().__init__()
        self.streams = streams
        self.lattice = lattice
        self.blocks = nn.ModuleList([_Block(), _Block()])

    def forward(
        self,
        hidden_states: Tensor,
        num_frames: int | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> Tensor:
        """Hidden states [B, N, C] after the blocks."""
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states

    @torch.no_grad()
    def evaluate(self, evaluation: int) -> Tensor:
        """The sum of what the blocks' attention gives at an evaluation, [B, N, H * D]."""
        query = self.streams[evaluation][0]
        for block in self.blocks:
            block.attn.streams = self.streams[evaluation]
        batch, heads, tokens, head_dim = query.shape
        start = query.new_zeros(batch, tokens, heads * head_dim)
        names = ("num_frames", "height", "width")
        places = {} if self.lattice is None else dict(zip(names, self.lattice, strict=True))
        out: Tensor = self(start, **places)
        return out
