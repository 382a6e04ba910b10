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

from accel.zoo.scenes import COLOURS, GROUNDS, KINDS, SIZES, Item, Region, Scene

REGIONS = ("whole", "left", "right", "top", "bottom")
ITEM_CLASSES = (len(KINDS) + 1, len(COLOURS) + 1)
WORD_CLASSES = (*ITEM_CLASSES, len(SIZES) + 1, len(REGIONS) + 1, len(GROUNDS))
CAPTION_CLASSES = (*ITEM_CLASSES * len(REGIONS), len(GROUNDS))
UNASKED = 255


class Reader(nn.Module):
    """Logits for each of several questions, from hidden states of `width`; class 0 is "none"."""

    def __init__(self, width: int, classes: Sequence[int]) -> None:
        super().__init__()
        self.classes = list(classes)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, sum(classes))

    def loss(self, hidden: Tensor, answers: Tensor) -> Tensor:
        """Mean cross entropy, summed over questions: hidden [..., C], answers [..., questions].

        Where the answer is `UNASKED`, any will do.
        """
        logits = self.head(self.norm(hidden.float())).flatten(0, -2).split(self.classes, dim=-1)
        columns = answers.long().flatten(0, -2).unbind(-1)
        losses = [
            functional.cross_entropy(*pair, ignore_index=UNASKED)
            for pair in zip(logits, columns, strict=True)
        ]
        return torch.stack(losses).sum()


def item_answers(item: Item) -> tuple[int, int]:
    """The classes of its kind and of its colour, from 1 on."""
    return 1 + KINDS.index(item.kind), 1 + COLOURS.index(item.colour)


def place_answers(item: Item, region: Region) -> tuple[int, int]:
    """The classes of its size and of its region, from 1 on."""
    return 1 + SIZES.index(item.size), 1 + REGIONS.index(region)


def word_answers(scene: Scene, length: int) -> Tensor:
    """[length, 5]: for each word its item's kind, colour, size and region, and the ground.

    Words between and after the items, and padding, have the item "none".
    """
    ground = GROUNDS.index(scene.ground)
    rows = [
        (*item_answers(item), *place_answers(item, region), ground)
        for item, region in zip(scene.items, scene.regions(), strict=True)
    ]
    phrases = [item.phrase() for item in scene.items]
    return phrase_answers(phrases, [(0, 0, 0, 0, ground), *rows], scene.relation, length)


def phrase_answers(
    phrases: Sequence[str], rows: Sequence[tuple[int, ...]], relation: str, length: int
) -> Tensor:
    """[length, questions]: the phrase's row for each of its words, the first row for all others."""
    none, *told = rows
    answers: list[tuple[int, ...]] = []
    for phrase, row in zip(phrases, told, strict=True):
        between = 0 if answers else len(relation.split())
        answers += [row] * len(phrase.split()) + [none] * between
    answers += [none] * (length - len(answers))
    return torch.tensor(answers, dtype=torch.uint8)


def early_word_answers(scene: Scene, ends: Sequence[int], length: int) -> Tensor:
    """[length, 5]: `word_answers` for an encoder that sees no later words, asked where it can know.

    That is at the last word of the second item for that item, and at the word before it, or behind
    a single item, for the first: only there it is said where the first one lies. The ground is
    asked at the caption's end. `ends` holds for every word the position of its last token.
    """
    answers = torch.full((length, len(WORD_CLASSES)), UNASKED, dtype=torch.uint8)
    first = len(scene.items[0].phrase().split())
    behind = first + max(1, len(scene.relation.split())) - 1
    last = behind + len(scene.items[-1].phrase().split())
    for item, region, word in zip(scene.items, scene.regions(), (behind, last), strict=False):
        row = (*item_answers(item), *place_answers(item, region))
        answers[ends[word], :-1] = torch.tensor(row, dtype=torch.uint8)
    answers[ends[-1], -1] = GROUNDS.index(scene.ground)
    return answers


def caption_answers(scene: Scene) -> Tensor:
    """[11]: for each of five regions the kind and the colour of the item there, and the ground."""
    answers = torch.zeros(len(REGIONS), 2, dtype=torch.uint8)
    for item, region in zip(scene.items, scene.regions(), strict=True):
        answers[REGIONS.index(region)] = torch.tensor(item_answers(item), dtype=torch.uint8)
    ground = torch.tensor([GROUNDS.index(scene.ground)], dtype=torch.uint8)
    return torch.cat([answers.flatten(), ground])


def token_answers(
    rows: Sequence[tuple[int, ...]], owners: NDArray[np.uint8], grid: tuple[int, int]
) -> Tensor:
    """[N, questions]: the row of `rows` for the item in the middle of each of `grid` tokens.

    `owners` is [H, W] as `render_owned` gives it; what nobody owns is answered with "none".
    """
    rise, run = len(owners) // grid[0], len(owners[0]) // grid[1]
    middles = torch.from_numpy(owners[rise // 2 :: rise, run // 2 :: run].copy())
    table = torch.tensor([(0,) * len(rows[0]), *rows], dtype=torch.uint8)
    return table[middles.flatten().long()]
