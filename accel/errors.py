"""Every error that accel raises on purpose, each also a standard exception of the matching kind."""

from collections.abc import Iterable
from difflib import get_close_matches


class AccelError(Exception):
    """Base of all errors raised by accel; the message says what was found, expected and to do."""


class OptionError(AccelError, ValueError):
    """A method, preset, name or value that does not exist or lies outside its range."""


class AccelUnsupportedError(AccelError, TypeError):
    """An object that accel cannot patch, or a model whose structure could not be established."""


class ConflictError(AccelError, RuntimeError):
    """Two things that would skip or replace the same work, ours or somebody else's."""


class AccelBusyError(AccelError, RuntimeError):
    """The denoiser is in the middle of another generation."""


def nearest(name: str, options: Iterable[str]) -> str:
    """Returns " Did you mean 'x' or 'y'?" for the closest options, or "" if none is close."""
    lowered = {option.lower(): option for option in options}
    matches = get_close_matches(name.lower(), lowered, n=2, cutoff=0.5)
    if not matches:
        return ""
    return f" Did you mean {' or '.join(repr(lowered[match]) for match in matches)}?"
