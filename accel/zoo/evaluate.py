"""Measure a zoo pipeline: `python -m accel.zoo.evaluate scenes-flux`.

Task accuracy on held-out prompts as the judge sees it, and PSNR to the recommended number of steps
and to a converged solution; both over the number of steps, with the pipeline's own scheduler and
with second-order multistep solvers. These curves are the controls that acceleration must beat.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from accel.record import read_record, write_record
from accel.zoo.catalogue import card, load
from accel.zoo.judge import Judge, Score
from accel.zoo.scenes import Scene, sample_scenes

if TYPE_CHECKING:
    from diffusers import FluxPipeline

STEPS = (50, 28, 20, 14, 10, 7, 5)
SOLVERS = ("own", "unipc", "dpm")
CONVERGED_STEPS = 140
BATCH = 32
GUIDANCE = (1.0, 2.0, 3.0)
RECORD = Path("tests/benchmarks/records")

log = logging.getLogger(__name__)


def use_solver(pipe: "FluxPipeline", solver: str) -> None:
    """Give `pipe` its own Euler scheduler or a second-order multistep one, on linear flow sigmas.

    Euler starts at sigma 1; the multistep solvers start at 0.999, where their log-SNR is finite.
    """
    from diffusers import (
        DPMSolverMultistepScheduler,
        FlowMatchEulerDiscreteScheduler,
        UniPCMultistepScheduler,
    )

    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 1.0}
    schedulers = {
        "own": lambda: FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        "unipc": lambda: UniPCMultistepScheduler(solver_order=2, **flow),
        "dpm": lambda: DPMSolverMultistepScheduler(
            solver_order=2, **flow, use_dynamic_shifting=True, time_shift_type="exponential"
        ),
    }
    scheduler = pipe.scheduler = schedulers[solver]()
    # FluxPipeline gives every scheduler a shift, which this one only takes as a dynamic one.
    scheduler.register_to_config(base_shift=0.0, max_shift=0.0)


def generate(
    pipe: "FluxPipeline", scenes: Sequence[Scene], call: dict[str, Any], batch: int = BATCH
) -> Tensor:
    """Pictures of the scenes, [B, 3, 64, 64] in 0..1; prompt i has a CPU generator with seed i."""
    pictures = []
    for start in range(0, len(scenes), batch):
        part = scenes[start : start + batch]
        seeds = range(start, start + len(part))
        images = pipe(
            [scene.caption() for scene in part],
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
            output_type="pt",
            **_for_batch(call, len(part)),
        ).images
        pictures.append(images.float())
    return torch.cat(pictures)


def _for_batch(call: dict[str, Any], count: int) -> dict[str, Any]:
    """The call with its negative prompt, if any, repeated for every prompt."""
    if "negative_prompt" not in call:
        return call
    return {**call, "negative_prompt": [call["negative_prompt"]] * count}


def figures(score: Score) -> dict[str, float]:
    """The three accuracies, each 0..1."""
    return {
        "kind": round(score.kind_accuracy, 4),
        "colour": round(score.colour_accuracy, 4),
        "both": round(score.both_accuracy, 4),
    }


def accuracy_curves(
    pipe: "FluxPipeline", judge: Judge, scenes: Sequence[Scene], call: dict[str, Any]
) -> dict[str, dict[str, dict[str, float]]]:
    """Accuracies by solver and by number of steps."""
    curves: dict[str, dict[str, dict[str, float]]] = {}
    for solver in SOLVERS[:2]:
        use_solver(pipe, solver)
        for steps in STEPS:
            images = generate(pipe, scenes, {**call, "num_inference_steps": steps})
            found = figures(judge.score(images, scenes))
            curves.setdefault(solver, {})[str(steps)] = found
            log.info("%s %d steps: %s", solver, steps, found)
    return curves


def headline(
    pipe: "FluxPipeline", judge: Judge, scenes: Sequence[Scene], call: dict[str, Any]
) -> dict[str, float]:
    """Accuracies of the recommended call."""
    use_solver(pipe, "own")
    found = figures(judge.score(generate(pipe, scenes, call), scenes))
    log.info("recommended call, %d prompts: %s", len(scenes), found)
    return found


def psnr_curves(
    pipe: "FluxPipeline", scenes: Sequence[Scene], call: dict[str, Any]
) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and worst PSNR in dB, by solver and steps, to both references."""
    use_solver(pipe, "own")
    references = {
        "recommended": generate(pipe, scenes, call),
        "converged": generate(pipe, scenes, {**call, "num_inference_steps": CONVERGED_STEPS}),
    }
    curves: dict[str, dict[str, dict[str, float]]] = {}
    for solver in SOLVERS:
        use_solver(pipe, solver)
        for steps in STEPS:
            images = generate(pipe, scenes, {**call, "num_inference_steps": steps})
            row = {}
            for name, reference in references.items():
                values = psnr(images, reference)
                row[f"{name}_mean"] = round(values.mean().item(), 2)
                row[f"{name}_worst"] = round(values.min().item(), 2)
            curves.setdefault(solver, {})[str(steps)] = row
            log.info("%s %d steps: %s", solver, steps, row)
    return curves


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """PSNR in dB of every image, [B]; 100 where both are equal to within 1e-5."""
    error = (images - reference).square().flatten(1).mean(1)
    return -10 * error.clamp(min=1e-10).log10()


def guidance_look(
    pipe: "FluxPipeline", judge: Judge, scenes: Sequence[Scene], call: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """Accuracies by `true_cfg_scale`."""
    use_solver(pipe, "own")
    found = {}
    for scale in GUIDANCE:
        images = generate(pipe, scenes, {**call, "true_cfg_scale": scale, "negative_prompt": ""})
        found[str(scale)] = figures(judge.score(images, scenes))
        log.info("guidance %.1f: %s", scale, found[str(scale)])
    return found


def seconds_per_image(pipe: "FluxPipeline", call: dict[str, Any], rounds: int = 7) -> float:
    """Median seconds of one call with one prompt, after one untimed call."""
    use_solver(pipe, "own")
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        generate(pipe, sample_scenes(1), call)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--curve-prompts", type=int, default=256)
    parser.add_argument("--psnr-prompts", type=int, default=32)
    parser.add_argument("--guidance-prompts", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--only", nargs="+", help="stages to run; the record keeps the others")
    return parser.parse_args()


def main() -> None:
    """Run every stage, or those of `--only`, and write the record."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    call = card(options.name).call
    judge, scenes = Judge.load(), sample_scenes(options.prompts)
    half, full = load(options.name, torch.bfloat16), load(options.name, torch.float32)
    for pipe in (half, full):
        pipe.set_progress_bar_config(disable=True)
    curve, few = scenes[: options.curve_prompts], scenes[: options.psnr_prompts]
    stages: dict[str, Callable[[], Any]] = {
        "guidance": lambda: guidance_look(half, judge, scenes[: options.guidance_prompts], call),
        "recommended": lambda: headline(half, judge, scenes, call),
        "psnr_db": lambda: psnr_curves(full, few, call),
        "accuracy": lambda: accuracy_curves(half, judge, curve, call),
        "seconds_per_image_fp32_p50": lambda: round(seconds_per_image(full, call), 4),
    }
    config = {
        "pipeline": options.name,
        "call": call,
        "converged_steps": CONVERGED_STEPS,
        "accuracy": {"dtype": "bfloat16", "batch": BATCH, "prompts": len(scenes)},
        "curve_prompts": len(curve),
        "guidance_prompts": options.guidance_prompts,
        "psnr": {"dtype": "float32", "batch": BATCH, "prompts": len(few)},
    }
    path = options.out / f"zoo-{options.name}.json"
    results = read_record(path)["results"] if options.only and path.exists() else {}
    # Written after every stage: an interrupted evaluation keeps what it has measured.
    for stage in options.only or stages:
        results[stage] = stages[stage]()
        write_record(path, f"zoo {options.name}", config, list(range(len(scenes))), results)


if __name__ == "__main__":
    main()
