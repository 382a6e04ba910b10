"""Ratios pair neighbouring runs, and records are whole, complete and valid JSON."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from accel import bench, record
from accel.errors import OptionError


def test_ratio_alternates_and_leaves_the_warm_up_out() -> None:
    order: list[str] = []
    measured = bench.ratio(lambda: order.append("a"), lambda: order.append("b"), rounds=3, warmup=2)
    assert "".join(order) == "ab" * 5
    assert len(measured.a_s.samples) == len(measured.b_s.samples) == 3
    assert all(seconds >= 0 for seconds in measured.a_s.samples)


def test_both_sides_of_a_round_see_the_same_random_numbers() -> None:
    drawn: tuple[list[float], list[float]] = ([], [])
    bench.ratio(
        lambda: drawn[0].append(float(torch.rand(()))),
        lambda: drawn[1].append(float(torch.rand(()))),
        rounds=3,
        seed=7,
    )
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4


def test_ratio_of_known_seconds() -> None:
    measured = bench.Ratio.of([2.0, 4.0, 8.0], [1.0, 1.0, 4.0])
    assert measured.of_medians == 4.0
    assert measured.paired.median == 2.0
    assert measured.paired.samples == (2.0, 4.0, 2.0)
    assert measured.a_s.p20 == pytest.approx(2.8)
    assert measured.a_s.p80 == pytest.approx(6.4)
    assert "4.000" in str(measured)
    assert json.loads(json.dumps(measured.to_dict()))["of_medians"] == 4.0


@pytest.mark.parametrize("numbers", [{"rounds": 0}, {"warmup": -1}])
def test_impossible_rounds_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="rounds"):
        bench.ratio(int, int, **numbers)


def test_unpaired_or_missing_measurements_are_refused() -> None:
    with pytest.raises(OptionError, match="2 runs of A and 1 of B"):
        bench.Ratio.of([1.0, 2.0], [1.0])
    with pytest.raises(OptionError, match="no measurements"):
        bench.Spread.of([])


def test_record_has_every_key_and_reads_back(tmp_path: Path) -> None:
    path = bench.write_record(
        tmp_path / "deep" / "one.json", "a name", {"steps": 4}, [0, 1], {"psnr": 31.5}
    )
    found = bench.read_record(path)
    assert found.keys() >= bench.RECORD_KEYS
    assert found["config"] == {"steps": 4}
    assert found["seeds"] == [0, 1]
    assert found["versions"].keys() >= {"python", "torch"}
    assert found["threads"] == torch.get_num_threads()
    assert [entry.name for entry in path.parent.iterdir()] == ["one.json"]


def test_record_says_how_it_was_made_without_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = SimpleNamespace(__spec__=None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/accel", "bench", "a b"])
    path = bench.write_record(tmp_path / "one.json", "n", {}, [], {})
    assert bench.read_record(path)["command"] == "accel bench 'a b'"
    main.__spec__ = SimpleNamespace(name="tests.benchmarks.one")
    path = bench.write_record(tmp_path / "two.json", "n", {}, [], {})
    assert bench.read_record(path)["command"] == "python -m tests.benchmarks.one bench 'a b'"


def test_record_spells_out_numbers_that_json_lacks(tmp_path: Path) -> None:
    results = {"psnr": math.inf, "list": [1.0, (math.nan, -math.inf)]}
    path = bench.write_record(tmp_path / "one.json", "n", {}, [], results)
    assert bench.read_record(path)["results"] == {"psnr": "inf", "list": [1.0, ["nan", "-inf"]]}


def test_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = bench.write_record(tmp_path / "one.json", "old", {}, [], {})
    with pytest.raises(OptionError, match="JSON has no form"):
        bench.write_record(path, "new", {"method": object()}, [], {})
    assert bench.read_record(path)["name"] == "old"


def test_interrupted_write_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        record.write_atomically(tmp_path / "x.json", b"{}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"psnr": Infinity}', "constant Infinity"),
        ("[]", "holds a list"),
        ('{"name": "x"}', "lacks command, commit, config"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        bench.read_record(path)


def test_missing_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Cannot read record"):
        bench.read_record(tmp_path / "none.json")


def test_commit_tells_changed_files_and_foreign_folders_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "record.py"
    monkeypatch.setattr(record, "__file__", str(module))
    assert record.commit() == "unknown"

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    (tmp_path / "other.py").write_text("")
    git("init", "-q")
    git("add", "other.py")
    git("commit", "-qm", "first")
    module.write_text("")
    assert record.commit() == "unknown"
    row = tmp_path / "records" / "one.json"
    row.parent.mkdir()
    row.write_text("")
    git("add", ".")
    git("commit", "-qm", "second")
    assert len(record.commit()) == 40
    module.write_text("changed")
    assert record.commit().endswith("-dirty")
    git("checkout", "-q", ".")
    row.write_text("{}")
    assert len(record.commit()) == 40


def test_device_names_the_processor_where_there_is_no_accelerator() -> None:
    expected = "cpu: " if not torch.accelerator.is_available() else ""
    assert record.device().startswith(expected)
