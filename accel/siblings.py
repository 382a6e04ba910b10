"""Checks that each generically named sibling package is ours and not a file that shadows it."""

import importlib.util
from pathlib import Path

from accel.errors import AccelError

SIBLINGS = ("caching", "sparse_attn", "token_prune", "dllm", "ui")


def check_siblings(root: Path | None = None) -> None:
    """Checks that every sibling package would be imported from beside accel itself.

    Raises:
        AccelError: naming the file that would be imported instead.
    """
    root = root or Path(__file__).resolve().parent.parent
    for name in SIBLINGS:
        spec = importlib.util.find_spec(name)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin == root / name / "__init__.py":
            continue
        found = "nothing" if origin is None else str(origin)
        raise AccelError(
            f"`import {name}` would import {found} instead of accel's own package at "
            f"{root / name}. Rename or uninstall what shadows it, or run from another folder."
        )
