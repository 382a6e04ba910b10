"""Every cache on a model of the zoo, beside its peers and fewer steps: speed against quality.

    python -m tests.benchmarks.caching scenes-flux --work FOLDER

Needs the machine for itself for an hour or two. What was drawn stays in `--work`, so the same
command goes on where it stopped; every call writes the record of all turns so far.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from accel.bench import write_record
from tests.benchmarks.sides import SIDES, sides_of
from tests.benchmarks.subjects import subject_of, tasks
from tests.benchmarks.turns import Turns, loaded, rows

RECORDS = Path(__file__).parent / "records"
CONVERGED_STEPS = 140


def main() -> None:
    """Draws what is missing and writes the record."""
    options = _options()
    torch.set_num_threads(options.threads)
    subject = subject_of(options.model, options.steps)
    steps = subject.call["num_inference_steps"]
    pipe = loaded(options.model, options.device)
    sides = [side for side in sides_of(subject, pipe) if options.only in side.family]
    work = options.work / f"caching-{options.model}-{steps}.jsonl"
    turns = Turns(subject, sides, work, CONVERGED_STEPS, options.device)
    try:
        turns.run(tasks(subject, options.prompts, options.seeds)[: options.turns])
    finally:
        lines = turns.lines()
        found = rows(lines, sides)
        print(table(found))
    config = {**vars(options), "out": None, "work": None, "call": subject.call}
    path = write_record(
        options.out or RECORDS / f"caching-{options.model}-{steps}.json",
        f"caches on {options.model}, {steps} steps",
        {
            **config,
            "converged_steps": CONVERGED_STEPS,
            "commits": sorted({line["commit"] for line in lines}),
        },
        sorted({line["seed"] for line in lines}),
        {"sides": found},
    )
    print(path)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(SIDES))
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps what was drawn")
    parser.add_argument("--steps", type=int, help="instead of what the model's card recommends")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3, help="seeds a prompt")
    parser.add_argument("--turns", type=int, help="at most so many prompts and seeds, for a look")
    parser.add_argument("--only", default="", help="families whose name contains this, for a look")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="the record's file")
    return parser.parse_args()


def table(found: list[dict[str, Any]]) -> str:
    """One line a side, the fastest last."""
    lines = ["speed-up    PSNR  worst   SSIM  converged  right, what"]
    for row in sorted(found, key=lambda row: row["speedup"]["paired"]["median"]):
        quality, solution = row["to_unaccelerated"], row["to_converged"]
        lines.append(
            f"{row['speedup']['paired']['median']:>8.2f} {_shown(quality['psnr_mean']):>7} "
            f"{_shown(quality['psnr_worst']):>6} {quality['ssim_mean']:>6.3f} "
            f"{_shown(solution['psnr_mean']):>10}  "
            + " ".join(f"{what} {share:.2f}" for what, share in row["right"].items())
            + f"  {row['name'][:90]}"
        )
    return "\n".join(lines)


def _shown(psnr: float | None) -> str:
    return "same" if psnr is None else f"{psnr:.1f}"


if __name__ == "__main__":
    main()
