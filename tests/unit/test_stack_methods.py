"""TeaCache, MagCache, BWCache and fixed plans on chains of blocks computed by hand."""

import math
from typing import Any

import pytest
import torch

import accel
from caching import BWCache, FirstBlockCache, LinearPlan, MagCache, Newton, TeaCache
from caching.learning import Learnt, Lesson
from caching.magnitude_drift import at, curve
from caching.modulated_change import estimate, fit
from caching.stack_method import Watcher
from tests.unit.toys import OPEN, Chain, Started, drive, ones

IDENTITY = (1.0, 0.0)


def powers(ratio: float, count: int) -> list[float]:
    return [ratio**index for index in range(count)]


def test_a_plan_computes_its_steps_and_weighs_the_others() -> None:
    # The stack adds 29x, linear in x, so 2 * newest - 1 * the one before predicts it exactly.
    started = Started(LinearPlan(steps=4, compute=(0, 1, 3), weights=((2, (2.0, -1.0)),)))
    assert started.drive(1, 2, 3, 4) == pytest.approx([30, 60, 90, 120])
    assert started.model.calls() == [3, 3, 3]
    assert started.pattern == "ccrc"
    assert [d.action for d in started.handle.report.decisions][2] == "forecast"


def test_a_single_weight_scales_the_newest_residual() -> None:
    started = Started(LinearPlan(steps=2, compute=(0,), weights=((1, (0.5,)),)))
    assert started.drive(1, 2) == pytest.approx([30, 2 + 0.5 * 29])


def test_a_plan_without_weights_holds_or_uses_its_predictor() -> None:
    held = Started(LinearPlan(steps=3, compute=(0, 1)))
    assert held.drive(1, 2, 3) == pytest.approx([30, 60, 3 + 58])
    newton = Started(LinearPlan(steps=3, compute=(0, 1), predictor=Newton(order=1)))
    assert newton.drive(1, 2, 3) == pytest.approx([30, 60, 90])


def test_a_plan_for_another_number_of_steps_computes_throughout_and_says_so() -> None:
    started = Started(LinearPlan(steps=4, compute=(0, 3)))
    assert started.drive(1, 2, 3) == [30, 60, 90]
    assert started.pattern == "ccc"
    assert any("for 4 steps, this run has 3" in text for text in started.handle.report.warnings)


@pytest.mark.parametrize(
    ("share", "power", "pattern"),
    [
        # 0, 27 / 16, 27 / 4, 243 / 16 and 27: 0, 2, 7, 15 and 27.
        (5 / 28, 2, "crcrrrrcrrrrrrrcrrrrrrrrrrrc"),
        # 0, 2.5, 5, 7.5 and 10, halves rounded to even.
        (5 / 11, 1, "crcrrcrrcrc"),
        # 0, 9 / 25, 36 / 25, 81 / 25, 144 / 25 and 9, the second right behind the first.
        (0.6, 2, "ccccrrcrrc"),
        (1, 2, "cccccccccc"),
    ],
)
def test_a_share_is_computed_of_any_number_of_steps(
    share: float, power: float, pattern: str
) -> None:
    started = Started(LinearPlan(share=share, power=power))
    for _ in range(2):
        started.drive(*[1.0] * len(pattern))
        assert started.pattern == pattern
    started.drive(*[1.0] * 8)
    assert started.pattern == "c" * 8


def test_a_share_is_neutral_without_it() -> None:
    assert LinearPlan(share=0.5).neutral() == LinearPlan()


def test_a_share_of_an_unknown_number_of_steps_computes_and_says_so() -> None:
    started = Started(LinearPlan(share=0.5))
    with started.handle.generation():
        for _ in range(3):
            started.model(ones(1)[0])
            started.handle.advance()
    assert started.pattern == "ccc"
    assert "number of evaluations unknown" in started.reasons


def test_a_plan_without_a_number_of_steps_takes_any() -> None:
    started = Started(LinearPlan(compute=(0, 2)))
    for count in (3, 5):
        started.drive(*[1.0] * count)
        assert started.pattern == "crcrr"[:count]


def test_a_plan_without_a_probe_computes_no_block_in_a_skipped_step() -> None:
    started = Started(LinearPlan(steps=3, compute=(0,)))
    started.drive(1, 1, 1)
    assert started.model.calls() == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 4, "compute": (1, 2)}, "0 among them"),
        ({"steps": 4, "compute": (0, 4)}, "from 0 to 3"),
        ({"steps": 4, "compute": (0, True)}, "a whole number"),
        ({"compute": (0, -1)}, "a whole number"),
        ({"compute": ()}, "0 among them"),
        ({"weights": ((1, (1.0,)),)}, "does not skip"),
        ({"steps": 4, "compute": (0, 2), "weights": ((2, (1.0,)),)}, "does not skip"),
        ({"steps": 4, "compute": (0, 2), "weights": ((1, (1.0, 2.0)),)}, "before which 1 are"),
        ({"steps": 4, "compute": (0, 2), "weights": ((1, ()),)}, "0 numbers"),
        ({"steps": 4, "compute": (0, 2), "weights": ((1, (math.nan,)),)}, "weights"),
        ({"steps": 4, "predictor": "hold"}, "predictor"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"share": 0.5, "power": 0.5}, "power"),
        ({"share": 0.5, "compute": (0, 2)}, "beside compute"),
        ({"share": 0.5, "steps": 9}, "beside compute"),
    ],
)
def test_a_bad_plan_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(accel.OptionError, match=message):
        LinearPlan(**options)


def test_a_residual_that_is_not_finite_is_not_reused_without_a_probe() -> None:
    started = Started(LinearPlan(steps=4, compute=(0, 2)))
    outputs = started.drive(math.nan, 1, 1, 1)
    assert started.pattern == "cccr"
    assert outputs[1:] == pytest.approx([30, 30, 30])
    assert any("non-finite" in text for text in started.handle.report.warnings)


def test_an_older_residual_that_is_not_finite_does_not_poison_an_extrapolation() -> None:
    # Overflow in the first step only; the two newest are needed, the oldest must be forgotten.
    method = FirstBlockCache(
        threshold=10, warmup=2, tail=0, min_steps=0, max_streak=None, predictor=Newton(order=1)
    )
    outputs = Started(method).drive(math.nan, 1, 1, 1)
    assert outputs[1:] == pytest.approx([30, 30, 30])


def test_another_shape_is_computed_by_methods_that_do_not_look_at_tensors() -> None:
    started = Started(LinearPlan(steps=3, compute=(0,)))
    wide = torch.ones(2, 1, 1)
    outputs = drive(started.model, started.handle, [ones(1)[0], wide, wide])
    assert [len(output) for output in outputs] == [1, 2, 2]
    assert started.pattern == "ccr"


def test_teacache_computes_when_the_estimated_changes_reach_the_threshold() -> None:
    method = TeaCache(threshold=0.25, coefficients=IDENTITY, **OPEN)
    started = Started(method)
    # Every input is 10% above the one before: 0.1, 0.2, then 0.3 is too much.
    started.drive(*powers(1.1, 8))
    assert started.pattern == "crrcrrcr"
    values = [decision.value for decision in started.handle.report.decisions]
    assert values[1:4] == pytest.approx([0.1, 0.2, 0.3], rel=1e-4)


def test_teacache_puts_changes_through_its_polynomial_within_its_limits() -> None:
    polynomial = ((2.0, 1.0), (0.0, 0.5))
    assert estimate(polynomial, 0.25) == pytest.approx(1.5)
    assert estimate(polynomial, 3.0) == pytest.approx(2.0)
    assert estimate(((-1.0, 0.0), (0.0, 1.0)), 0.5) == 0.0


def test_teacache_learns_in_the_first_generation_and_reuses_from_the_second() -> None:
    started = Started(TeaCache(threshold=0.25, **OPEN))
    inputs = [math.prod(1 + 0.02 * k for k in range(n)) for n in range(1, 14)]
    assert started.drive(*inputs) == pytest.approx([30 * x for x in inputs])
    assert started.pattern == "c" * 13
    assert "learning how input and output change" in started.reasons
    # The stack is linear, so the learnt polynomial is the identity.
    started.drive(*powers(1.1, 8))
    assert started.pattern == "crrcrrcr"


@pytest.mark.parametrize("method", [TeaCache, MagCache])
def test_what_is_known_is_not_learnt_again(method: Any) -> None:
    learnt = Learnt()
    watching = Watcher(method=method(threshold=0.25, **OPEN), learnt=learnt)
    started = Started(watching)
    inputs = [math.prod(1 + 0.02 * k for k in range(n)) for n in range(1, 14)]
    started.drive(*inputs)
    taught = [len(lesson.places) for lesson in learnt.everything()]
    assert sum(taught) >= 12
    for _ in range(3):
        started.drive(*inputs)
    assert [len(lesson.places) for lesson in learnt.everything()] == taught


def test_teacaches_fit_is_the_polynomial_that_made_the_points() -> None:
    lesson = Lesson()
    for number in range(12):
        x = 0.05 * (number + 1)
        lesson.note(float(-number), torch.tensor(x), torch.tensor(3 * x**2 + x))
    found = fit([lesson])
    assert found is not None
    assert estimate(found, 0.33) == pytest.approx(3 * 0.33**2 + 0.33, rel=1e-3)
    assert found[1] == pytest.approx((0.05, 0.6))
    assert fit([Lesson()]) is None


def test_magcache_adds_up_how_far_the_magnitude_is_off() -> None:
    # Magnitudes fall by a tenth a step: errors 0.1, then 0.1 + 0.19, then + 0.271 is too much.
    magnitudes = tuple((float(-k), k * math.log(0.9)) for k in range(10))
    method = MagCache(threshold=0.3, retention=0.0, magnitudes=magnitudes, **OPEN)
    started = Started(method)
    started.drive(*[1.0] * 8)
    assert started.pattern == "crrcrrcr"
    values = [decision.value for decision in started.handle.report.decisions]
    assert values[1:4] == pytest.approx([0.1, 0.29, 0.561])


def test_magcache_learns_in_the_first_generation_what_it_uses_in_the_second() -> None:
    started = Started(MagCache(threshold=0.3, retention=0.0, **OPEN))
    started.drive(*powers(0.9, 8))
    assert started.pattern == "c" * 8
    started.drive(*powers(0.9, 8))
    assert started.pattern == "crrcrrcr"


def test_magcache_computes_the_first_share() -> None:
    magnitudes = ((0.0, 0.0), (-20.0, 0.0))
    method = MagCache(retention=0.25, magnitudes=magnitudes, **{**OPEN, "max_streak": None})
    started = Started(method)
    started.drive(*[1.0] * 8)
    assert started.pattern == "ccrrrrrr"
    assert started.reasons[1] == "retention"


def test_magnitudes_are_read_between_and_held_beyond_the_known_levels() -> None:
    known = ((1.0, 0.0), (0.5, -1.0), (0.0, -3.0))
    assert [at(known, level) for level in (2.0, 0.75, 0.25, -1.0)] == [0.0, -0.5, -2.0, -3.0]


def test_magnitudes_of_several_lessons_are_averaged_and_repeated_levels_dropped() -> None:
    first, second = Lesson(), Lesson()
    for level, change in ((1.0, 0.0), (0.5, -1.0), (0.5, 9.0), (0.0, -1.0)):
        first.note(level, torch.tensor(change))
    for level, change in ((1.0, 0.0), (0.0, -4.0)):
        second.note(level, torch.tensor(change))
    assert curve([first, second]) == ((1.0, 0.0), (0.5, -1.5), (0.0, -3.0))
    assert curve([Lesson()]) is None


def test_bwcache_tests_all_blocks_once_and_then_reuses_for_a_while() -> None:
    # Every block's output grows by a tenth, so the mean change is 0.1. Reuse begins at step 2 with
    # 10 left, so that nothing is reused from step 7 on.
    method = BWCache(threshold=0.15, reuse=2, **{**OPEN, "warmup": 2})
    started = Started(method)
    started.drive(1, 1.1, *[1.1] * 10)
    assert started.pattern == "ccrrcrrccccc"
    assert started.handle.report.decisions[2].value == pytest.approx(0.1, rel=1e-3)
    assert started.reasons[4] == "due for a test"
    assert started.reasons[7] == "second half after reuse began"


def test_bwcache_goes_on_computing_while_blocks_change() -> None:
    started = Started(BWCache(threshold=0.15, reuse=2, **OPEN))
    started.drive(*powers(1.2, 5))
    assert started.pattern == "ccccc"
    assert started.handle.report.decisions[4].value == pytest.approx(0.2, rel=1e-3)


def test_bwcache_keeps_little_of_long_streams() -> None:
    model = Chain(2, 3, 5)
    handle = accel.patch(model, BWCache(**{**OPEN, "warmup": 2}))
    long = torch.ones(1, 640, 4)
    drive(model, handle, [long])
    drive(model, handle, [long] * 3)
    residual, sketches = 640 * 4 * 4, 3 * 64 * 4 * 4
    assert handle.report.bytes_held == residual + sketches


NEEDS_POSITIVE = [
    (TeaCache, {"threshold": -1.0}, "threshold"),
    (TeaCache, {"coefficients": ()}, "coefficients is empty"),
    (TeaCache, {"coefficients": (math.nan,)}, "coefficients"),
    (TeaCache, {"limits": (-1.0, 2.0)}, "limits"),
    (MagCache, {"threshold": math.nan}, "threshold"),
    (MagCache, {"retention": 1.5}, "retention"),
    (MagCache, {"magnitudes": ((0.0, 1.0),)}, "two or more"),
    (MagCache, {"magnitudes": ((0.0, 1.0), (1.0, 0.0))}, "below the one before"),
    (BWCache, {"threshold": "x"}, "threshold"),
    (BWCache, {"reuse": 0}, "reuse"),
]


@pytest.mark.parametrize(("method", "options", "message"), NEEDS_POSITIVE)
def test_bad_options_are_refused(method: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(accel.OptionError, match=message):
        method(**options)


@pytest.mark.parametrize("method", [TeaCache(), MagCache(), BWCache()])
def test_threshold_zero_keeps_nothing(method: Any) -> None:
    started = Started(method.neutral())
    assert started.drive(1, 1, 1) == [30, 30, 30]
    assert started.handle.report.bytes_held == 0
    assert set(started.reasons) == {"threshold 0"}


def test_what_learns_nothing_cannot_be_calibrated() -> None:
    with pytest.raises(accel.OptionError, match="BWCache needs no calibration"):
        accel.calibrate(None, BWCache(), ["x"])
    for prompts in ("x", []):
        with pytest.raises(accel.OptionError, match="expected a list"):
            accel.calibrate(None, MagCache(), prompts)
