"""What a folder of pictures holds: one JSON line for each finished item, written as it is saved."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel.errors import OptionError

NAME = "manifest.jsonl"


class Manifest:
    """The manifest of one folder. Later lines about an item replace earlier ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NAME
        self._entries = _read(self.path)

    def entry(self, item_id: str) -> Mapping[str, Any] | None:
        """Returns the newest line about an item, or None."""
        return self._entries.get(item_id)

    def done(self, item_id: str) -> bool:
        """Returns whether the item was saved and its file is still there, byte for byte."""
        entry = self._entries.get(item_id)
        if entry is None or entry.get("status") != "ok":
            return False
        path = self.folder / str(entry.get("name"))
        try:
            return digest(path.read_bytes()) == entry.get("sha256")
        except OSError:
            return False

    def append(self, entry: Mapping[str, Any]) -> None:
        """Adds a line and waits until it is on disk."""
        line = json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n"
        with self.path.open("ab+") as stream:
            _drop_torn_line(stream)
            stream.write(line.encode())
            stream.flush()
            os.fsync(stream.fileno())
        self._entries[str(entry["id"])] = dict(entry)


def digest(content: bytes) -> str:
    """Returns the SHA-256 of the content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise OptionError(f"Cannot read {path}: {error.strerror}.") from error
    entries: dict[str, dict[str, Any]] = {}
    # What follows the last line end is empty, or a line that was torn when the process died.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = json.loads(line)
            entries[entry["id"]] = entry
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(
                f"{path} line {number} is damaged. Remove that line to have its picture made "
                "again, or name another folder with --out."
            ) from error
    return entries


def _drop_torn_line(stream: Any) -> None:
    end = stream.seek(0, os.SEEK_END)
    start = end
    while start > 0:
        stream.seek(start - 1)
        if stream.read(1) == b"\n":
            break
        start -= 1
    if start < end:
        stream.truncate(start)
    stream.seek(0, os.SEEK_END)
