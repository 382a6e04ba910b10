"""What a patch costs when nothing engages: on scenes-flux in turns, and per hooked module call.

    python -m tests.benchmarks.neutral_overhead

"neutral" is a threshold of 0, at which nothing is even measured; "never" measures the change in
every call and never finds it small enough. Whole pictures scatter by more than what is looked for;
so the denoiser calls of a picture are also made in turns, some thousand pairs of them.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

import accel
import accel.zoo
from accel.bench import Ratio, Spread, ratio, timed, write_record
from accel.clock import Clock
from accel.layers import Layer
from accel.report import Timeline
from accel.session import Generation, Session
from accel.sites import Kind, Site
from caching import FirstBlockCache
from tests.benchmarks.first_block_cache import MODEL, RECORDS, shots

METHODS = {
    "neutral": FirstBlockCache(threshold=0),
    "never": FirstBlockCache(threshold=1e-12),
}
_CALLS = 2000


class _Nothing(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states


def whole_pipeline(options: argparse.Namespace) -> dict[str, Any]:
    """Unpatched time over patched time of a whole picture, for each method; 1 is no overhead."""
    plain, patched = (_pipeline(options.device) for _ in range(2))
    shot = shots(1, options.steps, guided=True)[0]
    found = {}
    for name, method in METHODS.items():
        with accel.patch(patched, method):
            taken = ratio(
                lambda: shot.run(plain), lambda: shot.run(patched), rounds=options.rounds, warmup=3
            )
        found[name] = {**taken.to_dict(), "overhead": _overhead(taken)}
    return found


def denoiser_calls(options: argparse.Namespace) -> dict[str, Any]:
    """The same for single denoiser calls, with those of a picture replayed on both sides."""
    plain, patched = (_pipeline(options.device) for _ in range(2))
    asked = shots(1, options.steps, guided=True)[0]
    calls: list[dict[str, Any]] = []
    keep = plain.transformer.register_forward_pre_hook(
        lambda _module, _args, kwargs: calls.append(kwargs), with_kwargs=True
    )
    asked.run(plain)
    keep.remove()
    found = {}
    for name, method in METHODS.items():
        with accel.patch(patched, method) as handle:
            pairs = [
                pair
                for _ in tqdm(range(options.replays), desc=name)
                for pair in _replay(plain.transformer, patched.transformer, calls, handle)
            ]
        taken = Ratio.of(*zip(*pairs, strict=True))
        low, high = median_interval(taken.paired.samples)
        found[name] = {
            "pairs": len(pairs),
            "a_s": taken.a_s.median,
            "b_s": taken.b_s.median,
            "overhead": _overhead(taken),
            "overhead_95": [1 / high - 1, 1 / low - 1],
        }
    return found


@torch.inference_mode()
def _replay(
    plain: nn.Module, patched: nn.Module, calls: list[dict[str, Any]], handle: accel.Patch
) -> Iterator[tuple[float, float]]:
    """Seconds of both sides for every call of a guided picture, each side first in turn."""
    with handle.generation(len(calls) // 2):
        for number, call in enumerate(calls):
            sides = (plain, patched) if number // 2 % 2 else (patched, plain)
            taken = {side: timed(partial(side, **call)) for side in sides}
            yield taken[plain], taken[patched]
            if number % 2:
                handle.advance()


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The order statistics between which the median lies with 95% confidence (sign test)."""
    ordered, count = sorted(samples), len(samples)
    reach = 0.98 * math.sqrt(count)
    return ordered[max(0, math.floor(count / 2 - reach))], ordered[
        min(count - 1, math.ceil(count / 2 + reach))
    ]


def _overhead(taken: Ratio) -> float:
    return 1 / taken.paired.median - 1


def _pipeline(device: str) -> Any:
    pipe = accel.zoo.load(MODEL).to(device)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def per_call(rounds: int) -> dict[str, Any]:
    """Microseconds that a layer adds to a module call: idle, with one hook, with two."""
    module, session = _Nothing(), Session("Nothing", None)  # type: ignore[arg-type]  # no engine needed
    states: dict[str, list[float]] = {name: [] for name in ("bare", "idle", "one", "two")}
    for _ in range(rounds):
        session.generation = None
        states["bare"].append(_call_us(module))
        layer = Layer(Site(Kind.BLOCK, "nothing", module), session)
        states["idle"].append(_call_us(module))
        session.generation = Generation(Clock(), Timeline("Nothing", (), 0))
        for hooks in ("one", "two"):
            layer.add(0, lambda call: call.proceed())
            states[hooks].append(_call_us(module))
        layer.remove()
    bare = median(states["bare"])
    return {
        name: Spread.of([us - bare for us in taken]).to_dict() for name, taken in states.items()
    }


def _call_us(module: nn.Module) -> float:
    hidden = torch.zeros(1)

    def many() -> None:
        for _ in range(_CALLS):
            module(hidden)

    return timed(many) / _CALLS * 1e6


def main() -> None:
    """Measures and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--replays", type=int, default=50, help="pictures' worth of denoiser calls")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RECORDS / "neutral-overhead.json")
    options = parser.parse_args()
    torch.set_num_threads(2)
    results = {
        "denoiser_calls": denoiser_calls(options),
        "whole_pipeline": whole_pipeline(options),
        "per_call_us": per_call(options.rounds),
    }
    config = {**vars(options), "out": options.out.name, "model": MODEL,
              "methods": {name: str(method) for name, method in METHODS.items()}}  # fmt: skip
    path = write_record(options.out, "neutral overhead", config, [1000], results)
    for name, taken in results["denoiser_calls"].items():
        low, high = taken["overhead_95"]
        print(f"{name:<8} {taken['overhead']:+.2%} of a denoiser call ({low:+.2%} to {high:+.2%})")
    for name, taken in results["whole_pipeline"].items():
        print(f"{name:<8} {taken['overhead']:+.2%} of a picture")
    for name, spread in results["per_call_us"].items():
        print(f"{name:<8} {spread['median']:+.2f} us a call")
    print(path)


if __name__ == "__main__":
    main()
