"""What the zoo's models start from, what they are told, and which parts it reaches."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel.zoo import train_vae as image_vae
from accel.zoo.blueprint import new_clip, new_t5, new_vae, unshifted
from accel.zoo.scene_pool import ScenePool
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
from accel.zoo.training import Learner
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
def test_image_losses_reach_all_but_the_encoders(vae: Any, make: Any) -> None:
    torch.manual_seed(0)
    learner = started(make(vae))
    pool = ScenePool(vae, half=True, seed=0)
    pool.grow(3)
    torch.stack(learner.losses(pool.draw(3))).sum().backward()
    for name, part in learner.named_children():
        reached = any(w.grad is not None and w.grad.any() for w in part.parameters())
        assert reached == (name not in learner.encoders), name
    assert not any(
        name.split(".")[0] in learner.encoders for name, _ in learner.denoising_parameters()
    )
    assert all(weight.grad is None for weight in vae.parameters())


@pytest.fixture(scope="module")
def video_autoencoder() -> Any:
    torch.manual_seed(0)
    vae = new_video_vae()
    video_start.start_as_average(vae)
    return vae.eval()


@pytest.mark.usefixtures("drawn_garments")
def test_video_losses_reach_all_but_the_encoder_at_both_sizes(video_autoencoder: Any) -> None:
    torch.manual_seed(0)
    learner = started(VideoLearner(video_autoencoder))
    for half, tokens in ((True, 3 * 8 * 16), (False, 3 * 16 * 32)):
        pool = ClipPool(video_autoencoder, 5, half=half, seed=0)
        pool.grow(2)
        batch = pool.draw(2)
        assert batch.answers.shape == (2, tokens, 4)
        torch.stack(learner.losses(batch)).sum().backward()
        assert learner.transformer.rope is learner.ropes[half]
    for name, part in learner.named_children():
        reached = any(w.grad is not None and w.grad.any() for w in part.parameters())
        assert reached == (name not in learner.encoders), name
    assert not any(
        name.split(".")[0] in learner.encoders for name, _ in learner.denoising_parameters()
    )


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
    assert rows[0].tolist() == [5, 1, 1, 1, 1, 3, 3]
    assert rows[6:].unique(dim=0).tolist() == [[0, 0, 0, 0, 1, 0, 0]]


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
    monkeypatch.setattr(image_vae, "BATCH", 1)
    monkeypatch.setattr(video_vae, "FIRST", 1)
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


@pytest.mark.usefixtures("drawn_garments")
def test_windows_of_clips_show_something_at_every_length_and_size() -> None:
    windows = video_vae.Windows(0)
    batches = [windows.batch(step) for step in range(4)]
    # Every fourth batch is whole clips at half their sides, which are as large as a window.
    assert [tuple(batch.shape) for batch in batches] == [
        (4, 3, 5, 32, 32),
        (2, 3, 9, 32, 32),
        (1, 3, 17, 32, 32),
        (4, 3, 5, 32, 32),
    ]
    for batch in batches:
        assert float(batch.min()) >= -1
        assert float(batch.max()) <= 1
        assert float(batch.std()) > 0.05


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
    monkeypatch.setattr("accel.zoo.train_text.text_length", lambda _: 24)
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
