"""Removal leaves no trace, whoever else wrapped the same modules, before or after us."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from accelerate.hooks import add_hook_to_module, remove_hook_from_module
from diffusers.hooks import apply_group_offloading

import accel
from tests.conformance.support import MODULES, engaging, fresh, pairs, patched
from tests.tiny import Case
from tests.tiny.observe import CallCounter, class_contents, traces


@pairs()
def test_unpatch_is_bit_identical_and_leaves_no_trace(case: Case, name: str) -> None:
    pipe = case.make()
    case.run(pipe)
    before = traces(pipe)
    handle = accel.patch(pipe, engaging(name))
    case.run(pipe)
    handle.unpatch()
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), fresh(case))
    assert traces(pipe) == before


@pairs(MODULES)
def test_nothing_is_set_on_classes(case: Case, name: str) -> None:
    pipe = case.make()
    case.run(pipe)
    before = class_contents(pipe)
    accel.patch(pipe, engaging(name))
    case.run(pipe)
    after = class_contents(pipe)
    assert {cls: after[cls] for cls in before} == before


@pairs(MODULES)
def test_unpatching_again_changes_nothing(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    handle.unpatch()
    before = traces(pipe)
    handle.unpatch()
    assert accel.unpatch(pipe) is False
    assert traces(pipe) == before


@pairs(MODULES)
def test_accel_unpatch_removes_what_patch_put_on(case: Case, name: str) -> None:
    pipe = case.make()
    before = traces(pipe)
    accel.patch(pipe, engaging(name))
    assert accel.unpatch(pipe) is True
    assert traces(pipe) == before


@pairs(MODULES)
@pytest.mark.parametrize("first", [0, 1])
def test_patches_of_two_pipelines_come_off_in_either_order(
    case: Case, name: str, first: int
) -> None:
    method = engaging(name)
    pipes = [case.make(), case.make()]
    before = [traces(pipe) for pipe in pipes]
    handles = [accel.patch(pipe, method) for pipe in pipes]
    handles[first].unpatch()
    assert torch.equal(case.run(pipes[first]), fresh(case))
    assert torch.equal(case.run(pipes[1 - first]), fresh(case, method))
    handles[1 - first].unpatch()
    assert torch.equal(case.run(pipes[1 - first]), fresh(case))
    new = [traces(pipe) for pipe in pipes]
    for old_paths, new_paths in zip(before, new, strict=True):
        gained = {path: new_paths[path][1] - old_paths[path][1] for path in old_paths}
        assert not {name for names in gained.values() for name in names if "accel" in name}


@contextmanager
def _accelerate_hooks(case: Case, pipe: Any) -> Iterator[CallCounter]:
    counter = CallCounter()
    hooked = [module for denoiser in case.denoisers(pipe) for module in denoiser.modules()]
    for module in hooked:
        add_hook_to_module(module, counter, append=True)
    yield counter
    for module in hooked:
        remove_hook_from_module(module)


@pairs(MODULES)
@pytest.mark.parametrize("hooks_come", ["before", "after"])
@pytest.mark.parametrize("we_leave", ["first", "last"])
def test_accelerate_hooks_survive_in_every_order(
    case: Case, name: str, hooks_come: str, we_leave: str
) -> None:
    method = engaging(name)
    pipe = case.make()
    if hooks_come == "after":
        handle = accel.patch(pipe, method)
    with _accelerate_hooks(case, pipe) as counter:
        if hooks_come == "before":
            handle = accel.patch(pipe, method)
        assert torch.equal(case.run(pipe), fresh(case, method))
        assert counter.calls > 0
        if we_leave == "first":
            handle.unpatch()
            counter.calls = 0
            assert torch.equal(case.run(pipe), fresh(case))
            assert counter.calls > 0
    if we_leave == "last":
        assert torch.equal(case.run(pipe), fresh(case, method))
        handle.unpatch()
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(MODULES)
def test_accelerate_hooks_taken_off_first_leave_no_trace_of_us(case: Case, name: str) -> None:
    pipe = case.make()
    case.run(pipe)
    before = traces(pipe)
    handle = accel.patch(pipe, engaging(name))
    with _accelerate_hooks(case, pipe):
        case.run(pipe)
    handle.unpatch()
    after = traces(pipe)
    # accelerate itself leaves `forward` behind on every module that it was hooked to.
    for path, (cls, attributes, _, hooks) in after.items():
        assert (cls, hooks) == (before[path][0], before[path][3])
        assert attributes - {"forward", "_old_forward"} == before[path][1]


def _offload_groups(case: Case, pipe: Any) -> None:
    for denoiser in case.denoisers(pipe):
        apply_group_offloading(
            denoiser,
            onload_device=torch.device("cpu"),
            offload_device=torch.device("cpu"),
            offload_type="block_level",
            num_blocks_per_group=1,
        )


@pairs(MODULES)
@pytest.mark.parametrize("offload_comes", ["before", "after"])
def test_group_offload_works_before_and_after_and_survives_unpatch(
    case: Case, name: str, offload_comes: str
) -> None:
    method = engaging(name)
    pipe = case.make()
    steps: list[Callable[[], Any]] = [
        lambda: _offload_groups(case, pipe),
        lambda: accel.patch(pipe, method),
    ]
    for step in steps if offload_comes == "before" else reversed(steps):
        step()
    assert torch.equal(case.run(pipe), fresh(case, method))
    assert torch.equal(case.run(pipe), fresh(case, method))
    accel.unpatch(pipe)
    assert torch.equal(case.run(pipe), fresh(case))
    registry: Any = case.denoiser(pipe)._diffusers_hook
    assert registry.get_hook("group_offloading") is not None
