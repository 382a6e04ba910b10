"""Predictors against closed forms."""

import math

import pytest
import torch

import accel
from accel.sites import Streams
from caching import DMD, FirstBlockCache, FoCa, Hold, Newton
from caching.predictor import Damped, Differential, Sample
from tests.unit.toys import Chain, drive, ones


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


@pytest.mark.parametrize("predictor", [Newton(order=1), FoCa(), DMD(snapshots=4)])
def test_of_two_residuals_at_one_noise_level_the_newer_counts(predictor) -> None:
    kept = samples(lambda x: 2 * x, [0.9, 0.7, 0.5])
    kept.append(Sample(0.5, Streams(torch.tensor([1.25]))))
    assert math.isfinite(float(predictor.predict(kept, 0.4).hidden))
    if isinstance(predictor, Newton):
        # Through 1.4 at 0.7 and 1.25 at 0.5.
        assert float(predictor.predict(kept, 0.4).hidden) == pytest.approx(1.175)
    flat = [Sample(0.5, Streams(torch.tensor([float(k)]))) for k in range(4)]
    assert float(predictor.predict(flat, 0.4).hidden) == pytest.approx(3.0)


def test_a_prediction_leaves_the_kept_residuals_untouched():
    kept = samples(lambda x: 2 * x, [1.0, 0.5])
    Newton(order=1).predict(kept, 0.0)
    assert [float(sample.value.hidden) for sample in kept] == [2.0, 1.0]


def test_the_text_stream_is_extrapolated_too_and_may_be_absent():
    both = [Sample(s, Streams(torch.tensor([s]), torch.tensor([3 * s]))) for s in (1.0, 0.5)]
    value = Newton(order=1).predict(both, 0.0)
    assert float(value.context) == pytest.approx(0.0, abs=1e-6)
    assert Newton(order=1).predict(samples(lambda x: x, [1.0, 0.5]), 0.0).context is None


def test_foca_goes_along_the_mean_of_both_slopes() -> None:
    # Computed: 2 at 1.0, 4 at 0.5 (slope -4). Newest of any kind: 3 at 0.7, then 4 at 0.5 (-5).
    kept = [Sample(1.0, Streams(torch.tensor([2.0]))), Sample(0.5, Streams(torch.tensor([4.0])))]
    guess = Sample(0.7, Streams(torch.tensor([3.0])))
    value = FoCa().predict(kept, 0.25, [guess, kept[-1]]).hidden
    assert float(value) == pytest.approx(4 + 0.25 * 4.5)


def test_foca_without_a_trail_is_linear_and_holds_beyond_its_horizon() -> None:
    kept = samples(lambda x: 3 * x, [1.0, 0.9])
    assert float(FoCa().predict(kept, 0.75).hidden) == pytest.approx(2.25)
    assert float(FoCa(horizon=2).predict(kept, 0.2).hidden) == pytest.approx(3 * 0.7)
    assert FoCa().predict(kept[:1], 0.1) is kept[0].value


def test_the_bend_of_foca_stays_what_it_was_however_long_it_goes_on() -> None:
    # Slope -4 between computed ones. In the first evaluation 0.25 * 4.5 instead of 0.25 * 4: 0.125.
    kept = [Sample(1.0, Streams(torch.tensor([2.0]))), Sample(0.5, Streams(torch.tensor([4.0])))]
    trail = [Sample(0.7, Streams(torch.tensor([3.0]))), kept[-1]]
    for sigma in (0.25, 0.2, 0.1, 0.0):
        value = FoCa().predict(kept, sigma, trail[-2:])
        trail.append(Sample(sigma, value))
        assert float(value.hidden) == pytest.approx(4 + 4 * (0.5 - sigma) + 0.125)


def test_foca_sees_the_guesses_that_the_stack_cache_made() -> None:
    model = Chain(2, 3, 5)
    method = FirstBlockCache(
        threshold=100, warmup=2, tail=0, min_steps=0, max_streak=1, predictor=FoCa()
    )
    handle = accel.patch(model, method)
    drive(model, handle, ones(1))
    outputs = [float(output) for output in drive(model, handle, ones(1, 2, 4, 8, 8))]
    # Kept 28 and 56; the guess for step 2 is 84. Computed at step 3: 224, so that at step 4 the
    # slopes are (224 - 56) / 2 and 224 - 84: 224 + (84 + 140) / 2 = 336.
    assert outputs == pytest.approx([30, 60, 8 + 84, 240, 16 + 336])


@pytest.mark.parametrize("ratio", [0.9, 0.5])
def test_dmd_continues_a_decay_exactly(ratio: float) -> None:
    direction = torch.tensor([1.0, -2.0, 0.5])
    kept = [Sample(1 - 0.1 * k, Streams(direction * ratio**k)) for k in range(5)]
    value = DMD().predict(kept, 0.4).hidden
    torch.testing.assert_close(value, direction * ratio**6, rtol=1e-3, atol=1e-4)


def test_dmd_continues_a_turning_decay_and_both_streams() -> None:
    def at(k: int) -> Streams:
        turn = 0.95**k * torch.tensor([math.cos(0.4 * k), math.sin(0.4 * k)])
        return Streams(turn, 2 * turn)

    kept = [Sample(float(-k), at(k)) for k in range(6)]
    value = DMD().predict(kept, -8.0)
    torch.testing.assert_close(value.hidden, at(8).hidden, rtol=1e-3, atol=1e-3)
    assert value.context is not None
    torch.testing.assert_close(value.context, at(8).context, rtol=1e-3, atol=1e-3)


def test_dmd_holds_what_grows_and_needs_four_residuals() -> None:
    kept = [Sample(float(-k), Streams(torch.tensor([2.0**k]))) for k in range(5)]
    assert float(DMD().predict(kept, -7.0).hidden) == pytest.approx(16.0, rel=1e-3)
    few = samples(lambda x: 3 * x, [1.0, 0.9, 0.8])
    assert float(DMD().predict(few, 0.5).hidden) == pytest.approx(1.5, rel=1e-4)


def test_bad_forecasters_are_refused() -> None:
    with pytest.raises(accel.OptionError, match="snapshots"):
        DMD(snapshots=3)
    with pytest.raises(accel.OptionError, match="horizon"):
        FoCa(horizon=-1)


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
    with pytest.raises(accel.OptionError, match="weight"):
        Differential(-1.0)
    with pytest.raises(accel.OptionError, match="share"):
        Damped(Hold(), 1.5)


def test_of_two_residuals_at_one_noise_level_newton_takes_the_newer():
    kept = samples(lambda x: 10 * x, [1.0, 0.5])
    doubled = [kept[0], Sample(0.5, Streams(torch.tensor([99.0]))), kept[1]]
    assert float(Newton(order=2).predict(doubled, 0.1).hidden) == pytest.approx(1)
