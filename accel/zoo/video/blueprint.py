"""Untrained parts of scenes-video: sizes of every component of a stock `WanPipeline`."""

from typing import TYPE_CHECKING

import torch

from accel.zoo.blueprint import TEXT_DIM
from accel.zoo.video.clips import clip_words
from accel.zoo.vocabulary import T5_MAX_LENGTH, t5_tokenizer

if TYPE_CHECKING:
    from diffusers import (
        AutoencoderKLWan,
        UniPCMultistepScheduler,
        WanPipeline,
        WanTransformer3DModel,
    )
    from transformers import T5TokenizerFast, UMT5EncoderModel

LATENT_CHANNELS = 8
PATCH = (1, 2, 1)
SHIFT = 3.0
TEXT_LENGTH = 32
LAYERS = 6


def new_video_vae() -> "AutoencoderKLWan":
    """An autoencoder that halves every side and the time: [B, 3, 17, 64, 64] to [B, 8, 9, 32, 32].

    Twice fewer frames and not four times, as in the large models: four would come with sides four
    times as short and leave 1,280 tokens. Not the time as it is either: for that diffusers' Wan
    pipeline makes one frame more than it is asked for.
    """
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=16,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[True],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        scale_factor_temporal=2,
        scale_factor_spatial=2,
    )


def new_video_transformer() -> "WanTransformer3DModel":
    """The denoiser: 6 blocks of 3 heads by 64, about 3.4 M parameters.

    A token is two latent pixels, one above the other: 9 x 16 x 32 = 4,608 tokens for a whole clip,
    where square patches would leave 2,304, or make 9,216.
    """
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=PATCH,
        num_attention_heads=3,
        attention_head_dim=64,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_DIM,
        freq_dim=256,
        ffn_dim=512,
        num_layers=LAYERS,
        rope_max_seq_len=128,
    )
    _start_as_identity(model)
    return model


@torch.no_grad()
def _start_as_identity(model: "WanTransformer3DModel") -> None:
    """Zero what every block adds, and the output layer (adaLN-Zero, arXiv 2212.09748)."""
    torch.nn.init.zeros_(model.condition_embedder.time_proj.weight)
    torch.nn.init.zeros_(model.condition_embedder.time_proj.bias)
    torch.nn.init.zeros_(model.proj_out.weight)
    torch.nn.init.zeros_(model.proj_out.bias)
    for block in model.blocks:
        torch.nn.init.zeros_(block.scale_shift_table)
        torch.nn.init.zeros_(block.attn2.to_out[0].weight)
        torch.nn.init.zeros_(block.attn2.to_out[0].bias)


def clip_tokens() -> "T5TokenizerFast":
    """The tokenizer: one token for each word of the clips' grammar."""
    return t5_tokenizer(clip_words())


def new_umt5() -> "UMT5EncoderModel":
    """A two-layer UMT5 encoder; its hidden states are [B, N, 128]."""
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=len(clip_tokens()),
        d_model=TEXT_DIM,
        d_kv=TEXT_DIM // 4,
        d_ff=4 * TEXT_DIM,
        num_layers=2,
        num_heads=4,
        relative_attention_max_distance=T5_MAX_LENGTH // 4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
        use_cache=False,
        pad_token_id=0,
        eos_token_id=1,
    )
    return UMT5EncoderModel(config)


def new_unipc() -> "UniPCMultistepScheduler":
    """The scheduler of scenes-video, as published Wan models have it, most steps at high noise."""
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        solver_order=2, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT
    )


def video_pipeline(
    vae: "AutoencoderKLWan", transformer: "WanTransformer3DModel", umt5: "UMT5EncoderModel"
) -> "WanPipeline":
    """A stock `WanPipeline` of these parts."""
    from diffusers import WanPipeline

    return WanPipeline(
        tokenizer=clip_tokens(),
        text_encoder=umt5,
        vae=vae,
        transformer=transformer,
        scheduler=new_unipc(),
    )
