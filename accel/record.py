"""The record that every published number needs, and the facts that go into it.

A record is one JSON file that says what was run, on what, with which versions and seeds.
"""

import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from accel import report
from accel.errors import OptionError

RECORD_KEYS = frozenset(
    {"name", "commit", "device", "versions", "config", "seeds", "created", "command", "results"}
)
"""The keys that every record must have."""

_RECORDS = ":(exclude,top,glob)**/records/*.json"

PACKAGES = ("accelerate", "cache_dit", "triton", "xformers", "numpy", "pillow")
"""Distributions that may change a result, besides those that every report names."""


def write_record(
    path: str | Path,
    name: str,
    config: Mapping[str, Any],
    seeds: Sequence[int],
    results: Mapping[str, Any],
) -> Path:
    """Returns the path of the record written: one JSON file saying what gave which numbers.

    Commit, device, versions, threads, date and command line are filled in. The file appears whole
    or not at all. Numbers that JSON lacks become the strings "inf", "-inf" and "nan".

    Args:
        path: Where to write; missing folders are made.
        name: What was measured, for example "first-block-cache on scenes-flux".
        config: Everything needed to repeat it: model, method, steps, sizes, rounds.
        seeds: Every seed used.
        results: The numbers.

    Raises:
        OptionError: something in `config` or `results` cannot be written as JSON.
    """
    record = {
        "name": name,
        **_circumstances(),
        "config": dict(config),
        "seeds": list(seeds),
        "results": dict(results),
    }
    try:
        text = json.dumps(_without_infinities(record), indent=2, allow_nan=False)
    except TypeError as error:
        raise OptionError(
            f"Record {name!r} holds something JSON has no form for ({error}); "
            "give numbers, strings, lists and dictionaries."
        ) from error
    target = Path(path)
    write_atomically(target, (text + "\n").encode())
    return target


def _circumstances() -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": _command(),
        "device": device(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def read_record(path: str | Path) -> dict[str, Any]:
    """Returns the record in `path`.

    Raises:
        OptionError: the file cannot be read, is not valid JSON, or lacks one of `RECORD_KEYS`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        record = json.loads(text, parse_constant=_refuse_constant)
    except OSError as error:
        raise OptionError(f"Cannot read record {path}: {error.strerror}.") from error
    except ValueError as error:
        raise OptionError(f"Record {path} is not valid JSON: {error}.") from error
    if not isinstance(record, dict):
        raise OptionError(
            f"Record {path} holds a {type(record).__name__}; expected an object with the keys "
            f"{', '.join(sorted(RECORD_KEYS))}."
        )
    missing = sorted(RECORD_KEYS - record.keys())
    if missing:
        raise OptionError(
            f"Record {path} lacks {', '.join(missing)}. Write records with "
            "accel.record.write_record, which fills them in."
        )
    return record


def prepare_folder(folder: Path) -> None:
    """Makes the folder, or says why nothing can be written there, before anything slow is started.

    Raises:
        OptionError: the path is a file, or the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(
            f"Cannot write to {folder}: {error.strerror}. Name another folder."
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `content` to `path` so that at no moment a partial file has that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; what we leave behind is as readable as any other file.
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def commit() -> str:
    """Returns the git commit of the accel in use, "-dirty" appended if files are changed.

    Records do not count: a run of several stages writes its own record more than once. "unknown"
    where there is no git, or where accel is not run from a checkout of its own.
    """
    folder = Path(__file__).parent
    head = _git(folder, "rev-parse", "HEAD")
    if head is None or _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return "unknown"
    changed = _git(folder, "status", "--porcelain", "-uno", "--", ":/", _RECORDS)
    return head + ("-dirty" if changed else "")


def device() -> str:
    """Returns the name of the accelerator, or of the processor where there is none."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    return f"cpu: {_cpu_name()}"


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that may change a result."""
    found = dict(report.versions())
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    # The build in use with its suffix (+cpu, +cu130), which the metadata may lack.
    found["torch"] = str(torch.__version__)
    return found


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed program, our own arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the user's git, wherever it is
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} threads"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _without_infinities(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"the constant {name} is no JSON")


def _command() -> str:
    """How this process was started, without the folder in which it was."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    started = [Path(sys.argv[0]).name] if spec is None else ["python", "-m", spec.name]
    return shlex.join([*started, *sys.argv[1:]])
