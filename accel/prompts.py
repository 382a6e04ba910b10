"""Prompt files, and file names made from prompts."""

import re
import unicodedata
from pathlib import Path

from accel.errors import OptionError

MAX_PROMPT_BYTES = 20_000
"""Longer prompts are a mistake: every text encoder cuts them off far earlier."""

SLUG_BYTES = 60
"""The longest slug; file names may have 255 bytes on most systems."""

_NOT_A_SLUG = re.compile(r"[^a-z0-9]+")
_OTHER_FORMATS = {".jsonl", ".json", ".csv", ".tsv", ".yaml", ".yml"}


def read_prompts(path: Path) -> list[str]:
    """Returns the prompts of a text file: one a line, without empty lines and `#` comments.

    A byte order mark and Windows line ends are taken off.

    Raises:
        OptionError: the file cannot be read, is not UTF-8 text, holds no prompt, or a line holds
            a character or a length that no prompt has; the line's number is named.
    """
    if path.suffix.lower() in _OTHER_FORMATS:
        raise OptionError(
            f"{path} is a {path.suffix} file; this version reads text files with one prompt a line."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise OptionError(f"Cannot read prompts from {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from error
    # Not splitlines, which also splits at characters that may stand inside a prompt.
    lines = [line.strip() for line in text.replace("\r\n", "\n").split("\n")]
    found = [
        check_prompt(line, f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
        if line and not line.startswith("#")
    ]
    if not found:
        raise OptionError(f"{path} holds no prompts; expected one a line, # starts a comment.")
    return found


def check_prompt(prompt: str, place: str) -> str:
    """Returns the prompt if it is one.

    Args:
        prompt: What to check.
        place: Where it stands, for the message.

    Raises:
        OptionError: it is empty, too long, or holds control characters.
    """
    size = len(prompt.encode("utf-8", errors="surrogatepass"))
    if not prompt.strip() or size > MAX_PROMPT_BYTES:
        raise OptionError(
            f"{place}: the prompt has {size} bytes; expected 1 to {MAX_PROMPT_BYTES}."
        )
    for character in prompt:
        if unicodedata.category(character) in {"Cc", "Cs"} and character not in "\t\n":
            raise OptionError(
                f"{place}: the prompt holds the control character U+{ord(character):04X}; "
                "expected text."
            )
    return prompt


def slug(prompt: str) -> str:
    """Returns up to `SLUG_BYTES` lower-case ASCII letters, digits and hyphens from the prompt.

    "prompt" where nothing is left, for example of a prompt in Chinese.
    """
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode().lower()
    words = _NOT_A_SLUG.sub("-", plain).strip("-")
    if len(words) > SLUG_BYTES:
        cut = words[: SLUG_BYTES + 1]
        words = cut[: cut.rfind("-")] if "-" in cut else cut[:SLUG_BYTES]
    return words or "prompt"
