"""What `accel zoo eval` measures of a pipeline.

How well it does on held-out prompts, and PSNR to the recommended number of steps and to a converged
solution; both over the number of steps, with the pipeline's own scheduler and with second-order
multistep solvers. These curves are the controls that acceleration must beat.
"""

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accel.errors import OptionError
from accel.record import read_record, write_record
from accel.zoo.catalogue import card, load
from accel.zoo.families import drawing

STEPS = (50, 28, 20, 14, 10, 7, 5)
CONVERGED_STEPS = 140
GUIDANCE = (1.0, 2.0, 3.0)

Curves = dict[str, dict[str, dict[str, float]]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How one kind of pipeline is measured.

    Attributes:
        schedulers: Makers of the schedulers to try; the pipeline's own is "own" and comes first,
            the one that the accuracy is measured with beside it second.
        guidance: The argument of the pipeline's call that holds the guidance scale.
        tasks: The first so many held-out scenes or clips.
        figures: What is right in the outputs for these tasks.
        output: The attribute of the pipeline's output that holds them.
        batch: How many are made in one call.
        counts: How many tasks each stage takes.
        steps: The numbers of denoising steps to try.
    """

    schedulers: Mapping[str, Callable[[], Any]]
    guidance: str
    tasks: Callable[[int], list[Any]]
    figures: Callable[[Tensor, Sequence[Any]], dict[str, float]]
    output: str
    batch: int
    counts: Mapping[str, int]
    steps: Sequence[int] = STEPS


@dataclass(frozen=True, slots=True)
class Subject:
    """A pipeline under measurement, with its recommended call."""

    bench: Bench
    pipe: Any
    call: Mapping[str, Any]

    def generate(self, tasks: Sequence[Any], scheduler: str = "own", **changes: Any) -> Tensor:
        """Outputs for the tasks, [B, ...] in 0..1; task i has a CPU generator with seed i."""
        self.pipe.scheduler = self.bench.schedulers[scheduler]()
        made = []
        for start in range(0, len(tasks), self.bench.batch):
            part = tasks[start : start + self.bench.batch]
            seeds = range(start, start + len(part))
            output = self.pipe(
                [task.caption() for task in part],
                generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
                output_type="pt",
                **_for_batch({**self.call, **changes}, len(part)),
            )
            made.append(getattr(output, self.bench.output).float())
        return torch.cat(made)

    def figures(self, tasks: Sequence[Any], scheduler: str = "own", **changes: Any) -> Any:
        """What is right in the outputs for the tasks."""
        found = self.bench.figures(self.generate(tasks, scheduler, **changes), tasks)
        log.info("%s %s: %s", scheduler, changes, found)
        return found


def _for_batch(call: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    """The call with its negative prompt, if any, repeated for every prompt."""
    if "negative_prompt" not in call:
        return call
    return {**call, "negative_prompt": [call["negative_prompt"]] * count}


def accuracy_curves(subject: Subject, tasks: Sequence[Any]) -> Curves:
    """Figures by scheduler and by number of steps."""
    return {
        scheduler: {
            str(steps): subject.figures(tasks, scheduler, num_inference_steps=steps)
            for steps in subject.bench.steps
        }
        for scheduler in list(subject.bench.schedulers)[:2]
    }


def psnr_curves(subject: Subject, tasks: Sequence[Any]) -> Curves:
    """Mean and worst PSNR in dB, by scheduler and steps, to both references."""
    references = {
        "recommended": subject.generate(tasks),
        "converged": subject.generate(tasks, num_inference_steps=CONVERGED_STEPS),
    }
    curves: Curves = {}
    for scheduler in subject.bench.schedulers:
        for steps in subject.bench.steps:
            outputs = subject.generate(tasks, scheduler, num_inference_steps=steps)
            row = {}
            for name, reference in references.items():
                values = psnr(outputs, reference)
                row[f"{name}_mean"] = round(values.mean().item(), 2)
                row[f"{name}_worst"] = round(values.min().item(), 2)
            curves.setdefault(scheduler, {})[str(steps)] = row
            log.info("%s %d steps: %s", scheduler, steps, row)
    return curves


def psnr(outputs: Tensor, reference: Tensor) -> Tensor:
    """PSNR in dB of every picture or video, [B]; 100 where both are equal to within 1e-5."""
    error = (outputs - reference).square().flatten(1).mean(1)
    return -10 * error.clamp(min=1e-10).log10()


def guidance_look(subject: Subject, tasks: Sequence[Any]) -> dict[str, dict[str, float]]:
    """Figures by guidance scale."""
    found = {}
    for scale in GUIDANCE:
        changes: dict[str, Any] = {subject.bench.guidance: scale, "negative_prompt": ""}
        found[str(scale)] = subject.figures(tasks, **changes)
    return found


def seconds_per_call(subject: Subject, rounds: int = 7) -> float:
    """Median seconds of one call with one prompt, after one untimed call."""
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        subject.generate(subject.bench.tasks(1))
        taken.append(time.perf_counter() - started)
    return round(statistics.median(taken[1:]), 4)


def run(name: str, bench: Bench, count: int | None, out: Path, only: Sequence[str] | None) -> Path:
    """Run every stage, or those of `only`, and write the record below `out`.

    `count` limits how many tasks a stage takes. The record keeps what other stages had found.

    Raises:
        OptionError: `only` names a stage that there is not.
    """
    timing = f"seconds_per_{drawing(name).ABOUT.part}_fp32_p50"
    _check_stages(only, ("guidance", "recommended", "psnr_db", "accuracy", timing))
    counts = {part: min(n, count or n) for part, n in bench.counts.items()}
    tasks = {part: bench.tasks(n) for part, n in counts.items()}
    call = card(name).call
    half, full = (
        Subject(bench, load(name, dtype), call) for dtype in (torch.bfloat16, torch.float32)
    )
    for subject in (half, full):
        subject.pipe.set_progress_bar_config(disable=True)
    stages: dict[str, Callable[[], Any]] = {
        "guidance": lambda: guidance_look(half, tasks["guidance"]),
        "recommended": lambda: half.figures(tasks["recommended"]),
        "psnr_db": lambda: psnr_curves(full, tasks["psnr"]),
        "accuracy": lambda: accuracy_curves(half, tasks["accuracy"]),
        timing: lambda: seconds_per_call(full),
    }
    config = {
        "pipeline": name,
        "call": call,
        "converged_steps": CONVERGED_STEPS,
        "batch": bench.batch,
        "prompts": counts,
        "dtype": {"accuracy": "bfloat16", "psnr": "float32"},
    }
    path = out / f"zoo-{name}.json"
    results = read_record(path)["results"] if only and path.exists() else {}
    seeds = list(range(max(counts.values())))
    # Written after every stage: an interrupted evaluation keeps what it has measured.
    for stage in only or stages:
        results[stage] = stages[stage]()
        write_record(path, f"zoo {name}", config, seeds, results)
    return path


def _check_stages(only: Sequence[str] | None, stages: Sequence[str]) -> None:
    wrong = [part for part in only or () if part not in stages]
    if wrong:
        raise OptionError(f"--only got {', '.join(wrong)}; expected some of {', '.join(stages)}.")
