"""The cases: stock pipelines around the tiny denoisers, called with ready-made embeddings."""

import inspect
from collections.abc import Callable
from typing import Any

import diffusers

from tests.tiny import calls, models, unets
from tests.tiny.cases import Case, Pipeline
from tests.tiny.models import Denoiser


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


def _maker(
    cls_name: str,
    model: Callable[[], Denoiser],
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


_UNET = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}

_ALL = (
    Case(
        "flux",
        _maker("FluxPipeline", models.flux),
        calls.flux,
        cfg="none",
        guidance=1.0,
        other_guidance=3.0,
    ),
    Case("flux_true_cfg", _maker("FluxPipeline", models.flux), calls.flux, cfg="two-call"),
    Case(
        "flux_img2img",
        _maker("FluxImg2ImgPipeline", models.flux),
        calls.flux_img2img,
        cfg="two-call",
        # Strength 0.7 leaves out the first three tenths of the steps, rounded down.
        evaluations=lambda steps: steps - int(max(steps - steps * 0.7, 0)),
    ),
    Case(
        "sd3",
        _maker("StableDiffusion3Pipeline", models.sd3),
        calls.sd3,
        cfg="batched",
        other_scheduler=_flow_heun_from,
    ),
    Case(
        "sd3_heun",
        _maker("StableDiffusion3Pipeline", models.sd3, diffusers.FlowMatchHeunDiscreteScheduler),
        calls.sd3,
        cfg="batched",
        evaluations=_heun_evaluations,
    ),
    Case(
        "sd3_skip_layer",
        _maker("StableDiffusion3Pipeline", models.sd3),
        calls.sd3_skip_layer,
        cfg="batched",
    ),
    Case(
        "pixart",
        _maker("PixArtAlphaPipeline", models.pixart, diffusers.DPMSolverMultistepScheduler),
        calls.pixart,
        cfg="batched",
        callback=False,
        fewest_steps=2,
        other_scheduler=_heun_from,
    ),
    Case(
        "wan",
        _maker("WanPipeline", models.wan),
        calls.wan,
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
        calls.wan,
        cfg="two-call",
        denoiser_names=("transformer", "transformer_2"),
    ),
    Case(
        "hunyuan_video",
        _maker("HunyuanVideoPipeline", models.hunyuan_video),
        calls.hunyuan_video,
        cfg="two-call",
    ),
    Case(
        "cogvideox",
        _maker("CogVideoXPipeline", models.cogvideox, diffusers.CogVideoXDDIMScheduler),
        calls.wan,
        cfg="batched",
    ),
    Case("ltx", _maker("LTXPipeline", models.ltx), calls.ltx, cfg="batched"),
    Case(
        "qwen_image",
        _maker("QwenImagePipeline", models.qwen_image),
        calls.qwen_image,
        cfg="two-call",
    ),
    Case(
        "mochi",
        _maker("MochiPipeline", models.mochi),
        calls.mochi,
        cfg="batched",
        # Its schedule has a linear and a quadratic half.
        fewest_steps=2,
    ),
    Case(
        "flux2",
        _maker("Flux2Pipeline", models.flux2),
        calls.flux2,
        cfg="none",
        other_guidance=1.0,
    ),
    Case("chroma", _maker("ChromaPipeline", models.chroma), calls.chroma, cfg="two-call"),
    Case("aura_flow", _maker("AuraFlowPipeline", models.aura_flow), calls.aura_flow, cfg="batched"),
    Case("sana", _maker("SanaPipeline", models.sana), calls.sana, cfg="batched"),
    Case("cogview4", _maker("CogView4Pipeline", models.cogview4), calls.sd, cfg="two-call"),
    Case(
        "dit",
        _maker("DiTPipeline", models.dit, ddim, vae=models.vae),
        calls.dit,
        cfg="batched",
        sizes={"a": (8, 8)},
        callback=False,
        other_scheduler=_heun_from,
    ),
    Case(
        "dit_heun",
        _maker("DiTPipeline", models.dit, diffusers.HeunDiscreteScheduler, vae=models.vae),
        calls.dit,
        cfg="batched",
        sizes={"a": (8, 8)},
        callback=False,
        evaluations=_heun_evaluations,
    ),
    Case(
        "sd15",
        _maker("StableDiffusionPipeline", models.unet, ddim, "unet", **_UNET),
        calls.sd,
        cfg="batched",
        family="unet",
        denoiser_names=("unet",),
        other_scheduler=_heun_from,
    ),
    Case(
        "sd15_img2img",
        _maker(
            "StableDiffusionImg2ImgPipeline",
            models.unet,
            ddim,
            "unet",
            **_UNET,
        ),
        calls.sd_img2img,
        cfg="batched",
        family="unet",
        denoiser_names=("unet",),
        # Here strength 0.7 keeps seven tenths of the steps, rounded down.
        evaluations=lambda steps: int(steps * 0.7),
        fewest_steps=2,
    ),
    Case(
        "sdxl",
        _maker(
            "StableDiffusionXLPipeline",
            models.unet_xl,
            diffusers.EulerDiscreteScheduler,
            "unet",
        ),
        calls.sdxl,
        cfg="batched",
        family="unet",
        denoiser_names=("unet",),
    ),
    Case(
        "animatediff",
        _maker("AnimateDiffPipeline", unets.motion, ddim, "unet"),
        calls.animatediff,
        cfg="batched",
        family="unet",
        denoiser_names=("unet",),
    ),
)

CASES: dict[str, Case] = {case.name: case for case in _ALL}
