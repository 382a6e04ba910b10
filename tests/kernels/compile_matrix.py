"""What the compilers make of every kernel, without a GPU: `python -m tests.kernels.compile_matrix`.

Writes `compiled.json` beside this file: registers, spilt bytes, shared memory and matrix and copy
instructions of each kernel, setting and architecture, for the version of Triton that is
installed; what other versions gave stays. `--only TEXT` takes the cases whose name contains it,
`--print` prints instead of writing.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sparse_attn.kernels import assign, merge, permute, tail, top_p
from sparse_attn.kernels.attention.settings import (
    HEAD_DIMS,
    Setting,
    Way,
    described,
    settings_for,
    specialized,
)
from sparse_attn.kernels.target import arithmetic, widths
from tests.kernels.assembly import Case, compile_case

TABLE = Path(__file__).with_name("compiled.json")
ARCHS = ("sm80", "sm90", "sm100", "gfx942")
# What the hardware multiplies matrices with.
MATRIX = {"sm80": "HMMA", "sm90": "HGMMA", "sm100": "UTCHMMA", "gfx942": "MFMA"}
# Newer cards' own instructions take 64 rows; below, there are those of older ones.
_ROWS_OF_NEWER = 64

# The head dimension that needs the most registers, and those that warps apart are compiled for.
WIDEST = HEAD_DIMS[-1]
SPECIALIZED = (96, 128)

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_ROWS = (
    *("p_order", "p_head", "p_q_start", "p_q_len"),
    *("p_begin", "p_full", "p_end", "p_kv_start", "p_kv_len"),
)
_FUNCTIONS = {
    Way.POINTERS: "attend_rows",
    Way.DESCRIPTORS: "attend_described_rows",
    Way.SPECIALIZED: "attend_specialized_rows",
}
_ATTENTION = "sparse_attn.kernels.attention.kernel"


def matrix_of(arch: str, rows: int) -> str:
    """The instruction that blocks of this height must be multiplied with."""
    return "HMMA" if arch.startswith("sm") and rows < _ROWS_OF_NEWER else MATRIX[arch]


def attention(
    arch: str, head_dim: int, dtype: torch.dtype, setting: Setting, *, gather: bool = False
) -> Case:
    """One attention kernel."""
    kind, size = _NAMES[dtype], widths(head_dim)
    types = dict.fromkeys(_ROWS, "*i32") | dict.fromkeys(("p_q", "p_k", "p_v", "p_out"), f"*{kind}")
    types |= {"p_lse": "*fp32", "scale": "fp32"}
    constants = {**size, **arithmetic(dtype, arch), "s_od": 1}
    constants |= {"BM": setting.block_m, "BN": setting.block_n, "STAGES": setting.stages}
    if setting.way != Way.SPECIALIZED:
        types |= {"p_q_index": "*i64", "p_kv_index": "*i64"}
        constants |= {"Q_GATHER": gather, "s_qd": 1}
    if setting.way == Way.POINTERS:
        constants |= {"KV_GATHER": gather, "s_kd": 1, "s_vd": 1}
    if setting.way == Way.DESCRIPTORS:
        for place in "kv":
            for part, width in ((1, size["D1"]), (2, size["D2"] or size["D1"])):
                block = f"{kind}[1,1,{setting.block_n},{width}]"
                types[f"d_{place}{part}"] = f"tensordesc<{block}>"
    name = f"{setting.way.value}{' gathered' if gather else ''} d{head_dim} {kind} "
    name += f"{setting.block_m}x{setting.block_n} w{setting.warps} s{setting.stages}"
    return Case(
        name=name,
        module=_ATTENTION,
        function=_FUNCTIONS[setting.way],
        arch=arch,
        constants=constants,
        types=types,
        warps=setting.warps,
        stages=setting.stages,
        wants=(
            matrix_of(arch, setting.block_m),
            *(() if setting.way == Way.POINTERS else ("UTMALDG",)),
        ),
    )


def assigning(arch: str, head_dim: int, dtype: torch.dtype) -> Case:
    """The assignment of tokens to centroids."""
    kind, settings = _NAMES[dtype], assign.settings_for(arch, head_dim, dtype)
    warps = settings.pop("num_warps")
    return Case(
        name=f"assign d{head_dim} {kind} {settings['BN']}x{settings['BK']} w{warps}",
        module="sparse_attn.kernels.assign.kernel",
        function="nearest",
        arch=arch,
        constants={**widths(head_dim), **arithmetic(dtype, arch), **settings, "s_xd": 1, "s_cd": 1},
        types={"p_x": f"*{kind}", "p_c": f"*{kind}", "p_half": "*fp32", "p_label": "*i32"},
        warps=warps,
        wants=(matrix_of(arch, settings["BN"]),),
    )


def tails(arch: str, head_dim: int, dtype: torch.dtype) -> Case:
    """Attention to pseudo-keys with float32 centroids and variances, through an index."""
    kind, settings = _NAMES[dtype], tail.settings_for(arch, dtype)
    warps = settings.pop("num_warps")
    floats = dict.fromkeys(("p_k", "p_v", "p_bias", "p_var", "p_lse"), "*fp32")
    return Case(
        name=f"tail d{head_dim} {kind} {settings['BM']}x{settings['BK']} w{warps}",
        module="sparse_attn.kernels.tail.kernel",
        function="attend_clusters",
        arch=arch,
        constants={
            **widths(head_dim),
            **arithmetic(dtype, arch),
            **settings,
            "Q_GATHER": True,
            "VARIANCE": True,
            "s_qd": 1,
            "s_od": 1,
        },
        types={
            **floats,
            **dict.fromkeys(("p_q", "p_out"), f"*{kind}"),
            **dict.fromkeys(("p_segment", "p_q_index"), "*i64"),
            "p_skipped": "*i8",
            "scale": "fp32",
            "half_square": "fp32",
        },
        warps=warps,
        wants=(matrix_of(arch, settings["BM"]),),
    )


def others(arch: str) -> Iterator[Case]:
    """The kernels that multiply no matrices."""
    size = widths(80)
    low = {name: arithmetic(torch.bfloat16, arch)[name] for name in ("LOW", "WORK")}
    rows = dict.fromkeys(("p_x", "p_sorted", "p_o1", "p_o2", "p_out"), "*bf16")
    floats = dict.fromkeys(("p_mean", "p_square", "p_lse1", "p_lse2", "p_lse", "p_score"), "*fp32")
    whole = {"p_label": "*i32", "p_count": "*i32", "p_first": "*i32", "p_size": "*i32"}
    types = {**rows, **floats, **whole, "p_order": "*i64", "p_begin": "*i64"}
    types |= {"p_keep": "*i8", "p": "fp32"}
    for op, function, constants in (
        ("permute", "count_labels", {"BT": permute.TILE}),
        ("permute", "place_tokens", {"BT": permute.TILE, "BC": permute.CHUNK}),
        ("permute", "sum_clusters", {**size, **low, "BN": permute.ROWS, "COPY": True, "s_xd": 1}),
        ("merge", "merge_rows", {**size, **low, "BN": merge.ROWS, "s_1d": 1, "s_2d": 1, "s_od": 1}),
        ("top_p", "keep_share", {"BK": top_p.CHUNK, "ALL": False, "s_k": 1}),
    ):
        module = f"sparse_attn.kernels.{op}.kernel"
        warps = permute.WARPS if function == "place_tokens" else 4
        yield Case(function, module, function, arch, constants, types, warps)


def representative() -> list[Case]:
    """One case for each way on each architecture: what a test compiles every time."""
    half = torch.bfloat16
    pointers = [
        attention(arch, 96, half, settings_for(arch, 96, half, Way.POINTERS)[0], gather=True)
        for arch in ARCHS
    ]
    described_one = settings_for("sm90", 128, half, Way.DESCRIPTORS)[0]
    return [
        *pointers,
        attention("sm90", 128, half, described_one),
        attention("sm90", 128, half, specialized("sm90")),
    ]


def every() -> Iterator[Case]:
    """Every kernel; of attention each head dimension, and each setting at the widest."""
    half, full = torch.bfloat16, torch.float32
    for arch in ARCHS:
        for head_dim in HEAD_DIMS:
            yield from _of(arch, head_dim)
        setting = settings_for(arch, WIDEST, full, Way.POINTERS)[0]
        yield attention(arch, WIDEST, full, setting, gather=True)
        for dtype in (half, full):
            yield assigning(arch, WIDEST, dtype)
            yield tails(arch, WIDEST, dtype)
    for arch in ("sm90", "gfx942"):
        yield from others(arch)


def _of(arch: str, head_dim: int) -> Iterator[Case]:
    dtype, widest = torch.bfloat16, head_dim == WIDEST
    first, *others = dict.fromkeys(settings_for(arch, head_dim, dtype, Way.POINTERS))
    for setting in (first, *(others if widest else ())):
        yield attention(arch, head_dim, dtype, setting, gather=True)
    if widest:
        yield attention(arch, head_dim, dtype, first)
    if described(arch, dtype):
        first, *others = dict.fromkeys(settings_for(arch, head_dim, dtype, Way.DESCRIPTORS))
        for setting in (first, *(others if widest else ())):
            yield attention(arch, head_dim, dtype, setting)
        if head_dim in SPECIALIZED:
            yield attention(arch, head_dim, dtype, specialized(arch))


def main() -> None:
    """Compiles and writes or prints the table."""
    import triton

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--representative", action="store_true")
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    made: dict[str, Any] = {}
    for case in representative() if options.representative else every():
        if options.only in case.key:
            made[case.key] = compile_case(case)
            print(case.key, made[case.key], file=sys.stderr, flush=True)
    if options.print:
        print(json.dumps(made))
        return
    table = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {}
    whole = not (options.only or options.representative)
    kept = {} if whole else table.get(triton.__version__, {})
    table[triton.__version__] = kept | made
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
