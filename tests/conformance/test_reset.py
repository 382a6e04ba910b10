"""No generation leaves anything to the next: not its shape, not its schedule, not its failure."""

import gc
from typing import Any

import pytest
import torch

import accel
from tests.conformance.support import FEW, MODULES, VARIED, engaging, fresh, pairs, patched
from tests.tiny import CASES, Case, Pipeline
from tests.tiny.observe import Births, failing, traces

CHANGES: dict[str, dict[str, Any]] = {
    "size": {"size": "b"},
    "batch": {"batch": 2},
    "more_steps": {"steps": 8},
    "fewer_steps": {"steps": 4},
    "seed": {"seed": 5},
    "prompt": {"prompt": 1},
}


def _changes(case: Case) -> dict[str, dict[str, Any]]:
    found = CHANGES | {"guidance": {"guidance": case.other_guidance}}
    return {name: change for name, change in found.items() if change.get("size", "a") in case.sizes}


@pairs(VARIED)
def test_a_change_between_generations_gives_what_a_fresh_pipeline_gives(
    case: Case, name: str
) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)
    case.run(pipe)
    for change in _changes(case).values():
        assert torch.equal(case.run(pipe, **change), fresh(case, method, **change)), change
    assert torch.equal(case.run(pipe), fresh(case, method))


@pairs(name for name, case in CASES.items() if case.other_scheduler)
def test_another_scheduler_gives_what_a_fresh_pipeline_gives(case: Case, name: str) -> None:
    assert case.other_scheduler is not None
    method = engaging(name)
    new = case.make()
    new.scheduler = case.other_scheduler(new)
    accel.patch(new, method)
    expected = case.run(new)

    pipe, handle = patched(case, method)
    original = pipe.scheduler
    case.run(pipe)
    pipe.scheduler = case.other_scheduler(pipe)
    assert torch.equal(case.run(pipe), expected)
    assert handle.report.steps == new_steps(new)
    pipe.scheduler = original
    assert torch.equal(case.run(pipe), fresh(case, method))


def new_steps(pipe: Pipeline) -> int:
    """Returns the evaluations that the scheduler of this pipeline was last set to."""
    return len(pipe.scheduler.timesteps)


class _StopError(Exception):
    pass


@pairs(FEW)
@pytest.mark.parametrize("error", [_StopError(), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_stopping_in_the_callback_leaves_nothing_behind(
    case: Case, name: str, error: BaseException
) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)
    case.run(pipe, prompt=1)
    before = traces(pipe)

    def stop(_: Any, step: int, __: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            raise error
        return kwargs

    with pytest.raises(type(error)):
        case.run(pipe, prompt=1, callback_on_step_end=stop)
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), fresh(case, method))


@pairs(VARIED)
@pytest.mark.parametrize("error", [_StopError(), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_stopping_inside_the_denoiser_leaves_nothing_behind(
    case: Case, name: str, error: BaseException
) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)
    with failing(case, pipe, error, at_call=3), pytest.raises(type(error)):
        case.run(pipe, prompt=1)
    change = {"size": "b"} if "b" in case.sizes else {"batch": 2}
    assert torch.equal(case.run(pipe, **change), fresh(case, method, **change))
    assert torch.equal(case.run(pipe), fresh(case, method))


@pairs(FEW)
def test_the_interrupt_flag_of_a_pipeline_ends_a_generation_cleanly(case: Case, name: str) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)

    def interrupt(running: Any, step: int, _: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        running._interrupt = step == 2
        return kwargs

    case.run(pipe, prompt=1, callback_on_step_end=interrupt)
    assert torch.equal(case.run(pipe), fresh(case, method))


def _survivors(case: Case, pipe: Pipeline, at_call: int | None) -> list[tuple[int, ...]]:
    """Returns the shapes of the tensors that outlive a generation, which may fail midway."""
    with Births() as births:
        if at_call is None:
            case.run(pipe)
        else:
            with failing(case, pipe, _StopError(), at_call), pytest.raises(_StopError):
                case.run(pipe)
    gc.collect()
    shapes: list[tuple[int, ...]] = births.alive()
    return shapes


@pairs(MODULES)
@pytest.mark.parametrize("at_call", [None, 3], ids=["ends", "fails"])
def test_features_are_freed_when_a_generation_ends_or_fails(
    case: Case, name: str, at_call: int | None
) -> None:
    # What a pipeline keeps of its own accord: its scheduler's tables, for instance.
    expected = _survivors(case, case.make(), at_call)
    pipe, _ = patched(case, engaging(name))
    assert _survivors(case, pipe, at_call) == expected


@pairs()
def test_a_generation_of_the_fewest_steps_works(case: Case, name: str) -> None:
    method = engaging(name)
    steps = case.fewest_steps
    pipe, handle = patched(case, method)
    case.run(pipe)
    latents = case.run(pipe, steps=steps)
    assert torch.equal(latents, fresh(case, method, steps=steps))
    assert handle.report.steps == case.evaluations(steps)
