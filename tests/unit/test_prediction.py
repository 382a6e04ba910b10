"""What a denoiser returns: its one tensor found and replaced."""

import pytest
import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from caching.prediction import read_prediction, write_prediction

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
