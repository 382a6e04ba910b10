"""A denoiser without a pipeline: exact outside of a generation, counted and reset inside."""

import pytest
import torch
from torch import Tensor, nn

import accel
from accel import OptionError
from caching import FirstBlockCache
from tests.tiny.models import wan

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0, max_streak=None)


def _inputs(seed: int = 0, width: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, 4, 1, width, width, generator=generator)
    return hidden, torch.tensor([500]), torch.randn(1, 5, 16, generator=generator)


@torch.no_grad()
def _loop(handle: accel.Patch, denoiser: nn.Module, *, seed: int = 0, width: int = 4) -> Tensor:
    hidden, timestep, text = _inputs(seed, width)
    with handle.generation(5):
        for _ in range(5):
            hidden = hidden - 0.1 * denoiser(hidden, timestep, text)[0]
            handle.advance()
    return hidden


@torch.no_grad()
def test_calls_outside_of_a_generation_are_exact_and_leak_nothing_to_the_next() -> None:
    denoiser = wan()
    plain = [denoiser(*_inputs(seed))[0] for seed in range(3)]
    handle = accel.patch(denoiser, SKIPPING)
    for _ in range(2):
        for seed in range(3):
            assert torch.equal(denoiser(*_inputs(seed))[0], plain[seed])
    assert handle.report.calls == 0


def test_a_loop_of_ones_own_is_accelerated_and_repeatable() -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, SKIPPING)
    first = _loop(handle, denoiser)
    assert handle.report.reused == 4
    assert (handle.report.steps, handle.report.num_steps) == (5, 5)
    assert torch.equal(_loop(handle, denoiser), first)
    _loop(handle, denoiser, width=6)
    assert torch.equal(_loop(handle, denoiser), first)


@torch.no_grad()
def test_a_generation_of_unknown_length_leaks_nothing_to_the_next() -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, SKIPPING)
    results = []
    for _ in range(2):
        with handle.generation():
            for seed in range(3):
                results.append(denoiser(*_inputs(seed))[0])
                handle.advance()
        assert handle.report.num_steps is None
    for first, second in zip(results[:3], results[3:], strict=True):
        assert torch.equal(first, second)


@torch.no_grad()
def _fail_midway(handle: accel.Patch, denoiser: nn.Module) -> None:
    hidden, timestep, text = _inputs(7)
    with handle.generation(5):
        denoiser(hidden, timestep, text)
        handle.advance()
        denoiser(hidden, timestep, text[..., :3])


def test_an_error_inside_the_loop_frees_the_generation() -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, SKIPPING)
    first = _loop(handle, denoiser)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _fail_midway(handle, denoiser)
    assert torch.equal(_loop(handle, denoiser), first)


def test_advance_outside_of_a_generation_is_refused() -> None:
    handle = accel.patch(wan(), SKIPPING)
    with pytest.raises(OptionError, match=r"advance\(\).*generation"):
        handle.advance()


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_an_impossible_number_of_steps_is_refused(steps: float) -> None:
    handle = accel.patch(wan(), SKIPPING)
    with pytest.raises(OptionError, match=str(steps)), handle.generation(steps):  # type: ignore[arg-type]
        pytest.fail("a generation was opened")


def test_unpatch_and_status_take_the_denoiser_too() -> None:
    denoiser = wan()
    before = {path: set(vars(module)) for path, module in denoiser.named_modules()}
    accel.patch(denoiser, SKIPPING)
    assert accel.status(denoiser).patched
    assert accel.unpatch(denoiser)
    assert not accel.status(denoiser).patched
    assert {path: set(vars(module)) for path, module in denoiser.named_modules()} == before


@torch.no_grad()
def test_a_model_in_training_mode_with_gradients_still_backpropagates_when_neutral() -> None:
    denoiser = wan().requires_grad_(requires_grad=True)
    accel.patch(denoiser, SKIPPING.neutral())
    with torch.enable_grad():
        denoiser(*_inputs())[0].sum().backward()
    assert all(parameter.grad is not None for parameter in denoiser.blocks[1].ffn.parameters())
