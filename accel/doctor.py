"""What this machine has and what works on it, found by trying, with advice for what does not."""

import importlib
import importlib.util
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch

from accel import siblings, zoo
from accel.record import commit

State = Literal["ok", "missing", "warning", "broken"]

_NEEDED = ("torch", "diffusers", "transformers", "accelerate", "safetensors")
_FOREIGN_ACCEL = "accel"
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was tried.

    Attributes:
        name: What.
        state: "ok", "missing" (it is optional), "warning", or "broken" (accel needs it).
        detail: What was found.
        advice: What to do, in one line; empty if nothing need be done.
    """

    name: str
    state: State
    detail: str
    advice: str = ""


def examine() -> tuple[Finding, ...]:
    """Returns everything there is to know; trying takes a few seconds and changes nothing."""
    return (
        Finding(name="python", state="ok", detail=f"{platform.python_version()}, {_system()}"),
        _accel(),
        *(_needed(name) for name in _NEEDED),
        *_siblings(),
        _name_clash(),
        _cpu(),
        _guarded("accelerator", _accelerator),
        _guarded("triton", _triton),
        _guarded("xformers", _xformers),
        _guarded("zoo", _zoo),
    )


def healthy(findings: tuple[Finding, ...]) -> bool:
    """Returns whether nothing that accel needs is broken."""
    return all(finding.state != "broken" for finding in findings)


def table(findings: tuple[Finding, ...]) -> str:
    """Returns the findings for a terminal, advice below what it is about."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.name:<{width}}  {finding.detail}")
        if finding.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    return "\n".join(lines)


def to_json(findings: tuple[Finding, ...], forecast: Mapping[str, Any] | None = None) -> str:
    """Returns a JSON object: `healthy`, a list of `findings`, and a model's `forecast`, if any."""
    whole = {"healthy": healthy(findings), "findings": [asdict(finding) for finding in findings]}
    if forecast is not None:
        whole["forecast"] = forecast
    return json.dumps(whole, indent=2)


def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _accel() -> Finding:
    folder = Path(__file__).resolve().parent
    version = _version("accel-diffusion") or "not installed as a distribution"
    return Finding(name="accel", state="ok", detail=f"{version}, commit {commit()}, in {folder}")


def _needed(name: str) -> Finding:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken library may raise anything
        return Finding(
            name=name,
            state="broken",
            detail=_reason(error),
            advice=f"pip install --upgrade {name}",
        )
    return Finding(name=name, state="ok", detail=str(getattr(module, "__version__", "unknown")))


def _siblings() -> Iterator[Finding]:
    root = Path(__file__).resolve().parent.parent
    for name in siblings.SIBLINGS:
        spec = importlib.util.find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin == root / name / "__init__.py":
            yield Finding(name=name, state="ok", detail="ours, beside accel")
            continue
        yield Finding(
            name=name,
            state="broken",
            detail=f"`import {name}` finds {origin or 'nothing'}, not {root / name}",
            advice="rename or uninstall what shadows it, or start from another folder",
        )


def _name_clash() -> Finding:
    owners = sorted(set(metadata.packages_distributions().get("accel", [])))
    if _FOREIGN_ACCEL in owners:
        return Finding(
            name="name",
            state="warning",
            detail="the PyPI project `accel` is installed as well and writes to the same folder",
            advice="pip uninstall accel, then pip install --force-reinstall accel-diffusion",
        )
    return Finding(name="name", state="ok", detail="no other distribution brings a package `accel`")


def _cpu() -> Finding:
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    advice = ""
    if threads > cores:
        advice = f"torch.set_num_threads({cores}): more threads than cores slow each other down"
    return Finding(
        name="cpu",
        state="warning" if advice else "ok",
        detail=f"{cores} cores, {threads} threads in torch",
        advice=advice,
    )


def _accelerator() -> Finding:
    if not torch.accelerator.is_available():
        return Finding(
            name="accelerator",
            state="missing",
            detail="none; everything runs on the CPU",
            advice="with an NVIDIA card, install a CUDA build of torch (pytorch.org)",
        )
    device = torch.accelerator.current_accelerator()
    ones = torch.ones(8, 8, device=device)
    if float((ones @ ones).sum()) != float(8**3):
        return Finding(
            name="accelerator",
            state="broken",
            detail=f"{device} multiplies wrongly",
            advice="update its driver, or set the device to cpu",
        )
    return Finding(name="accelerator", state="ok", detail=f"{device}, {_cuda_detail()}")


def _cuda_detail() -> str:
    if not torch.cuda.is_available():
        return "a product of matrices came out right"
    properties = torch.cuda.get_device_properties(0)
    bfloat16 = "with" if torch.cuda.is_bf16_supported() else "without"
    return (
        f"{torch.cuda.device_count()} x {properties.name}, "
        f"{properties.total_memory / _GIB:.0f} GiB, {bfloat16} bfloat16"
    )


def _triton() -> Finding:
    triton = importlib.import_module("triton")
    runtime = importlib.import_module("triton.runtime")
    try:
        target = runtime.driver.active.get_current_target()
    except Exception as error:  # noqa: BLE001 - drivers raise what they like
        return Finding(
            name="triton",
            state="warning",
            detail=f"{triton.__version__}, but no device to run on ({_reason(error)})",
            advice="nothing to do on a CPU: sparse attention takes its torch backend",
        )
    return Finding(name="triton", state="ok", detail=f"{triton.__version__} for {target}")


def _xformers() -> Finding:
    version = importlib.import_module("xformers").__version__
    ops = importlib.import_module("xformers.ops")
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    q = torch.zeros(1, 16, 1, 32, device=device)
    try:
        ops.memory_efficient_attention(q, q, q)
    except Exception as error:  # noqa: BLE001 - a failed dispatch raises several kinds
        return Finding(
            name="xformers",
            state="warning",
            detail=f"{version}, but its attention does not run on {device} ({_reason(error)})",
            advice="install the build for your torch; other backends are taken meanwhile",
        )
    return Finding(name="xformers", state="ok", detail=f"{version} on {device}")


def _zoo() -> Finding:
    names = zoo.names()
    if not names:
        return Finding(
            name="zoo",
            state="missing",
            detail="no model found beside accel",
            advice="reinstall accel-diffusion, or name a folder with --model",
        )
    return Finding(name="zoo", state="ok", detail=", ".join(names))


def _guarded(name: str, attempt: Callable[[], Finding]) -> Finding:
    try:
        return attempt()
    except ImportError:
        return Finding(
            name=name,
            state="missing",
            detail="not installed",
            advice='optional: pip install "accel-diffusion[kernels]"',
        )
    except Exception as error:  # noqa: BLE001 - a report must not die of what it reports
        return Finding(name=name, state="broken", detail=_reason(error), advice=f"reinstall {name}")


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _reason(error: BaseException) -> str:
    lines: list[Any] = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
