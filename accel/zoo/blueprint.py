"""Untrained parts of the zoo's image pipelines, and how whole pipelines are put together."""

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accel.zoo.vocabulary import CLIP_LENGTH, T5_MAX_LENGTH, clip_tokenizer, t5_tokenizer

if TYPE_CHECKING:
    from diffusers import (
        AutoencoderKL,
        DDIMScheduler,
        DiffusionPipeline,
        FluxPipeline,
        FluxTransformer2DModel,
        StableDiffusionPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextModel, T5EncoderModel

LATENT_CHANNELS = 4
TEXT_DIM = 128
UNET_CHANNELS = (48, 96, 128)


def new_vae() -> "AutoencoderKL":
    """An autoencoder with one downsampling: [B, 3, 64, 64] to [B, 4, 32, 32]."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=64,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def new_transformer() -> "FluxTransformer2DModel":
    """The denoiser: 2 double and 6 single blocks of 3 heads by 64, about 6.5 M parameters."""
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * LATENT_CHANNELS,
        num_layers=2,
        num_single_layers=6,
        attention_head_dim=64,
        num_attention_heads=3,
        joint_attention_dim=TEXT_DIM,
        pooled_projection_dim=TEXT_DIM,
        guidance_embeds=False,
        axes_dims_rope=(8, 28, 28),
    )
    _start_as_identity(model)
    return model


def _start_as_identity(model: "FluxTransformer2DModel") -> None:
    """Zero all modulations and the output layer (adaLN-Zero, arXiv 2212.09748)."""
    norms = [block.norm1 for block in model.transformer_blocks]
    norms += [block.norm1_context for block in model.transformer_blocks]
    norms += [block.norm for block in model.single_transformer_blocks]
    for linear in [*(norm.linear for norm in norms), model.norm_out.linear, model.proj_out]:
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)


def new_clip() -> "CLIPTextModel":
    """A two-layer CLIP text model; its pooled output is [B, 128]."""
    from transformers import CLIPTextConfig, CLIPTextModel

    tokenizer = clip_tokenizer()
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_DIM,
        intermediate_size=4 * TEXT_DIM,
        projection_dim=TEXT_DIM,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=CLIP_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return CLIPTextModel(config)


def new_t5() -> "T5EncoderModel":
    """A two-layer T5 encoder; its hidden states are [B, N, 128]."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=len(t5_tokenizer()),
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
    return T5EncoderModel(config)


def new_unet() -> "UNet2DConditionModel":
    """The denoiser of scenes-unet: three levels of two layers, about 7.9 M parameters.

    The two deeper levels and the middle attend to the text; the shallowest, where a layer costs
    most, only convolves.
    """
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=32,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=UNET_CHANNELS,
        layers_per_block=2,
        cross_attention_dim=TEXT_DIM,
        # For UNets of this class diffusers calls the number of heads so; a head has 32 dimensions.
        attention_head_dim=tuple(channels // 32 or 1 for channels in UNET_CHANNELS),
        norm_num_groups=16,
    )


def new_ddim() -> "DDIMScheduler":
    """The scheduler of scenes-unet, for the prediction of noise.

    Linear betas leave a signal of 0.006 in the last step, where Stable Diffusion's leave 0.07: the
    noise that sampling starts from does not tell a ground colour. Steps are spaced from that last
    step on (arXiv 2305.08891).
    """
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        beta_schedule="linear",
        beta_start=1e-4,
        beta_end=0.02,
        prediction_type="epsilon",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=False,
        # Trailing spacing has no use for it, but the pipeline replaces anything else.
        steps_offset=1,
    )


def flux_pipeline(
    vae: "AutoencoderKL",
    transformer: "FluxTransformer2DModel",
    clip: "CLIPTextModel",
    t5: "T5EncoderModel",
) -> "FluxPipeline":
    """A stock `FluxPipeline` of these parts."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        tokenizer=clip_tokenizer(),
        tokenizer_2=t5_tokenizer(),
        vae=vae,
        transformer=transformer,
        text_encoder=clip,
        text_encoder_2=t5,
    )


def unet_pipeline(
    vae: "AutoencoderKL", unet: "UNet2DConditionModel", clip: "CLIPTextModel"
) -> "StableDiffusionPipeline":
    """A stock `StableDiffusionPipeline` of these parts, without a safety checker."""
    from diffusers import StableDiffusionPipeline

    return StableDiffusionPipeline(
        scheduler=new_ddim(),
        tokenizer=clip_tokenizer(),
        vae=vae,
        unet=unet,
        text_encoder=clip,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def unshifted(vae: "AutoencoderKL") -> "AutoencoderKL":
    """A copy that scales its latents to a mean square of 1 and does not shift them.

    `StableDiffusionPipeline` knows no shift; whoever ignores one decodes colours off by a constant.
    """
    twin = copy.deepcopy(vae)
    deviation, mean = 1 / float(vae.config.scaling_factor), float(vae.config.shift_factor or 0.0)
    twin.register_to_config(shift_factor=None, scaling_factor=(deviation**2 + mean**2) ** -0.5)
    return twin


def save_pipeline(pipe: "DiffusionPipeline", folder: Path) -> None:
    """Write a complete pipeline folder with weights in fp16; the models stay as they are."""
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module):
            save_half(part, folder / name)
        elif part is not None:
            part.save_pretrained(folder / name)
    pipe.save_config(folder)


def save_half(part: Any, folder: Path) -> None:
    """Write weights in fp16 beside a config that asks for fp32, so that all parts load alike."""
    twin = copy.deepcopy(part).half()
    twin.save_pretrained(folder)
    config = folder / "config.json"
    text = config.read_text().replace('"dtype": "float16"', '"dtype": "float32"')
    config.write_text(text)
