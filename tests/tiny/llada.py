"""A tiny random model with the interface of LLaDA's remote code, written anew and without weights.

Names, signatures and traits are those that an adapter meets: blocks at `model.transformer.blocks`,
positions implied by the length, `_scaled_dot_product_attention` per block after the rotation, a
cache that is refused, `attention_mask` of [B, N] turned into a bias.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from tests.tiny.models import shaken

MASK_ID, END_ID = 30, 31


class LLaDAConfig(PretrainedConfig):
    """The fields of LLaDA's configuration that its code and its users read."""

    model_type = "llada"

    def __init__(self, d_model: int = 24, n_layers: int = 3, n_heads: int = 2, **kwargs: Any):
        self.d_model, self.n_layers, self.n_heads = d_model, n_layers, n_heads
        self.n_kv_heads = kwargs.pop("n_kv_heads", n_heads)
        self.mlp_hidden_size = kwargs.pop("mlp_hidden_size", 2 * d_model)
        self.rope_theta = kwargs.pop("rope_theta", 500000.0)
        self.max_sequence_length = kwargs.pop("max_sequence_length", 128)
        self.vocab_size = self.embedding_size = kwargs.pop("vocab_size", 32)
        self.mask_token_id = kwargs.pop("mask_token_id", MASK_ID)
        self.weight_tying = kwargs.pop("weight_tying", False)
        super().__init__(**{"eos_token_id": END_ID, "tie_word_embeddings": False, **kwargs})


class RotaryEmbedding(nn.Module):
    """Turns queries and keys, [B, H, N, D], by positions that the number of keys implies."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Both turned; the last query stands where the last key stands."""
        query_len, key_len, dim = q.shape[-2], k.shape[-2], q.shape[-1]
        rates = self.config.rope_theta ** -(torch.arange(0, dim, 2).float() / dim)
        angles = torch.arange(key_len).float()[:, None] * torch.cat((rates, rates))
        turn = (angles.cos(), angles.sin())
        return (
            self._turned(q, *(part[key_len - query_len :] for part in turn)),
            self._turned(k, *turn),
        )

    @staticmethod
    def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-second, first), dim=-1) * sine


class LLaDALlamaBlock(nn.Module):
    """One block; its cache argument is the pair of keys and values of LLaDA's code."""

    def __init__(self, layer_id: int, config: LLaDAConfig) -> None:
        super().__init__()
        self.layer_id, self.config = layer_id, config
        width, inner = config.d_model, config.mlp_hidden_size
        kv_width = width // config.n_heads * config.n_kv_heads
        self.attn_norm, self.ff_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.ff_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.ff_out = nn.Linear(inner, width, bias=False)
        self.rotary_emb = RotaryEmbedding(config)

    def _scaled_dot_product_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
    ) -> Tensor:
        """Attention [B, H, N, D]; never causal, whatever it is asked."""
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_bias: Tensor | None = None,
        layer_past: tuple[Tensor, Tensor] | None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Attention over [B, N, C], and keys and values before the rotation if asked for."""
        q, k, v = (
            x.unflatten(-1, (-1, self.config.d_model // self.config.n_heads)).transpose(1, 2)
            for x in (q, k, v)
        )
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), -2), torch.cat((layer_past[1], v), -2)
        present = (k, v) if use_cache else None
        q, k = self.rotary_emb(q, k)
        att = self._scaled_dot_product_attention(q, k, v, attn_mask=attention_bias)
        return self.attn_out(att.transpose(1, 2).flatten(2)), present

    def forward(
        self,
        x: Tensor,
        attention_bias: Tensor | None = None,
        layer_past: tuple[Tensor, Tensor] | None = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """The stream behind the block, and its cache."""
        normed = self.attn_norm(x)
        q, k, v = self.q_proj(normed), self.k_proj(normed), self.v_proj(normed)
        att, cache = self.attention(q, k, v, attention_bias, layer_past, use_cache)
        x = x + att
        normed = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(normed)) * self.up_proj(normed)), cache


class LLaDAOutput(NamedTuple):
    """What the inner model returns."""

    logits: Tensor
    attn_key_values: list[tuple[Tensor, Tensor]] | None
    hidden_states: tuple[Tensor, ...] | None


class LLaDAModel(nn.Module):
    """The stack, with everything in `transformer`."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.config = config
        blocks = [LLaDALlamaBlock(number, config) for number in range(config.n_layers)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.embedding_size, config.d_model),
                "emb_drop": nn.Dropout(0.0),
                "blocks": nn.ModuleList(blocks),
                "ln_f": nn.RMSNorm(config.d_model, 1e-5),
                "ff_out": nn.Linear(config.d_model, config.embedding_size, bias=False),
            }
        )

    def forward(
        self,
        input_ids: Tensor | None,
        input_embeddings: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
    ) -> LLaDAOutput:
        """Logits of every position; a cache is refused, as LLaDA refuses it."""
        assert past_key_values is None, "LLaDA keeps no cache."
        assert not use_cache, "LLaDA keeps no cache."
        parts = self.transformer
        x = parts.wte(input_ids) if input_embeddings is None else input_embeddings
        if attention_mask is not None and 0.0 in attention_mask:
            hidden = (1.0 - attention_mask.to(x.dtype))[:, None, None, :]
            padding = hidden * torch.finfo(x.dtype).min
            attention_bias = padding if attention_bias is None else attention_bias + padding
        seen = []
        x = parts.emb_drop(x)
        for block in parts.blocks:
            seen.append(x)
            x, _ = block(x, attention_bias=attention_bias)
        x = parts.ln_f(x)
        seen.append(x)
        return LLaDAOutput(parts.ff_out(x), None, tuple(seen) if output_hidden_states else None)


class LLaDAModelLM(PreTrainedModel):
    """What `AutoModel.from_pretrained(..., trust_remote_code=True)` gives for LLaDA."""

    config_class = LLaDAConfig
    base_model_prefix = "model"
    _no_split_modules = ("LLaDALlamaBlock",)

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__(config)
        self.model = LLaDAModel(config)
        self.post_init()

    def forward(  # noqa: PLR0917 - LLaDA's own signature
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Any = None,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Logits [B, N, V] that row i gives for position i."""
        if output_attentions:
            raise ValueError("output_attentions is not yet supported in LLaDA")
        outputs = self.model(
            input_ids=input_ids,
            input_embeddings=inputs_embeds,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            past_key_values=past_key_values,
            use_cache=bool(use_cache),
            output_hidden_states=output_hidden_states,
        )
        if return_dict is False:
            return (outputs.logits, *outputs[2:])
        return CausalLMOutputWithPast(logits=outputs.logits, hidden_states=outputs.hidden_states)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding table."""
        return self.model.transformer.wte

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.model.transformer.ff_out


def llada(seed: int = 0, **sizes: Any) -> LLaDAModelLM:
    """Returns a LLaDA-like model of 32 tokens, the mask 30 and the end 31, 24 wide."""
    return shaken(LLaDAModelLM(LLaDAConfig(**sizes)), seed)
