"""A tiny Flux pipeline that decodes to PIL pictures, and shots with ready-made embeddings."""

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from accel.shot import Shot
from accel.zoo.vocabulary import CLIP_LENGTH, clip_tokenizer, t5_tokenizer
from tests.tiny.models import POOLED_DIM, TEXT_DIM, flux, shaken

SIDE_PX = 32
TOKENS = 5


def flux_pictures(scheduler: Any = None, *, seed: int = 0, **text: Any) -> Any:
    """Returns a stock FluxPipeline of random weights whose pictures are 32 pixels wide."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vae = diffusers.AutoencoderKL(
            block_out_channels=(8, 8),
            norm_num_groups=4,
            latent_channels=16,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            scaling_factor=1.0,
            shift_factor=0.0,
        )
    names = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    pipe = diffusers.FluxPipeline(
        scheduler=scheduler or diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae.eval().requires_grad_(requires_grad=False),
        transformer=flux(seed),
        **dict.fromkeys(names) | text,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def shot(index: int = 0, *, steps: int = 8, **more: Any) -> Shot:
    """Returns a shot with embeddings and a seed of its own."""
    generator = torch.Generator().manual_seed(1000 + index)
    arguments = {
        "prompt_embeds": torch.randn(1, TOKENS, TEXT_DIM, generator=generator),
        "pooled_prompt_embeds": torch.randn(1, POOLED_DIM, generator=generator),
        "height": SIDE_PX,
        "width": SIDE_PX,
        "num_inference_steps": steps,
    }
    return Shot(prompt="", seed=index, arguments=arguments | more)


def talking_flux() -> Any:
    """Returns `flux_pictures` with tiny text encoders, so that it takes prompts."""
    clip_words, t5_words = clip_tokenizer(), t5_tokenizer()
    clip = transformers.CLIPTextConfig(
        vocab_size=len(clip_words),
        hidden_size=POOLED_DIM,
        intermediate_size=16,
        projection_dim=POOLED_DIM,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CLIP_LENGTH,
        eos_token_id=clip_words.eos_token_id,
    )
    t5 = transformers.T5Config(
        vocab_size=len(t5_words),
        d_model=TEXT_DIM,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        is_encoder_decoder=False,
    )
    return flux_pictures(
        text_encoder=shaken(transformers.CLIPTextModel(clip)),
        tokenizer=clip_words,
        text_encoder_2=shaken(transformers.T5EncoderModel(t5)),
        tokenizer_2=t5_words,
    )


def save_folder(folder: Path) -> Path:
    """Returns the folder, into which it has saved `talking_flux`."""
    talking_flux().save_pretrained(folder)
    return folder
