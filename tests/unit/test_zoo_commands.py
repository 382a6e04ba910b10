"""`accel zoo` lists, shows, draws and trains, and says what is wrong before it loads anything."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from accel import zoo
from accel.cli import main
from accel.zoo import families
from accel.zoo.families import MODULES
from tests.unit.untrained_zoo import UNET, VIDEO, published, runs, untrained

__all__ = ["published", "runs", "untrained"]

Capture = pytest.CaptureFixture[str]


def test_the_zoo_is_listed_with_what_is_missing(published: Path, capsys: Capture) -> None:
    shutil.rmtree(published / UNET)
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(MODULES)
    assert "train it: accel zoo train scenes-unet" in lines[1]
    assert "stock WanPipeline" in lines[2]


def test_language_models_are_listed_and_shown_but_make_no_pictures(
    published: Path, capsys: Capture
) -> None:
    (published / UNET).rename(published / "tiny-llada")
    path = published / "tiny-llada" / "card.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "kind": "language"}))
    assert main(["zoo"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("tiny-llada")
    assert main(["zoo", "show", "tiny-llada"]) == 0
    shown = capsys.readouterr().out
    assert zoo.prompts("tiny-llada", 1)[0] in shown
    assert "words" not in shown
    assert main(["zoo", "sample", "tiny-llada", "--out", "x.png"]) == 2
    assert "makes no pictures with 'tiny-llada'" in capsys.readouterr().err


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
    (["train", "nothing"], "no pictures with 'nothing'"),
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
