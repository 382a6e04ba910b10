"""A shot gives the same picture every time, and knows how many steps it takes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from accel import metrics
from accel.errors import AccelUnsupportedError
from accel.shot import DEFAULT_STEPS, Shot, frames, pictures, steps_of
from tests.unit.tiny_pictures import flux_pictures, shot


class Thirty:
    """A pipeline whose signature names its number of steps."""

    def __call__(self, prompt: str, num_inference_steps: int = 30) -> Any:
        """Returns nothing."""


class Silent:
    """A pipeline whose signature names none."""

    def __call__(self, prompt: str) -> Any:
        """Returns nothing."""


def test_a_shot_repeats_itself_with_any_number_of_steps() -> None:
    pipe = flux_pictures()
    asked = shot(3, steps=3)
    assert metrics.score(asked.run(pipe), asked.run(pipe)).identical
    assert metrics.score(asked.run(pipe), asked.run(pipe, steps=3)).identical
    assert not metrics.score(asked.run(pipe), asked.run(pipe, steps=2)).identical


def test_steps_are_those_asked_for_or_those_of_the_signature() -> None:
    assert steps_of(Thirty(), Shot(prompt="x", seed=0, arguments={"num_inference_steps": 7})) == 7
    assert steps_of(Thirty(), Shot(prompt="x", seed=0)) == 30
    assert steps_of(Silent(), Shot(prompt="x", seed=0)) == DEFAULT_STEPS


@pytest.mark.parametrize("output", [object(), (1, 2)])
def test_what_holds_no_pictures_is_refused(output: object) -> None:
    with pytest.raises(AccelUnsupportedError, match="without images or frames"):
        pictures(output)


def test_clips_are_taken_where_there_are_no_images() -> None:
    clip = np.zeros((1, 3, 4, 4, 3))
    assert pictures(SimpleNamespace(frames=clip)) is clip
    assert pictures(SimpleNamespace(images=["x"], frames=clip)) == ["x"]


def test_frames_of_clips_and_pictures_are_pil_images_of_the_nearest_values() -> None:
    clip = np.array([0.0, 0.25, 1.0]).reshape(3, 1, 1, 1) * np.ones((3, 2, 2, 3))
    found = frames(clip)
    assert [np.asarray(frame).flatten().tolist() for frame in found] == [
        [0] * 12,
        [64] * 12,
        [255] * 12,
    ]
    assert frames(found) == found
    assert frames(found[0]) == [found[0]]
