"""Peers ignored what comes beside the prompt: ControlNets, adapters, pictures to start from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import accel
from caching import FirstBlockCache
from tests.tiny import CASES, Case, Pipeline
from tests.tiny.conditioned import CONDITIONED, Conditioned
from tests.tiny.models import Denoiser

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0, max_streak=2)
ALL = pytest.mark.parametrize("item", CONDITIONED.values(), ids=str)
CONTROLNETS = [name for name in CONDITIONED if "controlnet" in name]


def _patched(case: Case) -> tuple[Pipeline, accel.Patch]:
    pipe = case.make()
    return pipe, accel.patch(pipe, SKIPPING)


@ALL
def test_never_reusing_is_exact_with_it_and_it_matters(item: Conditioned) -> None:
    pipe = item.case.make()
    plain = [item.case.run(pipe, **inputs) for inputs in (item.this, item.other)]
    assert not torch.equal(*plain)
    with accel.patch(pipe, SKIPPING.neutral()):
        for inputs, expected in zip((item.this, item.other), plain, strict=True):
            assert torch.equal(item.case.run(pipe, **inputs), expected)
    assert torch.equal(item.case.run(pipe, **item.this), plain[0])


@ALL
def test_reusing_keeps_it_and_forgets_that_of_the_generation_before(item: Conditioned) -> None:
    pipe, handle = _patched(item.case)
    first = item.case.run(pipe, **item.this)
    assert handle.report.engaged
    assert torch.isfinite(first).all()
    fresh, _ = _patched(item.case)
    other = item.case.run(fresh, **item.other)
    assert not torch.equal(first, other)
    assert torch.equal(item.case.run(pipe, **item.other), other)
    assert torch.equal(item.case.run(pipe, **item.this), first)


@contextmanager
def _recording(denoiser: Denoiser) -> Iterator[list[dict[str, Any]]]:
    """Records the keyword arguments of every denoiser call."""
    calls: list[dict[str, Any]] = []

    def note(_: object, __: object, kwargs: dict[str, Any]) -> None:
        # Flux's pipelines change their attention arguments from call to call, in place.
        calls.append({name: dict(v) if isinstance(v, dict) else v for name, v in kwargs.items()})

    handle = denoiser.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


@torch.no_grad()
def _twice(denoiser: Denoiser, first: dict[str, Any], second: dict[str, Any]) -> list[Tensor]:
    """Returns what a generation of these two calls gives."""
    handle = accel.patch(denoiser, SKIPPING)
    outputs = []
    with handle.generation(2):
        for kwargs in (first, second):
            outputs.append(denoiser(**kwargs)[0])
            handle.advance()
    assert handle.report.reused == 1
    handle.unpatch()
    return outputs


@ALL
def test_a_reused_step_in_which_nothing_changed_is_the_computed_one(item: Conditioned) -> None:
    pipe = item.case.make()
    denoiser = item.case.denoiser(pipe)
    with _recording(denoiser) as calls:
        item.case.run(pipe, **item.this)
    with torch.no_grad():
        plain = denoiser(**calls[-1])[0]
    computed, reused = _twice(denoiser, calls[-1], calls[-1])
    assert torch.equal(computed, plain)
    torch.testing.assert_close(reused, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["flux_kontext", "flux_inpaint", "flux_controlnet"])
def test_branches_without_named_contexts_keep_to_themselves(name: str) -> None:
    item = CONDITIONED[name]
    pipe, handle = _patched(item.case)
    item.case.run(pipe, **item.this)
    branches = [decision.branch for decision in handle.report.decisions]
    assert branches == ["0", "1"] * (len(branches) // 2)
    assert {d.branch for d in handle.report.decisions if d.action == "reused"} == {"0", "1"}


@pytest.mark.parametrize("name", ["wan_i2v", "cogvideox_i2v"])
def test_a_picture_among_the_channels_does_not_come_out(name: str) -> None:
    item = CONDITIONED[name]
    pipe, handle = _patched(item.case)
    config = item.case.denoiser(pipe).config
    assert config.in_channels > config.out_channels
    item.case.run(pipe, **item.this)
    assert handle.report.reused > 0


@pytest.mark.parametrize("name", CONTROLNETS)
@pytest.mark.parametrize(
    ("ends", "steps"),
    [({"control_guidance_end": 0.5}, {0, 3}), ({"control_guidance_start": 0.5}, {0, 3}), ({}, {0})],
    ids=["ends", "starts", "stays"],
)
def test_a_controlnet_that_ends_or_starts_half_way_makes_the_step_compute(
    name: str, ends: dict[str, float], steps: set[int]
) -> None:
    item = CONDITIONED[name]
    pipe = item.case.make()
    cache = FirstBlockCache(threshold=1e4, warmup=1, tail=0, min_steps=0, max_streak=None)
    handle = accel.patch(pipe, cache)
    item.case.run(pipe, **item.this, **ends)
    decisions = handle.report.decisions
    assert {decision.step for decision in decisions if decision.action != "reused"} == steps
    assert {decision.reason for decision in decisions if decision.step == 3} <= (
        {"ControlNet switched on or off", "as the other branch of this step"}
        if 3 in steps
        else {"change below 10000", "as the other branch of this step"}
    )


def test_an_input_that_is_there_only_at_some_steps_makes_those_compute() -> None:
    item = CONDITIONED["flux_controlnet"]
    pipe = item.case.make()
    denoiser = item.case.denoiser(pipe)
    with _recording(denoiser) as calls:
        item.case.run(pipe, **item.this)
    names = ("controlnet_block_samples", "controlnet_single_block_samples")
    without = calls[-1] | dict.fromkeys(names)
    handle = accel.patch(denoiser, SKIPPING)
    with torch.no_grad():
        plain = [denoiser(**kwargs)[0] for kwargs in (without, calls[-1])]
        with handle.generation(3):
            for kwargs, expected in zip((without, calls[-1]), plain, strict=True):
                assert torch.equal(denoiser(**kwargs)[0], expected)
                handle.advance()
            denoiser(**calls[-1])
            handle.advance()
    reasons = [decision.reason for decision in handle.report.decisions]
    assert reasons == ["warm-up", "other inputs", "change below 10"]


def _lora(denoiser: Denoiser) -> dict[str, Tensor]:
    """Returns random low-rank weights for the attention of every block."""
    generator = torch.Generator().manual_seed(3)
    width = denoiser.inner_dim
    keys = {}
    for name, _ in denoiser.named_modules():
        if name.endswith(("attn.to_q", "attn.to_v")):
            keys[f"transformer.{name}.lora_A.weight"] = torch.randn(2, width, generator=generator)
            keys[f"transformer.{name}.lora_B.weight"] = torch.randn(width, 2, generator=generator)
    return keys


def _load(pipe: Pipeline) -> None:
    pipe.load_lora_weights(_lora(pipe.transformer), adapter_name="random")


def test_low_rank_weights_come_and_go_between_generations() -> None:
    case = CASES["flux_true_cfg"]
    pipe, handle = _patched(case)
    before = case.run(pipe)
    _load(pipe)
    loaded = case.run(pipe)
    assert handle.report.engaged
    assert not torch.equal(loaded, before)
    late = case.make()
    _load(late)
    plain = case.run(late)
    accel.patch(late, SKIPPING)
    assert torch.equal(case.run(late), loaded)
    handle.disable()
    assert torch.equal(case.run(pipe), plain)
    handle.enable()
    pipe.unload_lora_weights()
    assert torch.equal(case.run(pipe), before)
    handle.unpatch()
    assert torch.equal(case.run(pipe), case.run(case.make()))
