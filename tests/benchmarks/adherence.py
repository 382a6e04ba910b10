"""Whether pictures show what their prompts asked for, found by the zoo's judge."""

from collections.abc import Sequence
from functools import cache

import torch
from PIL import Image

from accel.metrics import pixels
from accel.zoo.judge import Judge
from accel.zoo.scenes import Scene

_judge = cache(Judge.load)


def adherence(pictures: Sequence[Image.Image], scenes: Sequence[Scene]) -> dict[str, float]:
    """Shares of items of the right kind and of the right colour, each 0..1."""
    found = _judge().score(torch.cat([pixels(picture) for picture in pictures]), scenes)
    return {"kind": found.kind_accuracy, "colour": found.colour_accuracy}
