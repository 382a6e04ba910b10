"""Kept outputs: whose they are, and what becomes of them on half of a batch."""

import torch

from caching import Hold
from caching.slots import Slot, signature_of


def kept(slot, *args, half=None, **kwargs):
    return slot.usable(signature_of(args, kwargs), half)


def record(slot, output, step, *args, **kwargs):
    slot.record(signature_of(args, kwargs), step, -float(step), output)


def test_a_signature_is_of_every_tensor_and_of_nothing_else():
    x = torch.ones(2, 3)
    assert signature_of((x, None, 3), {"mask": x.bool(), "scale": 2.0}) == (
        (torch.Size([2, 3]), torch.float32, x.device),
        (torch.Size([2, 3]), torch.bool, x.device),
    )


def test_on_half_of_a_batch_that_half_of_what_was_kept_is_used():
    x, mask = torch.arange(4.0).view(4, 1), torch.ones(7)
    for half, rows in ((0, [0, 10]), (1, [20, 30])):
        slot = Slot(2)
        record(slot, x * 10, 0, x, mask=mask)
        found = kept(slot, x[:2], mask=mask, half=half)
        assert slot.answer(found, Hold(), 0.0).flatten().tolist() == rows
        # The other half is let go.
        assert sum(item.nbytes for item in slot.kept) == 2 * 4


def test_halves_before_and_after_a_whole_batch_go_together_but_never_stand_in_for_it():
    x = torch.ones(4, 1)
    slot = Slot(2)
    record(slot, x[:2], 0, x[:2])
    assert kept(slot, x) == []
    record(slot, x * 2, 1, x)
    assert [item.step for item in kept(slot, x)] == [1]
    assert [item.step for item in kept(slot, x[:2], half=1)] == [0, 1]


def test_without_being_told_a_smaller_batch_is_another_shape():
    x = torch.ones(4, 1)
    slot = Slot(1)
    record(slot, x, 0, x)
    assert kept(slot, x[:2]) == []
    assert kept(slot, x[:3], half=0) == []
    assert len(kept(slot, x)) == 1


def test_an_output_without_a_row_for_each_input_cannot_be_halved():
    x = torch.ones(4, 1)
    slot = Slot(1)
    record(slot, torch.ones(6, 1), 0, x)
    assert kept(slot, x[:2], half=0) == []


def test_the_oldest_output_makes_room():
    x = torch.ones(1)
    slot = Slot(2)
    for step in range(4):
        record(slot, x * step, step, x)
    assert [item.step for item in kept(slot, x)] == [2, 3]


def test_of_two_outputs_at_one_noise_level_the_newer_is_kept():
    x = torch.ones(1)
    slot = Slot(2)
    for step, sigma in enumerate((1.0, 0.5, 0.5)):
        slot.record(signature_of((x,), {}), step, sigma, x * step)
    assert [item.step for item in kept(slot, x)] == [0, 2]


def test_an_output_of_another_form_replaces_what_was_kept():
    x = torch.ones(1)
    slot = Slot(3)
    record(slot, x, 0, x)
    record(slot, (x, None), 1, x)
    assert [item.step for item in kept(slot, x)] == [1]
    assert slot.answer(kept(slot, x), Hold(), 0.0) == (x, None)
    record(slot, "text", 2, x)
    assert kept(slot, x) == []
