"""Clips of moving garments: their grammar, their captions and their frames.

One garment moves through the picture, or two move each along its own half: beside one another
upwards and downwards, above one another to the left and right. Those that move towards each other
pass each other in the middle.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accel.zoo.scenes import (
    GROUNDS,
    MOST_LISTED,
    RELATIONS,
    SIDE_PX,
    SIZE_PX,
    Canvas,
    Item,
    Region,
    Scene,
    Split,
    garment,
    parse_item,
    random_item,
)
from accel.zoo.vocabulary import caption_words

Direction = Literal["left", "right", "up", "down"]

DIRECTIONS: tuple[Direction, ...] = ("left", "right", "up", "down")
MANNERS = ("moving slowly", "moving quickly", "bouncing")
SPEED_PX = {"moving slowly": 1, "moving quickly": 2, "bouncing": 2}
"""Pixels from one frame to the next."""

FRAMES = 17
"""Frames of a whole clip: one, and eight latent frames of two each."""

STEP = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""The direction as a step in rows and columns."""

_REACH_PX = 4
_SIDEWAYS_PX = 8
_HOW = {
    "": DIRECTIONS,
    "above": ("left", "right"),
    "below": ("left", "right"),
    "to the left of": ("up", "down"),
    "to the right of": ("up", "down"),
}
_SWAPPED = {"to the right of": "to the left of", "below": "above"}
_ONE_IN_HELD_OUT = 10


@dataclass(frozen=True, slots=True)
class Mover:
    """A garment and how it moves; who bounces comes back from the edge."""

    item: Item
    manner: str
    direction: Direction

    def phrase(self) -> str:
        """In English: "a large red bag moving slowly left"."""
        return f"{self.item.phrase()} {self.manner} {self.direction}"


@dataclass(frozen=True, slots=True)
class Clip:
    """One or two movers on a ground; `relation` as in a scene."""

    movers: tuple[Mover, ...]
    ground: str
    relation: str = ""

    def caption(self) -> str:
        """The prompt: "a small red bag bouncing up on a navy ground"."""
        joint = f" {self.relation} "
        return f"{joint.join(mover.phrase() for mover in self.movers)} on a {self.ground} ground"

    def scene(self) -> Scene:
        """What it shows when it stands still."""
        return Scene(tuple(mover.item for mover in self.movers), self.ground, self.relation)

    def regions(self) -> tuple[Region, ...]:
        """Which part of the picture each mover keeps to."""
        return self.scene().regions()

    def description(self) -> str:
        """A key that is equal for two captions of one clip."""
        swapped = self.relation in _SWAPPED
        movers = self.movers[::-1] if swapped else self.movers
        relation = _SWAPPED.get(self.relation, self.relation)
        return Clip(movers, self.ground, relation).caption()

    def is_held_out(self) -> bool:
        """Whether this combination was kept from training (one description in ten)."""
        digest = hashlib.sha256(self.description().encode()).digest()
        return int.from_bytes(digest[:4], "big") % _ONE_IN_HELD_OUT == 0


def parse_clip(caption: str) -> Clip:
    """The clip that `caption` describes.

    Raises:
        ValueError: the caption is not one that `Clip.caption` writes.
    """
    body, _, tail = caption.rpartition(" on a ")
    ground = tail.removesuffix(" ground")
    relation = next((r for r in RELATIONS if f" {r} " in body), "")
    phrases = body.split(f" {relation} ") if relation else [body]
    clip = Clip(tuple(map(_parse_mover, phrases)), ground, relation)
    known = ground in GROUNDS and clip.caption() == caption
    if not known or any(mover.direction not in _HOW[relation] for mover in clip.movers):
        raise ValueError(
            f"{caption!r} is no clip caption. Expected a ground out of {GROUNDS}, and movers that "
            f"keep to their half; something like {_EXAMPLE.caption()!r}."
        )
    return clip


def _parse_mover(phrase: str) -> Mover:
    for manner in MANNERS:
        for direction in DIRECTIONS:
            item = phrase.removesuffix(f" {manner} {direction}")
            if item != phrase:
                return Mover(parse_item(item), manner, direction)
    raise ValueError(
        f"{phrase!r} does not say how it moves. Expected a manner out of {MANNERS} and a direction "
        f"out of {DIRECTIONS}; something like {_EXAMPLE.caption()!r}."
    )


_EXAMPLE = Clip(
    (
        Mover(Item("ankle boot", "red", "large"), "moving quickly", "left"),
        Mover(Item("bag", "blue", "small"), "bouncing", "right"),
    ),
    "navy",
    "above",
)


def clip_words() -> list[str]:
    """Every word of the clips' grammar, sorted."""
    return caption_words((*DIRECTIONS, *MANNERS))


def random_clip(rng: random.Random, split: Split = "train", singles: float = 0.4) -> Clip:
    """A clip of `split`; `singles` is the share that holds one mover."""
    while True:
        relation = "" if rng.random() < singles else rng.choice(RELATIONS)
        movers = tuple(
            Mover(random_item(rng), rng.choice(MANNERS), rng.choice(_HOW[relation]))
            for _ in range(2 if relation else 1)
        )
        clip = Clip(movers, rng.choice(GROUNDS), relation)
        if clip.is_held_out() == (split == "held_out"):
            return clip


def sample_clips(count: int, split: Split = "held_out") -> list[Clip]:
    """The first `count` of a fixed list of distinct clips of `split`, one in four of one mover.

    Raises:
        ValueError: `count` is below 1 or above 4096.
    """
    if not 1 <= count <= MOST_LISTED:
        raise ValueError(f"count is {count}; clips are listed from 1 to {MOST_LISTED}.")
    rng = random.Random(f"clips {split}")
    found: dict[str, Clip] = {}
    while len(found) < count:
        clip = random_clip(rng, split, singles=0.25)
        found.setdefault(clip.description(), clip)
    return list(found.values())


def track(
    mover: Mover, region: Region, rng: np.random.Generator, frames: int = FRAMES
) -> list[tuple[int, int]]:
    """The top left corner (row, column) of the mover's square in every frame.

    Paths lie about the middle of the region; who bounces turns at the edge half-way through a whole
    clip, give or take two frames.
    """
    side = SIZE_PX[mover.item.size]
    down, right = STEP[mover.direction]
    room, speed = SIDE_PX - side, SPEED_PX[mover.manner]
    travel = speed * (FRAMES - 1)
    if mover.manner == "bouncing":
        start = travel // 2 + speed * int(rng.integers(-2, 3))
        places = [abs(start - speed * frame) for frame in range(frames)]
    else:
        reach = min(_REACH_PX, (room - travel) // 2)
        first = (room + travel) // 2 + int(rng.integers(-reach, reach + 1))
        places = [first - speed * frame for frame in range(frames)]
    if down + right > 0:
        places = [room - place for place in places]
    across = _across(region, side, rng)
    return [(place, across) if down else (across, place) for place in places]


def _across(region: Region, side_px: int, rng: np.random.Generator) -> int:
    """Where the square lies across its path, in pixels from the picture's edge."""
    lane = SIDE_PX if region == "whole" else SIDE_PX // 2
    reach = min(_SIDEWAYS_PX, (lane - side_px) // 2)
    edge = SIDE_PX // 2 if region in {"right", "bottom"} else 0
    return edge + (lane - side_px) // 2 + int(rng.integers(-reach, reach + 1))


def render_clip(
    clip: Clip, rng: np.random.Generator, split: Split = "train", frames: int = FRAMES
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Frames [frames, 64, 64, 3] in 0..1 and their owners [frames, 64, 64], as `Canvas` has them.

    `rng` chooses garments of `split` and the exact paths.

    Raises:
        FileNotFoundError: Fashion-MNIST is not installed.
    """
    shades = [garment(mover.item, rng, split) for mover in clip.movers]
    tracks = [
        track(mover, region, rng, frames)
        for mover, region in zip(clip.movers, clip.regions(), strict=True)
    ]
    canvases = [_frame(clip, shades, corners) for corners in zip(*tracks, strict=True)]
    pixels = np.stack([canvas.pixels for canvas in canvases])
    return pixels, np.stack([canvas.owners for canvas in canvases])


def _frame(
    clip: Clip, shades: Sequence[NDArray[np.float32]], corners: Sequence[tuple[int, int]]
) -> Canvas:
    canvas = Canvas(clip.ground)
    for mover, shade, corner in zip(clip.movers, shades, corners, strict=True):
        canvas.add(shade, mover.item.colour, corner)
    return canvas
