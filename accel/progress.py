"""A progress bar on a terminal, and plain lines elsewhere, always on the error stream."""

import sys
from typing import Any, Self

from tqdm import tqdm


class Progress:
    """Counts finished pictures. A context manager."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            self._bar = tqdm(total=total, desc=title, unit="picture", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, note: str = "") -> None:
        """Counts one more picture, with a word on what it was."""
        self._done += 1
        # How many runs a search needs is known only when it ends.
        self._total = max(self._total, self._done)
        if self._bar is None:
            self.say(f"{self._title} {self._done}/{self._total} {note}".rstrip())
            return
        self._bar.total = self._total
        self._bar.set_postfix_str(note)
        self._bar.update()

    def say(self, line: str) -> None:
        """Prints a line without disturbing the bar."""
        tqdm.write(line, file=sys.stderr)
