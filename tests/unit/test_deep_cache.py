"""DeepCache against whole runs, a forward written out by hand, and an exchange without any rest."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import accel
from accel.errors import AccelUnsupportedError, OptionError
from caching import DeepCache, FoCa, Hold, Newton
from caching.deep_cache import quadratic
from caching.finite import Finite
from tests.tiny.models import flux, unet
from tests.tiny.observe import counting
from tests.tiny.unets import REFUSED, UNETS, image_inputs
from tests.unit.unet_reference import (
    OPEN,
    ExchangedEntry,
    actions,
    all_runs,
    branches,
    call,
    evaluate,
    moved,
)

EVERY_UNET = pytest.mark.parametrize("name", sorted(UNETS))


def reasons(handle):
    return [decision.reason for decision in handle.report.decisions]


def whole_runs(method, steps, num_steps=None):
    """Returns the evaluations that ran whole in a generation of this many."""
    model = unet()
    handle = accel.patch(model, method)
    evaluate(model, handle, [(image_inputs(), 500)] * steps, num_steps)
    found = [decision.step for decision in handle.report.decisions if not decision.blocks_skipped]
    assert handle.report.reused == steps - len(found)
    return found


@EVERY_UNET
def test_with_unchanged_input_every_branch_gives_the_whole_run_bit_for_bit(name):
    make, inputs = UNETS[name]
    model = make()
    expected = call(model, inputs(), 500)
    for block, layer, _ in branches(model):
        with accel.patch(model, DeepCache(interval=3, block=block, layer=layer, **OPEN)) as handle:
            outputs = evaluate(model, handle, [(inputs(), 500)] * 3)
            assert actions(handle) == ["computed", "reused", "reused"], (block, layer)
        assert all(torch.equal(output, expected) for output in outputs), (block, layer)


@EVERY_UNET
def test_what_stands_above_the_branch_sees_the_new_input_and_what_is_below_stays(name):
    make, inputs = UNETS[name]
    model, first, second = make(), inputs(batch=2), moved(inputs(batch=2))
    plain = call(model, second, 300)
    outputs = []
    for block, layer, number in branches(model):
        reference = ExchangedEntry(model, number)
        expected = [reference(first, 500, keep=True), reference(second, 300, keep=False)]
        with accel.patch(model, DeepCache(block=block, layer=layer, **OPEN)) as handle:
            found = evaluate(model, handle, [(first, 500), (second, 300)])
        for output, other in zip(found, expected, strict=True):
            assert torch.equal(output, other), (block, layer)
        assert not torch.equal(found[1], plain), (block, layer)
        outputs.append(found[1])
    for shallower, deeper in pairwise(outputs):
        assert not torch.equal(shallower, deeper)


def test_the_shallowest_branch_is_the_last_layer_on_the_way_up():
    # conv_in -> [below: kept, out of the layer before] -> join -> last layer -> out.
    model, first, second = unet(), image_inputs(), moved(image_inputs())
    (kept,) = kept_features(model, [(first, 500)])
    expected = last_layer(model, kept, second, 300)
    handle = accel.patch(model, DeepCache(**OPEN))
    outputs = evaluate(model, handle, [(first, 500), (second, 300)])
    assert torch.equal(outputs[1], expected)


def kept_features(model, runs):
    """Returns what the layer before the last one on the way up gives in whole runs."""
    kept = []
    hook = (
        model.up_blocks[1]
        .attentions[0]
        .register_forward_hook(lambda _, __, output: kept.append(output[0]))
    )
    for inputs, timestep in runs:
        call(model, inputs, timestep)
    hook.remove()
    return kept


def last_layer(model, feature, inputs, timestep):
    """Returns what the last layer on the way up makes of what enters it."""
    with torch.no_grad():
        emb = model.time_embedding(model.time_proj(torch.tensor([timestep])))
        joined = torch.cat([feature, model.conv_in(inputs["sample"])], dim=1)
        hidden = model.up_blocks[1].resnets[1](joined, emb)
        text = inputs["encoder_hidden_states"]
        hidden = model.up_blocks[1].attentions[1](hidden, text, return_dict=False)[0]
        return model.conv_out(model.conv_act(model.conv_norm_out(hidden)))


RUNS = [(image_inputs(), 500), (moved(image_inputs()), 400), (image_inputs(), 300)]


def test_a_feature_is_extrapolated_over_evaluations():
    model = unet()
    first, second = kept_features(model, RUNS[:2])
    expected = last_layer(model, second + (second - first), *RUNS[2])
    method = DeepCache(predictor=Newton(order=1), warmup=2, tail=0, min_steps=0)
    handle = accel.patch(model, method)
    outputs = evaluate(model, handle, RUNS)
    torch.testing.assert_close(outputs[2], expected)
    assert actions(handle) == ["forced", "forced", "forecast"]


def test_a_predictor_sees_its_own_guesses():
    model = unet()
    first, second = kept_features(model, RUNS[:2])
    # FoCa: both slopes agree at first; then the newer one is that of its guess.
    guess = second + (second - first)
    expected = last_layer(
        model, second + ((second - first) * 2 + (guess - second) * 2) / 2, *RUNS[2]
    )
    method = DeepCache(predictor=FoCa(), warmup=2, tail=0, min_steps=0)
    outputs = evaluate(model, accel.patch(model, method), [*RUNS, RUNS[2]])
    torch.testing.assert_close(outputs[3], expected)


@pytest.mark.parametrize(("predictor", "ahead"), [(Hold(), 0), (Newton(order=1), 2)])
def test_a_whole_run_after_reuse_tells_how_wrong_that_would_have_been(predictor, ahead):
    model = unet()
    first, second, truth = kept_features(model, [*RUNS[:2], (moved(image_inputs()), 100)])
    guess = second + ahead * (second - first)
    expected = float((guess - truth).abs().sum() / truth.abs().sum())
    method = DeepCache(interval=2, predictor=predictor, warmup=2, tail=0, min_steps=0)
    handle = accel.patch(model, method)
    evaluate(model, handle, [*RUNS, (moved(image_inputs()), 100)], 6)
    errors = [decision.error for decision in handle.report.decisions]
    assert errors[:3] == [None] * 3
    assert errors[3] == pytest.approx(expected, rel=1e-4)


def test_what_is_no_predictor_is_refused():
    with pytest.raises(OptionError, match="predictor is 'Newton'"):
        DeepCache(predictor="Newton")


@EVERY_UNET
def test_the_report_counts_the_layers_that_ran_and_those_that_did_not(name):
    make, inputs = UNETS[name]
    model = make()
    layers = len(all_runs(model))
    for block, layer, _ in branches(model):
        with accel.patch(model, DeepCache(block=block, layer=layer, **OPEN)) as handle:
            with counting(all_runs(model)) as count:
                evaluate(model, handle, [(inputs(), 500)] * 2)
            assert handle.report.blocks_run == count(), (block, layer)
            assert handle.report.blocks_run + handle.report.blocks_skipped == 2 * layers
            assert handle.report.blocks_skipped > 0


@EVERY_UNET
def test_an_interval_of_one_is_bit_equal_and_keeps_nothing(name):
    make, inputs = UNETS[name]
    model = make()
    expected = call(model, inputs(), 500)
    handle = accel.patch(model, DeepCache(**OPEN).neutral())
    outputs = evaluate(model, handle, [(inputs(), 500)] * 2)
    assert all(torch.equal(output, expected) for output in outputs)
    assert (handle.report.bytes_held, handle.report.reused) == (0, 0)


def test_a_single_feature_is_kept_and_only_where_the_next_evaluation_needs_it():
    # Out of the first layer of the last up block: 8 channels of 8 x 8 numbers of 4 bytes.
    for steps, held in ((2, 8 * 8 * 8 * 4), (3, 8 * 8 * 8 * 4), (4, 0)):
        model = unet()
        handle = accel.patch(model, DeepCache(interval=3, **OPEN))
        evaluate(model, handle, [(image_inputs(), 500)] * steps)
        assert handle.report.bytes_held == held


def test_one_of_three_evaluations_runs_whole():
    assert whole_runs(DeepCache(interval=3, **OPEN), 8) == [0, 3, 6]


def test_the_interval_is_counted_from_the_last_warm_up_evaluation():
    method = DeepCache(interval=3, warmup=3, tail=0, min_steps=0)
    assert whole_runs(method, 10) == [0, 1, 2, 5, 8]


def test_the_last_evaluations_run_whole():
    assert whole_runs(DeepCache(interval=4, warmup=0, tail=2, min_steps=0), 9) == [0, 4, 7, 8]


def test_short_schedules_run_whole_and_say_so():
    model = unet()
    handle = accel.patch(model, DeepCache())
    evaluate(model, handle, [(image_inputs(), 500)] * 8)
    assert not handle.report.engaged
    assert any("only 8 steps" in warning for warning in handle.report.warnings)
    assert handle.report.bytes_held == 0


def test_the_quadratic_schedule_crowds_around_its_centre():
    # Fifty evaluations, ten whole runs, centre 15, power 2. Roots: -3.873 to 5.916 in tenths of
    # 9.789: -3.873 -2.894 -1.915 -0.936 0.043 1.022 2.000 2.979 3.958 4.937. Their signed squares
    # plus 15, rounded down:
    assert quadratic(50, 10, 15, 2) == (0, 6, 11, 14, 15, 16, 19, 23, 30, 39)


def test_a_power_of_one_spaces_evenly():
    assert quadratic(12, 4, 3.6, 1.0) == (0, 3, 6, 9)


def test_numbers_that_coincide_count_once_and_none_leaves_the_schedule():
    found = quadratic(6, 6, 6, 3)
    assert found[0] == 0
    assert len(set(found)) == len(found) < 6
    assert max(found) <= 5


def test_the_quadratic_schedule_decides_which_evaluations_run_whole():
    method = DeepCache(interval=5, schedule="quadratic", power=2.0, **OPEN)
    assert whole_runs(method, 50) == list(quadratic(50, 10, 15, 2))


def test_the_quadratic_schedule_needs_the_number_of_evaluations():
    model = unet()
    handle = accel.patch(model, DeepCache(schedule="quadratic", **OPEN))
    with handle.generation():
        for _ in range(3):
            call(model, image_inputs(), 500)
            handle.advance()
    assert reasons(handle) == ["number of evaluations unknown"] * 3


def test_the_uniform_schedule_does_not():
    model = unet()
    handle = accel.patch(model, DeepCache(interval=2))
    with handle.generation():
        for _ in range(4):
            call(model, image_inputs(), 500)
            handle.advance()
    assert actions(handle) == ["forced", "reused", "computed", "reused"]


@pytest.mark.parametrize(
    "change",
    [
        lambda inputs: image_inputs(batch=2),
        lambda inputs: image_inputs(width=10),
        lambda inputs: {name: value.double() for name, value in inputs.items()},
    ],
    ids=["batch", "size", "dtype"],
)
def test_another_form_of_the_latents_runs_whole_and_is_what_the_plain_model_gives(change):
    model, inputs = unet(), image_inputs()
    other = change(inputs)
    handle = accel.patch(model, DeepCache(interval=3, **OPEN))
    evaluate(model, handle, [(inputs, 500), (inputs, 400)])
    with handle.generation(4):
        call(model, inputs, 500)
        handle.advance()
        model.to(other["sample"].dtype)
        found = call(model, other, 400)
        handle.advance()
        again = call(model, other, 400)
    assert reasons(handle)[1] == "shape, dtype or device changed"
    assert actions(handle) == ["computed", "forced", "reused"]
    expected = call(unet().to(other["sample"].dtype), other, 400)
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)


def test_new_conditioning_in_the_middle_runs_whole_at_once():
    model, inputs = unet(), image_inputs()
    other = inputs | {"encoder_hidden_states": inputs["encoder_hidden_states"] + 1}
    handle = accel.patch(model, DeepCache(interval=6, **OPEN))
    order = [(inputs, 500), (inputs, 400), (other, 300), (other, 200)]
    outputs = evaluate(model, handle, order)
    assert actions(handle) == ["computed", "reused", "forced", "reused"]
    assert torch.equal(outputs[2], call(unet(), other, 300))


def test_a_branch_that_missed_its_whole_run_computes_instead_of_using_older_features():
    model, cond, uncond = unet(), image_inputs(), image_inputs()
    handle = accel.patch(model, DeepCache(interval=3, **OPEN))
    with handle.generation(6):
        for step in range(6):
            call(model, cond, 500)
            if step in {0, 4, 5}:
                call(model, uncond, 500)
            handle.advance()
    late = [item for item in handle.report.decisions if item.branch == "1"]
    assert [(item.step, item.action) for item in late] == [
        (0, "computed"),
        (4, "forced"),
        (5, "reused"),
    ]
    assert late[1].reason == "kept features are of an older run"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_features_that_are_not_finite_are_not_reused(bad):
    model, inputs = unet(), image_inputs()
    poisoned = inputs | {"sample": inputs["sample"] * bad}
    handle = accel.patch(model, DeepCache(interval=4, **OPEN))
    outputs = evaluate(model, handle, [(poisoned, 500), (inputs, 400), (inputs, 300)])
    assert reasons(handle)[1] == "non-finite"
    assert actions(handle)[2] == "reused"
    assert all(torch.isfinite(output).all() for output in outputs[1:])
    assert any("non-finite" in warning for warning in handle.report.warnings)


def test_a_feature_that_somebody_writes_into_is_computed_anew_and_copied_from_then_on():
    model, handed = unet(), []
    expected = call(model, image_inputs(), 500)
    block = model.up_blocks[1]
    block.attentions[0].register_forward_hook(lambda _, __, output: handed.append(output[0]))

    def spoil(*_):
        handed[-1].mul_(3)

    block.resnets[1].register_forward_pre_hook(spoil)
    handle = accel.patch(model, DeepCache(interval=4, **OPEN))
    outputs = evaluate(model, handle, [(image_inputs(), 500)] * 4)
    assert actions(handle) == ["computed", "forced", "reused", "reused"]
    assert reasons(handle)[1] == "a block wrote into its input"
    assert all(torch.equal(output, expected) for output in outputs)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_unet_of_another_layout_is_refused_by_name_with_the_reason(name):
    make, reason = REFUSED[name]
    model = make()
    with pytest.raises(AccelUnsupportedError, match=f"DeepCache.*{type(model).__name__}.*{reason}"):
        accel.patch(model, DeepCache())


def test_lists_that_do_not_match_the_resnets_are_refused_with_both_numbers():
    model = unet()
    model.up_blocks[0].extras = nn.ModuleList(nn.Identity() for _ in range(3))
    with pytest.raises(AccelUnsupportedError, match=r"2 resnets but 3 extras in up_blocks\.0"):
        accel.patch(model, DeepCache())


def test_features_that_nobody_can_look_at_pass_for_finite():
    assert not Finite([torch.empty(1, device="meta")]).refuted()
    assert Finite([torch.ones(2), torch.tensor(math.inf)]).refuted()
    # A sum in half precision would overflow.
    assert not Finite([torch.full((3,), 60000.0, dtype=torch.float16)]).refuted()


def test_a_transformer_is_refused():
    with pytest.raises(AccelUnsupportedError, match=r"DeepCache.*FluxTransformer2DModel has none"):
        accel.patch(flux(), DeepCache())


def test_a_branch_that_the_model_lacks_is_refused_with_what_it_has():
    with pytest.raises(AccelUnsupportedError, match="down blocks 0 to 1 and none numbered 2"):
        accel.patch(unet(), DeepCache(block=2))
    with pytest.raises(AccelUnsupportedError, match=r"1 layers in down block 1.*ends at 1"):
        accel.patch(unet(), DeepCache(block=1, layer=2))


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0},
        {"interval": 1.5},
        {"block": -1},
        {"layer": -1},
        {"schedule": "random"},
        {"centre": 1.5},
        {"power": 0.5},
        {"warmup": -1},
        {"tail": True},
        {"min_steps": math.nan},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        DeepCache(**options)
