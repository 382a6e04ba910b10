"""Published models at their own sizes, without weights, and what one forward of each costs."""

from dataclasses import dataclass, field
from typing import Any

import diffusers
import torch
from torch import Tensor

from accel.work import Inputs
from tests.tiny.models import Denoiser


def empty(*shape: int) -> Tensor:
    """Returns a tensor of this shape without memory."""
    return torch.empty(*shape, device="meta")


@dataclass(frozen=True, slots=True)
class FullSize:
    """A model's settings, the shapes of one call, and what torch's counter found on all of it.

    Attributes:
        teraflops: of one forward of one sample; core: the share of the attention core.
    """

    name: str
    cls: str
    teraflops: float
    core: float
    inputs: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)

    def make(self) -> Denoiser:
        """Returns the model; its weights take no memory."""
        with torch.device("meta"):
            return getattr(diffusers, self.cls)(**self.config).eval()

    def call(self) -> Inputs:
        """Returns the arguments of one call, in shape."""
        return Inputs(kwargs={"timestep": empty(1), **self.inputs})

    def __str__(self) -> str:
        return self.name


def _wan(*latents: int) -> dict[str, Any]:
    return {
        "hidden_states": empty(1, 16, *latents),
        "encoder_hidden_states": empty(1, 512, 4096),
    }


_WAN_14B = {"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824}

FULL_SIZES = (
    FullSize(
        "flux-dev 1024x1024",
        "FluxTransformer2DModel",
        74.4,
        0.20,
        {
            "hidden_states": empty(1, 4096, 64),
            "encoder_hidden_states": empty(1, 512, 4096),
            "pooled_projections": empty(1, 768),
            "img_ids": empty(4096, 3),
            "txt_ids": empty(512, 3),
            "guidance": empty(1),
        },
        {"guidance_embeds": True},
    ),
    FullSize(
        "wan-1.3b 480x832x81",
        "WanTransformer3DModel",
        283,
        0.70,
        _wan(21, 60, 104),
        {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960},
    ),
    FullSize(
        "wan-14b 720x1280x81", "WanTransformer3DModel", 6523, 0.72, _wan(21, 90, 160), _WAN_14B
    ),
    FullSize(
        "wan-14b 480x832x81", "WanTransformer3DModel", 1678, 0.525, _wan(21, 60, 104), _WAN_14B
    ),
    FullSize(
        "hunyuan-video 720x1280x129",
        "HunyuanVideoTransformer3DModel",
        12_069,
        0.87,
        {
            "hidden_states": empty(1, 16, 33, 90, 160),
            "encoder_hidden_states": empty(1, 256, 4096),
            "encoder_attention_mask": empty(1, 256),
            "pooled_projections": empty(1, 768),
            "guidance": empty(1),
        },
        {"guidance_embeds": True},
    ),
    FullSize(
        "sd3-medium 1024x1024",
        "SD3Transformer2DModel",
        8.90,
        0.325,
        {
            "hidden_states": empty(1, 16, 128, 128),
            "encoder_hidden_states": empty(1, 333, 4096),
            "pooled_projections": empty(1, 2048),
        },
        {
            "num_attention_heads": 24,
            "num_layers": 24,
            "sample_size": 128,
            "caption_projection_dim": 1536,
            "pooled_projection_dim": 2048,
            "out_channels": 16,
            "pos_embed_max_size": 192,
        },
    ),
    FullSize(
        "cogvideox-2b 480x720x49",
        "CogVideoXTransformer3DModel",
        # 30 blocks of 24 S d^2 + 4 S^2 d with S = 17550 + 226 and d = 1920.
        119.98,
        0.607,
        {
            "hidden_states": empty(1, 13, 16, 60, 90),
            "encoder_hidden_states": empty(1, 226, 4096),
        },
    ),
    FullSize(
        "ltx-2b 512x704x161",
        "LTXVideoTransformer3DModel",
        37.1,
        0.34,
        {
            "hidden_states": empty(1, 7392, 128),
            "encoder_hidden_states": empty(1, 128, 4096),
            "encoder_attention_mask": empty(1, 128),
            "num_frames": 21,
            "height": 16,
            "width": 22,
        },
    ),
    FullSize(
        "pixart 1024x1024",
        "PixArtTransformer2DModel",
        6.63,
        0.326,
        {
            "hidden_states": empty(1, 4, 128, 128),
            "encoder_hidden_states": empty(1, 300, 4096),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
        {"sample_size": 128, "caption_channels": 4096, "use_additional_conditions": False},
    ),
    FullSize(
        "sdxl 1024x1024",
        "UNet2DConditionModel",
        6.76,
        # 10 blocks of 4 * 4096^2 * 640 and 60 of 4 * 1024^2 * 1280; cross-attention counts apart.
        0.111,
        {
            "sample": empty(1, 4, 128, 128),
            "encoder_hidden_states": empty(1, 77, 2048),
            "added_cond_kwargs": {"text_embeds": empty(1, 1280), "time_ids": empty(1, 6)},
        },
        {
            "sample_size": 128,
            "block_out_channels": (320, 640, 1280),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "transformer_layers_per_block": (1, 2, 10),
            "attention_head_dim": (5, 10, 20),
            "cross_attention_dim": 2048,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
)
