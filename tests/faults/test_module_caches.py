"""What peers' attention and guidance caches get wrong without saying so."""

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import accel
from accel.method import Method
from caching import PAB, FasterCache, TaylorSeer
from tests.faults.alone import recording, replayed_alone
from tests.tiny import CASES

OPEN: dict[str, Any] = {"warmup": 1, "tail": 0, "min_steps": 0}
# The same at every place on the schedule, which a loop of one's own does not know.
HELD = PAB(window=(0.0, 1.0), **OPEN)
EXTRAPOLATED = FasterCache(start=1.0, weight=0.5, guidance_interval=1, **OPEN)
TWO_CALLS = ("flux_true_cfg", "wan", "qwen_image", "hunyuan_video", "chroma")


@pytest.mark.parametrize("name", TWO_CALLS)
@pytest.mark.parametrize("method", [HELD, EXTRAPOLATED], ids=["PAB", "FasterCache"])
def test_no_branch_is_handed_the_attention_of_the_other(name: str, method: Method) -> None:
    # diffusers' PAB gave both branches of Wan one attention, so that guidance did nothing.
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, method)
    with recording(pipe, case) as calls:
        case.run(pipe)
    assert handle.report.reused >= 4
    for (_, cond), (_, uncond) in zip(calls[0::2], calls[1::2], strict=True):
        assert not torch.allclose(cond, uncond)
    for branch in (calls[0::2], calls[1::2]):
        alone = replayed_alone(case, branch, list(range(6)), method)
        for (_, output), expected in zip(branch, alone, strict=True):
            assert torch.equal(output, expected)


@pytest.mark.parametrize("name", ["sd3", "wan"])
def test_the_emphasis_on_a_difference_does_not_grow_with_the_run_of_skips(name: str) -> None:
    # diffusers multiplies what it has stored, so after n skips the factor is 1.1 to the n.
    case = CASES[name]
    pipe = case.make()
    method = FasterCache(interval=1, guidance_interval=100, guidance_start=1.0, **OPEN)
    handle = accel.patch(pipe, method)
    with recording(pipe, case) as calls:
        case.run(pipe, steps=30)
    times = [timestep / 1000 for timestep in pipe.scheduler.timesteps.tolist()]
    # One stretch in which only the low frequencies are emphasised.
    steps = [step for step, time in enumerate(times) if 0.31 < time < 0.9][2:]
    if case.cfg == "batched":
        added = [u - c for u, c in (calls[step][1].chunk(2) for step in steps)]
    else:
        added = [calls[2 * step + 1][1] - calls[2 * step][1] for step in steps]
    assert len(added) > 8
    assert handle.report.reused >= len(added)
    for later in added[1:]:
        torch.testing.assert_close(later, added[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", [TaylorSeer(interval=2, **OPEN), HELD], ids=["Taylor", "PAB"])
def test_a_default_that_reaches_no_module_of_a_model_cannot_pass_in_silence(method: Method) -> None:
    # The default pattern of diffusers' TaylorSeer matches no name of Wan's, and says nothing.
    case = CASES["wan"]
    pipe = case.make()
    handle = accel.patch(pipe, method)
    blocks = len(pipe.transformer.blocks)
    inside = 3 if isinstance(method, TaylorSeer) else 2
    assert handle.status().hooked_modules == 1 + inside * blocks
    case.run(pipe)
    assert handle.report.engaged
    assert handle.report.modules_skipped >= inside * blocks


def test_guidance_in_two_calls_is_served_as_well_as_in_one_batch() -> None:
    # Published for one batch only; diffusers' port refuses or mistakes anything else.
    saved = {}
    for name in ("sd3", "chroma"):
        case = CASES[name]
        pipe = case.make()
        method = FasterCache(interval=1, guidance_interval=4, guidance_start=1.0, **OPEN)
        handle = accel.patch(pipe, method)
        case.run(pipe, steps=12)
        saved[name] = {d.step for d in handle.report.decisions if d.action == "reused"}
    assert saved["sd3"] == saved["chroma"] == {2, 3, 4, 6, 7, 8, 10, 11}


def test_a_timestep_that_repeats_or_is_no_whole_number_places_an_evaluation_all_the_same() -> None:
    # Windows by the index of a timestep break where Heun's method repeats them.
    case = CASES["sd3_heun"]
    pipe = case.make()
    handle = accel.patch(pipe, PAB(spatial=100, warmup=0, tail=0, min_steps=0))
    case.run(pipe)
    times = [float(timestep) for timestep in pipe.scheduler.timesteps]
    assert len(set(times)) < len(times)
    held = [d.step for d in handle.report.decisions if d.action == "reused"]
    assert held == [step for step, time in enumerate(times) if 100 < time < 800]


def test_a_change_of_schedule_between_generations_moves_the_window_with_it() -> None:
    case = CASES["flux"]
    pipe = case.make()
    handle = accel.patch(pipe, PAB(spatial=100, warmup=0, tail=0, min_steps=0))
    held = []
    for shift in (1.0, 6.0):
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        case.run(pipe, steps=20)
        times = pipe.scheduler.timesteps.tolist()
        found = [d.step for d in handle.report.decisions if d.action == "reused"]
        assert found == [step for step, time in enumerate(times) if 100 < time < 800]
        held.append(found)
    assert held[0] != held[1]
