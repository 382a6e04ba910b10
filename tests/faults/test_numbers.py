"""Non-finite features, timesteps, thresholds that never fire, runs of few steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import accel
from caching import FirstBlockCache, Newton
from tests.tiny import CASES, Case
from tests.tiny.models import flux, wan
from tests.tiny.observe import counting

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0, max_streak=None)
INPUTS = (torch.ones(1, 4, 1, 4, 4), torch.tensor([500]), torch.ones(1, 5, 16))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_features_are_computed_and_reported_and_never_reused(bad: float) -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, SKIPPING)
    hidden, *rest = INPUTS
    with torch.no_grad(), handle.generation(6):
        for step in range(6):
            poisoned = hidden * bad if step == 2 else hidden * (1 + 0.01 * step)
            output = denoiser(poisoned, *rest)[0]
            assert torch.isfinite(output).all() == (step != 2)
            handle.advance()
    decisions = handle.report.decisions
    assert decisions[1].action == "reused"
    assert decisions[2].action in {"computed", "forced"}
    # The residual of the poisoned step is of no use to the next one.
    assert decisions[3].action in {"computed", "forced"}
    assert decisions[4].action == "reused"
    assert any("finite" in text.lower() for text in handle.report.warnings)


def test_a_residual_that_is_not_finite_is_never_reused() -> None:
    denoiser = wan()
    weight = denoiser.blocks[2].ffn.net[2].bias
    handle = accel.patch(denoiser, SKIPPING)
    with torch.no_grad(), handle.generation(4):
        for step in range(4):
            # The fault sits behind the first block, so the indicator looks healthy.
            weight.fill_(float("nan") if step == 1 or not step else 0.0)
            output = denoiser(*INPUTS)[0]
            handle.advance()
    assert torch.isfinite(output).all()
    assert handle.report.decisions[1].action in {"computed", "forced"}
    assert handle.report.decisions[2].action in {"computed", "forced"}
    assert handle.report.decisions[3].action == "reused"


class _NoReading(TorchFunctionMode):
    """Raises when a tensor that was marked is read back to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = {torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__}
        reads |= {torch.Tensor.__int__, torch.Tensor.__bool__}
        if func in reads and any(args[0] is tensor for tensor in self.marked):
            raise AssertionError("a timestep was read back")
        return func(*args, **(kwargs or {}))


def test_timesteps_are_never_read_back() -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, SKIPPING)
    with torch.no_grad(), _NoReading() as guard, handle.generation(5):
        for step in range(5):
            timestep = torch.tensor([1000 - 200 * step])
            guard.marked.append(timestep)
            denoiser(INPUTS[0], timestep, INPUTS[2])
            handle.advance()
    assert handle.report.reused == 4


@pytest.mark.parametrize("timesteps", [[500] * 5, [9, 9, 5, 5, 1], [1, 5, 5, 9, 9]])
def test_repeated_or_rising_timesteps_change_no_decision(timesteps: list[int]) -> None:
    denoiser = wan()
    handle = accel.patch(denoiser, SKIPPING)
    with torch.no_grad(), handle.generation(5):
        for timestep in timesteps:
            denoiser(
                hidden_states=INPUTS[0],
                timestep=torch.tensor([timestep]),
                encoder_hidden_states=INPUTS[2],
            )
            handle.advance()
    actions = [decision.action for decision in handle.report.decisions]
    assert actions[0] in {"computed", "forced"}
    assert actions[1:] == ["reused"] * 4


def test_a_threshold_that_never_fires_is_said_plainly_and_changes_nothing() -> None:
    case = CASES["flux"]
    pipe = case.make()
    plain = case.run(pipe, steps=12)
    handle = accel.patch(pipe, FirstBlockCache(threshold=1e-9))
    assert torch.equal(case.run(pipe, steps=12), plain)
    assert not handle.report.engaged
    assert handle.report.warnings
    assert handle.report.warnings[0] in str(handle.report)


def test_a_four_step_run_stays_exact_with_the_default_guards_and_says_so() -> None:
    case = CASES["flux"]
    pipe = case.make()
    plain = case.run(pipe, steps=4)
    handle = accel.patch(pipe, FirstBlockCache(threshold=10.0))
    assert torch.equal(case.run(pipe, steps=4), plain)
    assert handle.report.warnings


@pytest.mark.parametrize("name", ["sd3_heun", "dit_heun"])
def test_two_evaluations_at_one_noise_level_do_not_break_an_extrapolation(name: str) -> None:
    case = CASES[name]
    pipe = case.make()
    method = replace(SKIPPING, warmup=3, max_streak=1, predictor=Newton(order=1))
    handle = accel.patch(pipe, method)
    assert torch.isfinite(case.run(pipe)).all()
    assert handle.report.reused > 0


@pytest.mark.parametrize("name", ["flux", "wan", "dit", "sd3", "ltx"])
def test_one_step_is_exact(name: str) -> None:
    case = CASES[name]
    pipe = case.make()
    plain = case.run(pipe, steps=1)
    handle = accel.patch(pipe, FirstBlockCache(threshold=10.0, warmup=0, tail=0, min_steps=0))
    assert torch.equal(case.run(pipe, steps=1), plain)
    assert handle.report.steps == 1


@pytest.mark.parametrize("name", ["flux", "wan", "dit", "sd3", "ltx"])
def test_zero_steps_fail_before_anything_runs_and_leave_nothing(name: str) -> None:
    case = CASES[name]
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    expected = case.run(pipe)
    scheduler = set(vars(pipe.scheduler))
    with counting(case.denoisers(pipe)) as count, pytest.raises(accel.OptionError, match="0"):
        case.run(pipe, steps=0)
    assert count() == 0
    assert set(vars(pipe.scheduler)) == scheduler
    assert torch.equal(case.run(pipe), expected)


def _run_bare(batches: list[torch.Tensor], method: FirstBlockCache) -> list[str]:
    denoiser = wan()
    handle = accel.patch(denoiser, method)
    with torch.no_grad(), handle.generation(len(batches)):
        for hidden in batches:
            count = len(hidden)
            denoiser(hidden, INPUTS[1].expand(count), INPUTS[2].expand(count, -1, -1))
            handle.advance()
    return [decision.action for decision in handle.report.decisions]


def test_a_smaller_batch_or_another_shape_within_a_generation_is_computed() -> None:
    two = INPUTS[0].expand(2, -1, -1, -1, -1)
    actions = _run_bare([two, two, INPUTS[0], INPUTS[0], INPUTS[0][..., :2]], SKIPPING)
    assert [action == "reused" for action in actions] == [False, True, False, True, False]


def test_the_worst_sample_decides_for_the_batch_where_asked() -> None:
    generator = torch.Generator().manual_seed(0)
    steady = torch.randn(1, 4, 1, 4, 4, generator=generator)
    jumping = torch.randn(1, 4, 1, 4, 4, generator=generator)
    batches = [torch.cat([steady] * 8), torch.cat([*[steady] * 7, jumping])]
    worst = replace(SKIPPING, threshold=_relative_change(batches) / 3, batch="worst")
    mean = replace(worst, batch="mean")
    assert _run_bare(batches, mean)[1] == "reused"
    assert _run_bare(batches, worst)[1] in {"computed", "forced"}


def _relative_change(batches: list[torch.Tensor]) -> float:
    """Returns the change of the first block's residual in the sample that jumps."""
    residuals: list[torch.Tensor] = []
    denoiser = wan()

    def note(_: object, args: tuple[Any, ...], output: torch.Tensor) -> None:
        residuals.append(output - args[0])

    denoiser.blocks[0].register_forward_hook(note)
    with torch.no_grad():
        for hidden in (batches[0][-1:], batches[1][-1:]):
            denoiser(hidden, INPUTS[1], INPUTS[2])
    before, after = residuals
    return float((after - before).abs().mean() / before.abs().mean())


def test_a_change_of_dtype_between_generations_follows_the_model() -> None:
    case = CASES["wan"]
    pipe = case.make()
    accel.patch(pipe, SKIPPING)
    expected = case.run(pipe)
    pipe.transformer.to(torch.bfloat16)
    low = case.run(pipe)
    other = case.make()
    other.transformer.to(torch.bfloat16)
    accel.patch(other, SKIPPING)
    assert torch.equal(low, case.run(other))
    pipe.transformer = case.make().transformer
    accel.patch(pipe, SKIPPING)
    assert torch.equal(case.run(pipe), expected)


def test_control_residuals_still_act_on_skipped_steps() -> None:
    inputs = {
        "hidden_states": torch.randn(1, 16, 64),
        "encoder_hidden_states": torch.randn(1, 5, 16),
        "pooled_projections": torch.randn(1, 12),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(5, 3),
    }

    def second_output(control: list[torch.Tensor] | None) -> tuple[torch.Tensor, str]:
        denoiser = flux()
        handle = accel.patch(denoiser, SKIPPING)
        with torch.no_grad(), handle.generation(4):
            for _ in range(2):
                output = denoiser(**inputs, controlnet_block_samples=control)[0]
                handle.advance()
        return output, handle.report.decisions[1].action

    control = [torch.randn(1, 16, 24) for _ in range(3)]
    without, action = second_output(None)
    assert action == "reused"
    with_control, action = second_output(control)
    assert action == "reused"
    assert not torch.allclose(without, with_control)
    computed = flux()(**inputs, controlnet_block_samples=control)[0]
    torch.testing.assert_close(with_control, computed, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", [CASES["flux"]], ids=str)
def test_end_to_end_seconds_contain_the_denoisers(case: Case) -> None:
    pipe = case.make()
    handle = accel.patch(pipe)
    case.run(pipe)
    assert 0 < handle.report.denoiser_seconds <= handle.report.seconds
