"""Where kernels run: with which Triton, on which architecture, in which arithmetic."""

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

# What Triton itself takes for a yes.
_YES = ("1", "true", "on", "yes", "y")
# Older cards have neither bfloat16 nor asynchronous copies, and Triton gives them up one by one.
_OLDEST = (8, 0)
_HOPPER, _BLACKWELL = 9, 10

# The online softmax counts on fused multiply-adds, which Triton will not make unasked.
OPTIONS = {"enable_fp_fusion": True}


def installed() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def interpreting() -> bool:
    """Whether `TRITON_INTERPRET` asks for Triton's interpreter, which needs no GPU."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in _YES


def missing(device: torch.device) -> str | None:
    """Why no kernel runs on tensors of this device, or None where one does."""
    if not installed():
        return "Triton is not installed"
    if interpreting():
        return None if device.type in ("cpu", "cuda") else f"Triton does not interpret {device}"
    if device.type != "cuda":
        return f"Triton compiles for CUDA and ROCm devices, not for {device.type}"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < _OLDEST:
        return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0"
    return None


def runs_kernel(tensor: Tensor) -> bool:
    """Whether operations on this tensor run as kernels."""
    return missing(tensor.device) is None


def architecture(device: torch.device) -> str:
    """The class of GPUs that share settings: "sm80", "sm86", "sm90", "sm100", "gfx942", "cpu"."""
    return "cpu" if interpreting() else _compiled_for(device)


@functools.cache
def _compiled_for(device: torch.device) -> str:
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    if major in (_HOPPER, _BLACKWELL):
        return f"sm{major}0"
    # Cards for desks have 100 KB of shared memory for each block, where sm80 has 164.
    return "sm80" if (major, minor) == _OLDEST else "sm86"


def arithmetic(dtype: torch.dtype, arch: str) -> dict[str, Any]:
    """The kernel constants for operands of this type: LOW, WORK and PRECISION.

    `LOW` is the type that operands are rounded to and `WORK` the one that they are multiplied in.
    They differ for bfloat16 under the interpreter, whose arithmetic takes bfloat16 for integers
    and is wrong without a word. float32 is multiplied in three TF32 products on NVIDIA cards, so
    that it keeps its precision and its tensor cores.
    """
    import triton.language as tl

    low = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}.get(dtype, tl.float32)
    work = tl.float32 if arch == "cpu" else low
    return {"LOW": low, "WORK": work, "PRECISION": "tf32x3" if arch.startswith("sm") else "ieee"}


def widths(head_dim: int) -> dict[str, int]:
    """The kernel constants that split a head dimension: D, D1 and D2.

    Triton's blocks are powers of two. D1 is the largest that fits, D2 holds the rest (0 where
    there is none), so that 80 costs 64 + 16 and not 128.
    """
    first = max(16, 1 << (head_dim.bit_length() - 1))
    rest = head_dim - first
    return {
        "D": head_dim,
        "D1": first,
        "D2": max(16, 1 << (rest - 1).bit_length()) if rest > 0 else 0,
    }
