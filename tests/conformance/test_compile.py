"""Compiled blocks keep their graphs, whether compiled before or after patching."""

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import accel
from accel import AccelUnsupportedError
from accel.models import find_spec, known_sites
from tests.conformance.support import engaging, fresh, pairs
from tests.tiny import CASES, Case, Pipeline

# One two-stream and one one-stream transformer, and a UNet, whose transformer blocks are compiled.
COMPILED = ("flux_true_cfg", "wan", "sd15")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _blocks(case: Case, pipe: Pipeline) -> list[nn.Module]:
    denoiser = case.denoiser(pipe)
    spec = find_spec(denoiser)
    assert spec is not None
    sites = known_sites(denoiser, spec)
    if sites.blocks:
        return [site.module for site in sites.blocks]
    return [site.module for site in (*sites.down, *sites.mid, *sites.up)]


def _compile(case: Case, pipe: Pipeline) -> CompileCounter:
    counter = CompileCounter()
    # Every other block: compiled ones and eager ones side by side, in half the time.
    for block in _blocks(case, pipe)[::2]:
        # A graph break anywhere inside of a block is an error.
        block.compile(backend=counter, dynamic=False, fullgraph=True)
    return counter


@functools.cache
def _graphs_unpatched(name: str) -> int:
    case = CASES[name]
    pipe = case.make()
    counter = _compile(case, pipe)
    case.run(pipe)
    return int(counter.frame_count)


@pairs(COMPILED)
@pytest.mark.parametrize("compiled", ["before", "after"])
def test_compiled_blocks_give_the_eager_result_with_not_one_graph_more(
    case: Case, name: str, compiled: str
) -> None:
    expected = _graphs_unpatched(case.name)
    torch._dynamo.reset()
    method = engaging(name)
    pipe = case.make()
    if compiled == "before":
        counter = _compile(case, pipe)
    handle = accel.patch(pipe, method)
    if compiled == "after":
        counter = _compile(case, pipe)
    torch.testing.assert_close(case.run(pipe), fresh(case, method))
    assert counter.frame_count == expected
    handle.unpatch()
    torch.testing.assert_close(case.run(pipe), fresh(case))
    assert counter.frame_count == expected
    assert all(block._compiled_call_impl is not None for block in _blocks(case, pipe)[::2])


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
