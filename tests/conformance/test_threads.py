"""Two threads never mix their states, whether they share a denoiser or a pipeline class."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import accel
from tests.conformance.support import FEW, engaging, fresh, pairs
from tests.tiny import Case, Pipeline


def _at_once(*jobs: Callable[[], Tensor]) -> list[Any]:
    barrier = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)

    def work(index: int, job: Callable[[], Tensor]) -> None:
        barrier.wait()
        try:
            results[index] = job()
        except Exception as error:  # noqa: BLE001 -- handed to the test, which compares it
            results[index] = error

    threads = [threading.Thread(target=work, args=item) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _twins(case: Case) -> tuple[Pipeline, Pipeline]:
    first, second = case.make(), case.make()
    for name in case.denoiser_names:
        setattr(second, name, getattr(first, name))
    return first, second


@pairs(FEW)
def test_two_threads_through_two_pipelines_with_one_denoiser_get_their_own_results(
    case: Case, name: str
) -> None:
    method = engaging(name)
    first, second = _twins(case)
    accel.patch(first, method)
    accel.patch(second, method)
    change: dict[str, Any] = {"prompt": 1, "size": "b", "steps": 5}
    for _ in range(2):
        results = _at_once(lambda: case.run(first), lambda: case.run(second, **change))
        assert torch.equal(results[0], fresh(case, method))
        assert torch.equal(results[1], fresh(case, method, **change))


@pairs(FEW)
def test_two_threads_with_a_patched_and_an_unpatched_pipeline_get_their_own_results(
    case: Case, name: str
) -> None:
    method = engaging(name)
    first, second = _twins(case)
    accel.patch(first, method)
    results = _at_once(lambda: case.run(first), lambda: case.run(second, prompt=1))
    assert torch.equal(results[0], fresh(case, method))
    assert torch.equal(results[1], fresh(case, prompt=1))


@pairs(FEW)
def test_two_threads_with_separate_denoisers_do_not_wait_or_mix(case: Case, name: str) -> None:
    method = engaging(name)
    first, second = case.make(), case.make()
    accel.patch(first, method)
    accel.patch(second, method)
    results = _at_once(lambda: case.run(first), lambda: case.run(second, prompt=1))
    assert torch.equal(results[0], fresh(case, method))
    assert torch.equal(results[1], fresh(case, method, prompt=1))


@pairs(FEW)
def test_a_generation_in_another_thread_than_patch_is_accelerated(case: Case, name: str) -> None:
    method = engaging(name)
    pipe = case.make()
    accel.patch(pipe, method)
    (result,) = _at_once(lambda: case.run(pipe))
    assert torch.equal(result, fresh(case, method))


@pairs(FEW)
def test_a_generation_inside_the_callback_of_another_keeps_both_right(
    case: Case, name: str
) -> None:
    method = engaging(name)
    first, second = _twins(case)
    accel.patch(first, method)
    accel.patch(second, method)
    inner: list[Tensor] = []

    def nest(_: object, step: int, __: object, kwargs: dict[str, object]) -> dict[str, object]:
        if step == 2:
            inner.append(case.run(second, prompt=1))
        return kwargs

    outer = case.run(first, callback_on_step_end=nest)
    assert torch.equal(outer, fresh(case, method))
    assert torch.equal(inner[0], fresh(case, method, prompt=1))
