"""A tiny Flux pipeline that decodes to PIL pictures, and shots with ready-made embeddings."""

from typing import Any

import diffusers
import torch

from accel.shot import Shot
from tests.tiny.models import POOLED_DIM, TEXT_DIM, flux

SIDE_PX = 32
TOKENS = 5


def flux_pictures(scheduler: Any = None, *, seed: int = 0) -> Any:
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
    pipe = diffusers.FluxPipeline(
        scheduler=scheduler or diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae.eval().requires_grad_(requires_grad=False),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=flux(seed),
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
