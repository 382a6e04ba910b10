"""Compiled blocks keep their graphs: compiled before or after patching, also with `fullgraph=True`."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import accel
from accel import AccelUnsupportedError
from accel.models import find_spec, known_sites
from tests.conformance.support import engaging, fresh, neutral, pairs
from tests.tiny import Case, Pipeline

# One two-stream and one one-stream transformer, and a UNet, whose transformer blocks are compiled.
COMPILED = ("flux_true_cfg", "wan", "sd15")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()  # noqa: SLF001
    yield
    torch._dynamo.reset()  # noqa: SLF001


def _blocks(case: Case, pipe: Pipeline) -> list[nn.Module]:
    denoiser = case.denoiser(pipe)
    spec = find_spec(denoiser)
    assert spec is not None
    sites = known_sites(denoiser, spec)
    if sites.blocks:
        return [site.module for site in sites.blocks]
    return [site.module for site in (*sites.down, *sites.mid, *sites.up)]


def _compile(case: Case, pipe: Pipeline, **options: Any) -> CompileCounter:
    counter = CompileCounter()
    for block in _blocks(case, pipe):
        block.compile(backend=counter, dynamic=False, **options)
    return counter


def _graphs_unpatched(case: Case) -> int:
    pipe = case.make()
    counter = _compile(case, pipe, fullgraph=True)
    case.run(pipe)
    torch._dynamo.reset()  # noqa: SLF001
    return int(counter.frame_count)


@pairs(COMPILED)
@pytest.mark.parametrize("compiled", ["before", "after"])
@pytest.mark.parametrize("fullgraph", [False, True], ids=["graph", "fullgraph"])
def test_compiled_blocks_give_the_eager_result(
    case: Case, name: str, compiled: str, fullgraph: bool
) -> None:
    method = engaging(name)
    pipe = case.make()
    if compiled == "before":
        _compile(case, pipe, fullgraph=fullgraph)
    handle = accel.patch(pipe, method)
    if compiled == "after":
        _compile(case, pipe, fullgraph=fullgraph)
    torch.testing.assert_close(case.run(pipe), fresh(case, method))
    handle.unpatch()
    torch.testing.assert_close(case.run(pipe), fresh(case))
    assert all(block._compiled_call_impl is not None for block in _blocks(case, pipe))  # noqa: SLF001


@pairs(COMPILED)
@pytest.mark.parametrize("compiled", ["before", "after"])
def test_no_graph_is_added_to_compiled_blocks(case: Case, name: str, compiled: str) -> None:
    expected = _graphs_unpatched(case)
    pipe = case.make()
    if compiled == "before":
        counter = _compile(case, pipe, fullgraph=True)
    accel.patch(pipe, neutral(name))
    if compiled == "after":
        counter = _compile(case, pipe, fullgraph=True)
    case.run(pipe)
    assert counter.frame_count == expected


@pairs(COMPILED[:1])
def test_blocks_compiled_by_the_library_work(case: Case, name: str) -> None:
    pipe = case.make()
    accel.patch(pipe, engaging(name))
    case.denoiser(pipe).compile_repeated_blocks(backend="eager", fullgraph=True)
    torch.testing.assert_close(case.run(pipe), fresh(case, engaging(name)))


@pairs(COMPILED)
@pytest.mark.parametrize("how", ["in_place", "wrapped"])
def test_a_denoiser_compiled_as_a_whole_is_refused_by_name(case: Case, name: str, how: str) -> None:
    pipe = case.make()
    denoiser = case.denoiser(pipe)
    if how == "in_place":
        denoiser.compile(backend="eager")
    else:
        setattr(pipe, case.denoiser_names[0], torch.compile(denoiser, backend="eager"))
    with pytest.raises(AccelUnsupportedError, match=type(denoiser).__name__):
        accel.patch(pipe, engaging(name))
    assert not accel.status(pipe).patched


@pairs(COMPILED)
def test_a_denoiser_compiled_from_outside_after_patching_still_gives_the_eager_result(
    case: Case, name: str
) -> None:
    pipe = case.make()
    accel.patch(pipe, engaging(name))
    whole = torch.compile(case.denoiser(pipe), backend="eager")
    setattr(pipe, case.denoiser_names[0], whole)
    torch.testing.assert_close(case.run(pipe), fresh(case, engaging(name)))
