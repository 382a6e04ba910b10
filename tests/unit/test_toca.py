"""ToCa: which tokens are computed when, on towers computed by hand and on real tiny models."""

import pytest
import torch
from torch import nn

import accel
from caching import ToCa
from tests.tiny import CASES
from tests.unit.toys import Chain, Scale, Tower, drive, ones

OPEN = {"warmup": 1, "tail": 0, "min_steps": 0}
# No factors: `ratio` is the share in every module.
EVEN = {"layer_weight": 0.0, "mlp_factor": 1.0, "cross_factor": 1.0, "cell_bonus": 0.0}


class Doubling(nn.Module):
    """A block of attention that adds nothing and an MLP that adds a multiple of every token."""

    def __init__(self, factor=2.0):
        super().__init__()
        self.attn = Scale(0)
        self.ff = nn.Sequential(nn.Linear(1, 1, bias=False))
        nn.init.constant_(self.ff[0].weight, factor)

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attn(hidden_states)
        return hidden_states + self.ff(hidden_states)


def column(*values):
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1)


def patched(model, method):
    """Patches a model in no table, after its probing call."""
    handle = accel.patch(model, method)
    drive(model, handle, [column(1, 1, 1, 1)])
    return handle


def run(method, *inputs, model=None):
    """Returns the outputs for these tokens of a tower that triples, and the handle."""
    # The MLP of the second block adds nothing, so that outputs show what that of the first did.
    model = model or Tower(Doubling(), Doubling(0))
    handle = patched(model, method)
    with torch.no_grad():
        outputs = drive(model, handle, list(inputs))
    return [output.flatten().tolist() for output in outputs], handle


def test_the_tokens_computed_are_those_of_the_scores_by_hand():
    method = ToCa(interval=4, ratio=0.25, age_weight=1.0, **EVEN, **OPEN)
    tens = column(10, 20, 30, 40)
    outputs, handle = run(method, column(1, 2, 3, 4), *[tens] * 3, column(5, 5, 5, 5))
    # Held are 2, 4, 6, 8; of norm 1, these are importances of .183, .365, .548 and .730.
    assert outputs[0] == [3, 6, 9, 12]
    # All are of one age: the last is the most important.
    assert outputs[1] == [10 + 2, 20 + 4, 30 + 6, 40 + 80]
    # Ages 2, 2, 2, 1 of 4: .683, .865, 1.048, .980.
    assert outputs[2] == [10 + 2, 20 + 4, 30 + 60, 40 + 80]
    # Ages 3, 3, 1, 2: .933, 1.115, .798, 1.230.
    assert outputs[3] == [10 + 2, 20 + 4, 30 + 60, 40 + 80]
    assert outputs[4] == [15] * 4
    actions = [decision.action for decision in handle.report.decisions]
    assert actions == ["forced", "reused", "reused", "reused", "computed"]


def test_once_two_outputs_are_known_the_token_that_changed_most_is_computed():
    method = ToCa(interval=2, ratio=0.25, age_weight=0.0, **EVEN, **{**OPEN, "warmup": 2})
    outputs, _ = run(method, column(1, 2, 3, 9), column(1, 4, 3, 9), column(7, 7, 7, 7))
    # By norm, the last token would be.
    assert outputs[2] == [7 + 2, 7 + 14, 7 + 6, 7 + 18]


def test_a_change_is_that_of_one_evaluation_however_old_the_token_was():
    method = ToCa(interval=3, ratio=0.25, age_weight=0.0, **EVEN, **OPEN)
    # At 1 and 2 the last token is computed, so at 3 it is of age 1 and the others of age 3.
    # Output changes at 3: 0, 2 (in 3 evaluations), 0 and 1.
    rest = column(1, 2, 3, 9)
    outputs, _ = run(method, *[rest] * 3, column(1, 3, 3, 9.5), column(8, 8, 8, 8))
    assert outputs[4] == [8 + 2, 8 + 6, 8 + 6, 8 + 16]


def test_a_ratio_of_zero_holds_and_of_one_computes_every_token():
    inputs = column(1, 2, 3, 4), column(5, 6, 7, 8)
    held, _ = run(ToCa(interval=2, ratio=0.0, **EVEN, **OPEN), *inputs)
    assert held[1] == [5 + 2, 6 + 4, 7 + 6, 8 + 8]
    whole, handle = run(ToCa(interval=2, ratio=1.0, **EVEN, **OPEN), *inputs)
    assert whole[1] == [15, 18, 21, 24]
    assert handle.report.tokens_skipped == 0


class Serving(nn.Module):
    """A block with one MLP for the picture and for a text that may be as long."""

    def __init__(self):
        super().__init__()
        self.attn = Scale(0)
        self.ff = nn.Sequential(nn.Linear(1, 1, bias=False))

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attn(hidden_states)
        return hidden_states + self.ff(hidden_states) + self.ff(hidden_states * 10)


def test_two_inputs_of_one_size_cannot_be_told_apart_so_the_mlp_is_held():
    rest = column(1, 2, 3, 4)
    outputs, handle = run(
        ToCa(interval=3, ratio=0.5, **EVEN, **OPEN),
        rest,
        rest * 2,
        model=Tower(Serving(), Serving()),
    )
    assert outputs[0] != outputs[1]
    assert handle.report.tokens_run == handle.report.tokens_skipped == 0
    assert handle.report.modules_skipped == 2 * 3
    assert any("which of its tokens" in warning for warning in handle.report.warnings)


class Mixing(Doubling):
    """A block whose MLP looks like one for single tokens, and is not known to be."""

    class Mean(nn.Linear):
        def forward(self, hidden_states):
            return super().forward(hidden_states.mean(dim=1, keepdim=True).expand_as(hidden_states))

    def __init__(self):
        super().__init__()
        self.ff = nn.Sequential(nn.Flatten(1, 1), self.Mean(1, 1))


def test_an_mlp_with_an_unknown_part_is_held_and_the_part_is_named():
    model = Tower(Mixing(), Mixing())
    _, handle = run(
        ToCa(interval=3, ratio=0.5, **EVEN, **OPEN), *[column(1, 2, 3, 4)] * 2, model=model
    )
    assert handle.report.tokens_run == 0
    assert any("Sequential holds Flatten" in warning for warning in handle.report.warnings)


def test_where_the_grid_is_unknown_there_is_no_bonus_and_that_is_said():
    method = ToCa(interval=3, ratio=0.5, **{**EVEN, "cell_bonus": 0.4}, **OPEN)
    _, handle = run(method, *[column(1, 2, 3, 4)] * 2)
    assert any("how the tokens lie is not known" in text for text in handle.report.warnings)
    for name in ("flux", "wan", "sd15", "dit"):
        case = CASES[name]
        pipe = case.make()
        known = accel.patch(pipe, ToCa(interval=3, ratio=0.5, **OPEN))
        case.run(pipe)
        assert known.report.warnings == ()


def refreshed_at(max_age, steps=12):
    """Returns the evaluations at which each of four unequal tokens of a tower is computed."""
    method = ToCa(interval=20, ratio=0.25, age_weight=0.0, max_age=max_age, **EVEN, **OPEN)
    outputs, _ = run(
        method, *(column(*(base + step for base in (1, 1, 1, 99))) for step in range(steps))
    )
    now = [[3 * (base + step) for base in (1, 1, 1, 99)] for step in range(steps)]
    return [
        [step for step in range(steps) if outputs[step][token] == now[step][token]]
        for token in range(4)
    ]


def test_no_token_gets_older_than_the_greatest_age_and_a_turn_of_all():
    for times in refreshed_at(3):
        ages = [later - earlier for earlier, later in zip(times, [*times[1:], 12], strict=True)]
        assert max(ages) <= 3 + 4
    assert refreshed_at(100)[0] == [0]


def test_shares_follow_layer_and_module_are_clamped_and_reported_as_they_came_out():
    model = Tower(*(Doubling(0.1) for _ in range(3)))
    inputs = [torch.rand(1, 20, 1)] * 2
    handles = [
        run(ToCa(interval=3, ratio=ratio, layer_weight=0.5, **OPEN), *inputs, model=model)[1]
        for ratio in (0.25, 1.0)
    ]
    # 1.6 * .25 * (1.5, 1, .5) = .6, .4, .2; and 2.4, 1.6, .8, of which the first two are limited.
    counts = [(handle.report.tokens_run, handle.report.tokens_skipped) for handle in handles]
    assert counts == [(12 + 8 + 4, 36), (20 + 20 + 16, 4)]
    assert handles[0].report.decisions[1].reason == "attention held and MLP tokens 40.0% computed"
    # Three of attention, and less than 1.8 of MLPs; nothing counts as skipped that was not.
    assert [handle.report.modules_skipped for handle in handles] == [3 + 1, 3]
    assert "40.0% run in modules that computed only some" in str(handles[0].report)
    for handle in handles:
        handle.unpatch()


def test_the_share_may_fall_along_the_schedule():
    method = ToCa(interval=9, ratio=0.5, step_weight=0.5, **EVEN, **OPEN)
    _, handle = run(method, *[torch.ones(1, 40, 1)] * 5)
    # .5 * (1.5 - step / 5), rounded down, in each of two modules.
    tokens = [decision.tokens_run for decision in handle.report.decisions]
    assert tokens == [0, 2 * 26, 2 * 22, 2 * 18, 2 * 14]


def test_intervals_may_shrink_along_the_schedule():
    method = ToCa(interval=4, interval_weight=0.4, **EVEN, **OPEN)
    _, handle = run(method, *[column(1, 2, 3, 4)] * 20)
    computed = [d.step for d in handle.report.decisions if d.action != "reused"]
    # 4 / (.6 + .04 step) is 5 at 5, 4.2 at 9, 3.6 at 13, 3.2 at 16 and 2.9 at 19.
    assert computed == [0, 5, 9, 13, 16, 19]


def test_without_a_number_of_steps_intervals_are_even():
    method = ToCa(interval=3, interval_weight=0.4, **EVEN, **OPEN)
    model = Tower(Doubling(), Doubling())
    handle = patched(model, method)
    with handle.generation():
        for _ in range(7):
            model(column(1, 2, 3, 4))
            handle.advance()
    computed = [d.step for d in handle.report.decisions if d.action != "reused"]
    assert computed == [0, 3, 6]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_block_that_writes_into_its_mlps_output_never_gets_back_what_it_wrote(mode):
    class Writing(Doubling):
        def forward(self, hidden_states):
            hidden_states = hidden_states + self.attn(hidden_states)
            return self.ff(hidden_states).add_(hidden_states)

    model = Tower(Writing(), Writing(0))
    method = ToCa(interval=9, ratio=0.25, age_weight=0.0, **EVEN, **OPEN)
    with mode():
        handle = patched(model, method)
        inputs = [column(1, 2, 3, 4), *[column(10, 20, 30, 40)] * 3]
        outputs = [output.flatten().tolist() for output in drive(model, handle, inputs)]
    held = [12, 24, 36, 120] if mode is torch.inference_mode else [30, 60, 90, 120]
    # Outputs that cannot be told to have been written into are kept as copies from the start.
    assert outputs[1:] == [held] * 3


def test_a_generation_with_gradients_keeps_no_graph_alive():
    model = Tower(Doubling(), Doubling(0))
    handle = patched(model, ToCa(interval=4, ratio=0.25, age_weight=0.0, **EVEN, **OPEN))
    inputs = [column(1, 2, 3, 4).requires_grad_() for _ in range(3)]
    outputs = drive(model, handle, inputs)
    outputs[2].sum().backward()
    assert inputs[0].grad is inputs[1].grad is None
    # The held outputs are constants; the token computed alone is differentiated.
    assert inputs[2].grad.flatten().tolist() == [1, 1, 1, 3]


def test_bytes_held_are_those_of_outputs_importances_ages_and_choices():
    _, handle = run(ToCa(interval=3, ratio=0.5, **EVEN, **OPEN), *[column(1, 2, 3, 4)] * 2)
    # Two blocks: attention and MLP of four tokens each, two more numbers a token, two choices.
    assert handle.report.bytes_held == 2 * (4 * 4 + 4 * 4 + 2 * 4 * 4 + 2 * 8)


def test_a_stack_without_attention_is_refused():
    model = Chain(2, 3)
    handle = accel.patch(model, ToCa())
    with pytest.raises(accel.AccelUnsupportedError, match=r"ToCa.*none in Chain"):
        drive(model, handle, ones(1))


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0},
        {"interval_weight": 1.0},
        {"ratio": 1.5},
        {"ratio": -0.1},
        {"layer_weight": 2.0},
        {"step_weight": -1.5},
        {"mlp_factor": -1.0},
        {"cross_factor": float("nan")},
        {"age_weight": -0.25},
        {"max_age": 0},
        {"cell": 0},
        {"cell_bonus": -0.4},
        {"warmup": -1},
        {"tail": 0.5},
        {"min_steps": -2},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(accel.OptionError, match=next(iter(options))):
        ToCa(**options)
