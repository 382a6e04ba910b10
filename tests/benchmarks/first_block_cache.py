"""FirstBlockCache and DBCache on scenes-flux, beside diffusers, cache-dit and fewer steps.

    python -m tests.benchmarks.first_block_cache --steps 28

Writes one record a step count. Every speed is a median of ratios to the unaccelerated pipeline,
taken in turns in one process; quality is to the unaccelerated picture and to a converged one.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

import accel.zoo
from accel.bench import Ratio, ratio, timed, write_record
from accel.control import multistep
from accel.metrics import Summary, score
from accel.shot import Shot
from tests.benchmarks.peers import Contender, contenders

MODEL = "scenes-flux"
RECORDS = Path(__file__).parent / "records"
THRESHOLDS = (0.02, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32)
CONVERGED_STEPS = 140
JUDGED = 64
_FIRST_SEED = 1000


def shots(count: int, steps: int, *, guided: bool) -> list[Shot]:
    """The first held-out prompts, each with a seed of its own."""
    call = {**accel.zoo.card(MODEL).call, "num_inference_steps": steps}
    if not guided:
        # cache-dit shares one state between the two calls of Flux's true guidance, so that a
        # comparison with it is fair only without.
        call["true_cfg_scale"] = 1.0
        call.pop("negative_prompt", None)
    prompts = accel.zoo.prompts(MODEL, count)
    return [
        Shot(prompt=prompt, seed=_FIRST_SEED + index, arguments=call)
        for index, prompt in enumerate(prompts)
    ]


def pictures(pipe: Any, asked: Sequence[Shot], steps: int | None = None) -> list[Any]:
    """One picture a shot."""
    return [shot.run(pipe, steps=steps) for shot in asked]


def qualities(
    made: Sequence[Any], plain: Sequence[Any], converged: Sequence[Any]
) -> dict[str, Any]:
    """Quality to the unaccelerated and to the converged pictures."""
    return {
        "to_unaccelerated": Summary.of(map(score, plain, made)).to_dict(),
        "to_converged": Summary.of(map(score, converged, made)).to_dict(),
    }


class Bench:
    """One step count: references, the controls' curves, and every contender at every threshold."""

    def __init__(self, pipe: Any, asked: Sequence[Shot], rounds: int) -> None:
        self.pipe = pipe
        self.asked = asked
        self.rounds = rounds
        self.steps = int(asked[0].arguments["num_inference_steps"])
        self.plain = pictures(pipe, asked)
        self.converged = pictures(pipe, asked, CONVERGED_STEPS)

    def speed(self, fast: Callable[[], object]) -> dict[str, Any]:
        """How many times faster than the unaccelerated pipeline, in turns."""
        return ratio(lambda: self.asked[0].run(self.pipe), fast, rounds=self.rounds).to_dict()

    def contender(self, one: Contender) -> dict[str, Any]:
        """Quality and speed of a contender, installed for both."""
        with one.on(self.pipe):
            made = pictures(self.pipe, self.asked)
        quality = qualities(made, self.plain, self.converged)

        def fast() -> None:
            self.asked[0].run(self.pipe)

        return {
            "name": one.name,
            "reused_calls": one.reused(self.pipe),
            **quality,
            "speedup": self._installed_speed(one, fast),
        }

    def _installed_speed(self, one: Contender, fast: Callable[[], None]) -> dict[str, Any]:
        # Installing and removing is not part of generating, so only the inside is timed.
        taken: list[float] = []
        plain: list[float] = []
        for turn in range(-1, self.rounds):
            before = timed(lambda: self.asked[0].run(self.pipe))
            with one.on(self.pipe):
                after = timed(fast)
            if turn >= 0:
                plain.append(before)
                taken.append(after)
        return Ratio.of(plain, taken).to_dict()

    def controls(self) -> dict[str, list[dict[str, Any]]]:
        """Fewer steps with the pipeline's own scheduler and with a multistep one."""
        own = self.pipe.scheduler
        curves: dict[str, list[dict[str, Any]]] = {}
        for name, scheduler in (("own", own), ("multistep", multistep(own))):
            curves[name] = [self._fewer(scheduler, own, steps) for steps in self._step_counts()]
        return curves

    def _step_counts(self) -> list[int]:
        shares = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.33, 0.25, 0.18)
        return sorted({max(2, round(self.steps * share)) for share in shares}, reverse=True)

    def _fewer(self, scheduler: Any, own: Any, steps: int) -> dict[str, Any]:
        def fast() -> None:
            self.pipe.scheduler = scheduler
            try:
                self.asked[0].run(self.pipe, steps=steps)
            finally:
                self.pipe.scheduler = own

        self.pipe.scheduler = scheduler
        try:
            made = pictures(self.pipe, self.asked, steps)
        finally:
            self.pipe.scheduler = own
        quality = qualities(made, self.plain, self.converged)
        return {"steps": steps, **quality, "speedup": self.speed(fast)}


def main() -> None:
    """Runs the benchmark and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--out", type=Path, help="the record; by default in tests/benchmarks/records"
    )
    parser.add_argument("--guided", action="store_true", help="with guidance, without cache-dit")
    options = parser.parse_args()
    torch.set_num_threads(2)
    pipe = accel.zoo.load(MODEL).to(options.device)
    pipe.set_progress_bar_config(disable=True)
    asked = shots(options.prompts, options.steps, guided=options.guided)
    bench = Bench(pipe, asked, options.rounds)
    rows = []
    for threshold in tqdm(THRESHOLDS, desc=f"{options.steps} steps"):
        for one in contenders(threshold):
            if options.guided and one.name.startswith("cache-dit"):
                continue
            rows.append({"threshold": threshold, **bench.contender(one)})
    guided = "-guided" if options.guided else ""
    path = write_record(
        options.out or RECORDS / f"first-block-cache-{options.steps}{guided}.json",
        f"first block caches on {MODEL}, {options.steps} steps{', guided' if guided else ''}",
        {**vars(options), "out": None, "model": MODEL, "call": dict(asked[0].arguments),
         "thresholds": THRESHOLDS, "converged_steps": CONVERGED_STEPS},
        [shot.seed for shot in asked],
        {"contenders": rows, "controls": bench.controls()},
    )  # fmt: skip
    print(table(rows), f"\n{path}")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The contenders, one a line."""
    lines = [
        f"{'threshold':>9} {'speed-up':>8} {'PSNR':>6} {'worst':>6} {'SSIM':>6} {'reused':>6}  what"
    ]
    for row in rows:
        quality = row["to_unaccelerated"]
        lines.append(
            f"{row['threshold']:>9} {row['speedup']['paired']['median']:>8.2f} "
            f"{_shown(quality['mean']['psnr']):>6} {_shown(quality['worst']['psnr']):>6} "
            f"{quality['mean']['ssim']:>6.3f} {row['reused_calls'] or '-':>6}  {row['name']}"
        )
    return "\n".join(lines)


def _shown(psnr: Any) -> str:
    return "same" if psnr in (None, "inf") else f"{psnr:.1f}"


if __name__ == "__main__":
    main()
