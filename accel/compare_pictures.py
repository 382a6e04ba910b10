"""Pictures of a comparison as files: lossless PNGs, and a map of where two of them differ.

The frames of a clip lie side by side on one sheet, row by row.
"""

import io
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from accel import metrics
from accel.metrics import Picture

MAX_GAIN = 32
"""Differences are never shown more than this many times as strong as they are."""

_KEPT = 0.99
# Dark violet over red to pale yellow: ordered in lightness, so that every kind of eye can read it.
_HEAT = (
    (0, 0, 4),
    (40, 11, 84),
    (101, 21, 110),
    (159, 42, 99),
    (212, 72, 66),
    (245, 125, 21),
    (250, 193, 39),
    (252, 255, 164),
)


def png(picture: Picture) -> bytes:
    """Returns the picture as PNG, every 8-bit value as it was."""
    return encode(_bytes(picture))


def encode(values: NDArray[np.uint8]) -> bytes:
    """Returns uint8 values `[H, W]` or `[H, W, C]` as PNG."""
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, format="PNG")
    return stream.getvalue()


def apart(plain: Picture, fast: Picture) -> NDArray[np.float64]:
    """Returns the largest difference of any channel `[H, W]`, 0..1.

    Raises:
        OptionError: the pictures differ in size.
    """
    first, second = metrics.pixels_of_both(plain, fast)
    found: NDArray[np.float64] = sheet((first - second).abs()).amax(dim=0).numpy()
    return found


def sheet(frames: Tensor) -> Tensor:
    """Returns frames `[F, C, H, W]` as one picture `[C, rows * H, columns * W]`, black at its end.

    There are about as many columns as rows; a single frame is returned as it is.
    """
    count, channels, height, width = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    whole = frames.new_zeros(rows * columns, channels, height, width)
    whole[:count] = frames
    whole = whole.view(rows, columns, channels, height, width)
    return whole.permute(2, 0, 3, 1, 4).reshape(channels, rows * height, columns * width)


def difference(plain: Picture, fast: Picture, gain: float) -> NDArray[np.uint8]:
    """Returns the heat map `[H, W, 3]` of `apart`, times `gain`.

    Black is no difference; pale yellow is a difference of `1 / gain` of the full range or more.

    Raises:
        OptionError: the pictures differ in size.
    """
    return heat(np.minimum(apart(plain, fast) * gain, 1.0))


def heat(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Returns the colours `[..., 3]` of values in 0..1."""
    stops = np.linspace(0.0, 1.0, len(_HEAT))
    colours = np.array(_HEAT, dtype=np.float64)
    channels = [np.interp(values, stops, colours[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def gain_for(differences: Iterable[NDArray[np.float64]]) -> int:
    """Returns one gain for all pairs, so that all but their largest differences can be told apart.

    One value in a hundred may saturate: edges that move by a pixel differ by nearly the full
    range, and would leave everything else black. A whole number from 1 to `MAX_GAIN`.
    """
    largest = max((float(np.quantile(values, _KEPT)) for values in differences), default=0.0)
    return MAX_GAIN if largest * MAX_GAIN <= 1.0 else max(int(1.0 / largest), 1)


def _bytes(picture: Picture) -> NDArray[np.uint8]:
    planes = sheet(metrics.pixels(picture)).permute(1, 2, 0).numpy()
    values = (planes * 255.0).round().clip(0, 255).astype(np.uint8)
    return values[:, :, 0] if values.shape[2] == 1 else values
