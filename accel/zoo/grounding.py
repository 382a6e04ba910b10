"""What words and picture tokens mean, as targets of auxiliary losses in training.

Every word of a caption belongs to an item or to the scene, and so does every token of a picture.
Small heads that only exist in training read that off the hidden states. They teach the text
encoders which words belong together, and the denoiser which words to look at, long before the
velocity's error alone would (the idea of representation alignment, arXiv 2410.06940, with the
scene's own description in place of another model's features).
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from accel.zoo.scenes import COLOURS, GROUNDS, KINDS, SIZES, Item, Scene

REGIONS = ("whole", "left", "right", "top", "bottom")
ITEM_CLASSES = (len(KINDS) + 1, len(COLOURS) + 1)
WORD_CLASSES = (*ITEM_CLASSES, len(SIZES) + 1, len(REGIONS) + 1, len(GROUNDS))
CAPTION_CLASSES = (*ITEM_CLASSES * len(REGIONS), len(GROUNDS))


class Reader(nn.Module):
    """Logits for each of several questions, from hidden states of `width`; class 0 is "none"."""

    def __init__(self, width: int, classes: Sequence[int]) -> None:
        super().__init__()
        self.classes = list(classes)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, sum(classes))

    def loss(self, hidden: Tensor, answers: Tensor) -> Tensor:
        """Mean cross entropy, summed over questions: hidden [..., C], answers [..., questions]."""
        logits = self.head(self.norm(hidden.float())).flatten(0, -2).split(self.classes, dim=-1)
        columns = answers.long().flatten(0, -2).unbind(-1)
        losses = [functional.cross_entropy(*pair) for pair in zip(logits, columns, strict=True)]
        return torch.stack(losses).sum()


def item_answers(item: Item) -> tuple[int, int]:
    """The classes of its kind and of its colour, from 1 on."""
    return 1 + KINDS.index(item.kind), 1 + COLOURS.index(item.colour)


def word_answers(scene: Scene, length: int) -> Tensor:
    """[length, 5]: for each word its item's kind, colour, size and region, and the ground.

    Words between and after the items, and padding, have the item "none".
    """
    ground = GROUNDS.index(scene.ground)
    none = (0, 0, 0, 0, ground)
    rows: list[tuple[int, ...]] = []
    for item, region in zip(scene.items, scene.regions(), strict=True):
        place = (1 + SIZES.index(item.size), 1 + REGIONS.index(region), ground)
        between = len(scene.relation.split()) if not rows else 0
        rows += [(*item_answers(item), *place)] * len(item.phrase().split()) + [none] * between
    rows += [none] * (length - len(rows))
    return torch.tensor(rows, dtype=torch.uint8)


def caption_answers(scene: Scene) -> Tensor:
    """[11]: for each of five regions the kind and the colour of the item there, and the ground."""
    answers = torch.zeros(len(REGIONS), 2, dtype=torch.uint8)
    for item, region in zip(scene.items, scene.regions(), strict=True):
        answers[REGIONS.index(region)] = torch.tensor(item_answers(item), dtype=torch.uint8)
    ground = torch.tensor([GROUNDS.index(scene.ground)], dtype=torch.uint8)
    return torch.cat([answers.flatten(), ground])


def token_answers(scene: Scene, owners: NDArray[np.uint8], side: int) -> Tensor:
    """[side * side, 2]: kind and colour of the item in the middle of each picture token.

    `owners` is [64, 64] as `render_owned` gives it.
    """
    stride = len(owners) // side
    middles = torch.from_numpy(owners[stride // 2 :: stride, stride // 2 :: stride].copy())
    table = torch.tensor([(0, 0), *map(item_answers, scene.items)], dtype=torch.uint8)
    return table[middles.flatten().long()]
