"""The command line says what is wrong before it loads anything, in one line and by its code."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import accel
from accel import commands, source
from accel.bench import write_record
from accel.cli import main
from accel.method_text import parse_method
from accel.shot import Shot
from accel.source import Source
from tests.unit.tiny_pictures import save_folder

Capture = pytest.CaptureFixture[str]
METHOD = "FirstBlockCache(threshold=0.9, warmup=1, tail=1, min_steps=1)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the folder of a saved tiny pipeline."""
    return str(save_folder(tmp_path_factory.mktemp("models") / "tiny-flux"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Returns a file of two prompts."""
    path = tmp_path / "prompts.txt"
    path.write_text("# two\na red bag\na blue dress\n")
    return str(path)


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every attempt to load a model fail the test."""

    def load(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(source.Source, "load", load)


def test_version_and_help(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"accel {accel.__version__}\n"
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in ("doctor", "compare", "generate", "bench"))
    assert "tune" not in shown


def test_accel_and_its_bench_run_as_modules(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = write_record(tmp_path / "one.json", "n", {}, [], {})
    monkeypatch.setattr(sys, "argv", ["accel", "bench", "--check", str(record)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("accel", run_name="__main__")
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("ok")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error::RuntimeWarning",
            "-m",
            "accel.bench",
            "--check",
            str(record),
        ],
        cwd=Path(accel.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ok")


def test_doctor_prints_json(capsys: Capture) -> None:
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True
    assert main(["doctor"]) == 0
    assert "diffusers" in capsys.readouterr().out


WRONG = [
    (["compare", "--model", "no-such"], "no model 'no-such'"),
    (["compare", "--model", "MODEL"], "--prompts-file"),
    (["compare", "--model", "MODEL", "--prompt", "x", "--method", "Nope()"], "no 'Nope'"),
    (["compare", "--model", "MODEL", "--prompt", "x", "--preset", "fsat"], "Did you mean 'fast'"),
    (["compare", "--model", "MODEL", "--prompt", "x", "--out", "FILE"], "Cannot write to"),
    (["compare", "--model", "MODEL", "--prompt", "x", "--out", "/proc/x"], "Cannot write to"),
    (["compare", "--model", "MODEL", "--prompt", "x", "--prompts-file", "FILE"], "not both"),
    (["compare", "--model", "MODEL", "--prompt", "  "], "--prompt: the prompt has"),
    (["bench", "--model", "MODEL", "--prompt", "x", "--record", "FILE/x"], "Cannot write"),
    (["generate", "--prompts", "none.txt", "--out", "OUT", "--model", "MODEL"], "Cannot read"),
    (["generate", "--prompts", "FILE", "--out", "FILE", "--model", "MODEL"], "Cannot read"),
    (["generate", "--prompts", "FILE", "--out", "OUT", "--plain", "--preset", "fast"], "--plain"),
    (
        ["generate", "--prompts", "FILE", "--out", "OUT", "--plain", "--memory", "LightCache"],
        "--memory",
    ),
    (["bench", "--check", "EMPTY"], "holds no .json"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=lambda part: " ".join(part)[:60])
@pytest.mark.usefixtures("no_loading")
def test_wrong_requests_end_with_2_before_loading(
    line: list[str],
    message: str,
    model: str,
    prompts: str,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    places = {
        "MODEL": model,
        "FILE": prompts,
        "OUT": str(tmp_path / "out"),
        "EMPTY": str(tmp_path / "empty"),
        "FILE/x": f"{prompts}/x.json",
    }
    assert main([places.get(word, word) for word in line]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("accel: error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "prompts.txt"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--memory", "2GiB"),
        ("--steps", "0"),
        ("--steps", "10001"),
        ("--steps", "many"),
        ("--size", "100000"),
        ("--size", "63"),
        ("--size", "64x"),
        ("--guidance", "nan"),
        ("--guidance", "-1"),
        ("--guidance", "x"),
        ("--seed", "-1"),
        ("--rounds", "0"),
        ("--count", "0"),
        ("--dtype", "int8"),
    ],
)
def test_numbers_out_of_range_end_with_2(option: str, value: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compare", option, value])
    assert caught.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.usefixtures("no_loading")
def test_what_a_pipeline_does_not_take_is_refused(
    tmp_path: Path, prompts: str, capsys: Capture
) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "DiTPipeline"}')
    line = ["generate", "--model", str(tmp_path), "--prompts", prompts, "--out", str(tmp_path)]
    assert main(line) == 2
    assert "DiTPipeline, which takes no prompt" in capsys.readouterr().err


@pytest.mark.usefixtures("no_loading")
def test_debug_shows_where_an_error_comes_from() -> None:
    with pytest.raises(accel.OptionError):
        main(["compare", "--debug", "--model", "no-such"])


def test_a_model_that_cannot_be_loaded_ends_with_3(
    tmp_path: Path, prompts: str, capsys: Capture
) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    out = tmp_path / "out"
    assert (
        main(["generate", "--model", str(tmp_path), "--prompts", prompts, "--out", str(out)]) == 3
    )
    assert "Could not load" in capsys.readouterr().err


GENERATE = ["--steps", "4", "--size", "32", "--device", "cpu", "--method", METHOD]


def test_generate_makes_resumes_and_plans(
    tmp_path: Path, prompts: str, model: str, capsys: Capture
) -> None:
    out = tmp_path / "out"
    line = ["generate", "--prompts", prompts, "--out", str(out), "--model", model, *GENERATE]
    assert main([*line, "--dry-run"]) == 0
    assert "2, 2 of them missing" in capsys.readouterr().out
    assert not out.exists()
    assert main([*line, "--dry-run", "--memory", "LightCache()"]) == 0
    assert "memory        LightCache(" in capsys.readouterr().out
    assert main(line) == 0
    assert "2 made, 0 failed, 0 kept" in capsys.readouterr().out
    assert len(list(out.glob("*.png"))) == 2
    assert main(line) == 0
    assert "Nothing to do" in capsys.readouterr().out
    Path(prompts).write_text("a red bag\na blue dress\na third\n")
    assert main(line) == 0
    assert "1 made, 0 failed, 2 kept" in capsys.readouterr().out


def test_generate_ends_with_1_if_a_picture_failed(
    tmp_path: Path, prompts: str, model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object) -> bytes:
        raise ValueError("cannot be encoded")

    monkeypatch.setattr("accel.png_text.encode", encode)
    out = str(tmp_path / "out")
    line = ["generate", "--prompts", prompts, "--out", out, "--model", model, *GENERATE]
    assert main(line) == 1
    assert "0 made, 2 failed" in capsys.readouterr().out
    assert main([*line, "--max-failures", "1"]) == 1
    assert "Stopped after 1 failed" in capsys.readouterr().err


def test_ctrl_c_ends_with_130(
    tmp_path: Path, prompts: str, model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("accel.progress.Progress.step", stop)
    out = tmp_path / "out"
    line = ["generate", "--prompts", prompts, "--out", str(out), "--model", model, *GENERATE]
    assert main([*line, "--plain", "--method", METHOD]) == 2
    assert main(line) == 130
    assert "interrupted" in capsys.readouterr().err
    assert len(list(out.glob("*.png"))) == 1


def test_bench_writes_a_record_and_lists_it(tmp_path: Path, model: str, capsys: Capture) -> None:
    record = tmp_path / "records" / "one.json"
    line = ["bench", "--model", model, "--prompt", "a red bag", "--rounds", "2"]
    light = ["--memory", "LightCache(budget='1MiB')"]
    assert main([*line, "--no-controls", "--record", str(record), *light, *GENERATE]) == 0
    assert "speed-up" in capsys.readouterr().out
    assert main(["bench", "--check", str(record.parent)]) == 0
    assert capsys.readouterr().out.startswith(f"ok       {record}: FirstBlockCache(")
    written = accel.bench.read_record(record)
    assert len(written["results"]["ratio"]["paired"]["samples"]) == 2
    assert "budget='1MiB'" in written["config"]["memory"]
    reports = [report for pair in written["results"]["pairs"] for report in pair["reports"]]
    assert all(0 < report["most_on_device"] <= 2**20 for report in reports)
    (record.parent / "two.json").write_text("{}")
    assert main(["bench", "--check", str(record.parent)]) == 1
    assert "faulty   Record" in capsys.readouterr().out


def test_compare_writes_a_folder_that_stands_alone(
    tmp_path: Path, model: str, capsys: Capture
) -> None:
    out = tmp_path / "report"
    line = ["compare", "--model", model, "--prompt", "a <b>red</b> bag", "--rounds", "1"]
    assert main([*line, "--out", str(out), *GENERATE]) == 0
    shown = capsys.readouterr().out
    assert "fewer steps, UniPCMultistep" in shown
    assert shown.rstrip().endswith("report.html")
    names = {path.name for path in out.iterdir()}
    pictures = {f"000_{kind}.png" for kind in ("plain", "fast", "difference", "own", "multistep")}
    assert names == {"report.html", "report.json", *pictures}


def test_generate_reads_guidance_and_can_do_without_acceleration(
    tmp_path: Path, prompts: str, model: str, capsys: Capture
) -> None:
    out = str(tmp_path / "out")
    line = ["generate", "--prompts", prompts, "--out", out, "--model", model, "--dry-run"]
    assert main([*line, "--plain", "--guidance", "2.5"]) == 0
    shown = capsys.readouterr().out
    assert "'guidance_scale': 2.5" in shown
    assert "acceleration  none" in shown


def test_calibrate_prints_a_method_that_needs_no_learning(model: str, capsys: Capture) -> None:
    line = ["calibrate", "--model", model, "--size", "64", "--steps", "12", "--prompt", "a bag"]
    learners = ["--method", "MagCache(threshold=0.5)", "--method", "TeaCache()"]
    assert main([*line, *learners]) == 0
    magnitudes, polynomial = map(parse_method, capsys.readouterr().out.splitlines())
    assert magnitudes.threshold == 0.5
    assert len(magnitudes.magnitudes) == 12
    assert len(polynomial.coefficients) == 5


@pytest.mark.usefixtures("no_loading")
def test_calibrate_refuses_what_learns_nothing(capsys: Capture) -> None:
    assert main(["calibrate", "--method", "BWCache()"]) == 2
    assert "BWCache needs no calibration" in capsys.readouterr().err


def test_compare_reads_prompts_from_a_file(
    tmp_path: Path, prompts: str, model: str, capsys: Capture
) -> None:
    line = ["compare", "--model", model, "--prompts-file", prompts, "--no-controls"]
    out = ["--out", str(tmp_path / "out"), "--rounds", "1"]
    assert main([*line, *out, "--steps", "1", "--size", "32", "--device", "cpu"]) == 0
    assert "pictures      2" in capsys.readouterr().out


def test_the_bundled_model_is_compared_and_judged(tmp_path: Path) -> None:
    method = "FirstBlockCache(threshold=1.0, warmup=1, tail=1, min_steps=1)"
    line = ["compare", "--count", "1", "--rounds", "1", "--steps", "4", "--device", "cpu"]
    assert main([*line, "--method", method, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["model"] == "scenes-flux"
    assert report["off_is_exact"]
    assert report["engaged"]
    assert report["judged"].keys() == {"plain", "fast", "own", "multistep"}
    assert report["judged"]["plain"].keys() == {"kind", "colour"}


def shots(*prompts: str, **arguments: Any) -> list[Shot]:
    return [Shot(prompt=prompt, seed=0, arguments=arguments) for prompt in prompts]


def test_only_scenes_of_the_zoo_are_judged() -> None:
    scene = "a large red bag on a mint ground"
    zoo = Source(name="z", place="scenes-flux", kind="zoo", identity="z")
    folder = Source(name="z", place="z", kind="folder", identity="z")
    assert commands.scene_judge(zoo, shots(scene, width=64, height=64)) is not None
    assert commands.scene_judge(zoo, shots(scene, "a cat")) is None
    assert commands.scene_judge(zoo, shots(scene, width=128)) is None
    assert commands.scene_judge(folder, shots(scene)) is None
