"""Predictors against closed forms."""

import pytest
import torch

from accel.sites import Streams
from caching import Hold, Newton
from caching.predictor import Sample


def samples(function, sigmas):
    return [Sample(sigma, Streams(torch.tensor([function(sigma)]))) for sigma in sigmas]


def test_hold_returns_the_newest_residual_itself():
    kept = samples(lambda x: x, [1.0, 0.8])
    assert Hold().predict(kept, 0.1) is kept[-1].value


@pytest.mark.parametrize("order", [1, 2, 3])
def test_newton_is_exact_for_polynomials_of_its_order_on_uneven_gaps(order):
    def polynomial(x):
        return sum((k + 1) * x**k for k in range(order + 1))

    kept = samples(polynomial, [1.0, 0.9, 0.6, 0.5])
    value = Newton(order=order).predict(kept, 0.2).hidden
    assert float(value) == pytest.approx(polynomial(0.2), rel=1e-4)


def test_newton_of_too_low_an_order_is_not_exact():
    kept = samples(lambda x: x * x, [1.0, 0.9, 0.6])
    assert float(Newton(order=1).predict(kept, 0.2).hidden) != pytest.approx(0.04, rel=0.1)


def test_newton_falls_back_to_what_there_is():
    kept = samples(lambda x: x, [0.7])
    assert Newton(order=2).predict(kept, 0.1) is kept[0].value


def test_a_prediction_leaves_the_kept_residuals_untouched():
    kept = samples(lambda x: 2 * x, [1.0, 0.5])
    Newton(order=1).predict(kept, 0.0)
    assert [float(sample.value.hidden) for sample in kept] == [2.0, 1.0]


def test_the_text_stream_is_extrapolated_too_and_may_be_absent():
    both = [Sample(s, Streams(torch.tensor([s]), torch.tensor([3 * s]))) for s in (1.0, 0.5)]
    value = Newton(order=1).predict(both, 0.0)
    assert float(value.context) == pytest.approx(0.0, abs=1e-6)
    assert Newton(order=1).predict(samples(lambda x: x, [1.0, 0.5]), 0.0).context is None
