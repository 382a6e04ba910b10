"""What the language models are trained on: batches of items, and which of their tokens to mask.

Items are drawn by the thousand, sorted by length and cut into batches of about equal token counts,
so that hardly any padding is computed and Python's share of a step stays small.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from accel.zoo.language.decode import blank_canvas
from accel.zoo.language.tasks import TASKS, random_item
from accel.zoo.language.vocabulary import END_ID, encode_answers, encode_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GEN_LENGTHS = (16, 32, 64, 96)
# Most answers are trained in the least room that holds them, which costs least; the others teach
# that an answer ends wherever the room does.
_ROOMS = ((0.6, 16), (0.35, 32), (0.05, 96))
LONG_FROM_REACH = 0.5
LONG_TRAINED = 0.2

FULL_MASK_SHARE = 0.1
LEFT_TO_RIGHT_SHARE = 0.3
LEAST_MASKED = 0.05
WINDOW = 32


class Batch(NamedTuple):
    """Prompts and answers, [B, N], aligned where the answers begin.

    `valid` is what is no padding, [B, N]; the last `gen_length` columns are answers, with end
    tokens behind them; `tasks` numbers the tasks of the rows in the order of `TASKS`, [B].
    """

    canvas: Tensor
    valid: Tensor
    gen_length: int
    tasks: Tensor


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a pool of items is drawn: equal recipes give equal pools.

    `weights` says how often each task is taken; `reach` in 0..1 how far up its sizes.
    """

    seed: str
    weights: Mapping[str, float]
    reach: float
    items: int
    tokens: int


def draw_pool(recipe: Recipe, tokenizer: "PreTrainedTokenizerFast") -> list[Batch]:
    """Batches of at most `recipe.tokens` tokens (or of one row), in random order."""
    rng = Random(recipe.seed)
    long_share = LONG_TRAINED if recipe.reach >= LONG_FROM_REACH else 0.0
    names = rng.choices(tuple(recipe.weights), tuple(recipe.weights.values()), k=recipe.items)
    items = [
        random_item(
            rng,
            name,
            long=TASKS[name].long_sizes is not None and rng.random() < long_share,
            reach=recipe.reach,
        )
        for name in names
    ]
    prompts = encode_prompts(tokenizer, [item.prompt for item in items])
    answers = encode_answers(tokenizer, [item.answer for item in items])
    numbers = {name: number for number, name in enumerate(TASKS)}
    rows = [
        _Row(_room(rng, len(answer)), prompt, answer, numbers[item.task])
        for item, prompt, answer in zip(items, prompts, answers, strict=True)
    ]
    rows.sort(key=lambda row: (row.gen_length, len(row.prompt)))
    batches = [_batch(part) for part in _cut(rows, recipe.tokens)]
    rng.shuffle(batches)
    return batches


class _Row(NamedTuple):
    gen_length: int
    prompt: list[int]
    answer: list[int]
    task: int


def _room(rng: Random, answer_length: int) -> int:
    """How many tokens the answer is given, at least one of them an end token."""
    shares, floors = zip(*_ROOMS, strict=True)
    needed = max(rng.choices(floors, shares)[0], answer_length + 1)
    return next(length for length in GEN_LENGTHS if length >= needed)


def _cut(rows: list[_Row], tokens: int) -> list[list[_Row]]:
    """Sorted rows in runs of one `gen_length` that hold at most `tokens` once padded."""
    starts, first = [0], rows[0]
    for place, row in enumerate(rows):
        width = row.gen_length + len(row.prompt)
        too_many = (place + 1 - starts[-1]) * width > tokens
        if row.gen_length != first.gen_length or (too_many and place > starts[-1]):
            starts.append(place)
            first = row
    return [rows[start:end] for start, end in pairwise([*starts, len(rows)])]


def _batch(rows: list[_Row]) -> Batch:
    gen_length = rows[0].gen_length
    canvas, valid = blank_canvas([row.prompt for row in rows], gen_length, END_ID)
    start = canvas.shape[1] - gen_length
    for number, row in enumerate(rows):
        canvas[number, start : start + len(row.answer)] = torch.tensor(row.answer)
    return Batch(canvas, valid, gen_length, torch.tensor([row.task for row in rows]))


class Noise(NamedTuple):
    """Which answer tokens are masked, [B, G], and the weight of each in the loss, [B, G]."""

    masked: Tensor
    weight: Tensor


def mask_answers(rows: int, gen_length: int, generator: torch.Generator) -> Noise:
    """Noise for a bidirectional model, every masked token weighing 1/u (arXiv 2502.09992, eq. 3).

    u is uniform in 0.05..1, or 1 in a tenth of the rows. Three rows in ten look like decoding in
    blocks: clean up to a window of 32, wholly masked behind it; there u is the share masked.
    """
    share = _shares((rows, 1), generator)
    masked = torch.rand(rows, gen_length, generator=generator) < share
    starts = torch.randint(gen_length, (rows, 1), generator=generator)
    column = torch.arange(gen_length)
    in_blocks = (masked | (column >= starts + WINDOW)) & (column >= starts)
    left_to_right = torch.rand(rows, 1, generator=generator) < LEFT_TO_RIGHT_SHARE
    masked = _at_least_one(torch.where(left_to_right, in_blocks, masked), generator)
    share = torch.where(left_to_right, masked.float().mean(1, keepdim=True), share)
    return Noise(masked, masked / share)


def mask_blocks(blocks: Tensor, generator: torch.Generator) -> Noise:
    """Noise for a block-causal model: every block [B, G] of answer tokens has a u of its own."""
    local = blocks - blocks.amin(1, keepdim=True)
    shares = _shares((len(blocks), int(local.max()) + 1), generator)
    share = shares.gather(1, local)
    masked = torch.rand(blocks.shape, generator=generator) < share
    return Noise(masked := _at_least_one(masked, generator), masked / share)


def _shares(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    share = torch.empty(shape).uniform_(LEAST_MASKED, 1.0, generator=generator)
    full = torch.rand(shape, generator=generator) < FULL_MASK_SHARE
    return share.masked_fill(full, 1.0)


def _at_least_one(masked: Tensor, generator: torch.Generator) -> Tensor:
    """`masked`, and one random token in the rows that had none."""
    one = torch.randint(masked.shape[1], (len(masked), 1), generator=generator)
    forced = torch.zeros_like(masked).scatter_(1, one, value=True)
    return masked | (forced & ~masked.any(1, keepdim=True))
