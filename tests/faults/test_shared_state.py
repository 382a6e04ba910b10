"""Peers kept their state on classes, in module globals and in closures over the original model."""

import copy

import diffusers
import pytest
import torch

import accel
from caching import FirstBlockCache
from tests.tiny import CASES, Case
from tests.tiny.observe import counting

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0)


@pytest.fixture
def case() -> Case:
    return CASES["flux"]


def test_unpatching_one_of_two_flux_pipelines_leaves_the_other_and_new_ones_alone(
    case: Case,
) -> None:
    first, second = case.make(), case.make()
    plain = case.run(case.make())
    call = diffusers.FluxPipeline.__call__
    handles = [accel.patch(pipe, SKIPPING) for pipe in (first, second)]
    fast = case.run(first)
    handles[0].unpatch()
    assert diffusers.FluxPipeline.__call__ is call
    assert torch.equal(case.run(first), plain)
    assert torch.equal(case.run(second), fast)
    assert torch.equal(case.run(case.make()), plain)
    handles[1].unpatch()
    assert torch.equal(case.run(second), plain)


def test_a_new_pipeline_of_a_patched_class_is_not_accelerated(case: Case) -> None:
    pipe = case.make()
    plain = case.run(pipe)
    accel.patch(pipe, SKIPPING)
    other = case.make()
    assert torch.equal(case.run(other), plain)
    assert not accel.status(other).patched


def test_a_deep_copied_model_executes_its_own_blocks(case: Case) -> None:
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    case.run(pipe)
    duplicate = copy.deepcopy(pipe.transformer)
    with counting(list(pipe.transformer.modules())) as originals:
        holder = case.make()
        holder.transformer = duplicate
        with counting([duplicate.single_transformer_blocks[2]]) as own:
            case.run(holder)
    assert own() == 6
    assert originals() == 0


def test_enabling_and_disabling_many_times_ends_where_it_began(case: Case) -> None:
    pipe = case.make()
    plain = case.run(pipe)
    handle = accel.patch(pipe, SKIPPING)
    fast = case.run(pipe)
    for _ in range(3):
        handle.disable()
        handle.disable()
        assert torch.equal(case.run(pipe), plain)
        handle.enable()
        handle.enable()
        assert torch.equal(case.run(pipe), fast)


def test_patching_and_unpatching_twenty_times_does_not_pile_up(case: Case) -> None:
    pipe = case.make()
    plain = case.run(pipe)
    keys = {path: set(vars(module)) for path, module in pipe.transformer.named_modules()}
    for _ in range(20):
        accel.patch(pipe, SKIPPING)
        accel.patch(pipe, FirstBlockCache(threshold=0.5))
        assert accel.unpatch(pipe)
    assert {path: set(vars(module)) for path, module in pipe.transformer.named_modules()} == keys
    assert torch.equal(case.run(pipe), plain)


def test_patching_after_a_generation_that_named_its_contexts_works(case: Case) -> None:
    pipe, other = case.make(), case.make()
    case.run(pipe)
    accel.patch(pipe, SKIPPING)
    accel.patch(other, SKIPPING)
    assert torch.equal(case.run(pipe), case.run(other))


def test_another_transformer_in_a_patched_pipeline_is_not_accelerated_by_the_old_state(
    case: Case,
) -> None:
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    case.run(pipe)
    other = case.make()
    pipe.transformer = other.transformer
    assert torch.equal(case.run(pipe), case.run(case.make()))
