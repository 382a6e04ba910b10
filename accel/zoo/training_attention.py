"""Attention of Flux and of Wan for training on CPUs.

The same functions as diffusers' processors, written with plain matrix products, whose backward pass
is several times faster there than that of fused attention.
"""

from typing import Any

import torch
from torch import Tensor


class MatmulAttention:
    """Attention processor for `FluxAttention`; install with `set_attn_processor`."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Hidden states [B, N, C], preceded in two-stream blocks by those of the text [B, T, C].

        Raises:
            ValueError: a mask was given; Flux's pipeline never gives one.
        """
        if attention_mask is not None or image_rotary_emb is None:
            raise ValueError("MatmulAttention takes rotary embeddings and no mask.")
        query, key, value = _heads(
            hidden_states, (attn.to_q, attn.to_k, attn.to_v), (attn.norm_q, attn.norm_k)
        )
        if encoder_hidden_states is not None:
            added = _heads(
                encoder_hidden_states,
                (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj),
                (attn.norm_added_q, attn.norm_added_k),
            )
            query, key, value = (
                torch.cat(pair, dim=2) for pair in zip(added, (query, key, value), strict=True)
            )
        query, key = _rotate(query, image_rotary_emb), _rotate(key, image_rotary_emb)
        mixed = _mix(query, key, value)
        if encoder_hidden_states is None:
            return mixed
        text_length = encoder_hidden_states.shape[1]
        text, image = mixed[:, :text_length], mixed[:, text_length:]
        return attn.to_out[0](image), attn.to_add_out(text)


class WanMatmulAttention:
    """Attention processor for `WanAttention`; install with `set_attn_processor`."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Hidden states [B, N, C], looking at themselves or at the text [B, T, C].

        Raises:
            ValueError: a mask was given; Wan's text to video pipeline never gives one.
        """
        if attention_mask is not None:
            raise ValueError("WanMatmulAttention takes no mask.")
        seen = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            part.unflatten(2, (attn.heads, -1)).transpose(1, 2)
            for part in (
                _rms_norm(attn.to_q(hidden_states), attn.norm_q),
                _rms_norm(attn.to_k(seen), attn.norm_k),
                attn.to_v(seen),
            )
        )
        if rotary_emb is not None:
            # [1, N, 1, D] to [N, D]
            cosine, sine = (table[0, :, 0].float() for table in rotary_emb)
            query, key = _rotate(query, (cosine, sine)), _rotate(key, (cosine, sine))
        mixed: Tensor = attn.to_out[0](_mix(query, key, value))
        return mixed


def _mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention of [B, H, N, D], its heads side by side: [B, N, H * D]."""
    scores = torch.matmul(query * query.shape[-1] ** -0.5, key.transpose(-1, -2))
    mixed = torch.matmul(scores.softmax(-1, dtype=query.dtype), value)
    return mixed.transpose(1, 2).flatten(2)


def _heads(
    hidden_states: Tensor, projections: tuple[Any, ...], norms: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each [B, H, N, D], the first two normalised."""
    query, key, value = (
        project(hidden_states).unflatten(-1, (-1, norms[0].weight.shape[0])).transpose(1, 2)
        for project in projections
    )
    return _rms_norm(query, norms[0]), _rms_norm(key, norms[1]), value


def _rms_norm(x: Tensor, norm: Any) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    normalised: Tensor = wide * scale * norm.weight
    return normalised.to(x.dtype)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of [B, H, N, D] by cosines and sines [N, D], pairs interleaved."""
    cosine, sine = rotary
    wide = x.float()
    pairs = wide.reshape(*wide.shape[:-1], -1, 2)
    turned = torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)
    return (wide * cosine + turned * sine).to(x.dtype)
