"""The loop that trains the zoo: its stages, its end, and that it goes on where it was."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accel.zoo import training
from accel.zoo.example_store import ExampleStore
from accel.zoo.train_scenes_flux import FluxLearner
from accel.zoo.train_scenes_unet import UNetLearner
from accel.zoo.train_text import text_length
from accel.zoo.training import Learner, Run, Stage, optimizers, train
from accel.zoo.video.train_scenes_video import VideoLearner


@dataclass(frozen=True)
class Numbers:
    """A batch of numbers."""

    values: Tensor

    def __len__(self) -> int:
        return len(self.values)


class Counting:
    """A pool of ones that remembers how it was used."""

    def __init__(self) -> None:
        self.grown: list[int] = []

    def grow(self, count: int) -> None:
        self.grown.append(count)

    def draw(self, count: int) -> Numbers:
        return Numbers(torch.ones(count, 3))


class Toy(Learner[Numbers]):
    """Learns to map ones to zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList([nn.Linear(3, 3)])
        self.norm = nn.LayerNorm(3)
        self.texts = 0.0

    def losses(self, batch: Numbers) -> tuple[Tensor, Tensor]:
        out = self.transformer_blocks[0](batch.values)
        return out.square().mean(), self.norm(out).square().mean()

    def pipeline(self) -> Any:
        return self

    def use_training_attention(self) -> None:
        self.texts = 0.0

    def compiled_blocks(self) -> list[nn.Module]:
        return []

    def read_captions(self, minutes: float) -> None:
        with torch.no_grad():
            self.transformer_blocks[0].weight.fill_(minutes)


STAGES = (
    Stage("small", 0.5, batch=4, fresh=1, first=7),
    Stage("whole", 1.0, batch=2, fresh=3, first=5),
)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which everything between two looks takes six seconds; nothing is published."""
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(training.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(training, "save_pipeline", lambda pipe, folder: folder.mkdir(exist_ok=True))


@pytest.mark.usefixtures("ticking")
def test_training_goes_through_its_stages_and_ends_with_the_time(tmp_path: Path) -> None:
    pools: dict[str, Counting] = {}

    def pool(stage: Stage, _seed: int) -> Counting:
        return pools.setdefault(stage.name, Counting())

    run = Run("toy", tmp_path / "new" / "run", Toy())
    assert train(run, STAGES, pool, minutes=1.0) == tmp_path / "new" / "run" / "toy"
    assert run.step == 10
    assert run.samples == {"small": 20, "whole": 10}
    assert pools["small"].grown == [7, 1, 1, 1, 1, 1]
    assert pools["whole"].grown == [5, 3, 3, 3, 3, 3]


@pytest.mark.usefixtures("ticking")
def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = Run("toy", tmp_path, Toy())
    train(first, STAGES, lambda *_: Counting(), minutes=0.5)
    torch.manual_seed(1)
    second = Run("toy", tmp_path, Toy())
    assert (second.step, second.seconds, second.samples) == (5, 30.0, {"small": 12, "whole": 4})
    for one, other in ((first.learner, second.learner), (first.ema, second.ema)):
        pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    moments = [
        o.state_dict()["state"][0] for o in (first.optimizers["adam"], second.optimizers["adam"])
    ]
    assert torch.equal(moments[0]["exp_avg"], moments[1]["exp_avg"])
    train(second, STAGES, lambda *_: Counting(), minutes=1.0)
    assert second.step == 10


def test_checkpoints_from_before_stages_had_names_still_load(tmp_path: Path) -> None:
    run = Run("toy", tmp_path, Toy())
    saved = {
        "learner": run.learner.state_dict(),
        "ema": run.ema.state_dict(),
        "optimizers": {name: o.state_dict() for name, o in run.optimizers.items()},
        "step": 3,
        "seconds": 20.0,
        "samples": {True: 64, False: 32},
    }
    torch.save(saved, tmp_path / "checkpoint.pt")
    assert Run("toy", tmp_path, Toy()).samples == {"half": 64, "full": 32}


def test_averaged_weights_start_from_what_the_captions_taught(tmp_path: Path) -> None:
    run = Run("toy", tmp_path, Toy())
    run.read_captions(0.5)
    assert run.seconds == 30
    assert torch.equal(run.ema.transformer_blocks[0].weight, torch.full((3, 3), 0.5))


def test_both_losses_fall_and_the_average_lags_behind(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = Run("toy", tmp_path, Toy())
    batch = Numbers(torch.ones(4, 3))
    first, *_, last = [run.update(batch, STAGES[0], spent=0.0)[0] for _ in range(200)]
    assert last < first / 4
    assert run.ema.losses(batch)[0] > last


@pytest.mark.parametrize(
    ("make", "outside"),
    [
        (lambda: FluxLearner(nn.Identity()), "transformer.context_embedder.weight"),
        (lambda: UNetLearner(nn.Identity()), "unet.conv_in.weight"),
        (lambda: VideoLearner(nn.Identity()), "transformer.patch_embedding.weight"),
    ],
)
def test_only_matrices_in_blocks_are_left_to_muon(make: Any, outside: str) -> None:
    learner = make()
    names = {weight: name for name, weight in learner.named_parameters()}
    found = optimizers(learner)
    hidden, rest = (
        [names[weight] for group in found[kind].param_groups for weight in group["params"]]
        for kind in ("muon", "adam")
    )
    assert any("to_q" in name for name in hidden)
    assert not any("norm" in name for name in hidden)
    assert outside in rest
    untouched = set(names.values()) - {*hidden, *rest}
    assert {name.split(".")[0] for name in untouched} == learner.encoders


def test_a_store_forgets_its_oldest_rows() -> None:
    store = ExampleStore(3)
    for start in (0, 2):
        store.add([torch.arange(start, start + 2), torch.arange(start, start + 2) * 10])
    assert len(store) == 3
    assert [column.tolist() for column in store.take([0, 2])] == [[1, 3], [10, 30]]


def test_rarely_a_batch_has_more_text_tokens() -> None:
    drawn = [text_length(lot / 1000) for lot in range(1000)]
    assert {length: drawn.count(length) for length in sorted(set(drawn))} == {
        24: 950,
        48: 15,
        64: 15,
        128: 10,
        512: 10,
    }
