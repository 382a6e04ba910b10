"""`accel zoo` lists, shows, draws and trains, and says what is wrong before it loads anything."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from accel import zoo
from accel.cli import main
from accel.zoo import families
from accel.zoo.families import FAMILIES
from accel.zoo.language.blueprint import Shape, new_model, save_model
from accel.zoo.language.decode import Plan
from tests.unit.untrained_zoo import UNET, VIDEO, published, runs, untrained

__all__ = ["published", "runs", "untrained"]

Capture = pytest.CaptureFixture[str]


def test_the_zoo_is_listed_with_what_is_missing(published: Path, capsys: Capture) -> None:
    shutil.rmtree(published / UNET)
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FAMILIES)
    assert "train it: accel zoo train scenes-unet" in lines[1]
    assert "stock WanPipeline" in lines[2]


@pytest.fixture
def language(published: Path) -> str:
    """The name of a language model in the zoo that knows nothing yet."""
    from accel.zoo.language import publish

    folder = published / "tiny-llada"
    save_model(folder, new_model(Shape(hidden_size=64, intermediate_size=96, num_layers=1)))
    publish.write_card(folder, 60.0, published / "none.json")
    return folder.name


def test_a_language_model_is_listed_and_shown(language: str, capsys: Capture) -> None:
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(language) and "shaped like LLaDA" in line for line in lines)
    assert main(["zoo", "show", language]) == 0
    shown = capsys.readouterr().out
    assert zoo.prompts(language, 1)[0] in shown
    assert "reads     printable ASCII; the tasks copy, " in shown


def test_a_language_model_answers(language: str, tmp_path: Path, capsys: Capture) -> None:
    line = ["zoo", "sample", language, "--length", "6", "--tokens-per-step", "2"]
    assert main([*line, "--prompt", "sort: qbza"]) == 0
    printed = capsys.readouterr().out
    plan = Plan(gen_length=6, tokens_per_step=2)
    assert printed == zoo.load(language).answers(["sort: qbza"], plan)[0] + "\n"
    out = tmp_path / "new" / "answer.txt"
    assert main([*line, "--prompt", "sort: qbza", "--out", str(out)]) == 0
    assert (out.read_text("utf-8"), capsys.readouterr().out) == (printed, f"{out}\n")


def test_a_seed_draws_other_answers_above_temperature_0(language: str, capsys: Capture) -> None:
    def drawn(*more: str) -> str:
        assert main(["zoo", "sample", language, "--length", "8", *more]) == 0
        return capsys.readouterr().out

    warm = [drawn("--temperature", "2", "--seed", seed) for seed in ("1", "1", "2")]
    assert warm[0] == warm[1] != warm[2]
    assert drawn("--seed", "1") == drawn("--seed", "2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--steps", "2", "--size", "64"], "writes text; leave out --steps, --size"),
        (["--device", "meta"], "decoded on the cpu"),
        (["--prompt", "caf\u00e9"], "printable ASCII"),
    ],
)
def test_what_text_has_no_use_for_is_refused(
    line: list[str], message: str, language: str, capsys: Capture
) -> None:
    assert main(["zoo", "sample", language, *line]) == 2
    assert message in capsys.readouterr().err


def test_a_language_model_is_measured(language: str, tmp_path: Path, capsys: Capture) -> None:
    line = ["zoo", "eval", language, "--prompts", "14", "--out", str(tmp_path)]
    for tokens in ("32", "16"):
        assert main([*line, "--only", tokens]) == 0
    record = json.loads((tmp_path / f"zoo-{language}.json").read_text("utf-8"))
    curves = record["results"]["tokens_per_step"]
    assert list(curves) == ["16", "32"]
    assert curves["16"]["all"]["items"] == 14
    assert main([*line, "--only", "psnr_db"]) == 2
    assert "takes numbers of tokens a step" in capsys.readouterr().err


def test_a_language_model_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accel.zoo.language import train

    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(train, "train", lambda run, minutes: asked.append((run.name, minutes)))
    monkeypatch.chdir(tmp_path)
    assert main(["zoo", "train", "tiny-dream", "--minutes", "3"]) == 0
    assert asked == [("tiny-dream", 3)]


def test_a_card_is_shown(published: Path, capsys: Capture) -> None:
    assert main(["zoo", "show", VIDEO]) == 0
    shown = capsys.readouterr().out
    assert "'num_frames': 17" in shown
    assert "bouncing" in shown
    assert zoo.prompts(VIDEO, 1)[0] in shown


def test_a_sample_is_written(published: Path, tmp_path: Path, capsys: Capture) -> None:
    line = ["zoo", "sample", UNET, "--steps", "2", "--out", str(tmp_path / "one.png")]
    assert main(line) == 0
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.size == (64, 64)
    assert "trained on sentences like" not in capsys.readouterr().err


def test_a_clip_is_written_with_all_its_frames(
    published: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "new" / "clip.webp"
    line = ["zoo", "sample", VIDEO, "--steps", "2", "--frames", "5", "--size", "32"]
    assert main([*line, "--prompt", "a red bag", "--out", str(out)]) == 0
    with Image.open(out) as clip:
        assert (clip.size, clip.n_frames) == ((32, 32), 5)
    assert "trained on sentences like" in capsys.readouterr().err


REFUSED = [
    (["show", "scenes-flax"], "Did you mean"),
    (["sample", UNET, "--out", "x.png", "--prompt", "a red zebra"], "never saw the word zebra"),
    (["sample", UNET, "--out", "x.png", "--prompt", "red bags, cats"], "words bags, cats"),
    (["sample", UNET, "--out", "x.png", "--prompt", " "], "--prompt"),
    (["sample", UNET, "--out", "x.gif"], "expected one of .png"),
    (["sample", VIDEO, "--out", "x.mp4"], "expected one of .gif"),
    (["sample", UNET, "--out", "x.png", "--size", "512"], "multiples of 8 pixels up to 256"),
    (["sample", VIDEO, "--out", "x.gif", "--size", "40"], "multiples of 16 pixels"),
    (["sample", VIDEO, "--out", "x.gif", "--frames", "16"], "odd numbers from 1 to 65"),
    (["sample", UNET, "--out", "x.png", "--frames", "5"], "single pictures"),
    (["sample", UNET, "--out", "FILE/x.png"], "Cannot write"),
    (["eval", "nothing"], "no model 'nothing'"),
    (["train", "nothing"], "no model 'nothing'"),
    (["sample", UNET], "say where to write one with --out FILE"),
    (["sample", UNET, "--out", "x.png", "--tokens-per-step", "2"], "leave out --tokens-per-step"),
]


@pytest.mark.parametrize(
    ("line", "message"), REFUSED, ids=lambda part: " ".join(part) if isinstance(part, list) else ""
)
def test_wrong_requests_end_with_2_before_loading(
    line: list[str],
    message: str,
    published: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(families, "load_pipeline", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("")
    assert main(["zoo", *line]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("accel: error: ")
    assert message in shown.err


def test_training_without_the_data_set_says_how_to_get_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel.zoo.scenes._DATASET", tmp_path)
    monkeypatch.setattr("accel.zoo.train_scenes_unet.TEXT_MINUTES", 0.0)
    from accel.zoo.scenes import garments

    garments.cache_clear()
    monkeypatch.setattr("accel.zoo.training.Run.read_captions", lambda *_: None)
    assert main(["zoo", "train", UNET, "--minutes", "1", "--out", str(tmp_path / "run")]) == 3
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err


def test_an_unknown_stage_is_refused_with_those_there_are(
    published: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["zoo", "eval", UNET, "--out", str(tmp_path), "--only", "psnr"]) == 2
    told = capsys.readouterr().err
    assert "--only got psnr; expected some of guidance, recommended, psnr_db" in told
    assert not list(tmp_path.glob("*.json"))
