"""Sparse attention alone, on a CPU: speed with planning, and error, at equal density.

    python -m tests.benchmarks.sparse_attention

Every method answers the attention of whole generations in turns with torch's own, first on items
that move (`moving`), 2,048 to 16,384 tokens, then on what trained layers of scenes-video attend to.
Blocks in raster order at equal density are the control.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from tqdm.auto import tqdm

import accel
import accel.zoo
from accel.bench import Ratio, timed, write_record
from accel.zoo.video.save_attention import record
from sparse_attn import (
    SVG1,
    SVG2,
    SVGEAR,
    Jenga,
    Radial,
    Rettention,
    SpargeAttn,
    TokenSparse,
    Twilight,
)
from sparse_attn.backends.choose import Chooser
from sparse_attn.sparse_method import SparseMethod
from tests.benchmarks.moving import MovingItems
from tests.benchmarks.replay import Replay, Streams

RECORDS = Path(__file__).parent / "records"
SCENES = ((8, 16, 16), (8, 16, 32), (16, 16, 32), (16, 32, 32))
DENSITIES = (0.1, 0.25, 0.5)
CLIP = (9, 16, 32)
_LAYERS = (1, 3, 5)
_FIRST_STEP, _STEPS = 8, 6
_ALWAYS: dict[str, Any] = {"min_tokens": 0, "dense_steps": 0.0, "dense_layers": 0.0}


@dataclass(slots=True)
class Side:
    """A method, and what its runs gave.

    Attributes:
        name: what the record calls it.
        method: what is patched in.
        places: whether it is told how the tokens lie.
        plain_s, seconds: of a generation, in turns.
        planning: share of its time in attention that is not the backend's.
        density: share of the scores that it computed.
        error: relative L2 error of the output, for every evaluation.
    """

    name: str
    method: SparseMethod
    places: bool = True
    plain_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    planning: list[float] = field(default_factory=list)
    density: float = 0.0
    error: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The numbers for JSON."""
        return {
            "name": self.name,
            "method": repr(self.method),
            "density": self.density,
            "error": sum(self.error) / len(self.error),
            "error_worst": max(self.error),
            "planning_share": sorted(self.planning)[len(self.planning) // 2],
            "speedup": Ratio.of(self.plain_s, self.seconds).to_dict(),
        }


def sides() -> Iterator[Side]:
    """Every method, over its range where it has a density to set."""
    for density in DENSITIES:
        raster = SpargeAttn(topk=density, similarity=-1.0, **_ALWAYS)
        yield Side(f"raster blocks, {density}", raster, places=False)
        yield Side(f"SpargeAttn on a curve, {density}", raster)
        yield Side(f"SVG1, {density}", SVG1(density=density, **_ALWAYS))
        yield Side(f"SVG2, {density}", SVG2(density=density, **_ALWAYS))
        plain = SVGEAR(density=density, routing=False, second_order=False, **_ALWAYS)
        yield Side(f"SVGEAR, centroids alone, {density}", plain)
        yield Side(f"SVGEAR, {density}", SVGEAR(density=density, **_ALWAYS))
    for share in (0.5, 0.9):
        yield Side(f"SVG2, top_p {share}", SVG2(top_p=share, **_ALWAYS))
    for error in (0.05, 0.1):
        yield Side(f"SVGEAR, error {error}", SVGEAR(error=error, **_ALWAYS))
    yield Side("Twilight", Twilight(**_ALWAYS))
    for rate in (0.75, 0.9):
        yield Side(f"Jenga, drop {rate}", Jenga(drop_rate=rate, **_ALWAYS))
    for decay in (0.25, 0.5):
        yield Side(f"Radial, decay {decay}", Radial(decay=decay, **_ALWAYS))
    for tau in (0.05, 0.2):
        yield Side(f"TokenSparse, tau {tau}", TokenSparse(tau=tau, **_ALWAYS))
    for density in (0.03125, 0.1):
        yield Side(f"Rettention, {density}", Rettention(density=density, **_ALWAYS))


def measure(
    streams: Sequence[Streams], lattice: tuple[int, int, int], rounds: int, title: str
) -> list[dict[str, Any]]:
    """Every side on one attention, in turns with torch's own."""
    models = {places: Replay(streams, lattice if places else None) for places in (True, False)}
    plain = models[True]
    exact = [plain.evaluate(index) for index in range(len(streams))]
    every = list(sides())
    for number in tqdm(range(rounds + 1), desc=title):
        for side in every:
            plain_s = timed(lambda: [plain.evaluate(index) for index in range(len(streams))])
            seconds, planning = _run(side, models[side.places], exact)
            # The first round warms up.
            if number:
                side.plain_s.append(plain_s)
                side.seconds.append(seconds)
                side.planning.append(planning)
    return [side.to_dict() for side in every]


def _run(side: Side, model: Replay, exact: Sequence[Tensor]) -> tuple[float, float]:
    """Seconds of a generation, and the share of them that is planning."""
    made: list[Tensor] = []
    with accel.patch(model, side.method) as handle, _watched() as computing:
        with handle.generation(len(exact)):

            def generate() -> None:
                for index in range(len(exact)):
                    made.append(model.evaluate(index))
                    handle.advance()

            seconds = timed(generate)
        decisions = handle.report.decisions
    run = sum(decision.scores_run for decision in decisions)
    side.density = run / (run + sum(decision.scores_skipped for decision in decisions))
    side.error = [
        float((out - right).norm() / right.norm()) for out, right in zip(made, exact, strict=True)
    ]
    return seconds, 1 - sum(computing) / seconds


@contextmanager
def _watched() -> Iterator[list[float]]:
    """Collects the seconds that backends take for what was planned."""
    spent: list[float] = []
    original: Callable[..., Any] = Chooser.attend

    def attend(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **options)
        finally:
            spent.append(time.perf_counter() - started)

    with patch.object(Chooser, "attend", attend):
        yield spent


def trained() -> Iterator[tuple[int, list[Streams]]]:
    """What layers of scenes-video attend to in some evaluations, without guidance's other half."""
    pipe = accel.zoo.load("scenes-video")
    pipe.set_progress_bar_config(disable=True)
    call = dict(accel.zoo.card("scenes-video").call)
    steps = range(_FIRST_STEP, _FIRST_STEP + _STEPS)
    prompt = accel.zoo.prompts("scenes-video", 1)[0]
    tensors = record(pipe, prompt, _LAYERS, list(steps), **call)
    for layer in _LAYERS:
        names = [[f"{step}.cond.{layer}.{name}" for name in "qkv"] for step in steps]
        yield (
            layer,
            [tuple(tensors[name][None].float() for name in row) for row in names],  # type: ignore[misc]  # three in each
        )


def main() -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-tokens", type=int, default=16384)
    parser.add_argument("--seeds", type=int, default=1, help="scenes of every size")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trained", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=RECORDS / "sparse-attention-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {}
    for lattice in SCENES:
        for seed in range(options.seeds):
            scene = MovingItems(*lattice, seed=seed)
            if scene.tokens <= options.most_tokens:
                title = f"moving items, {scene.tokens} tokens, seed {seed}"
                found[title] = measure(scene.streams(), lattice, options.rounds, title)
    for layer, streams in trained() if options.trained else ():
        title = f"scenes-video, layer {layer}"
        found[title] = measure(streams, CLIP, options.rounds, title)
    for title, lines in found.items():
        print(f"\n{title}\n{table(lines)}")
    config = {**vars(options), "out": None}
    print(
        write_record(
            options.out, "sparse attention on a CPU", config, list(range(options.seeds)), found
        )
    )


def table(lines: Sequence[dict[str, Any]]) -> str:
    """One line a side."""
    head = "density  error  speed-up  of ideal  planning  what"
    return "\n".join(
        [head]
        + [
            f"{line['density']:>7.3f} {line['error']:>6.3f} "
            f"{line['speedup']['paired']['median']:>9.2f} "
            f"{line['speedup']['paired']['median'] * line['density']:>9.0%} "
            f"{line['planning_share']:>9.1%}  {line['name']}"
            for line in lines
        ]
    )


if __name__ == "__main__":
    main()
