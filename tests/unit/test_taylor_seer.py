"""TaylorSeer: exact where a polynomial is exact, damped where asked, and reaching every module."""

import pytest
import torch
from torch import nn

import accel
from accel.models import find_spec, known_sites
from caching import TaylorSeer
from tests.tiny import CASES, DENOISERS
from tests.tiny.observe import counting
from tests.unit.toys import Adding, Chain, Scale, Tower, drive, ones, probed

OPEN = {"tail": 0, "min_steps": 0}


def floats(outputs):
    return [float(output) for output in outputs]


def test_order_one_is_exact_while_outputs_change_evenly():
    model = Tower(Adding(attn=1, ff=1), Adding(attn=2, ff=1))
    handle = probed(model, TaylorSeer(interval=4, warmup=2, **OPEN))
    # 1 -> 2 -> 4 -> 12 -> 24, in every module a multiple of the input.
    assert floats(drive(model, handle, ones(1, 2, 3, 4, 5, 9))) == [24, 48, 72, 96, 120, 216]
    assert model.calls("attn") == model.calls("ff") == [3, 3]
    actions = [decision.action for decision in handle.report.decisions]
    assert actions == ["forced", "forced", *["forecast"] * 3, "computed"]


@pytest.mark.parametrize(("order", "exact"), [(1, False), (2, True), (3, True)])
def test_squares_need_order_two_in_newtons_form(order, exact):
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, TaylorSeer(interval=3, max_order=order, warmup=4, **OPEN))
    inputs = [x * x for x in range(1, 7)]
    outputs = floats(drive(model, handle, ones(*inputs)))
    assert (outputs == pytest.approx([4 * x for x in inputs])) is exact


def test_backward_differences_as_derivatives_would_miss_the_same_squares():
    # At 1, 4, 9, 16 the newest differences are 7 and 2. Taylor's terms give, two evaluations on,
    # 16 + 2 * 7 + 4 / 2 * 2 = 34; the next square but one is 36.
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, TaylorSeer(interval=3, max_order=2, warmup=4, **OPEN))
    outputs = floats(drive(model, handle, ones(1, 4, 9, 16, 25, 36)))
    assert outputs[5] == pytest.approx(4 * 36)
    assert outputs[5] != pytest.approx(36 + 34 + 2 * 34, rel=0.01)


def test_damping_shortens_the_change_beyond_the_third_evaluation():
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, TaylorSeer(interval=9, warmup=2, damping=0.5, **OPEN))
    outputs = floats(drive(model, handle, ones(1, 2, 0, 0, 0, 0, 0)))
    # The modules give x and 2x at x = 1, 2; both are forecast from there, on an input of 0.
    forecast = [3, 4, 5, 2 + 0.5 * 4, 2 + 0.25 * 5]
    assert outputs == pytest.approx([4, 8, *(3 * value for value in forecast)])


def test_without_damping_the_change_goes_on():
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, TaylorSeer(interval=9, warmup=2, **OPEN))
    outputs = floats(drive(model, handle, ones(1, 2, 0, 0, 0, 0, 0)))
    assert outputs[2:] == pytest.approx([3 * value for value in (3, 4, 5, 6, 7)])


def test_the_stack_as_a_whole_is_exact_while_its_residual_changes_evenly():
    model = Chain(2, 3, 5)
    handle = probed(model, TaylorSeer(target="stack", interval=3, warmup=2, **OPEN))
    # The blocks add 29 times their input: 29 and 58 are kept, 87 and 116 forecast, on any input.
    assert floats(drive(model, handle, ones(1, 2, 3, 0, 5))) == pytest.approx(
        [30, 60, 3 + 87, 116, 150]
    )
    assert model.calls() == [3, 3, 3]
    actions = [decision.action for decision in handle.report.decisions]
    assert actions == ["forced", "forced", "forecast", "forecast", "computed"]


def test_the_miss_of_the_stack_is_told_as_of_the_longest_forecast():
    model = Chain(2, 3, 5)
    handle = probed(model, TaylorSeer(target="stack", interval=3, warmup=2, **OPEN))
    drive(model, handle, ones(1, 2, 3, 4, 10))
    # 29 and 58 lead to 145 three evaluations after the newer; computed is 290.
    assert handle.report.decisions[-1].error == pytest.approx(0.5)


def test_damping_reaches_the_stack():
    model = Chain(2, 3)
    method = TaylorSeer(target="stack", interval=9, warmup=2, damping=0.5, **OPEN)
    outputs = floats(drive(model, probed(model, method), ones(1, 2, 0, 0, 0, 0, 0)))
    # The blocks add 5 times their input.
    assert outputs == pytest.approx([6, 12, 15, 20, 25, 10 + 0.5 * 20, 10 + 0.25 * 25])


def test_a_stack_target_needs_a_stack():
    with pytest.raises(accel.AccelUnsupportedError, match="no stack of transformer blocks"):
        accel.patch(CASES["sd15"].make(), TaylorSeer(target="stack"))


def test_evaluations_at_one_noise_level_do_not_make_the_forecast_infinite():
    # Heun's method evaluates twice at every noise level but the first.
    case = CASES["sd3_heun"]
    pipe = case.make()
    handle = accel.patch(pipe, TaylorSeer(interval=4, max_order=2, warmup=5, **OPEN))
    assert torch.isfinite(case.run(pipe)).all()
    assert handle.report.engaged


@pytest.mark.parametrize("name", sorted(DENOISERS))
def test_every_attention_and_mlp_is_answered_for_or_inside_of_a_block_that_is(name):
    module = DENOISERS[name]()
    sites = known_sites(module, find_spec(module))
    hooked = {binding.site.path for binding in TaylorSeer().bind(sites)}
    for site in (*sites.attention, *sites.temporal, *sites.cross, *sites.mlp):
        assert site.path in hooked or site.path.rpartition(".")[0] in hooked
    # None of them twice.
    assert not any(path.rpartition(".")[0] in hooked - {""} for path in hooked)


def test_blocks_whose_attention_and_mlp_share_a_projection_rest_as_a_whole():
    case = CASES["flux"]
    pipe = case.make()
    handle = accel.patch(pipe, TaylorSeer(interval=3, warmup=1, **OPEN))
    inside = [block.proj_out for block in pipe.transformer.single_transformer_blocks]
    with counting(inside) as count:
        case.run(pipe, steps=5)
    # Computed at 0 and 3.
    assert count() == 2 * len(inside)
    assert handle.report.decisions[1].reason == "modules forecast and blocks forecast"


class InPlace(nn.Module):
    """A block with attention alone, which adds into its input."""

    def __init__(self):
        super().__init__()
        self.attn = Scale(1)

    def forward(self, hidden_states):
        return hidden_states.add_(self.attn(hidden_states))


def test_a_block_that_writes_into_its_input_is_forecast_from_copies():
    model = Tower(InPlace(), InPlace())
    with torch.no_grad():
        handle = probed(model, TaylorSeer(interval=2, warmup=2, **OPEN))
        outputs = floats(drive(model, handle, ones(1, 2, 3, 4, 5)))
    # The first call of a block tells that it writes, so the residuals of the second are the first
    # kept, 2 and 4: 3 + 2 + 4. With those of the fourth, 4 and 8, they go on to 5 and 10.
    assert outputs == [4, 8, 9, 16, 5 + 5 + 10]
    assert handle.report.reused == 2


def test_a_stack_without_attention_is_refused():
    model = Chain(2, 3)
    handle = accel.patch(model, TaylorSeer())
    with pytest.raises(accel.AccelUnsupportedError, match=r"TaylorSeer.*none in Chain"):
        drive(model, handle, ones(1))


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0},
        {"max_order": 0},
        {"max_order": 4},
        {"damping": 1.5},
        {"target": "layers"},
        {"warmup": -1},
        {"tail": 0.5},
        {"min_steps": -2},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(accel.OptionError, match=next(iter(options))):
        TaylorSeer(**options)
