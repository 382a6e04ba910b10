"""The methods, peers and controls that the caching benchmark compares on each model of the zoo."""

import ast
import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import accel
import accel.zoo
from accel.control import multistep
from accel.errors import AccelUnsupportedError
from accel.method import Method
from caching import (
    PAB,
    BWCache,
    DBCache,
    DeepCache,
    FasterCache,
    FasterDiffusion,
    FirstBlockCache,
    FoCa,
    Hold,
    LinearPlan,
    MagCache,
    Newton,
    Predictor,
    TaylorSeer,
    TeaCache,
    ToCa,
)
from tests.benchmarks.peers import (
    Accel,
    CacheDit,
    Contender,
    DeepCachePackage,
    Diffusers,
    Fewer,
)
from tests.benchmarks.subjects import Subject

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.43, 0.36, 0.32, 0.25, 0.18)
_CALIBRATION_PROMPTS = 3


def sides_of(subject: Subject, pipe: Any) -> list[Contender]:
    """Everything that takes turns on a model, the controls last."""
    steps = subject.call["num_inference_steps"]
    return [*SIDES[subject.model](subject, pipe), *_fewer_steps(pipe, steps)]


def _fewer_steps(pipe: Any, steps: int) -> Iterator[Contender]:
    counts = sorted({max(2, round(steps * share)) for share in SHARES}, reverse=True)
    for count in counts:
        yield Fewer("own scheduler", pipe.scheduler, count)
    try:
        solver = multistep(pipe.scheduler)
    except AccelUnsupportedError:
        # The pipeline's own is one already.
        return
    for count in (steps, *counts):
        yield Fewer("multistep", solver, count)


def _transformer(subject: Subject, pipe: Any) -> Iterator[Contender]:
    steps = subject.call["num_inference_steps"]
    prompts = accel.zoo.prompts(subject.model, _CALIBRATION_PROMPTS, "train")

    def calibrated(method: Method) -> Any:
        return accel.calibrate(pipe, method, prompts, **subject.call)

    yield from _plans()
    yield from _stack_caches(calibrated)
    yield from _module_caches()
    yield from _cache_dit()
    yield from _masks(steps)
    yield from _diffusers(steps, _their_ratios(subject, prompts[0]))


def _plans() -> Iterator[Contender]:
    """A share of the steps, denser at the start or evenly spaced."""
    for share in (0.7, 0.6, 0.5, 0.43, 0.36, 0.32, 0.25):
        yield _ours(LinearPlan(share=share, predictor=FoCa()), "FoCa")
    for share in (0.5, 0.36):
        yield _ours(LinearPlan(share=share, predictor=Newton(order=1)), "Newton")
        yield _ours(LinearPlan(share=share, power=1, predictor=FoCa()), "FoCa, even")


def _stack_caches(calibrated: Callable[[Method], Any]) -> Iterator[Contender]:
    probed: dict[Predictor, tuple[float, ...]] = {
        Hold(): (0.06, 0.12, 0.24),
        Newton(order=1): (0.06, 0.12, 0.16, 0.24),
        FoCa(): (0.06, 0.08, 0.12, 0.16, 0.24, 0.32),
    }
    for predictor, thresholds in probed.items():
        for threshold in thresholds:
            method = FirstBlockCache(threshold=threshold, predictor=predictor)
            yield _ours(method, type(predictor).__name__)
    for threshold in (0.08, 0.16, 0.32):
        yield _ours(DBCache(head=2, threshold=threshold, predictor=FoCa()), "FoCa")
    tea, mag = calibrated(TeaCache()), calibrated(MagCache())
    for predictor, scales in ((Hold(), (2,)), (FoCa(), (1, 2, 4))):
        word = type(predictor).__name__
        for scale in scales:
            learnt = {"TeaCache": (tea, 0.15 * scale), "MagCache": (mag, 0.06 * scale)}
            for name, (method, threshold) in learnt.items():
                yield Accel(
                    f"{name}({threshold:g}), {word}",
                    replace(method, threshold=threshold, predictor=predictor),
                    f"accel {name}, {word}",
                )
    for threshold in (0.1, 0.2):
        yield _ours(BWCache(threshold=threshold, predictor=FoCa()), "FoCa")


def _module_caches() -> Iterator[Contender]:
    for interval, target in (
        (2, "stack"),
        (3, "stack"),
        (4, "stack"),
        (3, "modules"),
        (5, "modules"),
    ):
        yield _ours(TaylorSeer(interval=interval, target=target), target)
    for interval in (2, 3):
        yield _ours(PAB(spatial=interval, cross=3 * interval))
    for interval in (2, 3, 5):
        yield _ours(FasterCache(guidance_interval=interval))
    for interval in (3, 4):
        yield _ours(ToCa(interval=interval))


def _ours(method: Method, variant: str = "") -> Contender:
    name = type(method).__name__
    return Accel(str(method), method, f"accel {name}, {variant}" if variant else f"accel {name}")


def _cache_dit() -> Iterator[Contender]:
    settings = {
        "": (0.08, 0.16, 0.24),
        "TaylorSeer": (0.06, 0.12, 0.16, 0.24, 0.32),
        "FoCa": (0.12, 0.24),
    }
    for calibrator, thresholds in settings.items():
        for threshold in thresholds:
            options = {
                "Fn_compute_blocks": 1,
                "Bn_compute_blocks": 0,
                "max_warmup_steps": 3,
                "residual_diff_threshold": threshold,
                "enable_separate_cfg": True,
            }
            word = calibrator or "held"
            yield CacheDit(f"DBCache({threshold}), {word}", options, calibrator, f"DBCache, {word}")


def _masks(steps: int) -> Iterator[Contender]:
    """cache-dit's presets, which are step masks, there and as plans of ours."""
    from cache_dit import steps_mask

    for preset in ("slow", "medium", "fast", "ultra"):
        mask = steps_mask(mask_policy=preset, total_steps=steps)
        options = {
            "Fn_compute_blocks": 1,
            "Bn_compute_blocks": 0,
            "max_warmup_steps": 0,
            "steps_computation_mask": mask,
            "steps_computation_policy": "static",
            "enable_separate_cfg": True,
        }
        yield CacheDit(f"preset {preset}", options, "TaylorSeer", "presets")
        compute = tuple(step for step, computed in enumerate(mask) if computed)
        plan = LinearPlan(compute=compute, steps=steps, predictor=FoCa())
        yield Accel(f"LinearPlan, {preset} mask, FoCa", plan, "accel LinearPlan, masks")


def _diffusers(steps: int, ratios: list[float]) -> Iterator[Contender]:
    import diffusers

    for threshold in (0.08, 0.12, 0.16, 0.24):
        first = diffusers.FirstBlockCacheConfig(threshold=threshold)
        yield _theirs("FirstBlockCache", threshold, lambda _, config=first: config)
    for interval in (2, 3, 5):
        taylor = diffusers.TaylorSeerCacheConfig(
            cache_interval=interval, disable_cache_before_step=3
        )
        yield _theirs("TaylorSeer", interval, lambda _, config=taylor: config)
    for threshold in (0.06, 0.12, 0.2):
        mag = diffusers.MagCacheConfig(
            threshold=threshold, num_inference_steps=steps, mag_ratios=ratios
        )
        yield _theirs("MagCache", threshold, lambda _, config=mag: config)
    for interval in (2, 3):
        yield _theirs("PAB", interval, lambda pipe, n=interval: _pab(pipe, n))
        yield _theirs("FasterCache", interval, lambda pipe, n=interval: _faster(pipe, n))


def _theirs(name: str, setting: float, config: Callable[[Any], Any]) -> Contender:
    return Diffusers(f"{name}({setting})", config, name)


def _pab(pipe: Any, interval: int) -> Any:
    from diffusers import PyramidAttentionBroadcastConfig

    return PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=interval,
        current_timestep_callback=lambda: pipe.current_timestep,
    )


def _faster(pipe: Any, interval: int) -> Any:
    from diffusers import FasterCacheConfig

    # Its guidance cache needs both branches in one batch; without, the attention part is left.
    return FasterCacheConfig(
        spatial_attention_block_skip_range=interval,
        is_guidance_distilled=True,
        current_timestep_callback=lambda: pipe.current_timestep,
    )


def _their_ratios(subject: Subject, prompt: str) -> list[float]:
    """What diffusers' MagCache prints to be pasted."""
    from diffusers import MagCacheConfig

    pipe = accel.zoo.load(subject.model)
    pipe.set_progress_bar_config(disable=True)
    steps = subject.call["num_inference_steps"]
    pipe.transformer.enable_cache(MagCacheConfig(num_inference_steps=steps, calibrate=True))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        pipe(prompt, **subject.call)
    rows = [line for line in printed.getvalue().splitlines() if line.startswith("[1.0")]
    ratios: list[float] = ast.literal_eval(rows[0])
    return ratios


def _unet(_: Subject, __: Any) -> Iterator[Contender]:
    # By block: the intervals. The package counts three branches a block.
    depths = {0: (2, 3, 4, 5), 1: (2, 3, 5)}
    for block, intervals in depths.items():
        for interval in intervals:
            for predictor in (Hold(), FoCa(), Newton(order=1)):
                word = type(predictor).__name__
                method = DeepCache(interval=interval, block=block, warmup=2, predictor=predictor)
                yield _ours(method, f"block {block}, {word}")
            yield DeepCachePackage(interval, branch=3 * block)
    yield _ours(DeepCache(interval=3, schedule="quadratic"), "quadratic")
    for every in (2, 3, 5):
        yield _ours(FasterDiffusion(every=every))
        if every > 2:
            yield _ours(FasterDiffusion(every=every, parallel=every - 1), "parallel")
    yield from _unet_modules()


def _unet_modules() -> Iterator[Contender]:
    for interval in (2, 3, 4):
        yield _ours(TaylorSeer(interval=interval), "modules")
    for interval in (2, 3):
        yield _ours(PAB(spatial=interval, cross=3 * interval))
    for interval in (2, 3, 5):
        yield _ours(FasterCache(guidance_interval=interval))
    yield _ours(ToCa(interval=3))


SIDES: dict[str, Callable[[Subject, Any], Iterator[Contender]]] = {
    "scenes-flux": _transformer,
    "scenes-unet": _unet,
    "scenes-video": _transformer,
}
