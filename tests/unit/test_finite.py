"""Non-finite features, found without waiting for the device."""

import math

import pytest
import torch

from caching.finite import FiniteWatch


def test_the_newest_evaluation_that_was_not_finite_is_told_once():
    watch = FiniteWatch()
    assert watch.broken() is None
    for step, value in enumerate((1.0, math.nan, math.inf, 2.0)):
        watch.note(step, torch.tensor([0.0, value]))
    assert watch.broken() == 2
    assert watch.broken() is None


@pytest.mark.gpu
def test_a_device_is_never_waited_for():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    watch = FiniteWatch()
    with torch.cuda.stream(torch.cuda.Stream()):
        # A second of work is queued before the answer.
        torch.cuda._sleep(1_000_000_000)
        watch.note(0, torch.full((4,), math.nan, device="cuda"))
        assert watch.broken() is None
    torch.cuda.synchronize()
    assert watch.broken() == 0
