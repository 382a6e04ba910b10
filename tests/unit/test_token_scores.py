"""Scores of tokens, cells and choices against values worked out by hand."""

import math

import pytest
import torch

from caching.token_scores import choose, pooled, put, scored, spread, take, with_cell_bonus


def test_a_score_is_normalised_importance_and_age_over_the_interval():
    scores = scored(
        torch.tensor([[3.0, 4.0], [0.0, 0.0]]),
        torch.tensor([[0.0, 2.0], [4.0, 1.0]]),
        interval=4,
        age_weight=0.25,
    )
    expected = torch.tensor([[0.6, 0.8 + 0.125], [0.25, 0.0625]])
    torch.testing.assert_close(scores, expected)


def test_samples_are_pooled_over_their_copies_and_choices_are_spread_to_them():
    # Samples a and b, twice: a, b, a, b.
    importance = torch.tensor([[1.0, 5], [2, 6], [3, 7], [4, 8]])
    assert pooled(importance, 2).tolist() == [[2, 6], [3, 7]]
    assert pooled(importance, 1).tolist() == importance.tolist()
    assert spread(torch.tensor([[0], [1]]), 4).tolist() == [[0], [1], [0], [1]]


def test_the_best_token_of_every_cell_gets_the_bonus():
    scores = torch.tensor([[1.0, 2, 3, 4, 5, 8, 7, 6, 4, 3, 1, 2, 1, 2, 3, 4]])
    # 1 2 | 3 4
    # 5 8 | 7 6
    # 4 3 | 1 2
    # 1 2 | 3 4
    raised = with_cell_bonus(scores, (1, 4, 4), cell=2, bonus=0.5)
    assert raised.view(4, 4).tolist() == [
        [1, 2, 3, 4],
        [5, 12, 10.5, 6],
        [6, 3, 1, 2],
        [1, 2, 3, 6],
    ]


def test_of_equal_tokens_in_a_cell_one_gets_the_bonus():
    raised = with_cell_bonus(torch.ones(3, 4), (1, 2, 2), cell=2, bonus=1.0)
    assert (raised == 2).sum(dim=1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("lattice", [(1, 5, 3), (1, 7, 7), (2, 3, 5), (3, 1, 1), (1, 1, 11)])
@pytest.mark.parametrize("cell", [1, 2, 4])
def test_on_any_grid_each_cell_raises_its_largest_token_and_no_other(lattice, cell):
    frames, height, width = lattice
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(2, frames * height * width, generator=generator)
    expected = scores.clone()
    for row in range(2):
        cells: dict[tuple[int, int, int], list[int]] = {}
        for index in range(scores.shape[1]):
            frame, place = divmod(index, height * width)
            y, x = divmod(place, width)
            cells.setdefault((frame, y // cell, x // cell), []).append(index)
        assert len(cells) == frames * math.ceil(height / cell) * math.ceil(width / cell)
        for members in cells.values():
            best = max(members, key=lambda index: float(scores[row, index]))
            expected[row, best] *= 1.4
    torch.testing.assert_close(with_cell_bonus(scores, lattice, cell=cell, bonus=0.4), expected)


def test_the_highest_scores_are_chosen_in_ascending_order_of_index():
    scores = torch.tensor([[0.1, 0.9, 0.5, 0.8], [0.9, 0.1, 0.2, 0.3]])
    young = torch.ones(2, 4)
    assert choose(scores, 2, ages=young, max_age=9).tolist() == [[1, 3], [0, 3]]
    assert choose(scores, 4, ages=young, max_age=9).tolist() == [[0, 1, 2, 3]] * 2


def test_tokens_that_are_too_old_go_first_and_the_oldest_of_them_before_all():
    scores = torch.tensor([[0.9, 0.0, 0.1, 0.8]])
    ages = torch.tensor([[2.0, 3, 5, 1]])
    assert choose(scores, 1, ages=ages, max_age=3).tolist() == [[2]]
    assert choose(scores, 2, ages=ages, max_age=3).tolist() == [[1, 2]]
    assert choose(scores, 3, ages=ages, max_age=3).tolist() == [[0, 1, 2]]
    assert choose(scores, 1, ages=ages, max_age=6).tolist() == [[0]]


def oldest(*, max_age, age_weight=0.0, steps=60):
    """Returns the oldest that any of seven unequal tokens gets where two are chosen a step."""
    importance = torch.tensor([[100.0, 90, 1, 1e-3, 0, 0, 50]])
    ages, seen = torch.ones(1, 7), 0.0
    for _ in range(steps):
        scores = scored(importance, ages, interval=4, age_weight=age_weight)
        chosen = choose(scores, 2, ages=ages, max_age=max_age)
        ages = ages.scatter(1, chosen, 0.0) + 1
        seen = max(seen, float(ages.max()))
    return seen


@pytest.mark.parametrize("max_age", [1, 3, 10])
def test_no_token_starves_whatever_its_score(max_age):
    assert oldest(max_age=max_age) <= max_age + math.ceil(7 / 2)


def test_without_a_greatest_age_and_weight_of_age_tokens_would_starve():
    assert oldest(max_age=1000) == 61


def test_the_weight_of_age_alone_brings_every_token_in():
    # What age adds exceeds any importance, 1 at most, once a token is this much older.
    assert oldest(max_age=1000, age_weight=0.25) <= 4 / 0.25 + math.ceil(7 / 2) + 1


def test_taken_tokens_put_back_leave_the_others_and_the_original_alone():
    tokens = torch.arange(24.0).view(2, 4, 3)
    indices = torch.tensor([[0, 3], [1, 2]])
    taken = take(tokens, indices)
    assert taken.tolist() == [
        [tokens[0, 0].tolist(), tokens[0, 3].tolist()],
        tokens[1, 1:3].tolist(),
    ]
    changed = put(tokens, indices, -taken.double())
    assert changed.dtype == tokens.dtype
    for row, kept in ((0, (1, 2)), (1, (0, 3))):
        for index in range(4):
            sign = 1 if index in kept else -1
            assert torch.equal(
                changed[row, index], sign * torch.arange(24.0).view(2, 4, 3)[row, index]
            )
    assert torch.equal(tokens, torch.arange(24.0).view(2, 4, 3))
