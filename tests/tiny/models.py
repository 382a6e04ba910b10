"""Tiny random denoisers, built from their real classes and shaken so that every block matters."""

import math
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import nn

TEXT_DIM = 16
POOLED_DIM = 12

# Modules of diffusers, whose attributes are of no declared type.
Denoiser = Any


def shaken(model: nn.Module, seed: int = 0, gain: float = 1.0) -> Denoiser:
    """Returns the model in eval mode with every parameter redrawn from one seeded generator.

    Freshly built diffusion transformers start as near-identities (zero-initialised modulation and
    output layers), so that skipping a block of theirs would go unnoticed.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        if not parameter.numel():
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1 and not name.endswith("table"):
            noise *= gain / math.sqrt(parameter[0].numel())
        elif "norm" in name and name.endswith("weight"):
            noise = 1.0 + 0.1 * noise
        else:
            noise *= 0.1
        parameter.data.copy_(noise)
    return model.eval().requires_grad_(requires_grad=False)


def flux(seed: int = 0, *, num_layers: int = 3, num_single_layers: int = 3) -> Denoiser:
    """Returns a Flux transformer with two-stream and one-stream blocks, 24 wide."""
    model = diffusers.FluxTransformer2DModel(
        in_channels=64,
        num_layers=num_layers,
        num_single_layers=num_single_layers,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        pooled_projection_dim=POOLED_DIM,
        axes_dims_rope=(4, 4, 4),
    )
    return shaken(model, seed)


def sd3(seed: int = 0) -> Denoiser:
    """Returns a Stable Diffusion 3 transformer whose last block drops the text stream."""
    model = diffusers.SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        caption_projection_dim=16,
        pooled_projection_dim=POOLED_DIM,
        pos_embed_max_size=16,
    )
    return shaken(model, seed)


def pixart(seed: int = 0) -> Denoiser:
    """Returns a PixArt-alpha transformer with learned variance (8 output channels)."""
    model = diffusers.PixArtTransformer2DModel(
        sample_size=8,
        num_layers=4,
        attention_head_dim=8,
        num_attention_heads=2,
        cross_attention_dim=16,
        caption_channels=TEXT_DIM,
        use_additional_conditions=False,
    )
    return shaken(model, seed)


def wan(seed: int = 0) -> Denoiser:
    """Returns a Wan video transformer of one 24-wide stream with cross-attention to the text."""
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=TEXT_DIM,
        freq_dim=16,
        ffn_dim=32,
        num_layers=4,
        rope_max_seq_len=32,
    )
    return shaken(model, seed)


def hunyuan_video(seed: int = 0) -> Denoiser:
    """Returns a HunyuanVideo transformer: token refiner, two-stream and one-stream blocks."""
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=2,
        num_single_layers=3,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=TEXT_DIM,
        pooled_projection_dim=POOLED_DIM,
        rope_axes_dim=(4, 4, 4),
    )
    return shaken(model, seed)


def cogvideox(seed: int = 0) -> Denoiser:
    """Returns a CogVideoX transformer with sinusoidal positions and joint attention."""
    model = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=TEXT_DIM,
        num_layers=4,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=5,
    )
    return shaken(model, seed)


def ltx(seed: int = 0) -> Denoiser:
    """Returns an LTX video transformer of one 24-wide stream."""
    model = diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=12,
        cross_attention_dim=24,
        num_layers=4,
        caption_channels=TEXT_DIM,
    )
    return shaken(model, seed)


def qwen_image(seed: int = 0) -> Denoiser:
    """Returns a Qwen-Image transformer of two-stream blocks that return the text stream first."""
    model = diffusers.QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=4,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        axes_dims_rope=(4, 4, 4),
    )
    return shaken(model, seed)


def mochi(seed: int = 0) -> Denoiser:
    """Returns a Mochi transformer whose last block leaves the text stream alone."""
    model = diffusers.MochiTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=4,
        pooled_projection_dim=POOLED_DIM,
        in_channels=12,
        text_embed_dim=TEXT_DIM,
        time_embed_dim=8,
        max_sequence_length=6,
    )
    return shaken(model, seed)


def flux2(seed: int = 0) -> Denoiser:
    """Returns a Flux 2 transformer, whose blocks take their modulation as tuples."""
    model = diffusers.Flux2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        timestep_guidance_channels=8,
        axes_dims_rope=(4, 4, 4, 4),
    )
    return shaken(model, seed)


def chroma(seed: int = 0) -> Denoiser:
    """Returns a Chroma transformer: Flux's blocks, modulated by one small network."""
    model = diffusers.ChromaTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        axes_dims_rope=(4, 4, 4),
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
    )
    return shaken(model, seed)


def aura_flow(seed: int = 0) -> Denoiser:
    """Returns an AuraFlow transformer: joint blocks, then blocks over the joined streams."""
    model = diffusers.AuraFlowTransformer2DModel(
        sample_size=16,
        num_mmdit_layers=2,
        num_single_dit_layers=3,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        caption_projection_dim=16,
        pos_embed_max_size=256,
    )
    return shaken(model, seed)


def sana(seed: int = 0) -> Denoiser:
    """Returns a Sana transformer of linear attention and convolutional MLPs."""
    model = diffusers.SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=TEXT_DIM,
        sample_size=8,
    )
    return shaken(model, seed)


def cogview4(seed: int = 0) -> Denoiser:
    """Returns a CogView 4 transformer of two-stream blocks."""
    model = diffusers.CogView4Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=4,
        attention_head_dim=8,
        num_attention_heads=2,
        text_embed_dim=TEXT_DIM,
        time_embed_dim=8,
        condition_dim=4,
        pos_embed_max_size=16,
        sample_size=8,
        rope_axes_dim=(8, 8),
    )
    return shaken(model, seed)


def dit(seed: int = 0) -> Denoiser:
    """Returns a class-conditional DiT of 8x8 latents."""
    model = diffusers.DiTTransformer2DModel(
        sample_size=8,
        num_layers=4,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        num_embeds_ada_norm=1000,
    )
    return shaken(model, seed)


def unet(seed: int = 0) -> Denoiser:
    """Returns a Stable Diffusion 1.5 shaped UNet with two levels and a mid block."""
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=2,
        norm_num_groups=4,
    )
    return shaken(model, seed)


def unet_xl(seed: int = 0) -> Denoiser:
    """Returns a Stable Diffusion XL shaped UNet: added conditions, linear projections."""
    model = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=(2, 4),
        norm_num_groups=4,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=6 * 4 + POOLED_DIM,
    )
    return shaken(model, seed)


def vae(seed: int = 0) -> Denoiser:
    """Returns a one-level image decoder at initial scale, for pipelines that always decode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = diffusers.AutoencoderKL(
            block_out_channels=(8,),
            norm_num_groups=4,
            latent_channels=4,
            down_block_types=("DownEncoderBlock2D",),
            up_block_types=("UpDecoderBlock2D",),
            layers_per_block=1,
        )
    return model.eval().requires_grad_(requires_grad=False)


DENOISERS: dict[str, Callable[[], Denoiser]] = {
    "flux": flux,
    "sd3": sd3,
    "pixart": pixart,
    "wan": wan,
    "hunyuan_video": hunyuan_video,
    "cogvideox": cogvideox,
    "ltx": ltx,
    "qwen_image": qwen_image,
    "mochi": mochi,
    "flux2": flux2,
    "chroma": chroma,
    "aura_flow": aura_flow,
    "sana": sana,
    "cogview4": cogview4,
    "dit": dit,
    "unet": unet,
    "unet_xl": unet_xl,
}
