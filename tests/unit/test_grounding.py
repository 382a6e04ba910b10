"""What training tells the zoo's models about words and picture tokens."""

import math
import random

import numpy as np
import pytest
import torch

from accel.zoo.grounding import (
    REGIONS,
    UNASKED,
    WORD_CLASSES,
    Reader,
    caption_answers,
    early_word_answers,
    token_answers,
    word_answers,
)
from accel.zoo.scenes import COLOURS, GROUNDS, KINDS, SIZES, parse, random_scene
from accel.zoo.train_text import word_ends
from accel.zoo.vocabulary import CLIP_LENGTH, T5_LENGTH, clip_tokenizer, t5_tokenizer

CAPTION = "small red trousers below a large blue ankle boot on a navy ground"
TROUSERS = (1 + KINDS.index("trousers"), 1 + COLOURS.index("red"))
BOOT = (1 + KINDS.index("ankle boot"), 1 + COLOURS.index("blue"))


def test_words_tell_the_item_they_belong_to() -> None:
    rows = [tuple(row) for row in word_answers(parse(CAPTION), 16).tolist()]
    navy = GROUNDS.index("navy")
    trousers = (*TROUSERS, 1 + SIZES.index("small"), 1 + REGIONS.index("bottom"), navy)
    boot = (*BOOT, 1 + SIZES.index("large"), 1 + REGIONS.index("top"), navy)
    none = (0, 0, 0, 0, navy)
    assert rows == [trousers] * 3 + [none] + [boot] * 5 + [none] * 7


def test_every_word_is_one_token_so_that_answers_and_tokens_line_up() -> None:
    tokenizer, grammar = t5_tokenizer(), random.Random(0)
    for _ in range(200):
        caption = random_scene(grammar).caption()
        assert len(tokenizer(caption).input_ids) == len(caption.split()) + 1 <= T5_LENGTH


def test_regions_without_an_item_have_no_answer() -> None:
    *items, ground = caption_answers(parse(CAPTION)).tolist()
    answers = torch.tensor(items).unflatten(0, (5, 2))
    assert GROUNDS[ground] == "navy"
    assert tuple(answers[REGIONS.index("top")].tolist()) == BOOT
    assert tuple(answers[REGIONS.index("bottom")].tolist()) == TROUSERS
    assert answers.count_nonzero() == 4


def test_picture_tokens_tell_whose_middle_they_lie_on() -> None:
    owners = np.zeros((64, 64), dtype=np.uint8)
    owners[2, 6], owners[62, 2] = 1, 2
    kinds, colours = token_answers([TROUSERS, BOOT], owners, (16, 16)).unbind(-1)
    assert {i: int(kinds[i]) for i in kinds.nonzero().flatten().tolist()} == {
        1: TROUSERS[0],
        15 * 16: BOOT[0],
    }
    assert (int(colours[1]), int(colours[15 * 16])) == (TROUSERS[1], BOOT[1])


def test_half_the_side_reads_middles_of_larger_tokens() -> None:
    owners = np.zeros((64, 64), dtype=np.uint8)
    owners[4, 12] = 1
    answers = token_answers([TROUSERS], owners, (8, 8))
    assert answers.shape == (64, 2)
    assert tuple(answers[1].tolist()) == TROUSERS


def test_tokens_need_not_be_square() -> None:
    owners = np.zeros((64, 64), dtype=np.uint8)
    owners[2, 61] = 1
    answers = token_answers([TROUSERS], owners, (16, 32))
    assert answers.shape == (512, 2)
    assert answers[:, 0].nonzero().flatten().tolist() == [30]


CLIP_CAPTION = "a small green t-shirt to the left of a large pink bag on a mint ground"


@pytest.mark.parametrize(
    ("caption", "asked"),
    [
        (CLIP_CAPTION, {"of": "left", "bag": "right"}),
        ("a small red bag on a grey ground", {"on": "whole"}),
    ],
)
def test_an_encoder_that_sees_no_later_words_is_asked_where_it_can_know(
    caption: str, asked: dict[str, str]
) -> None:
    tokenizer = clip_tokenizer()
    encoded = tokenizer(caption, return_offsets_mapping=True)
    ends = word_ends(caption, encoded.offset_mapping)
    answers = early_word_answers(parse(caption), ends, CLIP_LENGTH)
    rows = (answers[:, 0] != UNASKED).nonzero().flatten().tolist()
    said = [tokenizer.decode([encoded.input_ids[row]]).strip() for row in rows]
    regions = [REGIONS[answers[row, 3] - 1] for row in rows]
    assert dict(zip(said, regions, strict=True)) == asked
    (last,) = (answers[:, -1] != UNASKED).nonzero().flatten().tolist()
    assert tokenizer.decode([encoded.input_ids[last]]).strip() == "ground"
    assert f"on a {GROUNDS[answers[last, -1]]} ground" in caption


def test_an_answer_that_nobody_asked_for_costs_nothing() -> None:
    reader, hidden = Reader(8, (3,)), torch.randn(2, 8)
    one = reader.loss(hidden, torch.tensor([[1], [UNASKED]], dtype=torch.uint8))
    # Products of one row and of two may round differently.
    torch.testing.assert_close(one, reader.loss(hidden[:1], torch.tensor([[1]], dtype=torch.uint8)))


def test_a_reader_that_knows_nothing_pays_for_every_class() -> None:
    reader = Reader(8, WORD_CLASSES)
    torch.nn.init.zeros_(reader.head.weight)
    torch.nn.init.zeros_(reader.head.bias)
    loss = reader.loss(torch.randn(3, 5, 8), torch.ones(3, 5, 5, dtype=torch.uint8))
    assert math.isclose(loss.item(), sum(map(math.log, WORD_CLASSES)), rel_tol=1e-5)
