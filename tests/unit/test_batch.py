"""A batch run makes every picture once, survives faults, and never writes outside its folder."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from accel import batch
from accel.batch import Job, Tally
from accel.errors import OptionError
from accel.manifest import Manifest
from accel.source import Source
from caching import FirstBlockCache
from tests.unit.tiny_pictures import SIDE_PX, talking_flux

ARGUMENTS = {"num_inference_steps": 2, "height": SIDE_PX, "width": SIDE_PX}
SOURCE = Source(name="tiny", place="/secret/tiny", kind="folder", identity="tiny@0")


@pytest.fixture(scope="module")
def pipe() -> Any:
    """Returns a tiny pipeline that takes prompts."""
    return talking_flux()


def job(folder: Path, *prompts: str, **more: Any) -> Job:
    settings: dict[str, Any] = {"source": SOURCE, "arguments": ARGUMENTS} | more
    return Job(prompts=prompts, folder=folder, **settings)


def run(asked: Job, pipe: Any, **more: Any) -> Tally:
    """Makes what is missing, as the command does."""
    manifest = Manifest(asked.folder)
    missing = [item for item in asked.items() if not manifest.done(item.item_id)]
    return batch.run(asked, pipe, manifest, missing, **more)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


class Faulty:
    """Passes calls on to a pipeline, unless a prompt is one of its faults."""

    def __init__(self, pipe: Any, faults: dict[str, Exception], most: int = 99) -> None:
        self.pipe = pipe
        self.faults = faults
        self.most = most
        self.sizes: list[int] = []
        self.scheduler = pipe.scheduler

    def __call__(self, **arguments: Any) -> Any:
        prompts = arguments["prompt"]
        self.sizes.append(len(prompts))
        if len(prompts) > self.most:
            raise torch.OutOfMemoryError("too large")
        for prompt in prompts:
            if prompt in self.faults:
                raise self.faults[prompt]
        return self.pipe(**arguments)


def test_every_prompt_becomes_a_picture_and_a_line(tmp_path: Path, pipe: Any) -> None:
    asked = job(tmp_path, "a red bag", "a blue dress", "a red bag")
    assert run(asked, pipe) == Tally(made=3)
    names = [item.name for item in asked.items()]
    assert len(set(names)) == 3
    assert sorted(path.name for path in tmp_path.glob("*.png")) == names
    assert [line["status"] for line in lines(tmp_path)] == ["ok"] * 3
    assert [line["seed"] for line in lines(tmp_path)] == [0, 1, 2]


def test_a_second_run_makes_only_what_is_missing(tmp_path: Path, pipe: Any) -> None:
    asked = job(tmp_path, "one", "two", "three")
    run(asked, pipe)
    names = [item.name for item in asked.items()]
    before = {name: (tmp_path / name).read_bytes() for name in names}
    (tmp_path / names[0]).unlink()
    (tmp_path / names[1]).write_bytes(b"damaged")
    done: list[str] = []
    assert run(asked, pipe, on_item=done.append) == Tally(made=2)
    assert done == names[:2]
    assert {name: (tmp_path / name).read_bytes() for name in names} == before
    assert run(asked, pipe) == Tally()


def test_what_decides_a_picture_decides_its_id(tmp_path: Path) -> None:
    asked = job(tmp_path, "a bag")
    others = [
        replace(asked, seed=1),
        replace(asked, arguments=ARGUMENTS | {"num_inference_steps": 3}),
        replace(asked, methods=(FirstBlockCache(),)),
        replace(asked, prompts=("a bat",)),
        replace(asked, source=replace(SOURCE, identity="tiny@1")),
    ]
    ids = {each.items()[0].item_id for each in (asked, *others)}
    assert len(ids) == 6
    same = [
        replace(asked, folder=tmp_path / "elsewhere", batch_size=2, metadata=False),
        replace(asked, source=replace(SOURCE, place="/elsewhere")),
    ]
    assert {each.items()[0].item_id for each in same} == {asked.items()[0].item_id}


def test_pictures_have_the_same_noise_in_every_batch(tmp_path: Path, pipe: Any) -> None:
    prompts = ("one", "two", "three")
    run(job(tmp_path / "1", *prompts), pipe)
    run(job(tmp_path / "3", *prompts, batch_size=3), pipe)
    for item in job(tmp_path, *prompts).items():
        alone, together = (Image.open(tmp_path / size / item.name) for size in ("1", "3"))
        # The arithmetic of a larger batch may round a value to the next of 256 levels.
        highest = max(abs(a - b) for a, b in zip(alone.tobytes(), together.tobytes(), strict=True))
        assert highest <= 1


def test_a_negative_prompt_goes_with_every_picture(tmp_path: Path, pipe: Any) -> None:
    more = ARGUMENTS | {"negative_prompt": "blurred", "true_cfg_scale": 2.0}
    assert run(job(tmp_path, "one", "two", batch_size=2, arguments=more), pipe).made == 2


def test_acceleration_is_written_down_and_taken_off_again(tmp_path: Path, pipe: Any) -> None:
    method = FirstBlockCache(threshold=10.0, warmup=1, tail=1, min_steps=1)
    more = ARGUMENTS | {"num_inference_steps": 6}
    before = type(pipe)
    run(job(tmp_path, "one", methods=(method,), arguments=more), pipe)
    assert type(pipe) is before
    assert lines(tmp_path)[0]["reused"] > 0
    text = Image.open(next(tmp_path.glob("*.png"))).text  # type: ignore[attr-defined]
    report = json.loads(text["accel"])["report"]
    assert report["reused"] == lines(tmp_path)[0]["reused"]
    assert report["blocks_skipped"] > 0


def test_settings_travel_inside_the_picture_without_paths(tmp_path: Path, pipe: Any) -> None:
    run(job(tmp_path, "zwei Töne, 你好", arguments=ARGUMENTS | {"guidance_scale": 2.5}), pipe)
    path = next(tmp_path.glob("*.png"))
    text = Image.open(path).text  # type: ignore[attr-defined]
    first, second = text["parameters"].split("\n")
    assert first == "zwei Töne, 你好"
    assert second == (
        "Steps: 2, Sampler: FlowMatchEulerDiscrete, CFG scale: 2.5, Seed: 0, Size: 32x32, "
        "Model: tiny"
    )
    assert json.loads(text["accel"])["prompt"] == "zwei Töne, 你好"
    for hidden in (b"secret", str(tmp_path).encode()):
        assert hidden not in path.read_bytes()


def test_metadata_can_be_left_out_and_changes_no_pixel(tmp_path: Path, pipe: Any) -> None:
    run(job(tmp_path / "with", "one"), pipe)
    run(job(tmp_path / "without", "one", metadata=False), pipe)
    kept, bare = (Image.open(next((tmp_path / n).glob("*.png"))) for n in ("with", "without"))
    assert bare.text == {}  # type: ignore[attr-defined]
    assert kept.tobytes() == bare.tobytes()


def test_a_failing_prompt_stops_no_other(tmp_path: Path, pipe: Any) -> None:
    faulty = Faulty(pipe, {"two": ValueError("no such word\nmore")})
    asked = job(tmp_path, "one", "two", "three", "four", batch_size=4)
    tally = run(asked, faulty)
    assert tally == Tally(made=3, failed=1, reason="ValueError: no such word")
    assert [line["prompt"] for line in lines(tmp_path) if line["status"] == "failed"] == ["two"]
    assert run(asked, pipe) == Tally(made=1)


def test_a_batch_too_large_for_memory_stays_halved(tmp_path: Path, pipe: Any) -> None:
    faulty = Faulty(pipe, {}, most=2)
    prompts = [f"prompt {index}" for index in range(8)]
    assert run(job(tmp_path, *prompts, batch_size=4), faulty) == Tally(made=8)
    assert faulty.sizes == [4, 2, 2, 2, 2]


def test_too_many_failures_stop_the_run(tmp_path: Path, pipe: Any) -> None:
    faulty = Faulty(pipe, dict.fromkeys(("one", "two", "three"), ValueError("broken")))
    asked = job(tmp_path, "one", "two", "three", max_failures=2)
    with pytest.raises(batch.StoppedError, match="2 failed pictures") as caught:
        run(asked, faulty)
    assert caught.value.exit_code == 1
    assert len(lines(tmp_path)) == 2


def test_a_pipeline_that_loses_pictures_is_a_failure(tmp_path: Path, pipe: Any) -> None:
    def lossy(**arguments: Any) -> Any:
        output = pipe(**arguments)
        output.images = output.images[1:] or output.images * 2
        return output

    tally = run(job(tmp_path, "one", "two", batch_size=2), lossy)
    assert tally.failed == 2
    assert "1 pictures were asked for, 2 came back" in tally.reason
    assert list(tmp_path.glob("*.png")) == []


def test_ctrl_c_keeps_what_is_finished_and_nothing_partial(tmp_path: Path, pipe: Any) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    asked = job(tmp_path, "one", "two", methods=(FirstBlockCache(),))
    with pytest.raises(KeyboardInterrupt):
        run(asked, pipe, on_item=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        asked.items()[0].name,
        "manifest.jsonl",
    ]
    assert run(asked, pipe) == Tally(made=1)


def test_a_disk_that_refuses_ends_the_run_without_partial_files(
    tmp_path: Path, pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(batch.StoppedError, match="No space left on device"):
        run(job(tmp_path, "one", "two"), pipe)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_cannot_be_written_ends_the_run(tmp_path: Path, pipe: Any) -> None:
    asked = job(tmp_path, "one")
    manifest = Manifest(tmp_path)
    manifest.path.mkdir()
    with pytest.raises(batch.StoppedError, match="Cannot write to"):
        batch.run(asked, pipe, manifest, asked.items())


@pytest.mark.parametrize("prompt", ["../../x", "CON", "nul", "a\\b", "\U0001f600" * 300, "."])
def test_names_are_safe_inside_the_folder(tmp_path: Path, prompt: str) -> None:
    name = job(tmp_path, prompt).items()[0].name
    assert batch.place(tmp_path, name).parent == tmp_path
    assert len(name) <= 80
    assert name.isascii()
    # Windows reserves CON, NUL and the like as whole names; ours begin with the index.
    assert name.startswith("000000_")


@pytest.mark.parametrize("name", ["../x.png", "/x.png", "deeper/x.png"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match="outside"):
        batch.place(tmp_path, name)


def test_a_link_in_place_of_a_picture_is_not_followed(tmp_path: Path, pipe: Any) -> None:
    outside = tmp_path / "outside.png"
    outside.write_bytes(b"precious")
    asked = job(tmp_path / "out", "one")
    asked.folder.mkdir()
    (asked.folder / asked.items()[0].name).symlink_to(outside)
    tally = run(asked, pipe)
    assert (tally.made, tally.failed) == (0, 1)
    assert "outside" in tally.reason
    assert outside.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("batch_size", 0), ("batch_size", 257), ("seed", -1), ("seed", 2**63), ("max_failures", 0)],
)
def test_numbers_out_of_range_are_refused(tmp_path: Path, setting: str, value: int) -> None:
    with pytest.raises(OptionError, match=setting):
        job(tmp_path, "one", **{setting: value})


class Clips:
    """A pipeline that makes clips of noise."""

    def __call__(self, prompt: list[str], generator: list[torch.Generator], **_: Any) -> Any:
        """Returns four frames for each prompt."""
        drawn = [torch.rand(4, 8, 12, 3, generator=each) for each in generator]
        return SimpleNamespace(frames=torch.stack(drawn[: len(prompt)]).numpy())


def test_clips_become_animated_pictures_without_loss(tmp_path: Path) -> None:
    assert run(job(tmp_path, "a red bag", batch_size=2, arguments={}), Clips()) == Tally(made=1)
    (path,) = tmp_path.glob("*.png")
    expected = torch.rand(4, 8, 12, 3, generator=torch.Generator().manual_seed(0))
    with Image.open(path) as shown:
        assert shown.n_frames == 4
        for index, frame in enumerate(expected):
            shown.seek(index)
            found = torch.from_numpy(np.asarray(shown.convert("RGB")).copy())
            assert torch.equal(found, (frame * 255).round().byte())
        assert "a red bag" in shown.text["parameters"]
    assert (lines(tmp_path)[0]["width"], lines(tmp_path)[0]["height"]) == (12, 8)
