"""What moves where in a clip, read off its frames: no model, nothing random.

Whatever differs from the ground is taken for the item. Where its middle goes tells the direction,
how fast, and whether it comes back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from accel.zoo.judge import bounds, middle
from accel.zoo.scenes import Region
from accel.zoo.video.clips import SPEED_PX, Direction

STRANGE = 0.22
"""How far a channel, 0..1, must be from the ground's for a pixel to count."""

STILL_PX = 4.0
"""Less than this from end to end is no motion."""

CAME_BACK = 0.4
"""Who comes back by this share of the way out has bounced."""

PATCH_PX = 28
"""Side of the patch about the item that `steadiness` compares from frame to frame."""

_FAST_PX = (SPEED_PX["moving slowly"] + SPEED_PX["moving quickly"]) / 2


@dataclass(frozen=True, slots=True)
class Motion:
    """How an item moves; `direction` is None where it stands still."""

    direction: Direction | None
    manner: str


def centres(frames: Tensor, region: Region) -> Tensor:
    """The item's middle (row, column) in every frame, [F, 2], in pixels of the whole picture.

    `frames` is [F, 3, 64, 64] in 0..1. The ground is the median colour of the region over all
    frames. Where a frame shows nothing, the middle is that of the frame before, or the region's.
    """
    top, bottom, left, right = bounds(region)
    lane = frames[:, :, top:bottom, left:right].float()
    ground = lane.permute(1, 0, 2, 3).flatten(1).median(dim=1).values
    strange = (lane - ground[:, None, None]).abs().amax(dim=1)
    weight = (strange - STRANGE).clamp(min=0.0)
    rows = torch.arange(top, bottom) + 0.5
    columns = torch.arange(left, right) + 0.5
    found, last = [], torch.tensor([float(place) for place in middle(region)])
    for mask in weight:
        total = mask.sum()
        if total > 1.0:
            row, column = (mask.sum(1) * rows).sum(), (mask.sum(0) * columns).sum()
            last = torch.stack([row, column]) / total
        found.append(last)
    return torch.stack(found)


def read_motion(path: Tensor) -> Motion:
    """How the item moves whose middles are `path`, [F, 2].

    The axis is the one with the longer way. The turn is where the item is farthest from its start.
    """
    spread = path.amax(0) - path.amin(0)
    axis = int(spread.argmax())
    away = path[:, axis] - path[0, axis]
    turn = int(away.abs().argmax())
    out, back = away[turn].item(), (away[-1] - away[turn]).abs().item()
    if abs(out) < STILL_PX:
        return Motion(None, "still")
    names: tuple[tuple[Direction, Direction], ...] = (("up", "down"), ("left", "right"))
    direction = names[axis][out > 0]
    if back > CAME_BACK * abs(out):
        return Motion(direction, "bouncing")
    return Motion(direction, "moving quickly" if abs(out) / turn > _FAST_PX else "moving slowly")


def steadiness(frames: Tensor, path: Tensor) -> float:
    """How alike the item's patches in consecutive frames are: PSNR in dB, at most 60.

    Patches are cut about the item's middle, to the nearest pixel, so that its own motion does not
    count; what counts is that its shape, colour or ground change.
    """
    reach = PATCH_PX // 2
    padded = functional.pad(frames.float(), (reach,) * 4, mode="replicate")
    corners = path.round().long().tolist()
    patches = torch.stack(
        [
            frame[:, row : row + PATCH_PX, column : column + PATCH_PX]
            for frame, (row, column) in zip(padded, corners, strict=True)
        ]
    )
    error = (patches[1:] - patches[:-1]).square().mean()
    return float(-10 * error.clamp(min=1e-6).log10())
