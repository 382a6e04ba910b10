"""Predictors against closed forms."""

import pytest
import torch

from accel.errors import OptionError
from accel.sites import Streams
from caching import Hold, Newton
from caching.predictor import Damped, Differential, Sample


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


def test_a_differential_goes_on_by_a_share_of_the_newest_change():
    kept = samples(lambda x: 10 * x, [1.0, 0.9, 0.6])
    # 6 + (6 - 9) / 2, whatever is asked for.
    assert float(Differential(0.5).predict(kept, 0.1).hidden) == pytest.approx(4.5)
    assert float(Differential(0.0).predict(kept, 0.1).hidden) == pytest.approx(6)
    assert Differential(0.5).predict(kept[:1], 0.1) is kept[0].value


def test_a_damped_predictor_changes_by_a_share_of_what_it_expects():
    kept = samples(lambda x: 10 * x, [1.0, 0.5])
    inner = Newton(order=1)
    # From 5 to 1, of which a quarter.
    damped = Damped(inner, 0.25)
    assert float(damped.predict(kept, 0.1).hidden) == pytest.approx(4)
    assert (damped.depth, damped.action) == (inner.depth, inner.action)
    assert float(kept[-1].value.hidden) == 5


def test_bad_weights_and_shares_are_refused():
    with pytest.raises(OptionError, match="weight"):
        Differential(-1.0)
    with pytest.raises(OptionError, match="share"):
        Damped(Hold(), 1.5)


def test_of_two_residuals_at_one_noise_level_newton_takes_the_newer():
    kept = samples(lambda x: 10 * x, [1.0, 0.5])
    doubled = [kept[0], Sample(0.5, Streams(torch.tensor([99.0]))), kept[1]]
    assert float(Newton(order=2).predict(doubled, 0.1).hidden) == pytest.approx(1)
