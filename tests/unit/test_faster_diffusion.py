"""Faster Diffusion against a reference in which features are exchanged and nothing rests."""

import math

import pytest
import torch

import accel
from accel.errors import AccelUnsupportedError, OptionError
from caching import FasterDiffusion
from caching.faster_diffusion import rescaled
from tests.tiny.models import flux, unet
from tests.tiny.observe import counting
from tests.tiny.unets import REFUSED, UNETS, image_inputs
from tests.unit.unet_reference import (
    OPEN,
    ExchangedEncoder,
    actions,
    all_runs,
    call,
    evaluate,
    faster,
    moved,
    runs,
)

EVERY_UNET = pytest.mark.parametrize("name", sorted(UNETS))
PUBLISHED = (0, 1, 2, 3, 5, 10, 15, 25, 35)


def whole_runs(method, steps):
    """Returns the evaluations that ran whole in a generation of this many."""
    model = unet()
    handle = accel.patch(model, method)
    evaluate(model, handle, [(image_inputs(), 500)] * steps)
    return [decision.step for decision in handle.report.decisions if not decision.blocks_skipped]


@EVERY_UNET
def test_with_unchanged_input_the_decoder_gives_the_whole_run_bit_for_bit(name):
    make, inputs = UNETS[name]
    model = make()
    expected = call(model, inputs(), 500)
    handle = accel.patch(model, faster(every=3))
    outputs = evaluate(model, handle, [(inputs(), 500)] * 3)
    assert actions(handle) == ["computed", "reused", "reused"]
    assert all(torch.equal(output, expected) for output in outputs)


@EVERY_UNET
def test_the_decoder_sees_the_new_time_and_nothing_of_the_new_latents(name):
    make, inputs = UNETS[name]
    model, first = make(), inputs(batch=2)
    reference = ExchangedEncoder(model)
    expected = [reference(first, 500, keep=True), reference(moved(first), 300, keep=False)]
    handle = accel.patch(model, faster(every=2))
    found = evaluate(model, handle, [(first, 500), (moved(first), 300)])
    other = evaluate(model, handle, [(first, 500), (moved(first, 9.0), 300)])
    for output, wanted in zip(found, expected, strict=True):
        assert torch.equal(output, wanted)
    assert torch.equal(other[1], found[1])
    assert not torch.equal(found[1], found[0])


@EVERY_UNET
def test_the_report_counts_the_layers_of_the_decoder(name):
    make, inputs = UNETS[name]
    model = make()
    handle = accel.patch(model, faster(every=2))
    with counting(all_runs(model)) as count:
        evaluate(model, handle, [(inputs(), 500)] * 2)
    assert handle.report.blocks_run == count()
    decoder = [module for block in model.up_blocks for module in runs(block)]
    assert handle.report.decisions[1].blocks_run == len(decoder)
    assert handle.report.blocks_run + handle.report.blocks_skipped == 2 * len(all_runs(model))


@EVERY_UNET
def test_the_neutral_setting_is_bit_equal_and_keeps_nothing(name):
    make, inputs = UNETS[name]
    model = make()
    expected = call(model, inputs(), 500)
    handle = accel.patch(model, FasterDiffusion(**OPEN).neutral())
    outputs = evaluate(model, handle, [(inputs(), 500)] * 2)
    assert all(torch.equal(output, expected) for output in outputs)
    assert (handle.report.bytes_held, handle.report.reused) == (0, 0)


def test_all_that_enters_the_way_up_is_kept():
    model = unet()
    handle = accel.patch(model, faster(every=2))
    evaluate(model, handle, [(image_inputs(), 500)] * 2)
    # Two levels of 8 channels at 8 x 8, the deeper one halved, then 16 channels, and the middle.
    numbers = 8 * 64 + 8 * 64 + 8 * 16 + 16 * 16 + 16 * 16
    assert handle.report.bytes_held == 4 * numbers


def test_the_published_keys_are_those_of_fifty_evaluations():
    assert rescaled(PUBLISHED, 50, 50) == PUBLISHED
    assert whole_runs(faster(), 50) == list(PUBLISHED)


def test_the_keys_of_other_schedules_lie_at_the_same_shares():
    # Halves, rounded to the nearest, to the even one where there are two: 0 0.5 1 1.5 2.5 5 7.5
    # 12.5 17.5.
    assert rescaled(PUBLISHED, 50, 25) == (0, 1, 2, 5, 8, 12, 18)
    assert rescaled((3, 9), 10, 20) == (0, 6, 18)
    assert rescaled((9,), 10, 2) == (0, 1)


def test_every_other_evaluation_is_a_key_one_if_asked():
    assert whole_runs(faster(every=3), 8) == [0, 3, 6]


def test_warm_up_last_evaluations_and_short_schedules_run_whole():
    guarded = FasterDiffusion(every=4, warmup=2, tail=2, min_steps=8)
    assert whole_runs(guarded, 9) == [0, 1, 4, 7, 8]
    assert whole_runs(guarded, 8) == list(range(8))


def test_a_key_set_needs_the_number_of_evaluations():
    model = unet()
    handle = accel.patch(model, faster())
    with handle.generation():
        for _ in range(2):
            call(model, image_inputs(), 500)
            handle.advance()
    assert {item.reason for item in handle.report.decisions} == {"number of evaluations unknown"}


def test_another_batch_runs_whole():
    model = unet()
    handle = accel.patch(model, faster(every=4))
    wide = image_inputs(batch=2)
    outputs = evaluate(model, handle, [(image_inputs(), 500), (wide, 400), (wide, 400)])
    assert actions(handle) == ["computed", "forced", "reused"]
    assert torch.equal(outputs[1], outputs[2])
    assert torch.equal(outputs[1], call(unet(), wide, 400))


def test_features_that_are_not_finite_are_not_reused():
    model, inputs = unet(), image_inputs()
    poisoned = inputs | {"sample": inputs["sample"] * math.nan}
    handle = accel.patch(model, faster(every=4))
    outputs = evaluate(model, handle, [(poisoned, 500), (inputs, 400), (inputs, 300)])
    assert [item.reason for item in handle.report.decisions][1] == "non-finite"
    assert all(torch.isfinite(output).all() for output in outputs[1:])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_unet_of_another_layout_is_refused_by_name_with_the_reason(name):
    make, reason = REFUSED[name]
    model = make()
    words = f"FasterDiffusion.*{type(model).__name__}.*{reason}"
    with pytest.raises(AccelUnsupportedError, match=words):
        accel.patch(model, FasterDiffusion())


def test_a_transformer_is_refused():
    with pytest.raises(AccelUnsupportedError, match=r"FasterDiffusion.*has none"):
        accel.patch(flux(), FasterDiffusion())


@pytest.mark.parametrize(
    "options",
    [
        {"keys": [0, 1]},
        {"keys": (0, 50)},
        {"keys": (0, 1.5)},
        {"of": 0},
        {"every": 0},
        {"parallel": 0},
        {"prior_noise": 1.5},
        {"prior_noise": math.nan},
        {"warmup": -1},
        {"tail": None},
        {"min_steps": 0.5},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        FasterDiffusion(**options)
