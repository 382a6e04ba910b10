"""Which keys a mask says are missing, and which masks say more than that."""

from typing import Any

import pytest
import torch
from torch import Tensor

from accel.key_padding import KnownMasks, valid_keys

INF = float("inf")
ROWS = torch.tensor([[0.0, 0, 0, 0], [0, 0, -INF, -INF]])
REAL = [[True] * 4, [True, True, False, False]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (ROWS[:, None, None] == 0, REAL),
        ((ROWS == 0)[:, None, None].expand(2, 3, 4, 4), REAL),
        ((ROWS == 0)[:, None, None].repeat(1, 3, 1, 1), REAL),
        (ROWS[:, None, None], REAL),
        (ROWS.clamp_min(-10000)[:, None, None].bfloat16(), REAL),
        (ROWS.clamp_min(-65504)[:, None, None].half().repeat(1, 3, 1, 1), REAL),
        (ROWS[1:, None, None], [REAL[1]] * 2),
        (ROWS[1:], [REAL[1]] * 2),
        (ROWS[1], [REAL[1]] * 2),
    ],
)
def test_missing_keys_are_read_off_masks_of_every_form(mask: Tensor, expected: Any) -> None:
    assert valid_keys(mask, 2, 4).tolist() == expected


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (torch.zeros(2, 1, 4, 4), "row for each query"),
        (torch.zeros(4, 4), "row for each query"),
        (ROWS[:, None, None] - 1, "not of keys"),
        (ROWS[:, None, None].clamp_min(-900), "not of keys"),
        (ROWS[:, None, None].nan_to_num(neginf=torch.nan), "not of keys"),
        (torch.full((2, 1, 1, 4), -10000.0), "not of keys"),
        (torch.eye(4)[None, :, None] > 0, "not of keys"),
        (torch.zeros(2, 1, 1, 4, dtype=torch.long), "torch.int64"),
        (torch.zeros(1, 2, 1, 1, 4), "5-dimensional"),
    ],
)
def test_masks_that_say_more_than_which_keys_are_missing_are_refused(
    mask: Tensor, reason: str
) -> None:
    assert reason in valid_keys(mask, 2, 4)


def test_a_mask_is_read_once_and_again_when_it_was_written_into() -> None:
    masks = KnownMasks()
    mask = ROWS.clone()[:, None, None]
    first = masks.valid_keys(mask, 2, 4)
    assert masks.valid_keys(mask.view(2, 1, 1, 4), 2, 4) is first
    mask[0] = -INF
    mask[0, ..., 0] = 0
    assert masks.valid_keys(mask, 2, 4)[0].tolist() == [True, False, False, False]
