"""The forward pass of the language models as training runs it on CPUs.

The same function as `LlamaForCausalLM`, with few and large operations: one product for query, key
and value, one for both halves of the MLP, plain matrix products for attention, whose backward pass
is faster on CPUs than that of fused attention, and weights cast once per step.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

Weights = dict[str, Tensor]


def cast_weights(model: "LlamaForCausalLM", dtype: torch.dtype) -> Weights:
    """Every weight in `dtype`, by name, still part of the graph."""
    return {name: weight.to(dtype) for name, weight in model.named_parameters()}


def hidden_states(
    model: "LlamaForCausalLM", weights: Weights, input_ids: Tensor, positions: Tensor, bias: Tensor
) -> Tensor:
    """What `lm_head` reads, [B, N, C], in the type of `weights`.

    Args:
        model: Where the sizes and rotary frequencies come from.
        weights: What `cast_weights` gave.
        input_ids: Token ids, [B, N].
        positions: Where each column stands, [N].
        bias: Added to the attention scores, [B, 1, 1 or N, N].
    """
    eps = model.config.rms_norm_eps
    hidden = F.embedding(input_ids, weights["model.embed_tokens.weight"])
    rotary = model.model.rotary_emb(hidden, positions[None])
    cosine, sine = (part[:, None] for part in rotary)
    for number in range(model.config.num_hidden_layers):
        layer = f"model.layers.{number}."
        normed = _rms_norm(hidden, weights[f"{layer}input_layernorm.weight"], eps)
        hidden = hidden + _attention(normed, weights, f"{layer}self_attn.", (cosine, sine), bias)
        normed = _rms_norm(hidden, weights[f"{layer}post_attention_layernorm.weight"], eps)
        hidden = hidden + _mlp(normed, weights, f"{layer}mlp.")
    return _rms_norm(hidden, weights["model.norm.weight"], eps)


def _rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(hidden, weight.shape, weight, eps)


def _attention(
    hidden: Tensor, weights: Weights, name: str, rotary: tuple[Tensor, Tensor], bias: Tensor
) -> Tensor:
    cosine, sine = rotary
    head_dim = cosine.shape[-1]
    joint = torch.cat([weights[f"{name}{part}_proj.weight"] for part in "qkv"])
    # [B, N, 3 H D] to three of [B, H, N, D]
    split = F.linear(hidden, joint).view(*hidden.shape[:2], 3, -1, head_dim)
    query, key, value = split.permute(2, 0, 3, 1, 4)
    query, key = _rotate(query, cosine, sine), _rotate(key, cosine, sine)
    scores = torch.matmul(query * head_dim**-0.5, key.transpose(-1, -2)) + bias
    mixed = torch.matmul(scores.softmax(-1), value).transpose(1, 2).flatten(2)
    return F.linear(mixed, weights[f"{name}o_proj.weight"])


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def _mlp(hidden: Tensor, weights: Weights, name: str) -> Tensor:
    joint = torch.cat([weights[f"{name}{part}_proj.weight"] for part in ("gate", "up")])
    gate, up = F.linear(hidden, joint).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, weights[f"{name}down_proj.weight"])
