"""Tiny models of sound and of embeddings, parts of UNets, and models that need a cache of keys."""

from typing import Any

import torch

from tests.coverage.entry import (
    TOKENS,
    Entry,
    at_time,
    mask,
    pooled,
    rand,
    rotary,
    text,
    tiny,
)
from tests.tiny.models import TEXT_DIM

_SOUND = 6
_PART: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "num_layers": 3,
    "norm_num_groups": 2,
    "cross_attention_dim": TEXT_DIM,
}

SOUND = (
    Entry(
        "AceStepTransformer1DModel",
        tiny(
            "AceStepTransformer1DModel",
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            in_channels=18,
            audio_acoustic_hidden_dim=_SOUND,
            encoder_hidden_size=TEXT_DIM,
            sliding_window=4,
        ),
        lambda: {
            "hidden_states": rand(1, 8, _SOUND),
            "timestep": at_time(0.5),
            "timestep_r": at_time(0.5),
            "encoder_hidden_states": text(),
            "context_latents": rand(1, 8, 12),
        },
    ),
    Entry(
        "LongCatAudioDiTTransformer",
        tiny(
            "LongCatAudioDiTTransformer",
            dit_dim=16,
            dit_depth=3,
            dit_heads=2,
            dit_text_dim=TEXT_DIM,
            latent_dim=_SOUND,
        ),
        lambda: {
            "hidden_states": rand(1, 8, _SOUND),
            "encoder_hidden_states": text(),
            "encoder_attention_mask": mask(dtype=torch.bool),
            "timestep": at_time(0.5),
            "latent_cond": rand(1, 8, _SOUND, salt=3),
        },
    ),
    Entry(
        "MiniMaxMusic3Transformer1DModel",
        tiny(
            "MiniMaxMusic3Transformer1DModel",
            in_channels=_SOUND,
            condition_dim=TEXT_DIM,
            num_layers=3,
            num_attention_heads=2,
            attention_head_dim=8,
            ff_inner_dim=32,
            rotary_dim=4,
            fourier_embedding_dim=8,
        ),
        lambda: {
            "hidden_states": rand(1, _SOUND, 8),
            "timestep": at_time(0.5),
            "encoder_hidden_states": text(tokens=8),
        },
    ),
    Entry(
        "StableAudio3DiTModel",
        tiny(
            "StableAudio3DiTModel",
            io_channels=_SOUND,
            embed_dim=16,
            depth=3,
            num_heads=2,
            cond_token_dim=TEXT_DIM,
            global_cond_dim=12,
            local_add_cond_dim=0,
            timestep_features_dim=8,
            num_memory_tokens=2,
        ),
        lambda: {
            "hidden_states": rand(1, _SOUND, 8),
            "timestep": at_time(0.5),
            "encoder_hidden_states": text(),
            "global_hidden_states": pooled(),
        },
    ),
    Entry(
        "StableAudioDiTModel",
        tiny(
            "StableAudioDiTModel",
            sample_size=8,
            in_channels=_SOUND,
            num_layers=3,
            attention_head_dim=8,
            num_attention_heads=2,
            num_key_value_attention_heads=1,
            out_channels=_SOUND,
            cross_attention_dim=8,
            time_proj_dim=8,
            global_states_input_dim=12,
            cross_attention_input_dim=TEXT_DIM,
        ),
        lambda: {
            "hidden_states": rand(1, _SOUND, 8),
            "timestep": at_time(),
            "encoder_hidden_states": text(),
            "global_hidden_states": pooled()[:, None],
            "rotary_embedding": rotary(9, 4),
        },
    ),
    Entry(
        "T5FilmDecoder",
        tiny(
            "T5FilmDecoder",
            input_dims=_SOUND,
            targets_length=8,
            d_model=16,
            num_layers=3,
            num_heads=2,
            d_kv=8,
            d_ff=32,
        ),
        lambda: {
            "encodings_and_masks": [(text(), mask(dtype=torch.float))],
            "decoder_input_tokens": rand(1, 8, _SOUND),
            "decoder_noise_time": at_time(0.5),
        },
        moving="decoder_input_tokens",
    ),
)

PARTS = (
    Entry(
        "DreamLiteTransformer2DModel",
        tiny("DreamLiteTransformer2DModel", **_PART),
        lambda: {"hidden_states": rand(1, 4, 4, 4), "encoder_hidden_states": text()},
    ),
    Entry(
        "PriorTransformer",
        tiny(
            "PriorTransformer",
            num_attention_heads=2,
            attention_head_dim=8,
            num_layers=3,
            embedding_dim=TEXT_DIM,
            num_embeddings=TOKENS,
        ),
        lambda: {
            "hidden_states": rand(1, TEXT_DIM),
            "timestep": at_time(),
            "proj_embedding": rand(1, TEXT_DIM, salt=3),
            "encoder_hidden_states": text(),
        },
    ),
    Entry(
        "Transformer2DModel",
        tiny("Transformer2DModel", **_PART),
        lambda: {"hidden_states": rand(1, 4, 4, 4), "encoder_hidden_states": text()},
    ),
    Entry(
        "TransformerTemporalModel",
        tiny("TransformerTemporalModel", **_PART),
        lambda: {
            "hidden_states": rand(3, 4, 4, 4),
            "num_frames": 3,
            "encoder_hidden_states": text().expand(16, -1, -1),
        },
    ),
)

_U_SHAPED: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 6,
    "sample_size": 8,
    "patch_size": 2,
}

OLD = (
    Entry(
        "UTransformer2DModel",
        tiny("UTransformer2DModel", **_U_SHAPED, use_patch_pos_embed=True),
        lambda: {"hidden_states": rand(1, 16, 16), "hidden_states_is_embedding": True},
    ),
    Entry(
        "UniDiffuserModel",
        tiny(
            "UniDiffuserModel",
            **_U_SHAPED,
            text_dim=TEXT_DIM,
            clip_img_dim=12,
            num_text_tokens=TOKENS,
        ),
        lambda: {
            "latent_image_embeds": rand(1, 4, 8, 8),
            "image_embeds": pooled()[:, None],
            "prompt_embeds": text(),
            "timestep_img": 500,
            "timestep_text": 500,
        },
        moving="latent_image_embeds",
    ),
    Entry(
        "WuerstchenPrior",
        tiny("WuerstchenPrior", c_in=4, c=16, c_cond=TEXT_DIM, c_r=8, depth=2, nhead=2),
        lambda: {"x": rand(1, 4, 4, 4), "r": at_time(0.5), "c": text()},
        moving="x",
    ),
)


def _cosmos3() -> dict[str, Any]:
    frames, height, width = 2, 2, 2
    tokens = frames * height * width
    visual = torch.arange(TOKENS, TOKENS + tokens)
    return {
        "input_ids": torch.arange(TOKENS),
        "text_indexes": torch.arange(TOKENS),
        "position_ids": torch.arange(TOKENS + tokens).expand(3, -1),
        "und_len": TOKENS,
        "sequence_length": TOKENS + tokens,
        "vision_tokens": [rand(1, 4, frames, 2 * height, 2 * width)],
        "vision_token_shapes": [(frames, height, width)],
        "vision_sequence_indexes": visual,
        "vision_mse_loss_indexes": visual,
        "vision_timesteps": torch.full((tokens,), 500.0),
        "vision_noisy_frame_indexes": [torch.arange(frames)],
    }


def _wan_animate_2() -> dict[str, Any]:
    from diffusers.models.transformers.transformer_wan_animate_2 import WanAnimate2KVCache

    # The other mode attends by blocks, which takes minutes without a compiler.
    return {
        "hidden_states": [rand(4, 2, 4, 4)],
        "timestep": at_time(),
        "encoder_hidden_states": [text()[0]],
        "condition_latents": [rand(2, 2, 4, 4)],
        "kv_cache": WanAnimate2KVCache(3),
        "kv_cache_mode": "extract",
        "seq_len": 8,
        "offset_grid_sizes": torch.tensor([[2, 2, 2]]),
    }


KEYS = (
    Entry(
        "Cosmos3OmniTransformer",
        tiny(
            "Cosmos3OmniTransformer",
            head_dim=12,
            hidden_size=24,
            intermediate_size=32,
            latent_channel=4,
            num_attention_heads=2,
            num_hidden_layers=3,
            num_key_value_heads=1,
            patch_latent_dim=16,
            vocab_size=32,
            rope_axes_dim=(2, 2, 2),
        ),
        _cosmos3,
        moving="vision_tokens",
    ),
    Entry(
        "WanAnimate2Transformer3DModel",
        tiny(
            "WanAnimate2Transformer3DModel",
            text_len=TOKENS,
            in_dim=6,
            dim=24,
            ffn_dim=32,
            freq_dim=16,
            text_dim=TEXT_DIM,
            out_dim=4,
            num_heads=2,
            num_layers=3,
            use_img_emb=False,
        ),
        _wan_animate_2,
    ),
)
