"""FirstBlockCache and DBCache on scenes-flux, beside diffusers, cache-dit and fewer steps.

    python -m tests.benchmarks.first_block_cache --steps 28

Writes one record a step count. All sides take turns in one process, each turn on the next prompt;
speed is the median of the ratios to the unaccelerated run of the same turn. Quality is to the
unaccelerated picture and to a converged one; adherence is what a judge finds in the pictures.
"""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

import accel.zoo
from accel.bench import Ratio, timed, write_record
from accel.control import multistep
from accel.metrics import Summary, score
from accel.shot import Shot
from accel.zoo.scenes import sample_scenes
from caching import DBCache, FirstBlockCache, Newton
from tests.benchmarks.adherence import adherence
from tests.benchmarks.peers import Accel, CacheDit, Contender, Diffusers, Fewer

MODEL = "scenes-flux"
RECORDS = Path(__file__).parent / "records"
THRESHOLDS = (0.02, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32)
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.33, 0.25, 0.18)
CONVERGED_STEPS = 140
_FIRST_SEED = 1000


def shots(count: int, steps: int, *, guided: bool) -> list[Shot]:
    """The first held-out prompts, each with a seed of its own."""
    call = {**accel.zoo.card(MODEL).call, "num_inference_steps": steps}
    if not guided:
        # cache-dit shares one state between the two calls of Flux's true guidance, so that a
        # comparison with it is fair only without.
        call["true_cfg_scale"] = 1.0
        call.pop("negative_prompt", None)
    return [
        Shot(prompt=prompt, seed=_FIRST_SEED + index, arguments=call)
        for index, prompt in enumerate(accel.zoo.prompts(MODEL, count))
    ]


class Turns:
    """Runs everything in turns and sums up how it compares with the unaccelerated pipeline."""

    def __init__(self, pipe: Any, asked: Sequence[Shot]) -> None:
        self.pipe = pipe
        self._peers: dict[str, Any] = {}
        self.asked = asked
        self._scenes = sample_scenes(len(asked))
        self.converged = [shot.run(pipe, steps=CONVERGED_STEPS) for shot in asked]

    def compare(self, sides: Sequence[Contender]) -> list[dict[str, Any]]:
        """One row a side, in order."""
        seconds: list[list[float]] = [[] for _ in sides]
        made: list[list[Any]] = [[] for _ in sides]
        plain: list[tuple[Any, float]] = []
        for turn, shot in enumerate((self.asked[0], *self.asked)):
            before = self._run(None, shot)
            after = [self._run(side, shot) for side in sides]
            if not turn:
                continue
            plain.append(before)
            for (picture, taken), pictures, times in zip(after, made, seconds, strict=True):
                pictures.append(picture)
                times.append(taken)
        references = [picture for picture, _ in plain]
        plain_s = [taken for _, taken in plain]
        return [
            {
                "name": side.name,
                "reused_calls": side.facts().get("reused_calls"),
                "to_unaccelerated": Summary.of(map(score, references, made[index])).to_dict(),
                "to_converged": Summary.of(map(score, self.converged, made[index])).to_dict(),
                "adherence": adherence(made[index], self._scenes),
                "speedup": Ratio.of(plain_s, seconds[index]).to_dict(),
            }
            for index, side in enumerate(sides)
        ]

    def _pipe(self, side: Contender | None) -> Any:
        """The pipeline itself for ours; one of their own for peers, whose removal leaves traces."""
        if side is None or not side.peer:
            return self.pipe
        if side.peer not in self._peers:
            self._peers[side.peer] = loaded(self.pipe.device)
        return self._peers[side.peer]

    def _run(self, side: Contender | None, shot: Shot) -> tuple[Any, float]:
        # Installing and removing is not part of generating, so only the inside is timed.
        made: list[Any] = []
        pipe = self._pipe(side)
        with nullcontext() if side is None else side.on(pipe):
            steps = None if side is None else side.steps
            taken = timed(lambda: made.append(shot.run(pipe, steps=steps)))
        return made[0], taken


def loaded(device: Any) -> Any:
    """A fresh copy of the model."""
    pipe = accel.zoo.load(MODEL).to(device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def fewer_steps(pipe: Any, steps: int) -> list[Contender]:
    """Both controls at several step counts, the full one with the multistep solver included."""
    counts = sorted({max(2, round(steps * share)) for share in SHARES}, reverse=True)
    solver = multistep(pipe.scheduler)
    own = [Fewer("own scheduler", pipe.scheduler, count) for count in counts]
    return [*own, *(Fewer("multistep", solver, count) for count in (steps, *counts))]


def contenders(threshold: float, *, guided: bool) -> list[Contender]:
    """Ours and theirs: twice with equal settings, then ours with its own guards and forecasts.

    cache-dit is left out with guidance; where branches decide apart is only of interest with it.
    """
    from diffusers import FirstBlockCacheConfig

    bare = {"threshold": threshold, "tail": 0, "max_streak": None, "min_steps": 0, "batch": "mean"}
    head, warmup = 2, 4
    apart = FirstBlockCache(threshold=threshold, joint=False)
    theirs = {
        "Fn_compute_blocks": head,
        "Bn_compute_blocks": 0,
        "max_warmup_steps": warmup,
        "residual_diff_threshold": threshold,
    }
    return [
        Accel("accel FirstBlockCache, equal settings", FirstBlockCache(**bare, warmup=0)),
        Diffusers("FirstBlockCache", lambda _: FirstBlockCacheConfig(threshold=threshold)),
        Accel("accel DBCache, equal settings", DBCache(**bare, head=head, warmup=warmup)),
        *([] if guided else [CacheDit("DBCache", theirs)]),
        Accel("accel FirstBlockCache", FirstBlockCache(threshold=threshold)),
        *([Accel("accel FirstBlockCache, branches apart", apart)] if guided else []),
        Accel(
            "accel FirstBlockCache, Newton(1)",
            FirstBlockCache(threshold=threshold, predictor=Newton(order=1)),
        ),
    ]


def main() -> None:
    """Runs the benchmark and writes its record."""
    options = _options()
    torch.set_num_threads(2)
    pipe = loaded(options.device)
    asked = shots(options.prompts, options.steps, guided=options.guided)
    turns = Turns(pipe, asked)
    rows = []
    for threshold in tqdm(THRESHOLDS, desc=f"{options.steps} steps"):
        found = turns.compare(contenders(threshold, guided=options.guided))
        rows += [{"threshold": threshold, **row} for row in found]
    controls = turns.compare(fewer_steps(pipe, options.steps))
    unaccelerated = turns.compare([Fewer("unaccelerated", pipe.scheduler, options.steps)])[0]
    guided = "-guided" if options.guided else ""
    path = write_record(
        options.out or RECORDS / f"first-block-cache-{options.steps}{guided}.json",
        f"first block caches on {MODEL}, {options.steps} steps{', guided' if guided else ''}",
        {
            **vars(options),
            "out": None,
            "model": MODEL,
            "call": dict(asked[0].arguments),
            "converged_steps": CONVERGED_STEPS,
        },
        [shot.seed for shot in asked],
        {"unaccelerated": unaccelerated, "contenders": rows, "fewer_steps": controls},
    )
    print(f"{table(rows)}\n{table(controls)}\n{path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--prompts", type=int, default=16, help="also the number of turns")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="the record's file")
    parser.add_argument("--guided", action="store_true", help="with guidance, without cache-dit")
    return parser.parse_args()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a row."""
    lines = ["threshold speed-up   PSNR  worst   SSIM reused   kind colour  what"]
    for row in rows:
        quality = row["to_unaccelerated"]
        lines.append(
            f"{row.get('threshold', ''):>9} {row['speedup']['paired']['median']:>8.2f} "
            f"{_shown(quality['psnr_mean']):>6} {_shown(quality['psnr_worst']):>6} "
            f"{quality['ssim_mean']:>6.3f} {row['reused_calls'] or '-':>6}  "
            f"{row['adherence']['kind']:>5.2f}  {row['adherence']['colour']:>5.2f}  {row['name']}"
        )
    return "\n".join(lines)


def _shown(psnr: float | None) -> str:
    return "same" if psnr is None else f"{psnr:.1f}"


if __name__ == "__main__":
    main()
