"""The cases: stock pipelines around the tiny denoisers, called with ready-made embeddings."""

import inspect
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import nn

from tests.tiny import models
from tests.tiny.cases import Case, Pipeline, Request
from tests.tiny.models import POOLED_DIM, TEXT_DIM

TOKENS = 5


def assemble(cls: type, scheduler: Any, **parts: Any) -> Pipeline:
    """Returns a pipeline of `cls` in which every required part that is not given is None."""
    required = {
        name: None
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    pipe = cls(**required | {"scheduler": scheduler} | parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def flow(**config: Any) -> Any:
    """Returns a flow-matching Euler scheduler."""
    return diffusers.FlowMatchEulerDiscreteScheduler(**config)


def ddim() -> Any:
    """Returns Stable Diffusion's DDIM scheduler."""
    return diffusers.DDIMScheduler(steps_offset=1, clip_sample=False)


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


def _flux(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _pooled(request)
        | _image(request)
        | {"true_cfg_scale": request.guidance, "guidance_scale": 3.5}
    )


def _flux_img2img(request: Request) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(77)
    image = torch.randn(16, request.height // 8, request.width // 8, generator=generator)
    return _flux(request) | {"image": image.expand(request.batch, -1, -1, -1), "strength": 0.7}


def _sd3(request: Request) -> dict[str, Any]:
    return (
        _text(request) | _pooled(request) | _image(request) | {"guidance_scale": request.guidance}
    )


def _sd3_skip_layer(request: Request) -> dict[str, Any]:
    return _sd3(request) | {
        "skip_guidance_layers": [1, 2],
        "skip_layer_guidance_start": 0.2,
        "skip_layer_guidance_stop": 0.7,
    }


def _pixart(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.long)
        | _image(request)
        | {
            "guidance_scale": request.guidance,
            "use_resolution_binning": False,
            # Its default "" would be taken for a second negative prompt.
            "negative_prompt": None,
        }
    )


def _video(request: Request) -> dict[str, Any]:
    return _image(request) | {"num_frames": 5}


def _wan(request: Request) -> dict[str, Any]:
    return _text(request) | _video(request) | {"guidance_scale": request.guidance}


def _hunyuan_video(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _pooled(request)
        | _masks(request, _ATTENTION_MASKS, torch.long)
        | _video(request)
        | {"true_cfg_scale": request.guidance}
    )


def _ltx(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.long)
        | _image(request)
        | {"guidance_scale": request.guidance, "num_frames": 9}
    )


def _mochi(request: Request) -> dict[str, Any]:
    return (
        _text(request)
        | _masks(request, _ATTENTION_MASKS, torch.bool)
        | _image(request)
        | {"guidance_scale": request.guidance, "num_frames": 7}
    )


def _qwen_image(request: Request) -> dict[str, Any]:
    names = ("prompt_embeds_mask", "negative_prompt_embeds_mask")
    return (
        _text(request)
        | _masks(request, names, torch.long)
        | _image(request)
        | {"true_cfg_scale": request.guidance}
    )


def _dit(request: Request) -> dict[str, Any]:
    labels = [(7 + request.prompt + index) % 1000 for index in range(request.batch)]
    return {"class_labels": labels, "guidance_scale": request.guidance, "output_type": "np"}


def _sd(request: Request) -> dict[str, Any]:
    return _text(request) | _image(request) | {"guidance_scale": request.guidance}


def _sdxl(request: Request) -> dict[str, Any]:
    return _sd(request) | _pooled(request)


def _maker(
    cls_name: str,
    model: Callable[[], nn.Module],
    scheduler: Callable[[], Any] = flow,
    part: str = "transformer",
    **parts: Any,
) -> Callable[[], Pipeline]:
    def make() -> Pipeline:
        built = {name: value() if callable(value) else value for name, value in parts.items()}
        return assemble(getattr(diffusers, cls_name), scheduler(), **{part: model()}, **built)

    return make


def _heun_from(pipe: Pipeline) -> Any:
    return diffusers.HeunDiscreteScheduler.from_config(pipe.scheduler.config)


def _flow_heun_from(pipe: Pipeline) -> Any:
    del pipe
    return diffusers.FlowMatchHeunDiscreteScheduler()


def _heun_evaluations(steps: int) -> int:
    # Heun evaluates twice a step except in the last, which ends at sigma zero.
    return 2 * steps - 1


_DIT_PARTS = {"vae": models.vae}
_UNET = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}

_ALL = (
    Case(
        "flux",
        _maker("FluxPipeline", models.flux),
        _flux,
        cfg="none",
        guidance=1.0,
        other_guidance=3.0,
    ),
    Case("flux_true_cfg", _maker("FluxPipeline", models.flux), _flux, cfg="two-call"),
    Case(
        "flux_img2img",
        _maker("FluxImg2ImgPipeline", models.flux),
        _flux_img2img,
        cfg="two-call",
        # Strength 0.7 leaves out the first three tenths of the steps, rounded up.
        evaluations=lambda steps: steps - int(max(steps - steps * 0.7, 0)),
    ),
    Case(
        "sd3",
        _maker("StableDiffusion3Pipeline", models.sd3),
        _sd3,
        cfg="batched",
        other_scheduler=_flow_heun_from,
    ),
    Case(
        "sd3_heun",
        _maker("StableDiffusion3Pipeline", models.sd3, diffusers.FlowMatchHeunDiscreteScheduler),
        _sd3,
        cfg="batched",
        evaluations=_heun_evaluations,
    ),
    Case(
        "sd3_skip_layer",
        _maker("StableDiffusion3Pipeline", models.sd3),
        _sd3_skip_layer,
        cfg="batched",
    ),
    Case(
        "pixart",
        _maker("PixArtAlphaPipeline", models.pixart, diffusers.DPMSolverMultistepScheduler),
        _pixart,
        cfg="batched",
        callback=False,
        fewest_steps=2,
        other_scheduler=_heun_from,
    ),
    Case(
        "wan",
        _maker("WanPipeline", models.wan),
        _wan,
        cfg="two-call",
        other_scheduler=_flow_heun_from,
    ),
    Case(
        "wan_two_stage",
        _maker(
            "WanPipeline",
            models.wan,
            transformer_2=lambda: models.wan(seed=1),
            boundary_ratio=0.6,
        ),
        _wan,
        cfg="two-call",
        denoiser_names=("transformer", "transformer_2"),
    ),
    Case(
        "hunyuan_video",
        _maker("HunyuanVideoPipeline", models.hunyuan_video),
        _hunyuan_video,
        cfg="two-call",
    ),
    Case(
        "cogvideox",
        _maker("CogVideoXPipeline", models.cogvideox, diffusers.CogVideoXDDIMScheduler),
        _wan,
        cfg="batched",
    ),
    Case("ltx", _maker("LTXPipeline", models.ltx), _ltx, cfg="batched"),
    Case(
        "qwen_image",
        _maker("QwenImagePipeline", models.qwen_image),
        _qwen_image,
        cfg="two-call",
    ),
    Case(
        "mochi",
        _maker("MochiPipeline", models.mochi),
        _mochi,
        cfg="batched",
        # Its schedule has a linear and a quadratic half.
        fewest_steps=2,
    ),
    Case(
        "dit",
        _maker("DiTPipeline", models.dit, ddim, **_DIT_PARTS),
        _dit,
        cfg="batched",
        sizes={"a": (8, 8)},
        callback=False,
        other_scheduler=_heun_from,
    ),
    Case(
        "dit_heun",
        _maker("DiTPipeline", models.dit, diffusers.HeunDiscreteScheduler, **_DIT_PARTS),
        _dit,
        cfg="batched",
        sizes={"a": (8, 8)},
        callback=False,
        evaluations=_heun_evaluations,
    ),
    Case(
        "sd15",
        _maker("StableDiffusionPipeline", models.unet, ddim, "unet", **_UNET),
        _sd,
        cfg="batched",
        family="unet",
        denoiser_names=("unet",),
        other_scheduler=_heun_from,
    ),
    Case(
        "sdxl",
        _maker(
            "StableDiffusionXLPipeline",
            models.unet_xl,
            diffusers.EulerDiscreteScheduler,
            "unet",
        ),
        _sdxl,
        cfg="batched",
        family="unet",
        denoiser_names=("unet",),
    ),
)

CASES: dict[str, Case] = {case.name: case for case in _ALL}
