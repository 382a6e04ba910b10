"""Training the zoo: what it starts from, what it learns from, and that it goes on where it was."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel.zoo import train_vae as image_vae
from accel.zoo import training
from accel.zoo.blueprint import new_clip, new_t5, new_transformer, new_unet, new_vae, unshifted
from accel.zoo.example_store import ExampleStore
from accel.zoo.scene_pool import ScenePool, text_length
from accel.zoo.scenes import random_scene
from accel.zoo.train_scenes_flux import FluxLearner
from accel.zoo.train_scenes_unet import UNetLearner
from accel.zoo.train_text import (
    early_lesson,
    pooled_lesson,
    train_text,
    words_lesson,
)
from accel.zoo.train_vae import encode
from accel.zoo.training import Learner, Run, Stage, optimizers, train
from accel.zoo.training_attention import MatmulAttention, WanMatmulAttention
from accel.zoo.vae_start import start_as_average
from accel.zoo.video import train_vae as video_vae
from accel.zoo.video import vae_start as video_start
from accel.zoo.video.blueprint import PATCH, new_video_transformer, new_video_vae
from accel.zoo.video.clip_pool import ClipPool, clip_word_answers
from accel.zoo.video.clips import parse_clip, sample_clips
from accel.zoo.video.train_scenes_video import VideoLearner, stretched_rope
from tests.unit.drawn_garments import drawn_garments

__all__ = ["drawn_garments"]


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

    run = Run("toy", tmp_path, Toy())
    assert train(run, STAGES, pool, minutes=1.0) == tmp_path / "toy"
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


def test_only_matrices_in_blocks_are_left_to_muon() -> None:
    for learner, outside in (
        (nn.ModuleDict({"transformer": new_transformer()}), "context_embedder"),
        (nn.ModuleDict({"transformer": new_video_transformer()}), "patch_embedding"),
        (nn.ModuleDict({"unet": new_unet()}), "conv_in"),
    ):
        names = {weight: name for name, weight in learner.named_parameters()}
        found = optimizers(learner)
        hidden = [names[w] for group in found["muon"].param_groups for w in group["params"]]
        rest = [names[w] for group in found["adam"].param_groups for w in group["params"]]
        assert len(hidden) + len(rest) == len(names)
        assert any("to_q" in name or "attn" in name for name in hidden)
        assert not any("norm" in name for name in hidden)
        assert any(outside in name for name in rest)


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


@pytest.fixture(scope="module")
def vae() -> Any:
    torch.manual_seed(0)
    vae = new_vae()
    start_as_average(vae)
    vae.register_to_config(shift_factor=0.2, scaling_factor=0.5)
    return vae.eval()


@pytest.mark.usefixtures("drawn_garments")
@pytest.mark.parametrize("half", [True, False])
def test_a_scene_batch_holds_what_each_token_shows(vae: Any, half: bool) -> None:
    pool = ScenePool(vae, half=half, seed=0)
    pool.grow(12)
    batch = pool.draw(40)
    side = 16 if half else 32
    assert batch.latents.shape == (40, 4, side, side)
    assert batch.answers.shape == (40, (side // 2) ** 2, 2)
    assert batch.answers.any(dim=1).all()
    blank = (batch.t5_ids == 0).sum(1) == batch.t5_ids.shape[1] - 1
    assert 0 < blank.sum() < 20
    assert len(batch) == 40


def started(learner: Learner[Any]) -> Any:
    """The learner a few steps on: what starts at zero, and holds gradients back, no longer does."""
    for weight in learner.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.02)
    learner.use_training_attention()
    return learner


@pytest.mark.usefixtures("drawn_garments")
@pytest.mark.parametrize("make", [FluxLearner, UNetLearner])
def test_image_losses_reach_every_part(vae: Any, make: Any) -> None:
    torch.manual_seed(0)
    learner = started(make(vae))
    pool = ScenePool(vae, half=True, seed=0)
    pool.grow(3)
    torch.stack(learner.losses(pool.draw(3))).sum().backward()
    for part in learner.children():
        assert any(w.grad is not None and w.grad.any() for w in part.parameters()), part
    assert all(weight.grad is None for weight in vae.parameters())


@pytest.fixture(scope="module")
def video_autoencoder() -> Any:
    torch.manual_seed(0)
    vae = new_video_vae()
    video_start.start_as_average(vae)
    return vae.eval()


@pytest.mark.usefixtures("drawn_garments")
def test_video_losses_reach_every_part_at_both_sizes(video_autoencoder: Any) -> None:
    torch.manual_seed(0)
    learner = started(VideoLearner(video_autoencoder))
    for half, tokens in ((True, 3 * 8 * 16), (False, 3 * 16 * 32)):
        pool = ClipPool(video_autoencoder, 5, half=half, seed=0)
        pool.grow(2)
        batch = pool.draw(2)
        assert batch.answers.shape == (2, tokens, 4)
        torch.stack(learner.losses(batch)).sum().backward()
        assert learner.transformer.rope is learner.ropes[half]
    for part in learner.children():
        assert any(w.grad is not None and w.grad.any() for w in part.parameters()), part


@pytest.mark.usefixtures("drawn_garments")
def test_video_tokens_tell_the_motion_of_what_they_show(video_autoencoder: Any) -> None:
    pool = ClipPool(video_autoencoder, 5, half=False, seed=1)
    pool.grow(6)
    answers = pool.draw(6).answers
    shown = answers[..., 0] > 0
    assert shown.any(dim=1).all()
    assert torch.equal(shown, answers[..., 2] > 0)
    assert torch.equal(shown, answers[..., 3] > 0)


def test_words_of_a_clip_tell_how_their_item_moves() -> None:
    clip = parse_clip("a large red bag bouncing up on a grey ground")
    rows = clip_word_answers(clip, 12)
    assert rows[:6].unique(dim=0).shape[0] == 1
    assert rows[0].tolist() == [5, 1, 1, 1, 3, 3]
    assert not rows[6:].any()


def test_small_clips_lie_over_the_same_square_as_whole_ones() -> None:
    whole, small = new_video_transformer().rope, stretched_rope(64)
    for width in (32, 16):
        rope = whole if width == 32 else small
        cosine = rope(torch.zeros(1, 1, 1, width, width))[0]
        angles = cosine.reshape(width // PATCH[1], width // PATCH[2], -1)[:, :, rope.t_dim].arccos()
        expected = torch.arange(16.0) if width == 32 else 2 * torch.arange(8.0) + 0.5
        assert torch.allclose(angles[:4, 0], expected[:4].cos().arccos(), atol=1e-3)


def test_the_video_autoencoder_starts_as_an_average_of_both_frames(video_autoencoder: Any) -> None:
    torch.manual_seed(0)
    blocks = torch.rand(1, 3, 5, 4, 4) * 1.6 - 0.8
    videos = blocks.repeat_interleave(4, dim=3).repeat_interleave(4, dim=4)
    with torch.no_grad():
        latents = video_autoencoder.encode(videos).latent_dist.mean
        decoded = video_autoencoder.decode(latents).sample
    assert latents.shape == (1, 8, 3, 8, 8)
    assert (decoded - videos).abs().mean() < 0.05
    assert torch.allclose(latents[:, :3, 1:], videos[:, :, 2::2, ::2, ::2], atol=0.1)
    assert torch.allclose(latents[:, 3:6, 1:], videos[:, :, 1::2, ::2, ::2], atol=0.1)


@pytest.mark.usefixtures("drawn_garments")
def test_video_latents_are_standardised_by_the_autoencoders_own_config(
    video_autoencoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_vae, "MEASURED", 6)
    twin = new_video_vae()
    twin.load_state_dict(video_autoencoder.state_dict())
    video_vae.normalised(twin, np.random.default_rng(0))
    latents = video_vae.encode(
        twin, video_vae.render_clips(sample_clips(6, "train"), np.random.default_rng(0))
    )
    assert torch.allclose(latents.mean((0, 2, 3, 4)), torch.zeros(8), atol=0.02)
    assert torch.allclose(latents.std((0, 2, 3, 4)), torch.ones(8), atol=0.02)


@pytest.mark.usefixtures("drawn_garments")
def test_autoencoders_are_trained_once_and_then_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (image_vae, video_vae):
        monkeypatch.setattr(module, "MINUTES", 1e-4)
        monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr(video_vae, "MEASURED", 2)
    for module in (image_vae, video_vae):
        out = tmp_path / module.__name__
        first = module.new_or_trained_vae(None, out)
        monkeypatch.setattr(module, "fit", None)
        for again in (
            module.new_or_trained_vae(None, out),
            module.new_or_trained_vae(out / "vae", out),
        ):
            pairs = zip(first.parameters(), again.parameters(), strict=True)
            assert all(torch.equal(*pair) for pair in pairs)


def test_what_ignores_the_shift_gets_a_scale_of_mean_square_one(vae: Any) -> None:
    torch.manual_seed(0)
    images = torch.rand(4, 3, 16, 16)
    latents = encode(vae, images)
    raw = latents / 0.5 + 0.2
    twin = unshifted(vae)
    assert vae.config.shift_factor == 0.2
    assert twin.config.shift_factor is None
    assert torch.allclose(encode(twin, images), raw * (4 + 0.04) ** -0.5, atol=1e-5)


@pytest.fixture
def told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pytest.LogCaptureFixture]:
    """What lessons report, from small batches."""
    monkeypatch.setattr("accel.zoo.train_text.BATCH", 16)
    monkeypatch.setattr("accel.zoo.train_text.REPORT_STEPS", 1)
    with caplog.at_level(logging.INFO):
        yield caplog


def test_captions_alone_teach_text_encoders(told: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    clip, t5 = new_clip(), new_t5()
    lessons = [pooled_lesson(clip), early_lesson(clip), words_lesson(t5)]
    before = [weight.clone() for weight in t5.parameters()]
    train_text(lessons, random_scene, minutes=0.04)
    losses = [[float(word) for word in line.split()[4::2]] for line in told.messages]
    assert all(last < first for first, last in zip(losses[0], losses[-1], strict=True))
    assert any(not torch.equal(*pair) for pair in zip(before, t5.parameters(), strict=True))


def test_training_attention_of_wan_equals_its_own() -> None:
    torch.manual_seed(0)
    model = new_video_transformer().eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.05)
    call = {
        "hidden_states": torch.randn(2, 8, 3, 8, 8),
        "timestep": torch.tensor([300.0, 800.0]),
        "encoder_hidden_states": torch.randn(2, 6, 128),
        "return_dict": False,
    }
    with torch.no_grad():
        own = model(**call)[0]
        model.set_attn_processor(WanMatmulAttention())
        assert torch.allclose(model(**call)[0], own, atol=1e-4)


@pytest.mark.parametrize("processor", [MatmulAttention(), WanMatmulAttention()])
def test_training_attention_refuses_masks(processor: Any) -> None:
    with pytest.raises(ValueError, match="no mask"):
        processor(None, torch.zeros(1, 2, 3), attention_mask=torch.ones(1))
