"""What every cache costs in a step that it computes, and what it holds, as models grow.

    python -m tests.benchmarks.deciding

An untrained Flux transformer of small width runs in turns, unpatched and patched with a setting
that looks, decides and keeps in every step, but never reuses. What the patched side takes longer is
the price of a decision; it is paid in computed and in reused steps alike.
"""

import argparse
import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from tqdm.auto import tqdm

import accel
from accel.bench import timed, write_record
from accel.method import Method
from caching import (
    PAB,
    BWCache,
    DBCache,
    FasterCache,
    FirstBlockCache,
    FoCa,
    MagCache,
    TaylorSeer,
    TeaCache,
    ToCa,
)

RECORDS = Path(__file__).parent / "records"
_NEVER = 1e-12
_ALWAYS = 10**6
METHODS: dict[str, Method] = {
    "FirstBlockCache": FirstBlockCache(threshold=_NEVER),
    "FirstBlockCache, FoCa": FirstBlockCache(threshold=_NEVER, predictor=FoCa()),
    "DBCache, 2 head blocks": DBCache(threshold=_NEVER, head=2),
    "TeaCache": TeaCache(threshold=_NEVER, coefficients=(1.0, 0.0)),
    "MagCache": MagCache(threshold=_NEVER, magnitudes=((1e4, 0.0), (-1e4, 1.0)), retention=0.0),
    "BWCache": BWCache(threshold=_NEVER),
    "TaylorSeer, stack": TaylorSeer(target="stack", warmup=_ALWAYS),
    "TaylorSeer, modules": TaylorSeer(warmup=_ALWAYS),
    "PAB": PAB(warmup=_ALWAYS),
    "FasterCache": FasterCache(warmup=_ALWAYS),
    "ToCa": ToCa(warmup=_ALWAYS),
}
# Blocks, half of them with two streams, and tokens of the picture.
SIZES = ((4, 256), (8, 256), (16, 256), (32, 256), (8, 64), (8, 1024))
_WIDTH, _TEXT_TOKENS = 64, 32


def transformer(blocks: int) -> FluxTransformer2DModel:
    """An untrained stock Flux transformer, 64 channels wide."""
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=16,
        num_layers=blocks // 2,
        num_single_layers=blocks - blocks // 2,
        attention_head_dim=16,
        num_attention_heads=_WIDTH // 16,
        joint_attention_dim=_WIDTH,
        pooled_projection_dim=_WIDTH,
        axes_dims_rope=(4, 6, 6),
    ).eval()


def inputs(tokens: int, step: int, steps: int) -> dict[str, Any]:
    """A denoiser call on latents of their own."""
    side = int(tokens**0.5)
    places = torch.stack(
        [torch.zeros(tokens), torch.arange(tokens) // side, torch.arange(tokens) % side], dim=1
    )
    return {
        "hidden_states": torch.randn(1, tokens, 16),
        "encoder_hidden_states": torch.ones(1, _TEXT_TOKENS, _WIDTH),
        "pooled_projections": torch.ones(1, _WIDTH),
        "timestep": torch.tensor([1 - step / steps]),
        "img_ids": places,
        "txt_ids": torch.zeros(_TEXT_TOKENS, 3),
    }


@torch.inference_mode()
def pairs(
    plain: Any, patched: Any, handle: accel.Patch, tokens: int, steps: int
) -> Iterator[tuple[float, float]]:
    """Seconds without and with the patch of every step of one generation."""
    with handle.generation(steps):
        for step in range(steps):
            call = inputs(tokens, step, steps)
            sides = (plain, patched) if step % 2 else (patched, plain)
            taken = {id(side): timed(partial(side, **call)) for side in sides}
            yield taken[id(plain)], taken[id(patched)]
            handle.advance()


def measured(
    method: Method, blocks: int, tokens: int, options: argparse.Namespace
) -> dict[str, Any]:
    """What a method adds to a step of a model of this size."""
    plain = transformer(blocks)
    patched = copy.deepcopy(plain)
    taken: list[tuple[float, float]] = []
    with accel.patch(patched, method) as handle:
        for turn in range(options.rounds + 1):
            found = list(pairs(plain, patched, handle, tokens, options.steps))
            taken += found if turn else []
        report = handle.report
    assert not report.engaged, f"{method} reused something"
    return {
        "blocks": blocks,
        "tokens": tokens,
        "step_ms": median(before for before, _ in taken) * 1e3,
        "added_us": median(after - before for before, after in taken) * 1e6,
        "bytes_held": report.bytes_held,
        "pairs": len(taken),
    }


def main() -> None:
    """Measures every method at every size and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RECORDS / "deciding.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, method in tqdm(METHODS.items()):
        found[name] = [measured(method, *size, options) for size in SIZES]
    config = {
        **vars(options),
        "out": options.out.name,
        "methods": {name: str(method) for name, method in METHODS.items()},
    }
    path = write_record(options.out, "cost of a decision", config, [0], found)
    print("added us a step (KiB held), by blocks x tokens")
    print(f"{'':<24}" + "".join(f"{f'{blocks} x {tokens}':>18}" for blocks, tokens in SIZES))
    for name, rows in found.items():
        cells = (f"{row['added_us']:.0f} ({row['bytes_held'] / 1024:.0f})" for row in rows)
        print(f"{name:<24}" + "".join(f"{cell:>18}" for cell in cells))
    print(path)


if __name__ == "__main__":
    main()
