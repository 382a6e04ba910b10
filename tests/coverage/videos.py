"""Tiny models of videos, with and without sound."""

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
_COG: dict[str, Any] = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "in_channels": 4,
    "out_channels": 4,
    "time_embed_dim": 8,
    "text_embed_dim": TEXT_DIM,
    "num_layers": 3,
    "sample_width": 8,
    "sample_height": 8,
    "sample_frames": 9,
    "max_text_seq_length": TOKENS,
}
_JOY: dict[str, Any] = {
    "in_channels": 4,
    "hidden_size": 24,
    "num_attention_heads": 2,
    "text_dim": TEXT_DIM,
    "num_layers": 3,
    "rope_dim_list": [4, 4, 4],
}


def _frames_first() -> dict[str, Any]:
    return video_inputs(hidden_states=rand(1, 3, 4, 8, 8))


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

COG = (
    Entry(
        "AllegroTransformer3DModel",
        tiny(
            "AllegroTransformer3DModel",
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=3,
            cross_attention_dim=24,
            caption_channels=TEXT_DIM,
            sample_height=4,
            sample_width=4,
            sample_frames=2,
        ),
        lambda: video_inputs(
            attention_mask=torch.ones(1, 2, 4, 4),
            encoder_attention_mask=mask(),
        ),
    ),
    Entry("CogVideoXTransformer3DModel", models.cogvideox, _frames_first),
    Entry(
        "ConsisIDTransformer3DModel",
        tiny("ConsisIDTransformer3DModel", **_COG),
        _frames_first,
    ),
    Entry(
        "CosmosTransformer3DModel",
        tiny(
            "CosmosTransformer3DModel",
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=3,
            text_embed_dim=TEXT_DIM,
            adaln_lora_dim=4,
            max_size=(4, 8, 8),
            # With it, the model resizes a mask by torchvision, which accel does not need.
            concat_padding_mask=False,
        ),
        lambda: video_inputs(fps=16),
    ),
    Entry(
        "EasyAnimateTransformer3DModel",
        tiny(
            "EasyAnimateTransformer3DModel",
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            patch_size=2,
            sample_width=4,
            sample_height=4,
            num_layers=3,
            mmdit_layers=3,
            time_embed_dim=8,
            text_embed_dim=TEXT_DIM,
        ),
        video_inputs,
    ),
    Entry(
        "LatteTransformer3DModel",
        tiny(
            "LatteTransformer3DModel",
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=4,
            out_channels=8,
            num_layers=3,
            cross_attention_dim=16,
            sample_size=8,
            patch_size=2,
            activation_fn="gelu-approximate",
            num_embeds_ada_norm=1000,
            norm_type="ada_norm_single",
            norm_elementwise_affine=False,
            caption_channels=TEXT_DIM,
            video_length=2,
        ),
        lambda: video_inputs(hidden_states=rand(1, 4, 2, 8, 8)),
    ),
    Entry(
        "MochiTransformer3DModel",
        models.mochi,
        lambda: video_inputs(12, encoder_attention_mask=mask(dtype=torch.bool)),
    ),
    Entry(
        "SanaVideoTransformer3DModel",
        tiny(
            "SanaVideoTransformer3DModel",
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=3,
            num_cross_attention_heads=2,
            cross_attention_head_dim=12,
            cross_attention_dim=24,
            caption_channels=TEXT_DIM,
            sample_size=4,
            rope_max_seq_len=32,
        ),
        video_inputs,
    ),
)

OTHER = (
    Entry(
        "JoyImageEditTransformer3DModel",
        tiny("JoyImageEditTransformer3DModel", **_JOY),
        video_inputs,
    ),
    Entry(
        "JoyImageEditPlusTransformer3DModel",
        tiny("JoyImageEditPlusTransformer3DModel", **_JOY),
        lambda: video_inputs(
            hidden_states=rand(1, 8, 4, 1, 2, 2),
            encoder_hidden_states_mask=mask(),
            shape_list=[[(1, 2, 2), (1, 2, 2)]],
        ),
    ),
    Entry(
        "Kandinsky5Transformer3DModel",
        tiny(
            "Kandinsky5Transformer3DModel",
            in_text_dim=TEXT_DIM,
            in_text_dim2=POOLED_DIM,
            time_dim=16,
            model_dim=24,
            ff_dim=32,
            num_text_blocks=2,
            num_visual_blocks=3,
            axes_dims=(4, 4, 4),
        ),
        lambda: video_inputs(
            hidden_states=rand(1, 2, 4, 4, 4),
            pooled_projections=pooled(),
            visual_rope_pos=(torch.arange(2), torch.arange(2), torch.arange(2)),
            text_rope_pos=torch.arange(TOKENS),
        ),
    ),
    Entry(
        "Kandinsky6Transformer3DModel",
        tiny(
            "Kandinsky6Transformer3DModel",
            in_visual_dim=4,
            out_visual_dim=4,
            in_text_dim=TEXT_DIM,
            in_text_dim2=POOLED_DIM,
            time_dim=16,
            model_dim=24,
            ff_dim=32,
            num_text_blocks=2,
            num_visual_blocks=3,
            axes_dims=(4, 4, 4),
            visual_cond=False,
            in_audio_dim=6,
            out_audio_dim=6,
        ),
        lambda: video_inputs(
            hidden_states=rand(1, 2, 4, 4, 4),
            pooled_projections=pooled(),
            audio_hidden_states=rand(1, 7, 6),
        ),
    ),
    Entry(
        "Kandinsky6SRTransformer3DModel",
        tiny(
            "Kandinsky6SRTransformer3DModel",
            in_visual_dim=4,
            out_visual_dim=4,
            time_dim=16,
            model_dim=24,
            ff_dim=32,
            num_visual_blocks=3,
            axes_dims=(4, 4, 4),
        ),
        lambda: {"hidden_states": rand(1, 1, 8, 8, 9), "timestep": at_time()},
    ),
    Entry(
        "LTXVideoTransformer3DModel",
        models.ltx,
        lambda: {
            "hidden_states": rand(1, 8, 8),
            "encoder_hidden_states": text(),
            "timestep": at_time(),
            "encoder_attention_mask": mask(),
            "num_frames": 2,
            "height": 2,
            "width": 2,
        },
    ),
    Entry(
        "LTX2VideoTransformer3DModel",
        tiny(
            "LTX2VideoTransformer3DModel",
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=12,
            cross_attention_dim=24,
            audio_in_channels=6,
            audio_out_channels=6,
            audio_num_attention_heads=2,
            audio_attention_head_dim=8,
            audio_cross_attention_dim=16,
            num_layers=3,
            caption_channels=TEXT_DIM,
        ),
        lambda: {
            "hidden_states": rand(1, 8, 8),
            "audio_hidden_states": rand(1, 7, 6),
            "encoder_hidden_states": text(),
            "audio_encoder_hidden_states": text(),
            "timestep": at_time(),
            "encoder_attention_mask": mask(),
            "audio_encoder_attention_mask": mask(),
            "num_frames": 2,
            "height": 2,
            "width": 2,
            "audio_num_frames": 7,
        },
    ),
    Entry(
        "MiniMaxH3Transformer3DModel",
        tiny(
            "MiniMaxH3Transformer3DModel",
            num_attention_heads=2,
            attention_head_dim=24,
            hidden_size=16,
            num_layers=3,
            num_refiner_layers=2,
            ffn_dim=32,
            in_channels=4,
            audio_in_channels=6,
            text_dim=TEXT_DIM,
            freq_dim=8,
            time_embed_hidden_dim=16,
            time_embed_dim=8,
            rope_freq_dim=4,
        ),
        lambda: {
            "hidden_states": rand(1, 8, 16),
            "audio_hidden_states": rand(1, 7, 6),
            "encoder_hidden_states": text(),
            "timestep": torch.tensor([0.5, 0.5]),
            "timestep_indices": torch.zeros(20, dtype=torch.long),
            "token_tags": torch.tensor([0] * TOKENS + [1] * 8 + [2] * 7),
            "position_ids": torch.arange(60).reshape(20, 3).float(),
            "video_indices": torch.arange(5, 13),
            "audio_indices": torch.arange(13, 20),
            "text_indices": torch.arange(5),
        },
    ),
    Entry(
        "SanaWMLTX2RefinerTransformer3DModel",
        tiny(
            "SanaWMLTX2RefinerTransformer3DModel",
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=12,
            cross_attention_dim=24,
            audio_in_channels=6,
            audio_out_channels=6,
            audio_num_attention_heads=2,
            audio_attention_head_dim=8,
            audio_cross_attention_dim=16,
            num_layers=3,
            caption_channels=TEXT_DIM,
        ),
        lambda: {
            "hidden_states": rand(1, 8, 8),
            "encoder_hidden_states": text(),
            "timestep": at_time(),
            "video_rotary_emb": tuple(part[None] for part in rotary(8, 24)),
            "encoder_attention_mask": mask(),
        },
    ),
    Entry(
        "SanaWMTransformer3DModel",
        tiny(
            "SanaWMTransformer3DModel",
            in_channels=4,
            num_layers=4,
            hidden_size=24,
            num_attention_heads=2,
            linear_head_dim=12,
            caption_channels=TEXT_DIM,
            chunk_plucker_channels=6,
            chunk_plucker_post_attn_blocks=2,
            image_size=4,
        ),
        lambda: video_inputs(
            encoder_hidden_states=rand(1, 1, TOKENS, TEXT_DIM),
            timestep=rand(1, 1, 2).abs(),
            encoder_attention_mask=mask(),
        ),
    ),
)
