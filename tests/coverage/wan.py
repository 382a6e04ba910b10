"""Tiny models of videos, shaped like Wan and like HunyuanVideo."""

from typing import Any

import torch

from tests.coverage.entry import (
    Entry,
    at_time,
    mask,
    pooled,
    rand,
    text,
    tiny,
    video_inputs,
)
from tests.tiny import models
from tests.tiny.models import POOLED_DIM, TEXT_DIM

_WAN: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": TEXT_DIM,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 3,
    "rope_max_seq_len": 32,
}
_HUNYUAN: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "num_layers": 2,
    "mlp_ratio": 2.0,
    "text_embed_dim": TEXT_DIM,
    "rope_axes_dim": (4, 4, 4),
}

WAN = (
    Entry(
        "AnyFlowTransformer3DModel",
        tiny("AnyFlowTransformer3DModel", **_WAN),
        lambda: video_inputs(
            hidden_states=rand(1, 2, 4, 4, 4), timestep=rand(1, 2).abs(), r_timestep=rand(1, 2)
        ),
    ),
    Entry(
        "ChronoEditTransformer3DModel", tiny("ChronoEditTransformer3DModel", **_WAN), video_inputs
    ),
    Entry(
        "HeliosTransformer3DModel",
        tiny(
            "HeliosTransformer3DModel",
            **{key: value for key, value in _WAN.items() if key != "rope_max_seq_len"},
            rope_dim=(4, 4, 4),
        ),
        video_inputs,
    ),
    Entry(
        "SkyReelsV2Transformer3DModel", tiny("SkyReelsV2Transformer3DModel", **_WAN), video_inputs
    ),
    Entry("WanTransformer3DModel", models.wan, video_inputs),
    Entry(
        "WanVACETransformer3DModel",
        tiny(
            "WanVACETransformer3DModel",
            **_WAN | {"num_layers": 4},
            vace_layers=[0, 2],
            vace_in_channels=6,
        ),
        lambda: video_inputs(
            control_hidden_states=rand(1, 6, 2, 4, 4),
            control_hidden_states_scale=torch.ones(2),
        ),
    ),
    Entry(
        "WanAnimateTransformer3DModel",
        tiny(
            "WanAnimateTransformer3DModel",
            **_WAN | {"in_channels": 12, "num_layers": 4},
            latent_channels=4,
            image_dim=16,
            motion_encoder_channel_sizes={"4": 8, "8": 8},
            motion_encoder_size=8,
            motion_style_dim=8,
            motion_dim=4,
            motion_encoder_dim=8,
            face_encoder_hidden_dim=8,
            face_encoder_num_heads=2,
            inject_face_latents_blocks=2,
        ),
        lambda: video_inputs(
            hidden_states=rand(1, 12, 3, 4, 4),
            encoder_hidden_states_image=rand(1, 3, 16),
            pose_hidden_states=rand(1, 4, 2, 4, 4),
            face_pixel_values=rand(1, 3, 5, 8, 8),
        ),
    ),
)

HUNYUAN = (
    Entry(
        "HunyuanVideoTransformer3DModel",
        models.hunyuan_video,
        lambda: video_inputs(
            encoder_attention_mask=mask(),
            pooled_projections=pooled(),
            guidance=at_time(6000.0),
        ),
    ),
    Entry(
        "HunyuanVideo15Transformer3DModel",
        tiny(
            "HunyuanVideo15Transformer3DModel",
            **_HUNYUAN,
            num_refiner_layers=1,
            text_embed_2_dim=8,
            image_embed_dim=8,
        ),
        lambda: video_inputs(
            encoder_attention_mask=mask(),
            encoder_hidden_states_2=text(8),
            encoder_attention_mask_2=mask(),
            image_embeds=rand(1, 3, 8),
        ),
    ),
    Entry(
        "HunyuanVideoFramepackTransformer3DModel",
        tiny(
            "HunyuanVideoFramepackTransformer3DModel",
            **_HUNYUAN,
            num_single_layers=2,
            num_refiner_layers=1,
            pooled_projection_dim=POOLED_DIM,
            guidance_embeds=False,
            has_image_proj=True,
            image_proj_dim=8,
            has_clean_x_embedder=True,
        ),
        lambda: video_inputs(
            encoder_attention_mask=mask(),
            pooled_projections=pooled(),
            image_embeds=rand(1, 3, 8),
            indices_latents=torch.arange(8, 10),
            latents_clean=rand(1, 4, 1, 4, 4),
            indices_latents_clean=torch.tensor([7]),
            latents_history_2x=rand(1, 4, 2, 4, 4),
            indices_latents_history_2x=torch.tensor([5, 6]),
            latents_history_4x=rand(1, 4, 4, 8, 8),
            indices_latents_history_4x=torch.arange(4),
        ),
    ),
    Entry(
        "MotifVideoTransformer3DModel",
        tiny(
            "MotifVideoTransformer3DModel",
            **_HUNYUAN,
            num_single_layers=4,
            num_decoder_layers=2,
        ),
        lambda: video_inputs(encoder_attention_mask=mask()),
    ),
)
