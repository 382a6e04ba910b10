"""The zoo: prompts, the judge, loading offline, and what it says when files are damaged."""

import dataclasses
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from accel import zoo
from accel.errors import AccelError, OptionError
from accel.zoo import catalogue
from accel.zoo.judge import WEIGHTS, Judge, questions
from accel.zoo.scenes import (
    COLOURS,
    GROUNDS,
    KINDS,
    RELATIONS,
    Item,
    Scene,
    held_out_prompts,
    parse,
    random_scene,
    sample_scenes,
)

NAME = "scenes-flux"
ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000
SHEET_SIDE = 8
KNOWN = Item("bag", "red", "small")


def tree_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def real_scenes() -> tuple[torch.Tensor, list[Scene]]:
    """32 scenes drawn with garments that no training saw, [32, 3, 64, 64] in 0..1."""
    sheet = np.asarray(Image.open(WEIGHTS.parent / "real_scenes.png"), dtype=np.float32) / 255
    tiles = sheet.reshape(-1, 64, SHEET_SIDE, 64, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 64, 64, 3)
    captions = json.loads((WEIGHTS.parent / "real_scenes.json").read_text("utf-8"))
    return torch.from_numpy(tiles).permute(0, 3, 1, 2), [parse(caption) for caption in captions]


@pytest.fixture
def copied_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy of the pipeline that a test may damage."""
    shutil.copytree(catalogue.HERE / NAME, tmp_path / NAME)
    monkeypatch.setattr(catalogue, "HERE", tmp_path)
    return tmp_path / NAME


def test_every_caption_parses_back_to_its_scene() -> None:
    rng = random.Random(0)
    for _ in range(500):
        scene = random_scene(rng)
        assert parse(scene.caption()) == scene


def test_a_caption_reads_as_plain_english() -> None:
    scene = Scene(
        (Item("ankle boot", "red", "large"), Item("bag", "blue", "small")), "navy", "above"
    )
    assert scene.caption() == "a large red ankle boot above a small blue bag on a navy ground"
    single = Scene((Item("trousers", "green", "small"),), "cream")
    assert single.caption() == "small green trousers on a cream ground"


@pytest.mark.parametrize(
    "caption",
    ["", "a cat", "a large red boot on a navy ground", "a large red bag on a black ground"],
)
def test_other_captions_are_refused_with_an_example(caption: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        parse(caption)


@pytest.mark.parametrize(
    ("said", "turned"), [("below", "above"), ("to the right of", "to the left of")]
)
def test_two_ways_of_saying_one_arrangement_share_a_description(said: str, turned: str) -> None:
    bag, dress = Item("bag", "red", "large"), Item("dress", "pink", "small")
    one, other = Scene((bag, dress), "grey", said), Scene((dress, bag), "grey", turned)
    assert one.description() == other.description()
    assert one.is_held_out() == other.is_held_out()


def test_held_out_prompts_are_fixed_distinct_and_disjoint_from_training() -> None:
    prompts = held_out_prompts(256)
    assert prompts == held_out_prompts(256)
    assert prompts[0] == "a small green t-shirt below small cyan trousers on a mint ground"
    held_out = {parse(prompt).description() for prompt in prompts}
    assert len(held_out) == 256
    rng = random.Random(1)
    trained = {random_scene(rng).description() for _ in range(5000)}
    assert held_out.isdisjoint(trained)


def test_held_out_prompts_use_every_word() -> None:
    scenes = sample_scenes(256)
    items = [item for scene in scenes for item in scene.items]
    assert {item.kind for item in items} == set(KINDS)
    assert {item.colour for item in items} == set(COLOURS)
    assert {scene.ground for scene in scenes} == set(GROUNDS)
    assert {scene.relation for scene in scenes} == {"", *RELATIONS}


def test_prompts_need_neither_the_data_set_nor_diffusers() -> None:
    program = (
        "from accel import zoo; import sys; zoo.prompts('scenes-flux', 8); zoo.card('scenes-flux');"
        "sys.exit(any(name in sys.modules for name in ('diffusers', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_prompts_of_the_training_split_are_others() -> None:
    assert set(zoo.prompts(NAME, 64)).isdisjoint(zoo.prompts(NAME, 64, "train"))


def test_judge_recognises_real_garments(real_scenes: tuple[torch.Tensor, list[Scene]]) -> None:
    images, scenes = real_scenes
    score = Judge.load().score(images, scenes)
    assert score.kind_accuracy >= 0.95
    assert score.colour_accuracy >= 0.95


def test_judge_was_good_on_many_held_out_garments() -> None:
    figures = json.loads((WEIGHTS.parent / "figures.json").read_text("utf-8"))
    assert figures["kind_accuracy"] >= 0.95
    assert figures["colour_accuracy"] >= 0.95


def test_judge_sees_only_the_region_asked_about(
    real_scenes: tuple[torch.Tensor, list[Scene]],
) -> None:
    image = real_scenes[0][:1]
    scene = Scene((KNOWN, KNOWN), "mint", "to the left of")
    changed = image.clone()
    changed[..., 32:] = 0.5
    left, right = questions(image, [scene])[0]
    left_changed, right_changed = questions(changed, [scene])[0]
    assert torch.equal(left, left_changed)
    assert not torch.equal(right, right_changed)


def test_judge_refuses_images_that_do_not_fit_the_scenes() -> None:
    with pytest.raises(ValueError, match=r"\(1, 3, 64, 64\)"):
        Judge.load().score(torch.zeros(2, 3, 64, 64), [Scene((KNOWN,), "mint")])


def test_scores_add_up(real_scenes: tuple[torch.Tensor, list[Scene]]) -> None:
    images, scenes = real_scenes
    judge = Judge.load()
    halves = judge.score(images[:16], scenes[:16]) + judge.score(images[16:], scenes[16:])
    assert halves == judge.score(images, scenes)
    assert halves.both_accuracy <= min(halves.kind_accuracy, halves.colour_accuracy)


def test_zoo_names_and_cards() -> None:
    assert NAME in zoo.names()
    card = zoo.card(NAME)
    assert card.name == NAME
    assert (card.call["height"], card.call["width"]) == (64, 64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.name = "other"  # type: ignore[misc]


def test_the_model_was_good_on_held_out_prompts() -> None:
    found = zoo.card(NAME).figures["recommended"]
    assert found["kind"] >= 0.85
    assert found["colour"] >= 0.90


def test_all_files_together_stay_small_and_are_half_precision() -> None:
    assert tree_bytes(catalogue.HERE / NAME) + tree_bytes(WEIGHTS.parent) < 40 * MEGABYTE
    from safetensors import safe_open

    for path in (catalogue.HERE / NAME).rglob("*.safetensors"):
        with safe_open(path, framework="pt") as weights:
            kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118
        assert kinds == {"F16"}, path


def test_card_lists_exactly_the_files_that_are_there() -> None:
    folder = catalogue.HERE / NAME
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found - {"card.json", "README.md"} == set(zoo.card(NAME).files)


def test_load_gives_a_stock_pipeline_and_equal_seeds_give_equal_pictures() -> None:
    from diffusers import FluxPipeline

    pipe = zoo.load(NAME)
    assert type(pipe) is FluxPipeline
    assert pipe.dtype == torch.float32
    pipe.set_progress_bar_config(disable=True)
    call = {**zoo.card(NAME).call, "num_inference_steps": 2, "output_type": "np"}
    prompt = zoo.prompts(NAME, 1)[0]
    first, second = (
        pipe(prompt, generator=torch.Generator().manual_seed(3), **call).images[0] for _ in range(2)
    )
    assert first.shape == (64, 64, 3)
    assert np.array_equal(first, second)


def test_a_plain_call_gives_64_pixels() -> None:
    pipe = zoo.load(NAME, torch.bfloat16)
    pipe.set_progress_bar_config(disable=True)
    assert pipe("a large red bag on a mint ground", num_inference_steps=1).images[0].size == (
        64,
        64,
    )


@pytest.mark.parametrize("call", [zoo.load, zoo.card, lambda name: zoo.prompts(name, 1)])
def test_unknown_names_are_answered_with_the_nearest(call: object) -> None:
    assert callable(call)
    with pytest.raises(OptionError, match="Did you mean 'scenes-flux'"):
        call("scene-flux")


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_prompt_counts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(OptionError, match="4096"):
        zoo.prompts(NAME, count)


def test_unknown_splits_are_refused() -> None:
    with pytest.raises(OptionError, match="held_out"):
        zoo.prompts(NAME, 1, "test")  # type: ignore[arg-type]


def test_a_missing_weight_file_is_named(copied_zoo: Path) -> None:
    path = copied_zoo / "transformer" / "diffusion_pytorch_model.safetensors"
    path.unlink()
    with pytest.raises(AccelError, match=f"{path} is missing.*git checkout"):
        zoo.load(NAME)


def test_a_truncated_weight_file_is_named(copied_zoo: Path) -> None:
    path = copied_zoo / "vae" / "diffusion_pytorch_model.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(AccelError, match=f"{path} has {size // 2} bytes where {size} are expected"):
        zoo.load(NAME)


def test_a_damaged_card_is_named(copied_zoo: Path) -> None:
    (copied_zoo / "card.json").write_text("{", encoding="utf-8")
    with pytest.raises(AccelError, match=r"card\.json is damaged"):
        zoo.load(NAME)
