"""A manifest survives being killed at any byte, and trusts no file that has changed."""

from pathlib import Path

import pytest

from accel.errors import OptionError
from accel.manifest import Manifest, digest


def entry(item_id: str, content: bytes = b"x", **more: object) -> dict[str, object]:
    return {
        "id": item_id,
        "name": f"{item_id}.png",
        "status": "ok",
        "sha256": digest(content),
    } | more


def test_an_item_is_done_while_its_file_is_there_and_unchanged(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    assert not manifest.done("a")
    manifest.append(entry("a", b"picture"))
    assert not manifest.done("a")
    (tmp_path / "a.png").write_bytes(b"picture")
    assert Manifest(tmp_path).done("a")
    (tmp_path / "a.png").write_bytes(b"changed")
    assert not Manifest(tmp_path).done("a")


def test_later_lines_replace_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    manifest = Manifest(tmp_path)
    manifest.append(entry("a", status="failed"))
    assert not manifest.done("a")
    manifest.append(entry("a"))
    assert manifest.done("a")
    assert Manifest(tmp_path).done("a")


def test_a_line_torn_at_any_byte_is_forgotten_and_replaced(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.append(entry("a"))
    whole = manifest.path.read_bytes()
    manifest.append(entry("b", prompt="zwei Töne"))
    torn = manifest.path.read_bytes()[len(whole) :]
    for length in range(1, len(torn)):
        manifest.path.write_bytes(whole + torn[:length])
        again = Manifest(tmp_path)
        assert again.entry("a") is not None
        assert again.entry("b") is None
        again.append(entry("c"))
        last = Manifest(tmp_path)
        assert last.entry("a") is not None
        assert last.entry("c") is not None


def test_a_manifest_that_is_torn_from_the_start_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_bytes(b'{"id": "a", "na')
    Manifest(tmp_path).append(entry("b"))
    assert Manifest(tmp_path).entry("b") is not None
    assert Manifest(tmp_path).entry("a") is None


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"name": 1}', b"\xff\xfe", b""])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    manifest = Manifest(tmp_path)
    manifest.append(entry("a"))
    manifest.path.write_bytes(manifest.path.read_bytes() + line + b"\n")
    with pytest.raises(OptionError, match="line 2 is damaged"):
        Manifest(tmp_path)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(OptionError, match="Cannot read"):
        Manifest(path)
