"""Observed errors steer thresholds towards the error that is wanted."""

import dataclasses
import math
from typing import Any

import pytest

import accel
from caching import BWCache, FirstBlockCache, MagCache, TeaCache
from tests.unit.toys import OPEN, Started


def test_observed_errors_move_the_threshold_towards_the_wanted_error() -> None:
    # Held 28, true 56: an error of 0.5, four times what is wanted, so the threshold is halved.
    options = {**OPEN, "max_streak": 1}
    started = Started(FirstBlockCache(threshold=2.0, target_error=0.125, **options))
    started.drive(1, 2, 2, 2)
    assert started.pattern == "crcr"
    assert started.reasons[1] == "change below 2"
    assert started.reasons[3] == "change below 1"
    # A quarter of what is wanted doubles it.
    started = Started(FirstBlockCache(threshold=0.5, target_error=2.0, **options))
    started.drive(1, 1.4, 2, 2)
    assert started.reasons[3] == "change below 1"


FALLING = tuple((float(-k), k * math.log(0.9)) for k in range(20))
STEERED = [
    # Held 29, true 58 where the step after a reused one is computed: an error of 0.5 again.
    (
        TeaCache(
            threshold=2.0, coefficients=(1.0, 0.0), target_error=0.125, **OPEN | {"max_streak": 1}
        ),
        [1, 2, 2, 2],
        "sum below 1",
    ),
    (
        MagCache(
            threshold=0.3,
            retention=0.0,
            magnitudes=FALLING,
            target_error=0.125,
            **OPEN | {"max_streak": 1},
        ),
        [1, 2, 2, 2],
        "drift within 0.15",
    ),
    # The test after the reused step 2 finds outputs doubled, a change of 1.
    (
        BWCache(threshold=2.0, reuse=1, target_error=0.125, **OPEN),
        [1, 1, 1, 2, 2, 2, 2, 2],
        "change at least 1",
    ),
]


@pytest.mark.parametrize(("method", "inputs", "reason"), STEERED)
def test_every_threshold_can_be_steered(method: Any, inputs: list[float], reason: str) -> None:
    started = Started(method)
    started.drive(*inputs)
    assert reason in started.reasons
    # What is not steered keeps its threshold.
    fixed = Started(dataclasses.replace(method, target_error=None))
    fixed.drive(*inputs)
    assert reason not in fixed.reasons


def test_an_error_of_nothing_leaves_the_threshold_alone() -> None:
    options = {**OPEN, "max_streak": 1}
    started = Started(FirstBlockCache(threshold=2.0, target_error=0.125, **options))
    started.drive(1, 1, 1, 1)
    assert started.reasons[3] == "change below 2"


def test_a_steered_threshold_stays_within_eight_times() -> None:
    options = {**OPEN, "max_streak": 1}
    started = Started(FirstBlockCache(threshold=0.8, target_error=100.0, **options))
    started.drive(*[1 + 0.01 * k for k in range(16)])
    assert started.reasons[15] == "change below 6.4"


@pytest.mark.parametrize("method", [BWCache, FirstBlockCache, MagCache, TeaCache])
@pytest.mark.parametrize("error", [0.0, -1.0, math.nan])
def test_an_error_that_is_no_target_is_refused(method: Any, error: float) -> None:
    with pytest.raises(accel.OptionError, match="target_error"):
        method(target_error=error)
