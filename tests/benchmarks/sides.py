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
    TaylorSeer,
    TeaCache,
)
from tests.benchmarks.peers import (
    Accel,
    CacheDit,
    Contender,
    DeepCachePackage,
    Diffusers,
    Fewer,
)

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.43, 0.36, 0.32, 0.25, 0.18)
_CALIBRATION_PROMPTS = 3


def sides_of(model: str, pipe: Any, call: dict[str, Any]) -> list[Contender]:
    """Everything that takes turns on a model, the controls last."""
    ours = {"scenes-flux": _flux, "scenes-unet": _unet}[model]
    return [*ours(pipe, call), *_fewer_steps(pipe, call["num_inference_steps"])]


def _fewer_steps(pipe: Any, steps: int) -> Iterator[Contender]:
    counts = sorted({max(2, round(steps * share)) for share in SHARES}, reverse=True)
    solver = multistep(pipe.scheduler)
    for count in counts:
        yield Fewer("own scheduler", pipe.scheduler, count)
    for count in (steps, *counts):
        yield Fewer("multistep", solver, count)


def _flux(pipe: Any, call: dict[str, Any]) -> Iterator[Contender]:
    steps = call["num_inference_steps"]
    prompts = accel.zoo.prompts("scenes-flux", _CALIBRATION_PROMPTS, "train")

    def calibrated(method: Method) -> Any:
        return accel.calibrate(pipe, method, prompts, **call)

    yield from _plans(steps)
    yield from _stack_caches(calibrated)
    yield from _module_caches()
    yield from _cache_dit()
    yield from _diffusers(steps, _their_ratios(prompts[0], call))


def _plans(steps: int) -> Iterator[Contender]:
    """Fixed steps: every n-th after the first ones, which change most."""
    for predictor in (Hold(), Newton(order=1), Newton(order=2), FoCa()):
        for interval in (1.5, 2, 2.5, 3, 4, 5):
            first = 2 if interval < 3 else 3
            spaced = (round(first + k * interval) for k in range(steps))
            compute = (*range(first), *(k for k in spaced if k < steps - 1), steps - 1)
            yield Accel(
                f"LinearPlan, every {interval}, {predictor}",
                LinearPlan(compute=compute, steps=steps, predictor=predictor),
                f"accel LinearPlan, {type(predictor).__name__}",
            )


def _stack_caches(calibrated: Callable[[Method], Any]) -> Iterator[Contender]:
    for predictor in (Hold(), Newton(order=1), FoCa()):
        word = type(predictor).__name__
        for threshold in (0.06, 0.08, 0.12, 0.16, 0.24, 0.32):
            yield _ours(FirstBlockCache(threshold=threshold, predictor=predictor), word)
    for threshold in (0.08, 0.16, 0.32):
        yield _ours(DBCache(head=2, threshold=threshold, predictor=Newton(order=1)), "Newton")
    tea, mag = calibrated(TeaCache()), calibrated(MagCache())
    for predictor in (Hold(), Newton(order=1)):
        word = type(predictor).__name__
        for threshold in (0.15, 0.3, 0.5, 0.8):
            yield Accel(
                f"TeaCache({threshold}), {word}",
                replace(tea, threshold=threshold, predictor=predictor),
                f"accel TeaCache, {word}",
            )
        for threshold in (0.03, 0.06, 0.12, 0.2):
            yield Accel(
                f"MagCache({threshold}), {word}",
                replace(mag, threshold=threshold, predictor=predictor),
                f"accel MagCache, {word}",
            )
        for threshold in (0.1, 0.2, 0.3):
            yield _ours(BWCache(threshold=threshold, predictor=predictor), word)


def _module_caches() -> Iterator[Contender]:
    for interval in (2, 3, 4, 5):
        for target in ("modules", "stack"):
            yield _ours(TaylorSeer(interval=interval, target=target), target)
    for interval in (2, 3, 4):
        yield _ours(PAB(spatial=interval, cross=3 * interval))
    for interval in (2, 3, 5):
        yield _ours(FasterCache(guidance_interval=interval))


def _ours(method: Method, variant: str = "") -> Contender:
    name = type(method).__name__
    return Accel(str(method), method, f"accel {name}, {variant}" if variant else f"accel {name}")


def _cache_dit() -> Iterator[Contender]:
    for calibrator in ("", "TaylorSeer", "FoCa"):
        for threshold in (0.04, 0.08, 0.12, 0.16, 0.24, 0.32):
            options = {
                "Fn_compute_blocks": 1,
                "Bn_compute_blocks": 0,
                "max_warmup_steps": 3,
                "residual_diff_threshold": threshold,
                "enable_separate_cfg": True,
            }
            word = calibrator or "held"
            yield CacheDit(f"DBCache({threshold}), {word}", options, calibrator, f"DBCache, {word}")


def _diffusers(steps: int, ratios: list[float]) -> Iterator[Contender]:
    import diffusers

    for threshold in (0.06, 0.08, 0.12, 0.16, 0.24):
        first = diffusers.FirstBlockCacheConfig(threshold=threshold)
        yield _theirs("FirstBlockCache", threshold, lambda _, config=first: config)
    for interval in (2, 3, 4, 5):
        taylor = diffusers.TaylorSeerCacheConfig(
            cache_interval=interval, disable_cache_before_step=3
        )
        yield _theirs("TaylorSeer", interval, lambda _, config=taylor: config)
    for threshold in (0.03, 0.06, 0.12, 0.2):
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


def _their_ratios(prompt: str, call: dict[str, Any]) -> list[float]:
    """What diffusers' MagCache prints to be pasted."""
    from diffusers import MagCacheConfig

    pipe = accel.zoo.load("scenes-flux")
    pipe.set_progress_bar_config(disable=True)
    steps = call["num_inference_steps"]
    pipe.transformer.enable_cache(MagCacheConfig(num_inference_steps=steps, calibrate=True))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        pipe(prompt, **call)
    rows = [line for line in printed.getvalue().splitlines() if line.startswith("[1.0")]
    ratios: list[float] = ast.literal_eval(rows[0])
    return ratios


def _unet(pipe: Any, call: dict[str, Any]) -> Iterator[Contender]:
    del pipe, call
    for block in (0, 1, 2):
        for interval in (2, 3, 4, 5):
            yield _ours(DeepCache(interval=interval, block=block), f"block {block}")
            yield DeepCachePackage(interval, branch=3 * block)
    for interval in (3, 5):
        yield _ours(DeepCache(interval=interval, schedule="quadratic"), "quadratic")
    for every in (2, 3, 4, 5):
        yield _ours(FasterDiffusion(every=every))
        yield _ours(FasterDiffusion(every=every, parallel=True), "parallel")
    for interval in (2, 3, 4):
        yield _ours(TaylorSeer(interval=interval), "modules")
        yield _ours(PAB(spatial=interval, cross=3 * interval))
    for interval in (2, 3, 5):
        yield _ours(FasterCache(guidance_interval=interval))
