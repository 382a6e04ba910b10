"""Models are found and described without being loaded, and only safe files are ever read."""

import json
from pathlib import Path

import pytest
import torch

from accel import source
from accel.errors import OptionError
from tests.unit.tiny_pictures import save_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a saved tiny pipeline."""
    return save_folder(tmp_path_factory.mktemp("models") / "tiny-flux")


def index(folder: Path, content: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model_index.json").write_text(content)
    return folder


def test_a_folder_is_described_without_its_path(folder: Path) -> None:
    found = source.find(str(folder))
    assert (found.kind, found.name, found.class_name) == ("folder", "tiny-flux", "FluxPipeline")
    assert str(folder.parent) not in found.identity
    parameters = found.parameters()
    assert parameters is not None
    assert {"prompt", "num_inference_steps", "guidance_scale"} <= parameters.keys()


def test_a_folder_loads_ready_to_draw(folder: Path) -> None:
    pipe = source.find(str(folder)).load("cpu")
    assert type(pipe).__name__ == "FluxPipeline"
    assert pipe.transformer.dtype == torch.float32
    picture = pipe("a red bag", height=32, width=32, num_inference_steps=1).images[0]
    assert picture.size == (32, 32)


def test_a_folder_loads_in_the_type_asked_for(folder: Path) -> None:
    assert source.find(str(folder)).load("cpu", "bfloat16").transformer.dtype == torch.bfloat16


def test_fingerprint_changes_with_settings_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "weights.bin").write_bytes(b"1234")
    first = source.fingerprint(tmp_path)
    assert first == source.fingerprint(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 2}')
    second = source.fingerprint(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"12345")
    assert len({first, second, source.fingerprint(tmp_path)}) == 3


def test_a_hub_id_is_taken_as_it_is() -> None:
    found = source.find("some-owner/some.model")
    assert (found.kind, found.name, found.identity) == ("hub", *["some-owner/some.model"] * 2)
    assert found.parameters() is None


@pytest.mark.parametrize("model", ["scenes-flx", "/no/such/folder", "a/b/c", "", "x", "../y/z"])
def test_what_is_no_model_is_refused(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(OptionError, match=r"no model|holds no model_index"):
        source.find(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "names the class None"),
        (json.dumps({"_class_name": ["my_code", "MyPipeline"]}), "bring their own code"),
    ],
)
def test_damaged_or_foreign_indexes_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source.find(str(index(tmp_path, content)))


def test_a_model_outside_the_zoo_has_no_prompts(folder: Path) -> None:
    with pytest.raises(OptionError, match="--prompts-file"):
        source.find(str(folder)).prompts(3)


def test_a_model_that_cannot_be_loaded_names_its_reason(tmp_path: Path) -> None:
    content = {
        "_class_name": "FluxPipeline",
        "transformer": ["diffusers", "FluxTransformer2DModel"],
    }
    found = source.find(str(index(tmp_path / "hollow", json.dumps(content))))
    with pytest.raises(source.SetupError, match="Could not load hollow: ") as caught:
        found.load("cpu")
    assert caught.value.exit_code == 3


def test_pickled_weights_are_not_read(tmp_path: Path, folder: Path) -> None:
    copy = save_folder(tmp_path / "pickled")
    for weights in copy.glob("transformer/*.safetensors"):
        weights.unlink()
    torch.save({}, copy / "transformer" / "diffusion_pytorch_model.bin")
    with pytest.raises(source.SetupError, match="Only safetensors"):
        source.find(str(copy)).load("cpu")


def test_the_bundled_model_brings_prompts_and_arguments() -> None:
    found = source.find("scenes-flux")
    assert (found.kind, found.class_name) == ("zoo", "FluxPipeline")
    assert found.identity.startswith("scenes-flux@")
    assert len(set(found.prompts(3))) == 3
    assert found.call["num_inference_steps"] > 0


def test_a_fault_of_ours_passes_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OptionError("ours")

    monkeypatch.setattr("diffusers.DiffusionPipeline.from_pretrained", refuse)
    with pytest.raises(OptionError, match="ours"):
        source.find(str(folder)).load("cpu")


def test_a_bar_that_was_hidden_stays_hidden(folder: Path) -> None:
    from diffusers.utils import logging

    shown = logging.is_progress_bar_enabled()
    try:
        logging.disable_progress_bar()
        source.find(str(folder)).load("cpu")
        assert not logging.is_progress_bar_enabled()
        logging.enable_progress_bar()
        source.find(str(folder)).load("cpu")
        assert logging.is_progress_bar_enabled()
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
