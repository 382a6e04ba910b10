"""Progress is a bar on a terminal and plain lines in a log."""

import io
import sys

import pytest

from accel.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Returns True."""
        return True


def test_a_log_gets_one_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("compare", 2) as progress:
        for note in ("A", "B", ""):
            progress.step(note)
    assert capsys.readouterr().err == "compare 1/2 A\ncompare 2/2 B\ncompare 3/3\n"


def test_a_terminal_gets_a_bar_that_grows_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("compare", 2) as progress:
        for note in ("A", "B", "control"):
            progress.step(note)
    assert "3/3" in terminal.getvalue()
    assert "control" in terminal.getvalue()
