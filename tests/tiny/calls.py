"""What each pipeline takes for a request: embeddings ready made, latents back."""

from typing import Any

import torch

from tests.tiny.cases import Request
from tests.tiny.models import POOLED_DIM, TEXT_DIM

TOKENS = 5


def _text(request: Request, dim: int = TEXT_DIM) -> dict[str, Any]:
    return {
        "prompt_embeds": request.randn(1, TOKENS, dim),
        "negative_prompt_embeds": request.randn(2, TOKENS, dim),
    }


def _pooled(request: Request) -> dict[str, Any]:
    return {
        "pooled_prompt_embeds": request.randn(3, POOLED_DIM),
        "negative_pooled_prompt_embeds": request.randn(4, POOLED_DIM),
    }


def _masks(request: Request, names: tuple[str, str], dtype: torch.dtype) -> dict[str, Any]:
    # The negative prompt is one token shorter, so that a mask ends up where it belongs.
    positive = torch.ones(request.batch, TOKENS, dtype=dtype)
    negative = positive.clone()
    negative[:, -1] = 0
    return {names[0]: positive, names[1]: negative}


_ATTENTION_MASKS = ("prompt_attention_mask", "negative_prompt_attention_mask")


def _image(request: Request) -> dict[str, Any]:
    return {"height": request.height, "width": request.width, "output_type": "latent"}


def flux(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _pooled(request)
        | _image(request)
        | {"true_cfg_scale": request.guidance, "guidance_scale": 3.5}
    )


def flux_img2img(request: Request) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(77)
    image = torch.randn(16, request.height // 8, request.width // 8, generator=generator)
    return flux(request) | {"image": image.expand(request.batch, -1, -1, -1), "strength": 0.7}


def sd3(request: Request) -> dict[str, Any]:
    return (
        _text(request) | _pooled(request) | _image(request) | {"guidance_scale": request.guidance}
    )


def sd3_skip_layer(request: Request) -> dict[str, Any]:
    return sd3(request) | {
        "skip_guidance_layers": [1, 2],
        "skip_layer_guidance_start": 0.2,
        "skip_layer_guidance_stop": 0.7,
    }


def pixart(request: Request) -> dict[str, Any]:
    # Its default "" would be taken for a second negative prompt.
    return aura_flow(request) | {"use_resolution_binning": False, "negative_prompt": None}


def _video(request: Request) -> dict[str, Any]:
    return _image(request) | {"num_frames": 5}


def wan(request: Request) -> dict[str, Any]:
    return _text(request) | _video(request) | {"guidance_scale": request.guidance}


def hunyuan_video(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _pooled(request)
        | _masks(request, _ATTENTION_MASKS, torch.long)
        | _video(request)
        | {"true_cfg_scale": request.guidance}
    )


def ltx(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.long)
        | _image(request)
        | {"guidance_scale": request.guidance, "num_frames": 9}
    )


def mochi(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.bool)
        | _image(request)
        | {"guidance_scale": request.guidance, "num_frames": 7}
    )


def qwen_image(request: Request) -> dict[str, Any]:
    names = ("prompt_embeds_mask", "negative_prompt_embeds_mask")
    return (
        _text(request)
        | _masks(request, names, torch.long)
        | _image(request)
        | {"true_cfg_scale": request.guidance}
    )


def flux2(request: Request) -> dict[str, Any]:
    text = _text(request) | _image(request) | {"guidance_scale": request.guidance}
    del text["negative_prompt_embeds"]
    return text


def chroma(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.bool)
        | _image(request)
        | {"guidance_scale": request.guidance}
    )


def aura_flow(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.long)
        | _image(request)
        | {"guidance_scale": request.guidance}
    )


def sana(request: Request) -> dict[str, Any]:
    return pixart(request)


def dit(request: Request) -> dict[str, Any]:
    labels = [(7 + request.prompt + index) % 1000 for index in range(request.batch)]
    return {"class_labels": labels, "guidance_scale": request.guidance, "output_type": "np"}


def sd(request: Request) -> dict[str, Any]:
    return _text(request) | _image(request) | {"guidance_scale": request.guidance}


def sd_img2img(request: Request) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(77)
    image = torch.randn(4, request.height // 8, request.width // 8, generator=generator)
    given = sd(request) | {"image": image.expand(request.batch, -1, -1, -1), "strength": 0.7}
    # The size is the image's.
    return {name: value for name, value in given.items() if name not in {"height", "width"}}


def animatediff(request: Request) -> dict[str, Any]:
    return sd(request) | {"num_frames": 2}


def sdxl(request: Request) -> dict[str, Any]:
    return sd(request) | _pooled(request)
