"""The stack cache on chains of blocks whose outputs can be computed by hand."""

import math

import pytest
import torch

import accel
from caching import DBCache, FirstBlockCache, Newton
from tests.unit.toys import Chain, PairChain, drive, ones

OPEN = {"warmup": 0, "tail": 0, "min_steps": 0, "max_streak": None}


def actions(handle: accel.Patch) -> list[str]:
    return [decision.action for decision in handle.report.decisions]


def reasons(handle: accel.Patch) -> list[str]:
    return [decision.reason for decision in handle.report.decisions]


def run(method, inputs, factors=(2, 3, 5)):
    model = Chain(*factors)
    handle = accel.patch(model, method)
    # The first evaluation of an unknown class is its probing call, computed without the method.
    drive(model, handle, ones(1))
    for block in model.blocks:
        block.calls = 0
    outputs = [float(output) for output in drive(model, handle, inputs)]
    return outputs, model.calls(), handle


def test_a_reused_step_adds_the_kept_residual_to_the_fresh_first_block():
    # Inputs 1 and 1.01: the first block's residual grows by 1%. Kept: 30 - 2 = 28. Fresh: 2.02.
    outputs, calls, handle = run(FirstBlockCache(threshold=0.05, **OPEN), ones(1, 1.01))
    assert outputs == pytest.approx([30, 2.02 + 28])
    assert calls == [2, 1, 1]
    assert actions(handle) == ["forced", "reused"]
    assert handle.report.decisions[1].value == pytest.approx(0.01, rel=1e-4)


def test_a_change_of_exactly_the_threshold_computes():
    outputs, calls, _ = run(FirstBlockCache(threshold=0.5, **OPEN), ones(1, 1.5))
    assert outputs == pytest.approx([30, 45])
    assert calls == [2, 2, 2]


def test_the_change_is_measured_from_the_last_computed_step_not_from_the_last_step():
    # Each step changes by 4%, so the second skip would be allowed if skips moved the reference.
    _, calls, handle = run(FirstBlockCache(threshold=0.05, **OPEN), ones(1, 1.04, 1.0816))
    assert actions(handle) == ["forced", "reused", "computed"]
    assert calls == [3, 2, 2]


def test_tail_blocks_run_on_the_reused_features():
    # The kept residual is that of the middle block, 6 - 2 = 4; the tail multiplies by 5.
    method = DBCache(head=1, tail_blocks=1, threshold=0.05, **OPEN)
    outputs, calls, _ = run(method, ones(1, 1.01))
    assert outputs == pytest.approx([30, (2.02 + 4) * 5])
    assert calls == [2, 1, 2]


def test_several_head_blocks_are_probed_together():
    method = DBCache(head=2, threshold=0.05, **OPEN)
    outputs, calls, _ = run(method, ones(1, 1.01))
    assert outputs == pytest.approx([30, 6.06 + 24])
    assert calls == [2, 2, 1]


def test_newton_extrapolates_a_linear_residual_exactly():
    # The kept residual is 28x, linear in the evaluation, so order 1 predicts it exactly.
    method = FirstBlockCache(threshold=10, **{**OPEN, "warmup": 2}, predictor=Newton(order=1))
    outputs, calls, handle = run(method, ones(1, 2, 3, 4))
    assert outputs == pytest.approx([30, 60, 90, 120])
    assert calls == [4, 2, 2]
    assert actions(handle)[2:] == ["forecast", "forecast"]


def test_warm_up_and_last_steps_always_compute():
    method = FirstBlockCache(threshold=10, warmup=2, tail=2, min_steps=0, max_streak=None)
    _, calls, handle = run(method, ones(1, 1, 1, 1, 1, 1))
    assert actions(handle) == ["forced", "forced", "reused", "reused", "forced", "forced"]
    assert calls == [6, 4, 4]
    assert reasons(handle)[0] == "warm-up"
    assert reasons(handle)[5] == "last steps"


def test_the_longest_streak_is_kept_and_its_error_reported():
    method = FirstBlockCache(threshold=10, **{**OPEN, "max_streak": 2})
    _, _, handle = run(method, ones(1, 2, 2, 2, 2))
    assert actions(handle) == ["forced", "reused", "reused", "forced", "reused"]
    assert reasons(handle)[3] == "2 skips in a row"
    # Held: 28. True at input 2: 56. Error 28 / 56.
    assert handle.report.decisions[3].error == pytest.approx(0.5)
    assert handle.report.estimated_error == pytest.approx(0.5)


def test_short_schedules_compute_throughout():
    method = FirstBlockCache(threshold=10, warmup=0, tail=0, min_steps=4)
    _, calls, handle = run(method, ones(1, 1, 1, 1))
    assert calls == [4, 4, 4]
    assert not handle.report.engaged
    assert any("4 steps" in warning for warning in handle.report.warnings)


def test_threshold_zero_is_bit_equal_and_measures_nothing():
    outputs, calls, handle = run(FirstBlockCache(threshold=0, **OPEN), ones(1, 1, 1))
    assert outputs == [30, 30, 30]
    assert calls == [3, 3, 3]
    assert handle.report.bytes_held == 0


def test_a_non_finite_probe_computes_and_says_so():
    outputs, calls, handle = run(FirstBlockCache(threshold=10, **OPEN), ones(1, math.nan, 1, 1))
    assert calls == [4, 3, 3]
    assert math.isnan(outputs[1])
    assert outputs[2:] == pytest.approx([30, 30])
    assert any("non-finite" in warning for warning in handle.report.warnings)


def test_a_non_finite_residual_is_never_reused():
    # The first block is finite, the second overflows: 1e38 * 2 * 1e38 is infinite in float32.
    _, calls, handle = run(FirstBlockCache(threshold=10, **OPEN), ones(1e5, 1e5), (2, 1e38, 5))
    assert calls == [2, 2, 2]
    assert actions(handle) == ["forced", "forced"]


def test_a_larger_batch_computes_instead_of_mixing():
    model = Chain(2, 3, 5)
    handle = accel.patch(model, FirstBlockCache(threshold=10, **OPEN))
    drive(model, handle, ones(1))
    wide = torch.ones(2, 1, 1)
    outputs = drive(model, handle, [ones(1)[0], wide, wide])
    assert [output.shape[0] for output in outputs] == [1, 2, 2]
    assert actions(handle) == ["forced", "forced", "reused"]
    assert reasons(handle)[1] == "shape, dtype or device changed"


@pytest.mark.parametrize(("batch", "expected"), [("worst", "computed"), ("mean", "reused")])
def test_the_worst_sample_or_the_mean_decides_for_a_batch(batch, expected):
    model = Chain(2, 3, 5)
    handle = accel.patch(model, FirstBlockCache(threshold=0.1, batch=batch, **OPEN))
    drive(model, handle, ones(1))
    first = torch.tensor([10.0, 1.0]).view(2, 1, 1)
    second = torch.tensor([10.0, 1.5]).view(2, 1, 1)
    drive(model, handle, [first, second])
    assert actions(handle)[1] == expected


def test_both_streams_of_a_two_stream_stack_are_reused():
    model, text = PairChain(), torch.ones(1, 2, 1)
    handle = accel.patch(model, FirstBlockCache(threshold=0.5, **OPEN))
    drive(model, handle, ones(1), text)
    full = float(model(ones(1)[0], text))
    # By hand: hidden 1 -> 2+2 -> 8+6 -> 28+18 = 46. First block: 4.
    assert full == pytest.approx(46)
    outputs = drive(model, handle, ones(1, 1.1), text)
    assert float(outputs[1]) == pytest.approx(2.2 + 2 + (46 - 4))


def test_zero_hits_are_said_out_loud():
    _, _, handle = run(FirstBlockCache(threshold=1e-6, **OPEN), ones(1, 2, 4))
    assert not handle.report.engaged
    assert any("nothing was reused" in warning for warning in handle.report.warnings)
    assert "0.5" not in handle.report.warnings[0]


def test_state_is_dropped_between_generations():
    model = Chain(2, 3, 5)
    handle = accel.patch(model, FirstBlockCache(threshold=10, **OPEN))
    drive(model, handle, ones(1))
    first = drive(model, handle, ones(7, 7))
    second = drive(model, handle, ones(1, 1))
    assert [float(x) for x in second] == pytest.approx([30, 30])
    assert [float(x) for x in first] == pytest.approx([210, 210])


@pytest.mark.parametrize("threshold", [math.nan, -0.1, "0.1", None, True])
def test_a_bad_threshold_is_refused(threshold):
    with pytest.raises(accel.OptionError, match="threshold"):
        FirstBlockCache(threshold=threshold)


@pytest.mark.parametrize(
    "options",
    [
        {"warmup": -1},
        {"tail": 1.5},
        {"max_streak": 0},
        {"min_steps": -2},
        {"batch": "best"},
        {"joint": "yes"},
        {"predictor": "hold"},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(accel.OptionError, match=next(iter(options))):
        FirstBlockCache(**options)


def test_bad_block_counts_are_refused():
    with pytest.raises(accel.OptionError, match="head"):
        DBCache(head=0)
    with pytest.raises(accel.OptionError, match="tail_blocks"):
        DBCache(tail_blocks=-1)
    with pytest.raises(accel.OptionError, match="order"):
        Newton(order=0)


def test_too_few_blocks_are_refused_with_their_number():
    model = Chain(2, 3, 5)
    handle = accel.patch(model, DBCache(head=2, tail_blocks=1))
    with pytest.raises(accel.AccelUnsupportedError, match=r"at least 4 .* has 3 blocks"):
        drive(model, handle, ones(1))


def guided(method, *pairs):
    """Returns the actions of one generation with two guidance calls an evaluation."""
    model = Chain(2, 3, 5)
    handle = accel.patch(model, method)
    drive(model, handle, ones(1))
    with handle.generation(len(pairs)):
        for cond, uncond in pairs:
            model(ones(cond)[0])
            model(ones(uncond)[0])
            handle.advance()
    found = [(decision.branch, decision.action) for decision in handle.report.decisions]
    return list(zip(found[::2], found[1::2], strict=True)), handle


def test_the_second_guidance_call_follows_the_first_ones_decision():
    method = FirstBlockCache(threshold=0.1, **OPEN)
    # The first branch stays, then moves; the second does the opposite.
    pairs, handle = guided(method, (1, 1), (1, 2), (2, 2))
    assert [(a, b) for (_, a), (_, b) in pairs] == [
        ("forced", "forced"),
        ("reused", "reused"),
        ("computed", "computed"),
    ]
    assert {a for (a, _), _ in pairs} == {"0"}
    assert {b for _, (b, _) in pairs} == {"1"}
    assert reasons(handle)[3] == "as the other branch of this step"
    measured = [decision.value is not None for decision in handle.report.decisions]
    # Measuring waits for the device, so a branch that must compute anyway is not asked.
    assert measured == [False, False, True, True, True, False]


def test_branches_decide_alone_without_joint():
    pairs, _ = guided(FirstBlockCache(threshold=0.1, joint=False, **OPEN), (1, 1), (1, 2))
    assert [(a, b) for (_, a), (_, b) in pairs][1] == ("reused", "computed")


def test_a_branch_may_have_a_threshold_of_its_own():
    method = FirstBlockCache(threshold=0.1, branches=(("1", 2.0),), joint=False, **OPEN)
    pairs, _ = guided(method, (1, 1), (1.05, 2), (2, 4))
    assert [(a, b) for (_, a), (_, b) in pairs] == [
        ("forced", "forced"),
        ("reused", "reused"),
        ("computed", "computed"),
    ]
    assert method.neutral().branches == ()
    with pytest.raises(accel.OptionError, match="branches"):
        FirstBlockCache(branches=(("1", -2.0),))


def test_a_branch_without_features_computes_whatever_the_other_one_does():
    pairs, _ = guided(FirstBlockCache(threshold=0.1, **OPEN), (1, 1), (1, math.inf), (1, 1))
    assert [(a, b) for (_, a), (_, b) in pairs][1] == ("reused", "forced")


class LeavingOut(Chain):
    """A chain that can leave out its middle block, as skip-layer guidance does."""

    def forward(self, hidden_states, *, whole=True):
        for block in self.blocks if whole else self.blocks[::2]:
            hidden_states = block(hidden_states)
        return hidden_states


def test_where_the_first_skippable_block_is_left_out_the_rest_is_computed():
    model = LeavingOut(2, 3, 5)
    handle = accel.patch(model, FirstBlockCache(threshold=0.1, **OPEN))
    drive(model, handle, ones(1))
    with handle.generation(4):
        outputs = []
        for whole in (True, True, False, True):
            outputs.append(model(ones(1)[0], whole=whole))
            handle.advance()
    assert [output.unique().item() for output in outputs] == [30, 30, 10, 30]
    assert model.calls() == [1 + 4, 1 + 2, 1 + 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_point_type_is_measured_in_its_own_or_wider_numbers(dtype):
    model = Chain(2, 3, 5)
    handle = accel.patch(model, FirstBlockCache(threshold=0.1, **OPEN))
    drive(model, handle, [tensor.to(dtype) for tensor in ones(1)])
    outputs = drive(model, handle, [tensor.to(dtype) for tensor in ones(1, 1, 2)])
    assert actions(handle) == ["forced", "reused", "computed"]
    assert [output.unique().item() for output in outputs] == [30, 30, 60]
    assert {output.dtype for output in outputs} == {dtype}
