"""Compiled modules keep their graphs, whether compiled before or after patching."""

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import accel
from accel import AccelUnsupportedError
from accel.method import Claim
from accel.models import find_spec, known_sites
from tests.conformance.support import INSIDE, METHODS, engaging, fresh, pairs
from tests.tiny import CASES, Case, Pipeline

# One two-stream and one one-stream transformer, and a UNet, whose transformer blocks are compiled.
COMPILED = ("flux_true_cfg", "wan", "sd15")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _modules(case: Case, pipe: Pipeline, *, inside: bool) -> list[nn.Module]:
    """Returns the blocks, or the attention and MLPs inside of them."""
    denoiser = case.denoiser(pipe)
    spec = find_spec(denoiser)
    assert spec is not None
    sites = known_sites(denoiser, spec)
    if inside:
        return [site.module for site in (*sites.attention, *sites.cross, *sites.mlp)]
    if sites.blocks:
        return [site.module for site in sites.blocks]
    return [site.module for site in (*sites.down, *sites.mid, *sites.up)]


def _compile(case: Case, pipe: Pipeline, *, inside: bool) -> CompileCounter:
    counter = CompileCounter()
    # Every other module: compiled ones and eager ones side by side, in half the time.
    for module in _modules(case, pipe, inside=inside)[::2]:
        # A graph break anywhere inside is an error.
        module.compile(backend=counter, dynamic=False, fullgraph=True)
    return counter


@functools.cache
def _graphs_unpatched(name: str, *, inside: bool) -> int:
    case = CASES[name]
    pipe = case.make()
    counter = _compile(case, pipe, inside=inside)
    case.run(pipe)
    return int(counter.frame_count)


@pairs(COMPILED)
@pytest.mark.parametrize("compiled", ["before", "after"])
def test_compiled_modules_give_the_eager_result_with_not_one_graph_more(
    case: Case, name: str, compiled: str
) -> None:
    inside = name in INSIDE
    expected = _graphs_unpatched(case.name, inside=inside)
    # Half of a batch is another shape.
    shapes = 2 if Claim.SKIPS_GUIDANCE in METHODS[name].claims and case.cfg == "batched" else 1
    torch._dynamo.reset()
    method = engaging(name)
    pipe = case.make()
    if compiled == "before":
        counter = _compile(case, pipe, inside=inside)
    handle = accel.patch(pipe, method)
    if compiled == "after":
        counter = _compile(case, pipe, inside=inside)
    torch.testing.assert_close(case.run(pipe), fresh(case, method))
    assert counter.frame_count == expected * shapes
    handle.unpatch()
    torch.testing.assert_close(case.run(pipe), fresh(case))
    assert counter.frame_count == expected * shapes
    modules = _modules(case, pipe, inside=inside)[::2]
    assert all(module._compiled_call_impl is not None for module in modules)


@pairs(COMPILED[:1])
def test_blocks_compiled_by_the_library_work(case: Case, name: str) -> None:
    pipe = case.make()
    accel.patch(pipe, engaging(name))
    whole = name not in INSIDE
    case.denoiser(pipe).compile_repeated_blocks(backend="eager", fullgraph=whole)
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


@pairs(COMPILED)
def test_graphs_that_hooks_would_break_are_said_to_be_broken(case: Case, name: str) -> None:
    pipe = case.make()
    case.denoiser(pipe).compile_repeated_blocks(backend="eager")
    status = accel.patch(pipe, engaging(name)).status()
    assert any("break their graphs" in note for note in status.notes) is (name in INSIDE)
