"""The sparse attention kernels on a GPU: right, how fast a tile is, and what whole models gain.

    python -m tests.benchmarks.device.sparse --out FILE

Takes about two minutes on an H200. Everything is timed by events, in turns with dense attention.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import accel
from accel.bench import Ratio, write_record
from sparse_attn import SVG2, SVGEAR
from sparse_attn.kernels import target
from sparse_attn.kernels.attention import HEAD_DIMS, attend_tiles
from sparse_attn.kernels.attention.launch import Indices, Operands, describable, run
from sparse_attn.kernels.attention.settings import (
    Setting,
    Way,
    described,
    settings_for,
    specialized,
)
from sparse_attn.tiles import TileList
from tests.benchmarks.moving import MovingItems
from tests.benchmarks.replay import Replay, Streams

RECORDS = Path(__file__).parents[1] / "records"
# Frames, rows and columns of tokens, and heads.
VIDEOS = {
    "Wan-14B, 720p, 81 frames": ((21, 45, 80), 40),
    "HunyuanVideo, 720p, 129 frames": ((33, 45, 80), 24),
    "Wan-1.3B, 480p, 81 frames": ((21, 30, 52), 12),
}
DENSITIES = (0.1, 0.25, 0.5)
_ALWAYS: dict[str, Any] = {"min_tokens": 0, "dense_steps": 0.0, "dense_layers": 0.0}
_ROUNDS = 5
_DEVICE = torch.device("cuda")


def milliseconds(work: Callable[[], object]) -> float:
    """How long the device takes for it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def in_turns(plain: Callable[[], object], other: Callable[[], object]) -> dict[str, Any]:
    """Times of both, one after the other, after a round that is not counted."""
    pairs = [(milliseconds(plain), milliseconds(other)) for _ in range(_ROUNDS + 1)][1:]
    return Ratio.of(
        *([part / 1000 for part in side] for side in zip(*pairs, strict=True))
    ).to_dict()


def correctness() -> Iterator[dict[str, Any]]:
    """Largest errors against fp64, beside those of torch's own attention, on a random plan."""
    for head_dim in HEAD_DIMS:
        for dtype in (torch.bfloat16, torch.float16):
            for gather in (False, True):
                yield _checked(head_dim, dtype, gather=gather)


def _checked(head_dim: int, dtype: torch.dtype, *, gather: bool) -> dict[str, Any]:
    made = torch.Generator(_DEVICE).manual_seed(head_dim)
    tokens, heads = 1000, 4
    q, k, v = (
        torch.randn(1, heads, tokens, head_dim, generator=made, device=_DEVICE).to(dtype)
        for _ in range(3)
    )
    sizes = torch.full((heads, 10), 100, device=_DEVICE)
    sizes[:, 0], sizes[:, 1] = 37, 163
    keep = torch.rand(heads, 10, 10, generator=made, device=_DEVICE) < 0.4
    keep[:, 3] = False
    tiles = TileList.from_blocks(keep, sizes, sizes)
    order = torch.stack([torch.randperm(tokens, generator=made, device=_DEVICE)] * heads)
    indices = {"q_index": order, "kv_index": order} if gather else {}
    scale = head_dim**-0.5
    found, _ = attend_tiles(q, k, v, tiles, scale=scale, **indices)
    mask = torch.stack(
        [
            keep[h].repeat_interleave(sizes[h], 0).repeat_interleave(sizes[h], 1)
            for h in range(heads)
        ]
    )
    if gather:
        back = order.argsort(1)
        mask = torch.stack([mask[h][back[h]][:, back[h]] for h in range(heads)])
    exact = _exact(q.double(), k.double(), v.double(), mask, scale)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None], scale=scale)
    seen = mask.any(-1)[None, ..., None]
    return {
        "head_dim": head_dim,
        "dtype": str(dtype),
        "gather": gather,
        "max_error": float((found.double() - exact).abs().max()),
        "max_error_sdpa": float(((theirs.double() - exact) * seen).nan_to_num().abs().max()),
    }


def _exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    scores = (q @ k.mT * scale).masked_fill(~mask, -math.inf)
    return torch.softmax(scores, -1).nan_to_num() @ v


def ways(head_dim: int) -> Iterator[tuple[str, Setting]]:
    """Every way to read keys that this device has, with its setting for little waste."""
    arch = target.architecture(_DEVICE)
    yield "pointers", settings_for(arch, head_dim, torch.bfloat16, Way.POINTERS)[0]
    if described(arch, torch.bfloat16):
        yield "descriptors", settings_for(arch, head_dim, torch.bfloat16, Way.DESCRIPTORS)[0]
        yield "descriptors, specialized warps", specialized(arch)


def throughput() -> Iterator[dict[str, Any]]:
    """TFLOP/s of the tiles that are computed, beside torch's own on all of them."""
    for head_dim in (64, 128):
        q, k, v = (
            torch.randn(1, 24, 16384, head_dim, device=_DEVICE, dtype=torch.bfloat16)
            for _ in range(3)
        )
        for density in (1.0, *DENSITIES[::-1]):
            tiles = _blocks(24, 16384 // 128, density)
            for name, setting in ways(head_dim):
                yield _rate(name, setting, (q, k, v), tiles, density)


def _blocks(heads: int, blocks: int, density: float) -> TileList:
    made = torch.Generator(_DEVICE).manual_seed(0)
    chance = torch.rand(heads, blocks, blocks, generator=made, device=_DEVICE)
    best = chance.topk(max(1, round(density * blocks)), dim=2).indices
    keep = torch.zeros_like(chance, dtype=torch.bool).scatter_(2, best, value=True)
    sizes = torch.full((heads, blocks), 128, device=_DEVICE)
    return TileList.from_blocks(keep, sizes, sizes)


def _rate(
    name: str, setting: Setting, streams: Streams, tiles: TileList, density: float
) -> dict[str, Any]:
    q, k, v = streams
    operands = Operands(q, k, v, Indices(), q.shape[-1] ** -0.5)
    assert setting.way is Way.POINTERS or describable(operands)
    row: dict[str, Any] = {"head_dim": q.shape[-1], "density": density, "way": name}
    try:
        run(operands, tiles, setting)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 -- what does not run on this device is a finding
        return {**row, "failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    # Cutting the list is planning, which `videos` counts.
    ratio = in_turns(
        lambda: F.scaled_dot_product_attention(q, k, v), lambda: run(operands, tiles, setting)
    )
    flops = 4 * q.numel() * q.shape[2]
    dense_s, sparse_s = ratio["a_s"]["median"], ratio["b_s"]["median"]
    computed = flops * tiles.density() * tiles.waste(setting.block_m, setting.block_n)
    return {
        **row,
        "tflops_sdpa": flops / dense_s / 1e12,
        "tflops_tiles": computed / sparse_s / 1e12,
        "ratio": ratio,
    }


def streams_of(lattice: tuple[int, int, int], heads: int, evaluations: int) -> list[Streams]:
    """Moving items in as many heads as asked for: four, repeated with noise of their own."""
    few = MovingItems(*lattice, head_dim=128, evaluations=evaluations).streams()
    return [tuple(_repeated(part, heads) for part in parts) for parts in few]  # type: ignore[misc]  # three in each


def _repeated(part: Tensor, heads: int) -> Tensor:
    on_device = part.to(_DEVICE, torch.bfloat16)
    every = on_device.repeat_interleave(heads // on_device.shape[1], 1)
    return every + 0.02 * torch.randn_like(every)


def videos() -> Iterator[dict[str, Any]]:
    """Attention of one layer at the shapes of video models, planning included."""
    for name, (lattice, heads) in VIDEOS.items():
        model = Replay(streams_of(lattice, heads, 3), lattice)
        exact = model.evaluate(2).float()
        for density in DENSITIES:
            for cls in (SVG2, SVGEAR):
                method = cls(density=density, **_ALWAYS)
                yield {"shape": name, "method": repr(method), **_layer(model, method, exact)}
        del model, exact
        torch.cuda.empty_cache()


def _layer(model: Replay, method: Any, exact: Tensor) -> dict[str, Any]:
    handle = accel.patch(model, method)
    rounds = []
    for _ in range(_ROUNDS + 1):
        handle.disable()
        plain = milliseconds(lambda: model.evaluate(2))
        handle.enable()
        rounds.append((plain, *_generation(model, handle)))
    decision = handle.report.decisions[-1]
    handle.unpatch()
    plain_s, first_s, later_s = ([row[part] / 1000 for row in rounds[1:]] for part in range(3))
    return {
        "density": decision.scores_run / (decision.scores_run + decision.scores_skipped),
        "error": float((rounds[-1][3].float() - exact).norm() / exact.norm()),
        "first": Ratio.of(plain_s, first_s).to_dict(),
        "later": Ratio.of(plain_s, later_s).to_dict(),
    }


def _generation(model: Replay, handle: accel.Patch) -> tuple[float, float, Tensor]:
    """Milliseconds of the first and of the third evaluation, and what the third gave."""
    out: list[Tensor] = []
    with handle.generation(3):
        first = milliseconds(lambda: model.evaluate(0))
        handle.advance()
        model.evaluate(1)
        handle.advance()
        later = milliseconds(lambda: out.append(model.evaluate(2)))
    return first, later, out[0]


def whole_model() -> Iterator[dict[str, Any]]:
    """A denoiser call of Wan-1.3B at full size and with random weights, with and without."""
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    with torch.device(_DEVICE):
        model = WanTransformer3DModel(
            num_attention_heads=12, num_layers=30, ffn_dim=8960, text_dim=4096
        )
    model = model.to(torch.bfloat16).eval()
    inputs = {
        "hidden_states": torch.randn(1, 16, 21, 60, 104, device=_DEVICE, dtype=torch.bfloat16),
        "timestep": torch.tensor([500], device=_DEVICE),
        "encoder_hidden_states": torch.randn(1, 512, 4096, device=_DEVICE, dtype=torch.bfloat16),
    }

    @torch.no_grad()
    def call() -> object:
        return model(**inputs, return_dict=False)

    for density in (0.25, 0.5):
        method = SVG2(density=density, **_ALWAYS)
        handle = accel.patch(model, method)

        def patched(on: Any = handle) -> object:
            with on.generation(1):
                return call()

        def plain(on: Any = handle) -> object:
            on.disable()
            out = call()
            on.enable()
            return out

        yield {"method": repr(method), "ratio": in_turns(plain, patched)}
        handle.unpatch()


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows, ratios as their medians."""
    print(f"\n{title}")
    for row in rows:
        cells = (f"{name} {_short(value)}" for name, value in row.items())
        print("  " + ", ".join(cells))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['paired']['median']:.2f}x"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Checks, measures, prints and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda"], default="cuda")
    parser.add_argument("--out", type=Path, default=RECORDS / "device-sparse-attention.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for part in (correctness, throughput, videos, whole_model):
        found[part.__name__] = list(part())
        show(part.__name__.replace("_", " "), found[part.__name__])
    print(write_record(options.out, "sparse attention on a GPU", {"rounds": _ROUNDS}, [0], found))


if __name__ == "__main__":
    main()
