"""Untrained parts of the zoo's Flux pipeline: sizes and seeds of every component."""

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from accel.zoo.vocabulary import (
    CLIP_LENGTH,
    T5_MAX_LENGTH,
    clip_tokenizer,
    save_tokenizers,
    t5_tokenizer,
)

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, FluxTransformer2DModel, ModelMixin
    from transformers import CLIPTextModel, PreTrainedModel, T5EncoderModel

LATENT_CHANNELS = 4
TEXT_DIM = 128


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


def save_pipeline(
    folder: Path,
    vae: "AutoencoderKL",
    transformer: "FluxTransformer2DModel",
    clip: "CLIPTextModel",
    t5: "T5EncoderModel",
) -> None:
    """Write a complete `FluxPipeline` folder with weights in fp16; the models stay as they are."""
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

    save_tokenizers(folder)
    parts = {"vae": vae, "transformer": transformer, "text_encoder": clip, "text_encoder_2": t5}
    for name, part in parts.items():
        save_half(part, folder / name)
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        tokenizer=clip_tokenizer(),
        tokenizer_2=t5_tokenizer(),
        **parts,
    )
    pipe.scheduler.save_pretrained(folder / "scheduler")
    pipe.save_config(folder)


def save_half(part: "PreTrainedModel | ModelMixin", folder: Path) -> None:
    """Write weights in fp16 beside a config that asks for fp32, so that all parts load alike."""
    twin = copy.deepcopy(part).half()
    twin.save_pretrained(folder)
    config = folder / "config.json"
    text = config.read_text().replace('"dtype": "float16"', '"dtype": "float32"')
    config.write_text(text)
