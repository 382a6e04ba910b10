"""Prompt files are read as people write them, and names made from prompts are safe anywhere."""

import re
from pathlib import Path

import pytest

from accel.errors import OptionError
from accel.prompts import SLUG_BYTES, check_prompt, read_prompts, slug


def test_comments_and_empty_lines_and_marks_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeff# title\r\na cat\r\n\r\n  two dogs  \n#x\nline\u2028separator".encode())
    assert read_prompts(path) == ["a cat", "two dogs", "line\u2028separator"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "holds no prompts"),
        ("a.txt", b"# only\n\n", "holds no prompts"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.txt", b"fine\nbad\x00line\n", r"a\.txt line 2: .* U\+0000"),
        ("a.txt", b"fine\n" + b"x" * 20_001, "line 2: the prompt has 20001 bytes"),
        ("a.jsonl", b'{"prompt": "x"}', "reads text files"),
        ("a.csv", b"prompt\nx", "reads text files"),
    ],
)
def test_files_that_hold_no_prompts_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(OptionError, match=message):
        read_prompts(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Cannot read prompts"):
        read_prompts(tmp_path / "none.txt")
    with pytest.raises(OptionError, match="Cannot read prompts"):
        read_prompts(tmp_path)


def test_a_prompt_may_not_be_empty() -> None:
    with pytest.raises(OptionError, match="--prompt: the prompt has 2 bytes"):
        check_prompt("  ", "--prompt")


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("A red Bag!", "a-red-bag"),
        ("../../etc/passwd", "etc-passwd"),
        ("C:\\windows\\x", "c-windows-x"),
        ("Äpfel & naïve café", "apfel-naive-cafe"),
        ("\U0001f600" * 300, "prompt"),
        ("你好", "prompt"),
        ("---", "prompt"),
        ("a\x00b", "a-b"),
        ("x" * 100, "x" * SLUG_BYTES),
        ("word " * 30, "-".join(["word"] * 12)),
    ],
)
def test_slugs_are_short_plain_ascii(prompt: str, expected: str) -> None:
    assert slug(prompt) == expected
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug(prompt))
    assert len(slug(prompt).encode()) <= SLUG_BYTES
