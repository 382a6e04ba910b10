"""Peers told guidance branches apart by parity: one skipped call swapped them for good."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import accel
from caching import FirstBlockCache
from tests.coverage.entries import ENTRIES
from tests.faults.alone import SKIPPING, recording, replayed_alone
from tests.tiny import CASES
from tests.tiny.models import wan


@pytest.mark.parametrize("name", ["flux_true_cfg", "wan", "qwen_image", "hunyuan_video"])
def test_each_branch_computes_what_it_would_have_computed_alone(name: str) -> None:
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, SKIPPING)
    with recording(pipe, case) as calls:
        case.run(pipe)
    assert handle.report.reused >= 6
    for branch in (calls[0::2], calls[1::2]):
        alone = replayed_alone(case, branch, list(range(6)))
        for (_, output), expected in zip(branch, alone, strict=True):
            assert torch.equal(output, expected)


def test_a_guidance_interval_does_not_swap_the_branches() -> None:
    case = CASES["wan"]
    pipe = case.make()
    # Each branch decides for itself, so that it can be compared with itself alone.
    accel.patch(pipe, replace(SKIPPING, joint=False))

    def interval(running: Any, step: int, _: object, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step in {0, 2}:
            running._guidance_scale = 1.0 if step == 0 else 3.0
        return kwargs

    with recording(pipe, case) as calls:
        case.run(pipe, callback_on_step_end=interval)
    # Both branches in steps 0, 3, 4, 5; only the conditional one in steps 1 and 2.
    cond = [calls[index] for index in (0, 2, 3, 4, 6, 8)]
    uncond = [calls[index] for index in (1, 5, 7, 9)]
    for branch, steps in ((cond, [0, 1, 2, 3, 4, 5]), (uncond, [0, 3, 4, 5])):
        alone = replayed_alone(case, branch, steps)
        assert [torch.equal(a[1], b) for a, b in zip(branch, alone, strict=True)] == [True] * len(
            steps
        )


def test_a_guidance_interval_without_named_contexts_does_not_swap_the_branches() -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, FirstBlockCache(threshold=0.0))
    text = {"cond": torch.randn(1, 5, 16), "uncond": torch.randn(1, 5, 16)}
    order = [("cond", "uncond"), ("cond",), ("uncond",), ("uncond", "cond"), ("cond", "uncond")]
    with torch.no_grad(), handle.generation(len(order)):
        for branches in order:
            for branch in branches:
                denoiser(torch.randn(1, 4, 1, 4, 4), torch.tensor([500]), text[branch])
            handle.advance()
    seen = [decision.branch for decision in handle.report.decisions]
    cond, uncond = seen[0], seen[1]
    assert cond != uncond
    assert seen == [cond, uncond, cond, uncond, uncond, cond, cond, uncond]


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("ErnieImageTransformer2DModel", "text_bth"),
        ("HiDreamImageTransformer2DModel", "encoder_hidden_states_t5"),
        ("ZImageTransformer2DModel", "cap_feats"),
    ],
)
def test_the_prompt_tells_the_branches_apart_whatever_it_is_called(name: str, prompt: str) -> None:
    denoiser, inputs = ENTRIES[name].make(), ENTRIES[name].inputs()
    other = inputs[prompt]
    other = [part + 1 for part in other] if isinstance(other, list) else other + 1
    calls = {"cond": inputs, "uncond": inputs | {prompt: other}}
    handle = accel.patch(denoiser, FirstBlockCache(threshold=0.0))
    order = [("cond", "uncond"), ("cond",), ("uncond", "cond")]
    with torch.no_grad(), handle.generation(len(order)):
        for branches in order:
            for branch in branches:
                denoiser(**calls[branch])
            handle.advance()
    seen = [decision.branch for decision in handle.report.decisions]
    assert seen == ["0", "1", "0", "1", "0"]


def test_nested_contexts_fall_back_to_the_outer_one() -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, FirstBlockCache(threshold=0.0))
    inputs = (torch.randn(1, 4, 1, 4, 4), torch.tensor([500]), torch.randn(1, 5, 16))
    with torch.no_grad(), handle.generation(1), denoiser.cache_context("outer"):
        with denoiser.cache_context("inner"):
            denoiser(*inputs)
        denoiser(*inputs)
    assert [decision.branch for decision in handle.report.decisions] == ["inner", "outer"]


def test_image_to_image_without_contexts_reuses_and_differs_little_from_itself() -> None:
    case = CASES["flux_img2img"]
    pipe = case.make()
    handle = accel.patch(pipe, SKIPPING)
    first = case.run(pipe)
    assert handle.report.reused == 6
    case.run(pipe, strength=0.4)
    assert torch.equal(case.run(pipe), first)


def test_text_streams_of_the_two_branches_differ_after_a_skip() -> None:
    case = CASES["flux_true_cfg"]
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    with recording(pipe, case) as calls:
        case.run(pipe)
    for (_, cond), (_, uncond) in zip(calls[0::2], calls[1::2], strict=True):
        assert not torch.allclose(cond, uncond)
