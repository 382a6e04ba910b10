"""Patching again, halfway, on and off: a pipeline is in one known state at every moment."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest
import torch

import accel
from accel.layers import Call
from accel.method import Binding, Method
from accel.sites import ModelSites
from tests.conformance.support import MODULES, engaging, fresh, neutral, pairs, patched
from tests.tiny import CASES, Case
from tests.tiny.observe import traces


@pairs(MODULES)
def test_patching_twice_with_the_same_method_returns_the_same_handle(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    assert accel.patch(pipe, engaging(name)) is handle
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))
    handle.unpatch()
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(MODULES)
def test_patching_with_another_setting_replaces_and_leaves_the_old_handle_inert(
    case: Case, name: str
) -> None:
    pipe = case.make()
    before = traces(pipe)
    old = accel.patch(pipe, neutral(name))
    new = accel.patch(pipe, engaging(name))
    assert new is not old
    old.unpatch()
    old.disable()
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))
    assert not old.report.calls
    new.unpatch()
    assert traces(pipe)["<pipe>"][0] is before["<pipe>"][0]
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(MODULES)
def test_disable_is_bit_identical_and_enable_brings_the_method_back(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    handle.disable()
    assert not accel.status(pipe).enabled
    assert torch.equal(case.run(pipe), fresh(case))
    handle.enable()
    assert handle.enabled
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))


@pairs(MODULES)
def test_the_context_manager_unpatches_also_after_an_error(case: Case, name: str) -> None:
    pipe = case.make()
    case.run(pipe)
    before = traces(pipe)
    with accel.patch(pipe, engaging(name)) as handle:
        assert torch.equal(case.run(pipe), fresh(case, engaging(name)))
        assert handle.report.engaged
    assert traces(pipe) == before
    failing = pytest.raises(ZeroDivisionError, match="the block failed")
    with failing, accel.patch(pipe, engaging(name)):
        raise ZeroDivisionError("the block failed")
    assert traces(pipe) == before


@pairs(MODULES)
def test_patching_in_the_middle_of_a_generation_does_not_break_it(case: Case, name: str) -> None:
    pipe = case.make()

    def swap(running: object, step: int, _: object, kwargs: dict[str, object]) -> dict[str, object]:
        if step == 2:
            accel.patch(running, engaging(name))
        return kwargs

    case.run(pipe, callback_on_step_end=swap)
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))
    assert accel.unpatch(pipe)
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(MODULES)
def test_unpatching_in_the_middle_of_a_generation_does_not_break_it(case: Case, name: str) -> None:
    pipe = case.make()
    case.run(pipe)
    before = traces(pipe)
    handle = accel.patch(pipe, engaging(name))

    def swap(_: object, step: int, __: object, kwargs: dict[str, object]) -> dict[str, object]:
        if step == 2:
            handle.unpatch()
        return kwargs

    case.run(pipe, callback_on_step_end=swap)
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), fresh(case))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Half(Method):
    """Binds one site, then fails, as a method with a fault would."""

    def neutral(self) -> Self:
        return self

    def bind(self, model: ModelSites) -> Iterator[Binding]:
        yield Binding((*model.blocks, *model.down)[0], self._pass)
        raise LookupError("no second block")

    def _pass(self, call: Call) -> object:
        return call.proceed()


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_a_patch_that_fails_half_way_is_rolled_back(case: Case) -> None:
    pipe = case.make()
    before = traces(pipe)
    with pytest.raises(LookupError, match="no second block"):
        accel.patch(pipe, _Half())
    assert traces(pipe) == before
    assert not accel.status(pipe).patched
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(MODULES)
def test_a_replacement_that_fails_keeps_the_old_patch_working(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    with pytest.raises(LookupError, match="no second block"):
        accel.patch(pipe, _Half())
    assert accel.status(pipe).patched
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))
    handle.unpatch()
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(MODULES)
def test_status_says_what_is_patched(case: Case, name: str) -> None:
    pipe = case.make()
    assert not accel.status(pipe).patched
    handle = accel.patch(pipe, engaging(name))
    status = accel.status(pipe)
    assert status.patched
    assert status.enabled
    assert name in str(status)
    assert type(case.denoiser(pipe)).__name__ in str(status)
    handle.unpatch()
    assert not accel.status(pipe).patched
