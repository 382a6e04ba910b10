"""How well clips show what was asked: the judge on single frames, and the measured motion."""

from collections.abc import Sequence

import torch
from torch import Tensor

from accel.zoo.grounding import item_answers
from accel.zoo.judge import WINDOW_PX, Judge, bounds, signals, window
from accel.zoo.scenes import SIDE_PX, Region
from accel.zoo.video.clips import FRAMES, Clip
from accel.zoo.video.motion import centres, read_motion, steadiness

JUDGED_EVERY = 4
"""The judge looks at the first frame and at every fourth after it."""


def clip_figures(judge: Judge, videos: Tensor, clips: Sequence[Clip]) -> dict[str, float]:
    """Shares 0..1 with the right kind, colour, direction and manner, and steadiness in dB.

    `videos` is [B, 17, 3, 64, 64] in 0..1. Kind and colour are judged frame by frame, where the
    item is in that frame.

    Raises:
        ValueError: the videos' shape does not fit the clips.
    """
    expected = (len(clips), FRAMES, 3, SIDE_PX, SIDE_PX)
    if tuple(videos.shape) != expected:
        raise ValueError(f"videos are {tuple(videos.shape)}; these clips need {expected}.")
    windows, answers, direction, manner, steady = [], [], [], [], []
    for frames, clip in zip(videos.float(), clips, strict=True):
        for mover, region in zip(clip.movers, clip.regions(), strict=True):
            path = centres(frames, region)
            motion = read_motion(path)
            direction.append(motion.direction == mover.direction)
            manner.append(direction[-1] and motion.manner == mover.manner)
            steady.append(steadiness(frames, path))
            seen = _windows(frames, path, region)
            windows.append(seen)
            answers += [item_answers(mover.item)] * len(seen)
    kind, colour = _read(judge, torch.cat(windows)).eq(torch.tensor(answers) - 1).float().mean(0)
    return {
        "kind": round(kind.item(), 4),
        "colour": round(colour.item(), 4),
        "direction": round(sum(direction) / len(direction), 4),
        "manner": round(sum(manner) / len(manner), 4),
        "steadiness_db": round(sum(steady) / len(steady), 2),
    }


def _windows(frames: Tensor, path: Tensor, region: Region) -> Tensor:
    """What the judge looks at, [frames, 4, 48, 48].

    Windows stay inside the picture along the item's way, as they did when the judge was trained.
    """
    top, bottom, left, right = bounds(region)
    reach = WINDOW_PX // 2
    low = torch.tensor(
        [min(top + reach, (top + bottom) // 2), min(left + reach, (left + right) // 2)]
    )
    high = torch.tensor(
        [max(bottom - reach, (top + bottom) // 2), max(right - reach, (left + right) // 2)]
    )
    places = torch.minimum(torch.maximum(path.round().long(), low), high).tolist()
    looked_at = signals(frames)
    return torch.stack(
        [
            window(looked_at[index], region, (row, column))
            for index, (row, column) in list(enumerate(places))[::JUDGED_EVERY]
        ]
    )


@torch.inference_mode()
def _read(judge: Judge, windows: Tensor) -> Tensor:
    """The judged kind and colour of each window, [Q, 2], from it and its mirror image together."""
    pairs = zip(judge(windows), judge(windows.flip(-1)), strict=True)
    return torch.stack([(seen + mirrored).argmax(-1) for seen, mirrored in pairs], dim=1)
