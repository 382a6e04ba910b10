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

from sparse_attn.kernels import assign, tail
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

# Head dimensions that need the most registers: the widest in two parts, and the widest.
TIGHT = (96, 128)

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
        wants=(MATRIX[arch], *(() if setting.way == Way.POINTERS else ("UTMALDG",))),
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
        wants=(MATRIX[arch],),
    )


def tails(arch: str, head_dim: int, dtype: torch.dtype) -> Case:
    """Attention to pseudo-keys with float32 centroids and variances, through an index."""
    kind, settings = _NAMES[dtype], tail.settings_for(arch, head_dim, dtype)
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
        wants=(MATRIX[arch],),
    )


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
    """Every kernel that multiplies matrices: each setting where it is tightest, some elsewhere."""
    half, full = torch.bfloat16, torch.float32
    for arch in ARCHS:
        for head_dim in HEAD_DIMS:
            yield from _of(arch, head_dim)
        yield attention(arch, 128, torch.float16, settings_for(arch, 128, half, Way.POINTERS)[0])
        for head_dim in (96, 128):
            setting = settings_for(arch, head_dim, full, Way.POINTERS)[0]
            yield attention(arch, head_dim, full, setting, gather=True)
        for dtype, head_dim in ((half, 96), (full, 128)):
            yield assigning(arch, head_dim, dtype)
            yield tails(arch, head_dim, dtype)


def _of(arch: str, head_dim: int) -> Iterator[Case]:
    dtype, tight = torch.bfloat16, head_dim in TIGHT
    first, *others = dict.fromkeys(settings_for(arch, head_dim, dtype, Way.POINTERS))
    yield attention(arch, head_dim, dtype, first)
    for setting in (first, *(others if tight else ())):
        yield attention(arch, head_dim, dtype, setting, gather=True)
    if described(arch, dtype):
        first, *others = dict.fromkeys(settings_for(arch, head_dim, dtype, Way.DESCRIPTORS))
        for setting in (first, *(others if tight else ()), specialized(arch)):
            yield attention(arch, head_dim, dtype, setting)


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
    table.setdefault(triton.__version__, {}).update(made)
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
