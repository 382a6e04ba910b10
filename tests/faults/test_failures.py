"""After a generation that fails, the next one of any shape is as if it never was."""

import gc
from typing import Any

import pytest
import torch

import accel
from caching import FirstBlockCache
from tests.tiny import CASES, Case, Pipeline
from tests.tiny.observe import Births, failing

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0)


@pytest.fixture(params=["flux", "wan", "sd3_heun", "dit"])
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.mark.parametrize("prompt", [0, 1])
def test_after_an_exception_the_same_shape_is_computed_afresh(case: Case, prompt: int) -> None:
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    expected = case.run(pipe, prompt=prompt)
    with failing(case, pipe, RuntimeError("stop"), at_call=4), pytest.raises(RuntimeError):
        case.run(pipe, prompt=3)
    assert torch.equal(case.run(pipe, prompt=prompt), expected)


@pytest.mark.parametrize("change", [{"size": "b"}, {"batch": 2}, {"steps": 9}])
def test_after_an_exception_another_shape_is_computed_afresh(
    case: Case, change: dict[str, Any]
) -> None:
    if change.get("size", "a") not in case.sizes:
        pytest.skip("one size only")
    pipe, other = case.make(), case.make()
    accel.patch(pipe, SKIPPING)
    accel.patch(other, SKIPPING)
    with failing(case, pipe, RuntimeError("stop"), at_call=4), pytest.raises(RuntimeError):
        case.run(pipe)
    assert torch.equal(case.run(pipe, **change), case.run(other, **change))


def test_a_batch_of_two_then_of_one(case: Case) -> None:
    pipe, other = case.make(), case.make()
    accel.patch(pipe, SKIPPING)
    accel.patch(other, SKIPPING)
    case.run(pipe, batch=2)
    assert torch.equal(case.run(pipe), case.run(other))


def test_out_of_memory_frees_the_features_and_reaches_the_caller(case: Case) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")

    def survivors(pipe: Pipeline) -> list[tuple[int, ...]]:
        with (
            Births() as births,
            failing(case, pipe, error, at_call=4),
            pytest.raises(torch.OutOfMemoryError),
        ):
            case.run(pipe)
        error.__traceback__ = None
        gc.collect()
        shapes: list[tuple[int, ...]] = births.alive()
        return shapes

    expected = survivors(case.make())
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    assert survivors(pipe) == expected
    assert accel.status(pipe).patched


def test_an_interrupted_generation_keeps_no_report_of_the_next(case: Case) -> None:
    pipe = case.make()
    handle = accel.patch(pipe, SKIPPING)
    with failing(case, pipe, KeyboardInterrupt(), at_call=4), pytest.raises(KeyboardInterrupt):
        case.run(pipe)
    interrupted = handle.report
    assert interrupted.steps < case.evaluations(6)
    case.run(pipe)
    assert handle.report.steps == case.evaluations(6)
    assert handle.report is not interrupted


def test_a_generation_inside_an_exception_handler_is_like_any_other(case: Case) -> None:
    pipe, other = case.make(), case.make()
    accel.patch(pipe, SKIPPING)
    accel.patch(other, SKIPPING)
    expected = case.run(other)
    with failing(case, pipe, RuntimeError("stop"), at_call=4):
        try:
            case.run(pipe)
        except RuntimeError:
            pipe_after = pipe
    assert torch.equal(case.run(pipe_after), expected)


def test_a_scheduler_swapped_between_generations_counts_its_own_steps() -> None:
    case = CASES["wan"]
    pipe = case.make()
    handle = accel.patch(pipe, SKIPPING)
    expected = case.run(pipe)
    euler = pipe.scheduler
    assert case.other_scheduler is not None
    pipe.scheduler = case.other_scheduler(pipe)
    case.run(pipe)
    assert handle.report.steps == 11
    pipe.scheduler = euler
    assert torch.equal(case.run(pipe), expected)
    assert handle.report.steps == 6
