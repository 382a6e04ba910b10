"""Pipelines that take more than a prompt: a control image, a picture to start from or to obey."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
from torch import Tensor

from tests.tiny import calls, models
from tests.tiny.cases import Case, Pipeline, Request
from tests.tiny.models import POOLED_DIM, TEXT_DIM, Denoiser, shaken
from tests.tiny.pipelines import assemble, flow

_IMAGE_DIM = 8


@dataclass(frozen=True, slots=True)
class Conditioned:
    """A pipeline, and its further input in two versions that must make a difference."""

    case: Case
    this: dict[str, Any]
    other: dict[str, Any]

    def __str__(self) -> str:
        return self.case.name


def picture(seed: int, channels: int = 3, size: int = 64) -> Tensor:
    """Returns an image [1, C, H, W] of smooth noise between 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, channels, 4, 4, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


def image_vae(latent_channels: int) -> Denoiser:
    """Returns an autoencoder that shrinks images eightfold."""
    model = diffusers.AutoencoderKL(
        block_out_channels=(4, 4, 4, 4),
        norm_num_groups=2,
        latent_channels=latent_channels,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=1,
        shift_factor=0.1,
    )
    return shaken(model)


def _wan_vae() -> Denoiser:
    model = diffusers.AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    return shaken(model)


def _cogvideox_vae() -> Denoiser:
    model = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=(4, 4, 4, 4),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
    )
    return shaken(model)


def _flux_controlnet(*, hint: bool) -> Denoiser:
    model = diffusers.FluxControlNetModel(
        patch_size=2 if hint else 1,
        in_channels=64,
        num_layers=2,
        num_single_layers=1,
        attention_head_dim=12,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        pooled_projection_dim=POOLED_DIM,
        axes_dims_rope=(4, 4, 4),
        conditioning_embedding_channels=16 if hint else None,
    )
    return shaken(model, seed=1, gain=4.0)


def _sd3_controlnet() -> Denoiser:
    model = diffusers.SD3ControlNetModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        caption_projection_dim=16,
        pooled_projection_dim=POOLED_DIM,
        pos_embed_max_size=16,
    )
    return shaken(model, seed=1, gain=4.0)


def _image_to_video_wan() -> Denoiser:
    # Noise, a mask of four channels, and the first frame go in; only noise comes out.
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=12,
        out_channels=4,
        text_dim=TEXT_DIM,
        freq_dim=16,
        ffn_dim=32,
        num_layers=4,
        rope_max_seq_len=32,
    )
    return shaken(model)


def _image_to_video_cogvideox() -> Denoiser:
    model = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=8,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=TEXT_DIM,
        num_layers=4,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=5,
    )
    return shaken(model)


def ip_adapter(transformer: Denoiser) -> dict[str, dict[str, Tensor]]:
    """Returns random weights of an image prompt adapter for a Flux transformer."""
    generator = torch.Generator().manual_seed(2)
    width = transformer.inner_dim

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    keys = {}
    for block in range(len(transformer.transformer_blocks)):
        for name in ("to_k_ip", "to_v_ip"):
            keys[f"{block}.{name}.weight"] = weight(width, TEXT_DIM)
            keys[f"{block}.{name}.bias"] = weight(width)
    projection = {
        "proj.weight": weight(4 * TEXT_DIM, _IMAGE_DIM),
        "proj.bias": weight(4 * TEXT_DIM),
        "norm.weight": torch.ones(TEXT_DIM),
        "norm.bias": torch.zeros(TEXT_DIM),
    }
    return {"image_proj": projection, "ip_adapter": keys}


def _with_ip_adapter() -> Pipeline:
    pipe = assemble(diffusers.FluxPipeline, flow(), transformer=models.flux())
    pipe.load_ip_adapter(
        ip_adapter(pipe.transformer),
        weight_name="",
        image_encoder_pretrained_model_name_or_path=None,
    )
    return pipe


def _maker(cls_name: str, scheduler: Callable[[], Any], **parts: Any) -> Callable[[], Pipeline]:
    def make() -> Pipeline:
        built = {name: part() for name, part in parts.items()}
        return assemble(getattr(diffusers, cls_name), scheduler(), **built)

    return make


def _seeded(
    arguments: Callable[[Request], dict[str, Any]], **others: Any
) -> Callable[[Request], dict[str, Any]]:
    """Returns these arguments; some pipelines encode their image with torch's own randomness."""

    def make(request: Request) -> dict[str, Any]:
        torch.manual_seed(request.seed)
        return arguments(request) | others

    return make


def _prompt_image(seed: int) -> dict[str, Any]:
    embeds = [torch.randn(1, 1, _IMAGE_DIM, generator=torch.Generator().manual_seed(seed))]
    zeros = [torch.zeros(1, 1, _IMAGE_DIM)]
    return {"ip_adapter_image_embeds": embeds, "negative_ip_adapter_image_embeds": zeros}


def _latent_image(seed: int) -> Tensor:
    return torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(seed))


def _frame(seed: int) -> dict[str, Any]:
    return {"image": picture(seed)}


_MASK = torch.ones(1, 1, 64, 64).tril()
_INPAINT = {"mask_image": _MASK, "strength": 0.9}


def _from_strength(strength: float) -> Callable[[int], int]:
    return lambda steps: steps - int(max(steps - steps * strength, 0))


_ALL = (
    Conditioned(
        Case(
            "flux_controlnet",
            _maker(
                "FluxControlNetPipeline",
                flow,
                transformer=models.flux,
                vae=lambda: image_vae(16),
                controlnet=lambda: _flux_controlnet(hint=False),
            ),
            _seeded(calls.flux),
            cfg="two-call",
        ),
        {"control_image": picture(1)},
        {"control_image": picture(2)},
    ),
    Conditioned(
        Case(
            "flux_controlnet_hint",
            _maker(
                "FluxControlNetPipeline",
                flow,
                transformer=models.flux,
                vae=lambda: image_vae(16),
                controlnet=lambda: _flux_controlnet(hint=True),
            ),
            _seeded(calls.flux),
            cfg="two-call",
        ),
        {"control_image": picture(1)},
        {"control_image": picture(2)},
    ),
    Conditioned(
        Case(
            "sd3_controlnet",
            _maker(
                "StableDiffusion3ControlNetPipeline",
                flow,
                transformer=models.sd3,
                vae=lambda: image_vae(4),
                controlnet=_sd3_controlnet,
            ),
            _seeded(calls.sd3),
            cfg="batched",
        ),
        {"control_image": picture(1)},
        {"control_image": picture(2)},
    ),
    Conditioned(
        Case("flux_ip_adapter", _with_ip_adapter, calls.flux, cfg="two-call"),
        _prompt_image(1),
        _prompt_image(2),
    ),
    Conditioned(
        Case(
            "flux_inpaint",
            _maker(
                "FluxInpaintPipeline",
                flow,
                transformer=models.flux,
                vae=lambda: image_vae(16),
            ),
            _seeded(calls.flux, **_INPAINT),
            cfg="two-call",
            evaluations=_from_strength(0.9),
        ),
        _frame(1),
        _frame(2),
    ),
    Conditioned(
        Case(
            "flux_kontext",
            _maker("FluxKontextPipeline", flow, transformer=models.flux),
            _seeded(calls.flux, max_area=64 * 64),
            cfg="two-call",
        ),
        {"image": _latent_image(1)},
        {"image": _latent_image(2)},
    ),
    Conditioned(
        Case(
            "wan_i2v",
            _maker("WanImageToVideoPipeline", flow, transformer=_image_to_video_wan, vae=_wan_vae),
            calls.wan,
            cfg="two-call",
        ),
        _frame(1),
        _frame(2),
    ),
    Conditioned(
        Case(
            "cogvideox_i2v",
            _maker(
                "CogVideoXImageToVideoPipeline",
                diffusers.CogVideoXDDIMScheduler,
                transformer=_image_to_video_cogvideox,
                vae=_cogvideox_vae,
            ),
            calls.wan,
            cfg="batched",
        ),
        _frame(1),
        _frame(2),
    ),
)

CONDITIONED: dict[str, Conditioned] = {item.case.name: item for item in _ALL}
