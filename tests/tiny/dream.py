"""A tiny random model with the interface of Dream's remote code, written anew, without weights.

Names, signatures and traits are those that an adapter meets: `attention_mask` is the string "full"
or a boolean tensor, positions come as `position_ids`, keys and values go through a `Cache`, and
row i - 1 of the logits predicts position i. `diffusion_generate` is Dream's plain loop.
"""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from tests.tiny.models import shaken

MASK_ID, END_ID = 30, 31


class DreamConfig(PretrainedConfig):
    """The fields of Dream's configuration that its code and its users read."""

    model_type = "Dream"

    def __init__(self, hidden_size: int = 24, num_hidden_layers: int = 3, **kwargs: Any) -> None:
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_attention_heads = kwargs.pop("num_attention_heads", 2)
        self.num_key_value_heads = kwargs.pop("num_key_value_heads", 1)
        self.intermediate_size = kwargs.pop("intermediate_size", 2 * hidden_size)
        self.rope_theta = kwargs.pop("rope_theta", 10000.0)
        self.vocab_size = kwargs.pop("vocab_size", 32)
        self.mask_token_id = kwargs.pop("mask_token_id", MASK_ID)
        super().__init__(**{"eos_token_id": END_ID, "tie_word_embeddings": False, **kwargs})


class DreamRotaryEmbedding(nn.Module):
    """Cosines and sines, [B, N, D] each, for `position_ids` [B, N]."""

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.dim = config.hidden_size // config.num_attention_heads
        self.theta = config.rope_theta

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """In the type of `x`."""
        rates = self.theta ** -(torch.arange(0, self.dim, 2).float() / self.dim)
        angles = position_ids[..., None].float() * torch.cat((rates, rates))
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class DreamSdpaAttention(nn.Module):
    """Attention with biases on query, key and value, and fewer key heads than query heads."""

    def __init__(self, config: DreamConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        kv_width = config.num_key_value_heads * self.head_dim
        self.is_causal = False
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=True)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=True)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(  # noqa: PLR0917 - Dream's own signature
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | str | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Any = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, None, Any]:
        """The mixed stream, no weights, and the cache."""
        assert position_embeddings is not None
        query, key, value = (
            project(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (_turned(x, *position_embeddings) for x in (query, key))
        if past_key_value is not None:
            key, value = past_key_value.update(key, value, self.layer_idx)
        groups = query.shape[1] // key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query,
            key.repeat_interleave(groups, 1),
            value.repeat_interleave(groups, 1),
            attn_mask=attention_mask if isinstance(attention_mask, Tensor) else None,
        )
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), None, past_key_value


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosine[:, None] + torch.cat((-second, first), dim=-1) * sine[:, None]


class DreamMLP(nn.Module):
    """The gated MLP."""

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, hidden_state: Tensor) -> Tensor:
        """[B, N, C]."""
        return self.down_proj(F.silu(self.gate_proj(hidden_state)) * self.up_proj(hidden_state))


class DreamDecoderLayer(nn.Module):
    """One layer; its output is a tuple, as in Dream's code."""

    def __init__(self, config: DreamConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = DreamSdpaAttention(config, layer_idx)
        self.mlp = DreamMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, 1e-6)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, 1e-6)

    def forward(  # noqa: PLR0917 - Dream's own signature
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | str | None = None,
        position_ids: Tensor | None = None,
        past_key_value: Any = None,
        output_attentions: bool = False,
        use_cache: bool = False,
        cache_position: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """The stream behind the layer."""
        mixed, _, _ = self.self_attn(
            self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_value=past_key_value,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
        )
        hidden_states = hidden_states + mixed
        return (hidden_states + self.mlp(self.post_attention_layernorm(hidden_states)),)


class DreamBaseModel(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = [DreamDecoderLayer(config, idx) for idx in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(config.hidden_size, 1e-6)
        self.rotary_emb = DreamRotaryEmbedding(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | str | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
    ) -> Tensor:
        """Hidden states [B, N, C]."""
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(seen, seen + hidden.shape[1])[None]
        position_embeddings = self.rotary_emb(hidden, position_ids)
        for layer in self.layers:
            (hidden,) = layer(
                hidden,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_value=past_key_values,
                use_cache=bool(use_cache),
                position_embeddings=position_embeddings,
            )
        return self.norm(hidden)


class DreamModel(PreTrainedModel):
    """What `AutoModel.from_pretrained(..., trust_remote_code=True)` gives for Dream."""

    config_class = DreamConfig
    base_model_prefix = "model"
    _no_split_modules = ("DreamDecoderLayer",)

    def __init__(self, config: DreamConfig) -> None:
        super().__init__(config)
        self.model = DreamBaseModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(  # noqa: PLR0917 - Dream's own signature
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | str | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache_position: Tensor | None = None,
        num_logits_to_keep: int = 0,
        **loss_kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits [B, N, V] of which row i predicts position i + 1."""
        hidden = self.model(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache
        )
        return MaskedLMOutput(logits=self.lm_head(hidden[:, -num_logits_to_keep:]))

    @torch.no_grad()
    def diffusion_generate(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        max_new_tokens: int = 8,
        steps: int = 8,
        eps: float = 1e-3,
    ) -> SimpleNamespace:
        """Dream's loop with `alg="maskgit_plus"` at temperature 0, `sequences` the result."""
        x = F.pad(inputs, (0, max_new_tokens), value=self.config.mask_token_id)
        allowed, positions = full_attention(attention_mask, max_new_tokens)
        times = torch.linspace(1, eps, steps + 1)
        for step in range(steps):
            masked = x == self.config.mask_token_id
            logits = self(x, allowed, positions).logits
            logits = torch.cat((logits[:, :1], logits[:, :-1]), dim=1)
            confidence, tokens = logits.softmax(-1).max(-1)
            mean_masked = masked.sum() / masked.shape[0]
            rate = 1 - times[step + 1] / times[step] if step < steps - 1 else 1
            count = int(mean_masked * rate)
            chosen = confidence.masked_fill(~masked, -torch.inf).topk(count, dim=1).indices
            x = x.scatter(1, chosen, tokens.gather(1, chosen))
        return SimpleNamespace(sequences=x)


def full_attention(
    attention_mask: Tensor | None, max_new_tokens: int
) -> tuple[Tensor | str, Tensor | None]:
    """Dream's mask and positions for prompts that padding, 0 in [B, N], may precede."""
    if attention_mask is None or bool(attention_mask.all()):
        return "full", None
    valid = F.pad(attention_mask, (0, max_new_tokens), value=1).bool()
    positions = (valid.long().cumsum(-1) - 1).masked_fill(~valid, 1)
    return valid[:, None, None, :] & valid[:, None, :, None], positions


def dream(seed: int = 0, **sizes: Any) -> DreamModel:
    """Returns a Dream-like model of 32 tokens, the mask 30 and the end 31, 24 wide."""
    return shaken(DreamModel(DreamConfig(**sizes)), seed)
