"""The judge: a small conv net that says which garment, in which colour, an image shows.

It was trained on real scenes only (`accel.zoo.train_judge`) and never saw a generated one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from accel.zoo.scenes import COLOURS, KINDS, SIDE_PX, Region, Scene

WINDOW_PX = 48
WEIGHTS = Path(__file__).parent / "judge" / "model.safetensors"


@dataclass(frozen=True, slots=True)
class Score:
    """Which items were recognised, in the order of the scenes and of their items."""

    kind_right: tuple[bool, ...]
    colour_right: tuple[bool, ...]

    @property
    def kind_accuracy(self) -> float:
        """Share of items, 0..1, whose kind was recognised."""
        return sum(self.kind_right) / len(self.kind_right)

    @property
    def colour_accuracy(self) -> float:
        """Share of items, 0..1, whose colour was recognised."""
        return sum(self.colour_right) / len(self.colour_right)

    @property
    def both_accuracy(self) -> float:
        """Share of items, 0..1, of which kind and colour were recognised."""
        both = [k and c for k, c in zip(self.kind_right, self.colour_right, strict=True)]
        return sum(both) / len(both)

    def __add__(self, other: "Score") -> "Score":
        """The items of both."""
        return Score(self.kind_right + other.kind_right, self.colour_right + other.colour_right)


class Judge(nn.Module):
    """Windows of a picture in, kind and colour logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_stage(4, 32, kernel=5, stride=2),
            *_stage(32, 64, kernel=3, stride=2),
            *_stage(64, 96, kernel=3, stride=1),
            *_stage(96, 128, kernel=3, stride=2),
            *_stage(128, 128, kernel=3, stride=2),
        )
        self.head = nn.Linear(128 * (WINDOW_PX // 16) ** 2, len(KINDS) + len(COLOURS))

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Self:
        """The trained judge in float32 on the CPU, in evaluation mode.

        Raises:
            FileNotFoundError: `path` is missing.
        """
        judge = cls()
        judge.load_state_dict({name: w.float() for name, w in load_file(path).items()})
        return judge.eval()

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Kind logits [B, 6] and colour logits [B, 8] of windows [B, 4, 48, 48] (`questions`)."""
        logits = self.head(self.body(windows).flatten(1))
        return logits[:, : len(KINDS)], logits[:, len(KINDS) :]

    @torch.inference_mode()
    def score(self, images: Tensor, scenes: Sequence[Scene]) -> Score:
        """Judge every item of every scene, by the picture and its mirror image together.

        `images` is [B, 3, 64, 64] in 0..1, one image for each scene.

        Raises:
            ValueError: the images' shape does not fit the scenes.
        """
        expected = (len(scenes), 3, SIDE_PX, SIDE_PX)
        if tuple(images.shape) != expected:
            raise ValueError(f"images are {tuple(images.shape)}; these scenes need {expected}.")
        windows, kinds, colours = questions(images.float(), scenes)
        kind_logits, colour_logits = (
            seen + mirrored
            for seen, mirrored in zip(self(windows), self(windows.flip(-1)), strict=True)
        )
        return Score(
            tuple((kind_logits.argmax(-1) == kinds).tolist()),
            tuple((colour_logits.argmax(-1) == colours).tolist()),
        )


def _stage(before: int, after: int, *, kernel: int, stride: int) -> tuple[nn.Module, ...]:
    padding = kernel // 2
    convolution = nn.Conv2d(before, after, kernel, stride, padding=padding, bias=False)
    return convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)


def questions(images: Tensor, scenes: Sequence[Scene]) -> tuple[Tensor, Tensor, Tensor]:
    """Windows [Q, 4, 48, 48], kinds [Q] and colours [Q], one row for each item of each scene.

    A window lies about the middle of the item's region: the whole image or one half of it. Its
    first three channels are the picture in -1..1, its last one is 1; all are 0 off the region.
    """
    windows, kinds, colours = [], [], []
    for signal, scene in zip(signals(images), scenes, strict=True):
        for item, region in zip(scene.items, scene.regions(), strict=True):
            windows.append(window(signal, region, middle(region)))
            kinds.append(KINDS.index(item.kind))
            colours.append(COLOURS.index(item.colour))
    return torch.stack(windows), torch.tensor(kinds), torch.tensor(colours)


def signals(images: Tensor) -> Tensor:
    """[B, 4, 64, 64] of images in 0..1: the picture in -1..1, and ones where there is a picture."""
    return torch.cat([images * 2 - 1, torch.ones_like(images[:, :1])], dim=1)


def bounds(region: Region) -> tuple[int, int, int, int]:
    """Where the region lies, in pixels: top, bottom, left, right."""
    half = SIDE_PX // 2
    return {
        "whole": (0, SIDE_PX, 0, SIDE_PX),
        "left": (0, SIDE_PX, 0, half),
        "right": (0, SIDE_PX, half, SIDE_PX),
        "top": (0, half, 0, SIDE_PX),
        "bottom": (half, SIDE_PX, 0, SIDE_PX),
    }[region]


def middle(region: Region) -> tuple[int, int]:
    """Row and column of the region's middle."""
    top, bottom, left, right = bounds(region)
    return (top + bottom) // 2, (left + right) // 2


def window(signal: Tensor, region: Region, centre: tuple[int, int]) -> Tensor:
    """[4, 48, 48] about `centre` (row, column) out of [4, 64, 64], and 0 off the region."""
    reach = WINDOW_PX // 2
    top, bottom, left, right = bounds(region)
    inside = torch.zeros_like(signal)
    inside[:, top:bottom, left:right] = signal[:, top:bottom, left:right]
    padded = functional.pad(inside, (reach, reach, reach, reach))
    row, column = centre
    return padded[:, row : row + WINDOW_PX, column : column + WINDOW_PX]


def judge_loss(judge: Judge, images: Tensor, scenes: Sequence[Scene]) -> Tensor:
    """Cross entropy of kinds plus that of colours, a scalar; half of the windows are mirrored."""
    windows, kinds, colours = questions(images, scenes)
    mirror = torch.rand(len(windows), 1, 1, 1) < 1 / 2
    kind_logits, colour_logits = judge(torch.where(mirror, windows.flip(-1), windows))
    return functional.cross_entropy(kind_logits, kinds) + functional.cross_entropy(
        colour_logits, colours
    )
