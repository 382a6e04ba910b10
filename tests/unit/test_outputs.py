"""The module cache on towers of modules whose outputs can be computed by hand."""

import contextlib
import math

import pytest
import torch
from torch import nn

import accel
from caching import PAB
from tests.unit.toys import Adding, Scale, Tower, drive, ones, probed

OPEN = {"warmup": 0, "tail": 0, "min_steps": 0, "window": (0.0, 1.0)}
HOLDING = PAB(spatial=2, temporal=None, cross=None, **{**OPEN, "warmup": 1})


def tower() -> Tower:
    return Tower(Adding(attn=1), Adding(attn=2))


def decided(handle: accel.Patch) -> list[str]:
    return [decision.action for decision in handle.report.decisions]


def why(handle: accel.Patch) -> list[str]:
    return [decision.reason for decision in handle.report.decisions]


def test_what_is_held_is_the_output_of_the_module_on_the_last_computed_input():
    model = tower()
    handle = probed(model, HOLDING)
    # At 1 the modules give 1 and 4; at 2 these are added again: 2 + 1 + 4. At 3 all is computed.
    outputs = drive(model, handle, ones(1, 2, 3, 5))
    assert [float(output) for output in outputs] == [6, 7, 18, 5 + 3 + 12]
    assert model.calls("attn") == [2, 2]
    assert decided(handle) == ["forced", "reused", "computed", "reused"]
    assert why(handle) == ["warm-up", "spatial attention held", "interval over", why(handle)[1]]


def test_modules_and_blocks_are_counted_apart():
    model = tower()
    handle = probed(model, HOLDING)
    drive(model, handle, ones(1, 2, 3))
    assert (handle.report.modules_run, handle.report.modules_skipped) == (4, 2)
    assert (handle.report.blocks_run, handle.report.blocks_skipped) == (6, 0)
    assert handle.report.skipped_share == pytest.approx(1 / 3)
    assert "2 skipped (33%)" in str(handle.report)


def test_bytes_held_are_those_of_the_kept_outputs():
    model = tower()
    handle = probed(model, HOLDING)
    drive(model, handle, ones(1, 2))
    assert handle.report.bytes_held == 2 * 4


def test_warm_up_and_last_steps_compute_and_short_schedules_throughout():
    model = tower()
    method = PAB(spatial=9, warmup=2, tail=2, min_steps=4, window=(0.0, 1.0))
    handle = probed(model, method)
    drive(model, handle, ones(*[1] * 6))
    assert decided(handle) == ["forced", "forced", "reused", "reused", "forced", "forced"]
    drive(model, handle, ones(*[1] * 4))
    assert decided(handle) == ["forced"] * 4
    assert any("only 4 steps" in warning for warning in handle.report.warnings)


def test_a_change_of_shape_computes_and_the_old_shape_is_forgotten():
    model = tower()
    handle = probed(model, HOLDING)
    wide = torch.full((2, 1, 1), 2.0)
    outputs = drive(model, handle, [*ones(1), wide, wide, *ones(1)])
    assert [output.flatten().tolist() for output in outputs] == [[6], [12, 12], [12, 12], [6]]
    assert decided(handle) == ["forced", "forced", "computed", "forced"]
    assert why(handle)[1] == "nothing to reuse yet"


def test_a_change_of_dtype_computes():
    model = tower()
    handle = probed(model, HOLDING)
    outputs = drive(model, handle, [*ones(1), ones(2)[0].double()])
    assert outputs[1].dtype == torch.float64
    assert float(outputs[1]) == 12


class Twice(nn.Module):
    """A block that calls one module on the stream and on its tenfold, as chunked MLPs do."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.attn = Scale(factor)

    def forward(self, hidden_states):
        return hidden_states + self.attn(hidden_states) + self.attn(hidden_states * 10)


def test_two_calls_of_one_module_in_a_step_are_kept_apart():
    model = Tower(Twice(1), Twice(1))
    handle = probed(model, HOLDING)
    # 1 -> 1 + 1 + 10 = 12 -> 12 + 12 + 120; held: 2 + 11 + 132.
    outputs = drive(model, handle, ones(1, 2))
    assert [float(output) for output in outputs] == [144, 145]


def test_every_call_of_a_module_counts():
    model = Tower(Adding(attn=1), Twice(1))
    handle = probed(model, HOLDING)
    drive(model, handle, ones(1, 2))
    assert [decision.modules_run for decision in handle.report.decisions] == [3, 0]
    assert [decision.modules_skipped for decision in handle.report.decisions] == [0, 3]


class Both(nn.Module):
    """Joint attention that returns both streams, or one and None, in a tuple or a list."""

    def __init__(self, form, *, text: bool) -> None:
        super().__init__()
        self.form, self.text, self.calls = form, text, 0

    def forward(self, hidden_states, encoder_hidden_states):
        self.calls += 1
        text = encoder_hidden_states * 3 if self.text else None
        return self.form((hidden_states * 2, text))


class JointBlock(nn.Module):
    def __init__(self, form, *, text: bool) -> None:
        super().__init__()
        self.attn = Both(form, text=text)

    def forward(self, hidden_states, encoder_hidden_states):
        out = self.attn(hidden_states, encoder_hidden_states)
        assert type(out) is self.attn.form
        hidden, text = out
        return hidden_states + hidden, encoder_hidden_states + (0 if text is None else text)


class JointTower(nn.Module):
    def __init__(self, form=tuple, *, text: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(JointBlock(form, text=text) for _ in range(2))

    def forward(self, hidden_states, encoder_hidden_states):
        for block in self.blocks:
            hidden_states, encoder_hidden_states = block(hidden_states, encoder_hidden_states)
        return hidden_states + encoder_hidden_states.sum()


@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize(("text", "expected"), [(True, [73, 74]), (False, [13, 14])])
def test_joint_attention_holds_both_streams_in_the_form_they_came_in(form, text, expected):
    model, words = JointTower(form, text=text), torch.ones(1, 4, 1)
    handle = probed(model, HOLDING, words)
    # Picture 1 -> 3 -> 9. Text, four times: 1 -> 4 -> 16, or it stays. Held: 2 + 2 + 6.
    outputs = drive(model, handle, ones(1, 2), words)
    assert [float(output) for output in outputs] == expected
    assert decided(handle) == ["forced", "reused"]


class Wrapped(Scale):
    def forward(self, hidden_states):
        return {"sample": super().forward(hidden_states)}


class WrappedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Wrapped(1)

    def forward(self, hidden_states):
        return hidden_states + self.attn(hidden_states)["sample"]


def test_an_output_of_unknown_form_is_never_reused_and_that_is_said():
    model = Tower(WrappedBlock(), WrappedBlock())
    handle = probed(model, HOLDING)
    outputs = drive(model, handle, ones(1, 2))
    assert [float(output) for output in outputs] == [4, 8]
    assert decided(handle) == ["forced", "forced"]
    assert any("nothing was reused" in warning for warning in handle.report.warnings)


class Writing(nn.Module):
    """A block that adds its input into its module's output, in place."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.attn = Scale(factor)

    def forward(self, hidden_states):
        return self.attn(hidden_states).add_(hidden_states)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_block_that_writes_into_its_modules_output_never_gets_back_what_it_wrote(mode):
    model = Tower(Writing(1), Writing(2))
    with mode():
        handle = probed(model, PAB(spatial=3, temporal=None, cross=None, **OPEN))
        outputs = drive(model, handle, ones(1, 2, 3, 4, 5, 6, 7))
    # Inference tensors cannot tell that they were written into, so copies are kept from the start;
    # others tell at the first reuse, which then computes.
    first = [6, 12, 3 + 2 + 8] if mode is torch.no_grad else [6, 2 + 1 + 4, 3 + 1 + 4]
    assert [float(output) for output in outputs] == [*first, 24, 5 + 4 + 16, 6 + 4 + 16, 42]


def test_a_generation_with_gradients_keeps_no_graph_alive():
    model = tower()
    handle = probed(model, HOLDING)
    inputs = [tensor.requires_grad_() for tensor in ones(1, 2)]
    outputs = drive(model, handle, inputs)
    outputs[1].backward()
    assert inputs[0].grad is None
    # The held outputs are constants: only the sum itself is differentiated.
    assert float(inputs[1].grad) == 1


def test_a_non_finite_evaluation_leaves_nothing_to_the_next_ones():
    model = tower()
    handle = probed(model, PAB(spatial=9, temporal=None, cross=None, **{**OPEN, "warmup": 1}))
    outputs = drive(model, handle, ones(math.nan, 2, 3))
    assert [float(output) for output in outputs[1:]] == [12, 3 + 2 + 8]
    assert decided(handle) == ["forced", "forced", "reused"]
    assert why(handle)[1] == "non-finite"
    assert any("non-finite" in warning for warning in handle.report.warnings)


def test_state_is_dropped_between_generations():
    model = tower()
    handle = probed(model, HOLDING)
    first = drive(model, handle, ones(7, 7))
    second = drive(model, handle, ones(1, 1))
    assert [float(x) for x in (*first, *second)] == [42, 42, 6, 6]


def guided(handle, model, *branches):
    """Returns decisions by branch of one generation; each evaluation names its branches."""
    with handle.generation(len(branches)):
        for names in branches:
            for name in names:
                with model.cache_context(name):
                    model(ones(1 if name == "cond" else 10)[0])
            handle.advance()
    return {
        name: [(d.step, d.action) for d in handle.report.decisions if d.branch == name]
        for name in ("cond", "uncond")
    }


class Named(Tower):
    """A tower with the branch names of diffusers' cache mixin."""

    def cache_context(self, name):
        return contextlib.nullcontext(name)


BOTH = ("cond", "uncond")


def test_branches_compute_at_the_same_evaluations_and_never_share_outputs():
    model = Named(Adding(attn=1), Adding(attn=2))
    handle = probed(model, HOLDING)
    found = guided(handle, model, *[BOTH] * 4)
    assert found["cond"] == found["uncond"]
    assert [action for _, action in found["cond"]] == ["forced", "reused", "computed", "reused"]
    assert model.calls("attn") == [4, 4]


def test_a_branch_that_missed_the_computation_of_the_others_computes_on_its_own():
    model = Named(Adding(attn=1), Adding(attn=2))
    handle = probed(model, HOLDING)
    # Computations are due at 0, 2 and 4; the second branch is away at 1 and 2.
    found = guided(handle, model, BOTH, ("cond",), ("cond",), BOTH, BOTH)
    assert found["uncond"] == [(0, "forced"), (3, "forced"), (4, "computed")]
    assert found["cond"][3] == (3, "reused")


def test_a_branch_that_joins_late_computes_first():
    model = Named(Adding(attn=1), Adding(attn=2))
    handle = probed(model, HOLDING)
    found = guided(handle, model, ("cond",), BOTH, BOTH, BOTH)
    assert found["uncond"] == [(1, "forced"), (2, "computed"), (3, "reused")]


def test_a_second_call_of_a_branch_in_one_step_neither_takes_nor_leaves_anything():
    model = Named(Adding(attn=1), Adding(attn=2))
    handle = probed(model, HOLDING)
    outputs = []
    with handle.generation(2):
        # As if a scheduler counted: else a name that comes twice counts as the next step.
        handle._clock.steps_seen = 1
        for values in ((1, 5), (2, 7)):
            for value in values:
                with model.cache_context("cond"):
                    outputs.append(float(model(ones(value)[0])))
            handle.advance()
    assert outputs == [6, 30, 7, 42]


def test_a_model_without_attention_is_refused_by_name():
    model = Tower(Adding(other=1), Adding(other=2))
    handle = accel.patch(model, HOLDING)
    with pytest.raises(accel.AccelUnsupportedError, match=r"PAB.*none in Tower.*ATTENTION_NAMES"):
        drive(model, handle, ones(1))


def test_where_the_place_on_the_schedule_is_unknown_a_window_computes():
    model = tower()
    handle = probed(model, HOLDING)
    with handle.generation():
        for value in (1, 2):
            model(ones(value)[0])
            handle.advance()
    assert decided(handle) == ["forced", "computed"]
    assert why(handle)[1] == "place on the schedule unknown"
