"""Every method under memory options: the same bits, within the budget, and nothing left behind."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import accel
from accel import LightCache
from accel.engine import engine_of
from accel.store import Shelved, Store
from tests.conformance.support import FORGETFUL, engaging, fresh, pairs
from tests.tiny import Case, Pipeline
from tests.tiny.observe import traces
from tests.unit.late_swap import LateSwap

CASES = ("flux_true_cfg", "sd15", "wan_two_stage")
# What has the size of latents is not swapped and not counted: predictions and the first noise.
_OUTSIDE = {"_Seen", "_Ahead", "_Injection"}


class Late(LightCache):
    """Swaps as late as a side stream might."""

    def open(self) -> Store | None:
        """A store whose copies are late."""
        store = super().open()
        assert store is not None
        store._ways[torch.device("cpu")] = LateSwap()
        return store


def _held(item: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yields the tensors on the device that are reachable from a method's state."""
    if id(item) in seen or type(item).__name__ in _OUTSIDE:
        return
    seen.add(id(item))
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, Shelved):
        yield from item._entry.device or ()
    else:
        for part in _parts(item):
            yield from _held(part, seen)


def _parts(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return item.values()
    if is_dataclass(item) and not isinstance(item, type):
        return [getattr(item, field.name) for field in fields(item)]
    return item if isinstance(item, Iterable) and not isinstance(item, str) else ()


@contextmanager
def _watched(case: Case, pipe: Pipeline) -> Iterator[list[int]]:
    """Counts the bytes that methods hold on the device, at every denoiser call."""
    found: list[int] = []

    def look(*_: Any) -> None:
        seen: set[int] = set()
        total = 0
        for module in case.denoisers(pipe):
            engine = engine_of(module)
            assert engine is not None
            generation = engine.session.generation
            states = {} if generation is None else generation._states
            # A number is no feature.
            total += sum(each.nbytes for each in _held(states, seen) if each.numel() > 1)
        found.append(total)

    handles = [module.register_forward_pre_hook(look) for module in case.denoisers(pipe)]
    yield found
    for handle in handles:
        handle.remove()


@pairs(CASES)
@pytest.mark.parametrize("budget", [None, 60_000, 2**30])
def test_swapping_changes_no_bit(case: Case, name: str, budget: int | None) -> None:
    method = engaging(name)
    pipe = case.make()
    handle = accel.patch(pipe, method, memory=Late(budget=budget))
    with _watched(case, pipe) as held:
        first, second = case.run(pipe), case.run(pipe)
    assert torch.equal(first, fresh(case, method))
    assert torch.equal(second, first)
    report = handle.report
    assert report.most_on_host is not None
    assert report.most_on_device is not None
    assert (report.most_on_host > 0) is (name not in FORGETFUL)
    assert max(held) <= report.most_on_device <= (budget or report.most_on_host + 2**20)
    assert not report.not_kept


@pairs(CASES)
@pytest.mark.parametrize("budget", [500, 10_000, 2**30])
def test_without_swapping_the_budget_is_kept(case: Case, name: str, budget: int) -> None:
    method = engaging(name)
    pipe = case.make()
    handle = accel.patch(pipe, method, memory=LightCache(swap=False, budget=budget))
    with _watched(case, pipe) as held:
        latents = case.run(pipe)
    assert max(held) <= budget
    assert torch.isfinite(latents).all()
    for report in handle.reports:
        assert report.most_on_device is not None
        assert report.most_on_device <= budget
        assert report.most_on_host == 0
    refused = any(report.not_kept for report in handle.reports)
    assert refused or torch.equal(latents, fresh(case, method))
    assert refused or budget > 500 or name in FORGETFUL


@pairs(CASES)
def test_unpatch_is_bit_identical_and_leaves_no_trace(case: Case, name: str) -> None:
    pipe = case.make()
    case.run(pipe)
    before = traces(pipe)
    memory = LightCache(budget="1MiB", chunk_tokens=5, decode="tiled")
    handle = accel.patch(pipe, engaging(name), memory=memory)
    case.run(pipe)
    handle.unpatch()
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), fresh(case))
