"""Scenes of tinted garments: their grammar, their captions and their pixels.

The grammar (what a scene holds, how it is said) needs nothing but Python, so prompts are there
for everybody. Only `render` reads Fashion-MNIST, from Debian's `dataset-fashion-mnist`.
"""

import gzip
import hashlib
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Split = Literal["train", "held_out"]
Region = Literal["whole", "left", "right", "top", "bottom"]

KINDS = ("t-shirt", "trousers", "dress", "sandal", "bag", "ankle boot")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
GROUNDS = ("cream", "grey", "navy", "mint")
SIZES = ("large", "small")
RELATIONS = ("to the left of", "to the right of", "above", "below")

SIDE_PX = 64
MOST_LISTED = 4096
SIZE_PX = {"large": 31, "small": 21}

_LABELS = {"t-shirt": 0, "trousers": 1, "dress": 3, "sandal": 5, "bag": 8, "ankle boot": 9}
_COLOUR_RGB = {
    "red": (0.87, 0.10, 0.12),
    "orange": (1.00, 0.54, 0.05),
    "yellow": (0.98, 0.90, 0.12),
    "green": (0.12, 0.62, 0.18),
    "cyan": (0.10, 0.85, 0.90),
    "blue": (0.12, 0.25, 0.92),
    "purple": (0.52, 0.14, 0.70),
    "pink": (1.00, 0.47, 0.74),
}
_GROUND_RGB = {
    "cream": (0.98, 0.95, 0.85),
    "grey": (0.52, 0.52, 0.54),
    "navy": (0.06, 0.07, 0.18),
    "mint": (0.70, 0.92, 0.80),
}
_SWAPPED = {"to the right of": "to the left of", "below": "above"}
_REGIONS: dict[str, tuple[Region, Region]] = {
    "to the left of": ("left", "right"),
    "to the right of": ("right", "left"),
    "above": ("top", "bottom"),
    "below": ("bottom", "top"),
}
_MIDDLE = 0.5
_CENTRES = {
    "whole": (_MIDDLE, _MIDDLE),
    "left": (_MIDDLE, 0.25),
    "right": (_MIDDLE, 0.75),
    "top": (0.25, _MIDDLE),
    "bottom": (0.75, _MIDDLE),
}
_DATASET = Path("/usr/share/datasets/fashion-mnist")
_FILE_PREFIX = {"train": "train", "held_out": "t10k"}
_ONE_IN_HELD_OUT = 10


@dataclass(frozen=True, slots=True)
class Item:
    """One garment: its kind, its colour and its size."""

    kind: str
    colour: str
    size: str

    def phrase(self) -> str:
        """The item in English, with its article: "a large red ankle boot"."""
        article = "" if self.kind == "trousers" else "a "
        return f"{article}{self.size} {self.colour} {self.kind}"


@dataclass(frozen=True, slots=True)
class Scene:
    """One or two items on a ground.

    `relation` is "" for one item; for two it says where the first lies, seen from the second.
    """

    items: tuple[Item, ...]
    ground: str
    relation: str = ""

    def caption(self) -> str:
        """The prompt, for example "a large red bag above small blue trousers on a mint ground"."""
        joint = f" {self.relation} "
        return f"{joint.join(item.phrase() for item in self.items)} on a {self.ground} ground"

    def description(self) -> str:
        """A key that is equal for two captions of one arrangement ("A below B", "B above A")."""
        items = self.items
        if self.relation in _SWAPPED:
            items = items[::-1]
        relation = _SWAPPED.get(self.relation, self.relation)
        return Scene(items, self.ground, relation).caption()

    def regions(self) -> tuple[Region, ...]:
        """Where each item lies."""
        return _REGIONS[self.relation] if self.relation else ("whole",)

    def is_held_out(self) -> bool:
        """Whether this combination was kept from training (one description in ten)."""
        digest = hashlib.sha256(self.description().encode()).digest()
        return int.from_bytes(digest[:4], "big") % _ONE_IN_HELD_OUT == 0


def parse(caption: str) -> Scene:
    """The scene that `caption` describes.

    Raises:
        ValueError: the caption is not one that `Scene.caption` writes.
    """
    body, _, tail = caption.rpartition(" on a ")
    ground = tail.removesuffix(" ground")
    relation = next((r for r in RELATIONS if f" {r} " in body), "")
    phrases = body.split(f" {relation} ") if relation else [body]
    scene = Scene(tuple(parse_item(phrase) for phrase in phrases), ground, relation)
    if ground not in GROUNDS or scene.caption() != caption:
        raise ValueError(
            f"{caption!r} is no scene caption. Expected something like {_EXAMPLE.caption()!r}."
        )
    return scene


def parse_item(phrase: str) -> Item:
    """The item that `phrase` names.

    Raises:
        ValueError: the phrase is not one that `Item.phrase` writes.
    """
    size, _, rest = phrase.removeprefix("a ").partition(" ")
    colour, _, kind = rest.partition(" ")
    item = Item(kind, colour, size)
    known = size in SIZES and colour in COLOURS and kind in KINDS
    if not known or item.phrase() != phrase:
        raise ValueError(
            f"{phrase!r} names no item. Expected a size out of {SIZES}, a colour out of {COLOURS} "
            f"and a kind out of {KINDS}."
        )
    return item


_EXAMPLE = Scene(
    (Item("ankle boot", "red", "large"), Item("bag", "blue", "small")), "navy", "above"
)


def random_scene(rng: random.Random, split: Split = "train", singles: float = 0.3) -> Scene:
    """A scene of `split`; `singles` is the share that holds one item."""
    while True:
        pair = rng.random() >= singles
        items = tuple(random_item(rng) for _ in range(2 if pair else 1))
        relation = rng.choice(RELATIONS) if pair else ""
        scene = Scene(items, rng.choice(GROUNDS), relation)
        if scene.is_held_out() == (split == "held_out"):
            return scene


def random_item(rng: random.Random) -> Item:
    """An item of any kind, colour and size."""
    return Item(rng.choice(KINDS), rng.choice(COLOURS), rng.choice(SIZES))


def sample_scenes(count: int, split: Split = "held_out") -> list[Scene]:
    """The first `count` of a fixed list of distinct scenes of `split`, one in eight of one item.

    Raises:
        ValueError: `count` is below 1 or above 4096.
    """
    if not 1 <= count <= MOST_LISTED:
        raise ValueError(f"count is {count}; scenes are listed from 1 to {MOST_LISTED}.")
    rng = random.Random(f"scenes {split}")
    found: dict[str, Scene] = {}
    while len(found) < count:
        scene = random_scene(rng, split, singles=0.125)
        found.setdefault(scene.description(), scene)
    return list(found.values())


def held_out_prompts(count: int = 256) -> list[str]:
    """The captions of `sample_scenes(count)`: combinations that no training caption had."""
    return [scene.caption() for scene in sample_scenes(count)]


@cache
def garments(split: Split) -> dict[str, NDArray[np.uint8]]:
    """Greyscale garments by kind, each [M, 28, 28]; `held_out` are those of the t10k files.

    Raises:
        FileNotFoundError: Debian's package is not installed.
    """
    prefix = _FILE_PREFIX[split]
    pixels = _read_idx(_DATASET / f"{prefix}-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
    labels = _read_idx(_DATASET / f"{prefix}-labels-idx1-ubyte.gz", header=8)
    return {kind: pixels[labels == label] for kind, label in _LABELS.items()}


def _read_idx(path: Path, header: int) -> NDArray[np.uint8]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing. Scenes are drawn from Fashion-MNIST as Debian packages it: "
            "run `apt-get install dataset-fashion-mnist`."
        )
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), dtype=np.uint8)[header:]


def render(scene: Scene, rng: np.random.Generator, split: Split = "train") -> NDArray[np.float32]:
    """Draw `scene` with garments of `split`: [64, 64, 3] in 0..1.

    `rng` chooses the garments and their exact places.

    Raises:
        FileNotFoundError: Fashion-MNIST is not installed.
    """
    return render_owned(scene, rng, split)[0]


def render_owned(
    scene: Scene, rng: np.random.Generator, split: Split = "train"
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """`render`, and whose each pixel is, [64, 64]: 0 for the ground, 1 and 2 for the items.

    Raises:
        FileNotFoundError: Fashion-MNIST is not installed.
    """
    canvas = Canvas(scene.ground)
    for item, region in zip(scene.items, scene.regions(), strict=True):
        shade = garment(item, rng, split)
        canvas.add(shade, item.colour, _place(region, len(shade), rng))
    return canvas.pixels, canvas.owners


class Canvas:
    """A picture in the making: `pixels` [64, 64, 3] in 0..1 and their `owners` [64, 64].

    An owner is 0 for the ground, and 1, 2, ... for what was added first, second, ...
    """

    def __init__(self, ground: str) -> None:
        colour = np.array(_GROUND_RGB[ground], dtype=np.float32)
        self.pixels = np.broadcast_to(colour, (SIDE_PX, SIDE_PX, 3)).copy()
        self.owners = np.zeros((SIDE_PX, SIDE_PX), dtype=np.uint8)
        self._added = 0

    def add(self, shade: NDArray[np.float32], colour: str, corner: tuple[int, int]) -> None:
        """Lay a garment in `colour` over the picture, its top left corner at (row, column)."""
        top, left = corner
        patch = np.s_[top : top + len(shade), left : left + len(shade)]
        opacity = _paint(self.pixels[patch], shade, colour)
        self._added += 1
        self.owners[patch][opacity > 1 / 2] = self._added


def garment(item: Item, rng: np.random.Generator, split: Split = "train") -> NDArray[np.float32]:
    """The intensities 0..1 of a garment as `item` describes it, a square of its size in pixels.

    Raises:
        FileNotFoundError: Fashion-MNIST is not installed.
    """
    of_kind = garments(split)[item.kind]
    return _shade(of_kind[rng.integers(len(of_kind))], SIZE_PX[item.size])


def _shade(garment: NDArray[np.uint8], side_px: int) -> NDArray[np.float32]:
    """Intensity in 0..1 at `side_px`, its brightest parts at 1 so that dark garments show."""
    resized = Image.fromarray(garment).resize((side_px, side_px), Image.Resampling.BICUBIC)
    shade = np.asarray(resized, dtype=np.float32)
    scaled: NDArray[np.float32] = shade / max(float(np.percentile(shade, 97)), 1.0)
    return scaled.clip(0.0, 1.0)


def _place(region: Region, side_px: int, rng: np.random.Generator) -> tuple[int, int]:
    """The top left corner, jittered about the region's centre and inside the region."""
    corner = []
    for centre in _CENTRES[region]:
        room = (SIDE_PX if centre == _MIDDLE else SIDE_PX // 2) - side_px
        reach = min(room / 2, 8.0)
        middle = centre * SIDE_PX - side_px / 2 + rng.uniform(-reach, reach)
        corner.append(round(min(max(middle, 0.0), SIDE_PX - side_px)))
    return corner[0], corner[1]


def _paint(
    patch: NDArray[np.float32], shade: NDArray[np.float32], colour: str
) -> NDArray[np.float32]:
    """Lay the tinted garment over `patch` in place; returns its opacity, 1 where it is bright."""
    ramp: NDArray[np.float32] = np.clip((shade - 0.04) / 0.18, 0.0, 1.0)
    opacity = ramp * ramp * (3.0 - 2.0 * ramp)
    alpha = opacity[..., None]
    tint = np.array(_COLOUR_RGB[colour], dtype=np.float32) * (0.35 + 0.65 * shade[..., None])
    patch *= 1.0 - alpha
    patch += alpha * tint
    return opacity
