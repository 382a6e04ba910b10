"""Garments drawn by hand, for machines without Fashion-MNIST."""

import numpy as np
import pytest
from numpy.typing import NDArray

from accel.zoo import scenes
from accel.zoo.scenes import KINDS


def drawn(_split: str) -> dict[str, NDArray[np.uint8]]:
    """For every kind two upright blocks, [2, 28, 28], of its own width and of two brightnesses."""
    stock = {}
    for width, kind in enumerate(KINDS, 5):
        garment = np.zeros((2, 28, 28), dtype=np.uint8)
        garment[0, 4:24, 14 - width : 14 + width] = 220
        garment[1, 4:24, 14 - width : 14 + width] = 120
        stock[kind] = garment
    return stock


@pytest.fixture
def drawn_garments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scenes and clips be drawn with these instead of with Fashion-MNIST."""
    monkeypatch.setattr(scenes, "garments", drawn)
