"""What a denoiser returns: its one tensor found, replaced, and watched."""

import math

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from caching.prediction import FiniteWatch, read_prediction, write_prediction

ONE, TWO = torch.ones(1), torch.full((1,), 2.0)


@pytest.mark.parametrize(
    "output", [ONE, (ONE,), [ONE], (ONE, None), {"sample": ONE}, Transformer2DModelOutput(ONE)]
)
def test_the_prediction_is_found_and_replaced_in_the_same_form(output):
    assert read_prediction(output) is ONE
    swapped = write_prediction(output, TWO)
    assert type(swapped) is type(output)
    assert read_prediction(swapped) is TWO
    assert read_prediction(output) is ONE


@pytest.mark.parametrize("output", [(ONE, TWO), {"a": ONE, "b": TWO}, None, (), ("text",)])
def test_where_it_is_not_alone_there_is_none(output):
    assert read_prediction(output) is None


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
