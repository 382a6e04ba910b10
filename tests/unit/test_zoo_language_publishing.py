"""Language models in the zoo: measured, published, and loaded back."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from accel import source, zoo
from accel.errors import AccelError, AccelUnsupportedError, OptionError
from accel.record import read_record
from accel.zoo import catalogue
from accel.zoo.language import evaluate, publish
from accel.zoo.language.blueprint import Shape, new_model, save_model
from accel.zoo.language.decode import Plan
from accel.zoo.language.loading import LanguageModel, load_language
from accel.zoo.language.tasks import sample_items
from accel.zoo.language.vocabulary import language_tokenizer

NAME = "tiny-llada"
SMALL = Shape(hidden_size=64, intermediate_size=96, num_layers=2)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training of 90 seconds would have left, with a model that knows nothing."""
    folder = tmp_path_factory.mktemp("run")
    save_model(folder / NAME, new_model(SMALL))
    torch.save({"seconds": 90.4}, folder / "checkpoint.pt")
    return folder


@pytest.fixture
def empty_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for the zoo's."""
    home = tmp_path / "zoo"
    home.mkdir()
    monkeypatch.setattr(catalogue, "HERE", home)
    monkeypatch.setattr(publish, "HERE", home)
    return home


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Runs a module's `main` with the arguments of a command line."""

    def run(module, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["prog", *map(str, arguments)])
        module.main()

    return run


@pytest.fixture
def published(empty_zoo: Path, run_folder: Path, command, tmp_path: Path) -> Path:
    command(publish, NAME, "--run", run_folder, "--record", tmp_path / "missing.json")
    return empty_zoo / NAME


def test_a_published_model_is_loaded_by_name(published: Path) -> None:
    from transformers import LlamaForCausalLM

    assert zoo.names() == (NAME,)
    loaded = zoo.load(NAME)
    assert isinstance(loaded, LanguageModel)
    assert type(loaded.model) is LlamaForCausalLM
    assert not loaded.model.training
    assert (loaded.model.dtype, zoo.load(NAME, torch.bfloat16).model.dtype) == (
        torch.float32,
        torch.bfloat16,
    )
    original = new_model(SMALL).lm_head.weight
    torch.testing.assert_close(loaded.model.lm_head.weight, original, atol=1e-3, rtol=1e-3)
    prompts = zoo.prompts(NAME, 3)
    assert prompts == [item.prompt for item in sample_items(3)]
    answers = loaded.answers(prompts, Plan(**{**zoo.card(NAME).call, "gen_length": 8}))
    assert len(answers) == 3


def test_a_card_says_what_the_model_is(published: Path) -> None:
    card = zoo.card(NAME)
    assert (card.name, card.kind, card.seconds) == (NAME, "language", {"model": 90})
    assert Plan(**card.call).gen_length == 32
    files = {path.name for path in published.iterdir()} - {"card.json", "README.md"}
    assert set(card.files) == files >= {"model.safetensors", "config.json", "tokenizer.json"}
    assert "Not evaluated yet" in (published / "README.md").read_text("utf-8")


def test_published_weights_are_half_precision(published: Path) -> None:
    from safetensors import safe_open

    with safe_open(published / "model.safetensors", framework="pt") as weights:
        kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118
    assert kinds == {"F16"}


def test_an_evaluation_is_recorded_and_reaches_card_and_readme(
    published: Path, command, tmp_path: Path
) -> None:
    path = evaluate.run(NAME, 16, tmp_path, ["16", "4"])
    record = read_record(path)
    curves = record["results"]["tokens_per_step"]
    assert list(curves) == ["4", "16"]
    assert record["config"]["items"] == 16
    assert sum(task["items"] for task in curves["4"]["tasks"].values()) == 16
    command(publish, NAME, "--record", path)
    assert zoo.card(NAME).figures == record["results"]
    assert zoo.card(NAME).seconds == {"model": 90}
    assert "| task | 4 | 16 |" in (published / "README.md").read_text("utf-8")


def test_a_damaged_model_is_named(published: Path) -> None:
    (published / "tokenizer.json").unlink()
    with pytest.raises(AccelError, match=r"tokenizer\.json is missing"):
        zoo.load(NAME)


def test_a_model_that_would_run_causally_is_refused(tmp_path: Path) -> None:
    model = new_model(SMALL)
    model.config.is_causal = True
    save_model(tmp_path, model)
    with pytest.raises(
        AccelUnsupportedError, match=r"causally .*is_causal is True.* 5\.2 or newer"
    ):
        load_language(tmp_path)


def test_language_models_draw_no_pictures(published: Path) -> None:
    with pytest.raises(OptionError, match=f"{NAME} is a language model, and pictures"):
        source.find(NAME)


def test_pipelines_are_of_the_image_kind() -> None:
    assert zoo.card("scenes-flux").kind == "image"


def test_answers_are_counted_up_to_their_end(run_folder: Path) -> None:
    language = load_language(run_folder / NAME)
    items = sample_items(28)
    answered = evaluate.answer(language, items, 8)
    assert sorted(item.prompt for item in answered.items) == sorted(item.prompt for item in items)
    ends = language_tokenizer()
    lengths = [len(ends(text, add_special_tokens=False).input_ids) for text in answered.texts]
    assert sum(lengths) <= answered.tokens <= sum(lengths) + len(items)
    # 32 tokens at 8 a pass take 4 passes, 96 take 12; answers may end early.
    assert answered.forwards <= sum(12 if item.long else 4 for item in items)


def test_long_items_are_counted_twice_over() -> None:
    items = [item for item in sample_items(300) if item.task in {"copy", "sort"}]
    texts = [item.answer if item.long else "" for item in items]
    found = evaluate.figures(evaluate.Answered(items, texts, 50, 20))
    long = sum(item.long for item in items)
    assert found["all"]["accuracy"] == pytest.approx(long / len(items), abs=1e-4)
    assert set(found["tasks"]) == {"copy", "sort"}
    assert found["long"] == {"copy": evaluate.accuracy(long, long)}
    assert found["tokens_per_forward"] == 2.5


def test_intervals_are_wilsons() -> None:
    # Newcombe 1998, table I: 81 of 263 and 0 of 20.
    assert evaluate.accuracy(81, 263) == {
        "accuracy": 0.308,
        "low": 0.2553,
        "high": 0.3662,
        "items": 263,
    }
    assert evaluate.accuracy(0, 20)["high"] == pytest.approx(0.1611, abs=1e-4)


def test_prompts_of_language_models_need_no_transformers(published: Path) -> None:
    import subprocess

    home = published.parent
    program = (
        "from pathlib import Path; from accel import zoo; from accel.zoo import catalogue; "
        f"catalogue.HERE = Path({str(home)!r}); zoo.prompts({NAME!r}, 8); zoo.card({NAME!r}); "
        "import sys; sys.exit('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_publishing_replaces_what_was_there(published: Path, run_folder: Path, command) -> None:
    (published / "stray.bin").write_bytes(b"x")
    shutil.copy(published / "README.md", published / "old.md")
    command(publish, NAME, "--run", run_folder)
    assert not (published / "stray.bin").exists()
    assert set(zoo.card(NAME).files).isdisjoint({"stray.bin", "old.md"})
