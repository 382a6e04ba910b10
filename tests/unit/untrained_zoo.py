"""A zoo of untrained pipelines, for what does not depend on what they draw."""

from pathlib import Path
from typing import Any

import pytest
import torch

from accel.zoo import catalogue, publish
from accel.zoo.blueprint import new_clip, new_unet, new_vae, save_pipeline, unet_pipeline, unshifted
from accel.zoo.video.blueprint import (
    new_umt5,
    new_video_transformer,
    new_video_vae,
    video_pipeline,
)

UNET, VIDEO = "scenes-unet", "scenes-video"


@pytest.fixture(scope="module")
def untrained() -> dict[str, Any]:
    """Both pipelines as their blueprints make them, but nothing holds the text back any more."""
    torch.manual_seed(0)
    transformer = new_video_transformer()
    for weight in transformer.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    pipes = {
        UNET: unet_pipeline(unshifted(new_vae()), new_unet(), new_clip()),
        VIDEO: video_pipeline(new_video_vae(), transformer, new_umt5()),
    }
    for pipe in pipes.values():
        pipe.set_progress_bar_config(disable=True)
    return pipes


@pytest.fixture(scope="module")
def runs(untrained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds both as a training leaves them."""
    folder = tmp_path_factory.mktemp("runs")
    for name, pipe in untrained.items():
        save_pipeline(pipe, folder / name)
    return folder


@pytest.fixture
def published(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo that holds both."""
    for module in (catalogue, publish):
        monkeypatch.setattr(module, "HERE", tmp_path)
    for name in (UNET, VIDEO):
        publish.copy_weights(runs / name, tmp_path / name)
        publish.write_card(tmp_path / name, 2.0, {"denoiser": 60.0}, tmp_path / "none.json")
        publish.write_readme(tmp_path / name)
    return tmp_path
