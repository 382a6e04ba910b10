"""Pyramid attention broadcast: kinds of attention, the window, and what it is not made for."""

import pytest
import torch
from diffusers import UNetMotionModel

import accel
from caching import PAB
from tests.coverage.entries import ENTRIES
from tests.tiny import CASES
from tests.tiny.models import shaken
from tests.unit.toys import Adding, Tower, drive, ones, probed

OPEN = {"warmup": 0, "tail": 0, "min_steps": 0, "window": (0.0, 1.0)}


def test_every_kind_of_attention_has_its_own_interval():
    model = Tower(*(Adding(attn1=1, attn2=1, ff=1) for _ in range(2)))
    handle = probed(model, PAB(spatial=2, cross=3, **OPEN))
    drive(model, handle, ones(*range(1, 8)))
    assert model.calls("attn1") == [4, 4]
    assert model.calls("attn2") == [3, 3]
    assert model.calls("ff") == [7, 7]
    reasons = [decision.reason for decision in handle.report.decisions]
    spatial, cross = "spatial attention held", "cross-attention held"
    assert reasons == [
        *("outside of the window", f"{spatial} and {cross}", cross, spatial),
        *(cross, f"{spatial} and {cross}", "interval over"),
    ]


def test_mlps_are_held_in_the_first_blocks_where_asked():
    model = Tower(*(Adding(attn=1, ff=1) for _ in range(3)))
    handle = probed(model, PAB(spatial=None, mlp=4, mlp_blocks=2, **OPEN))
    drive(model, handle, ones(1, 1, 1, 1))
    assert model.calls("ff") == [1, 1, 4]
    assert model.calls("attn") == [4, 4, 4]


def test_without_a_scheduler_the_window_counts_evaluations():
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, PAB(spatial=9, **{**OPEN, "window": (0.35, 0.65)}))
    drive(model, handle, ones(*[1] * 10))
    held = [d.step for d in handle.report.decisions if d.action == "reused"]
    # Places 1, .9, ... .1: strictly inside are .6, .5 and .4.
    assert held == [4, 5, 6]


@pytest.mark.parametrize("name", ["flux", "flux_img2img", "sd3_heun", "sd15", "sdxl", "cogvideox"])
def test_the_window_is_that_of_the_timesteps_whatever_the_scheduler(name):
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, PAB(spatial=100, cross=100, temporal=100, warmup=0, tail=0))
    case.run(pipe, steps=20)
    report = handle.report
    timesteps = pipe.scheduler.timesteps.tolist()[-report.steps :]
    inside = {step for step, timestep in enumerate(timesteps) if 100 < timestep < 800}
    assert 0 < len(inside) < report.steps
    outside = {d.step for d in report.decisions if d.reason == "outside of the window"}
    assert outside == set(range(report.steps)) - inside
    # With a long interval, everything inside but a run's first evaluation is held.
    held = {decision.step for decision in report.decisions if decision.action == "reused"}
    assert held == inside - {0}


def test_a_run_that_starts_late_is_held_at_the_same_places_as_a_whole_one():
    case = CASES["flux_img2img"]
    held, begin = {}, {}
    for strength in (1.0, 0.5):
        pipe = case.make()
        handle = accel.patch(pipe, PAB(spatial=100, warmup=0, tail=0))
        case.run(pipe, steps=20, strength=strength)
        timesteps = pipe.scheduler.timesteps.tolist()[-handle.report.steps :]
        begin[strength] = timesteps[0]
        decisions = handle.report.decisions
        held[strength] = {timesteps[d.step] for d in decisions if d.action == "reused"}
    assert held[0.5] == {timestep for timestep in held[1.0] if timestep < begin[0.5]}
    assert len(held[0.5]) < len(held[1.0])


def latte():
    entry = ENTRIES["LatteTransformer3DModel"]
    return entry.make(), entry.inputs()


def motion():
    model = UNetMotionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"),
        cross_attention_dim=16,
        num_attention_heads=2,
        motion_num_attention_heads=2,
        norm_num_groups=4,
    )
    inputs = {
        "sample": torch.randn(1, 4, 2, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(2, 5, 16),
    }
    return shaken(model), inputs


@pytest.mark.parametrize("make", [latte, motion])
def test_temporal_attention_of_video_models_is_held_the_longer(make):
    model, inputs = make()
    handle = accel.patch(model, PAB(spatial=2, temporal=4, cross=3, **OPEN))
    sites = handle._engines[""]._sites
    assert all((sites.attention, sites.temporal, sites.cross))
    with torch.no_grad(), handle.generation(5):
        for _ in range(5):
            model(**inputs)
            handle.advance()
    spatial, temporal, cross = map(len, (sites.attention, sites.temporal, sites.cross))
    ran = [decision.modules_run for decision in handle.report.decisions]
    assert ran == [spatial + temporal + cross, 0, spatial, cross, spatial + temporal]


def test_no_kind_that_the_model_has_is_refused_with_what_it_has():
    pipe = CASES["flux"].make()
    with pytest.raises(
        accel.AccelUnsupportedError, match=r"FluxTransformer2DModel.*6 spatial, 0 temporal"
    ):
        accel.patch(pipe, PAB(spatial=None, temporal=4, cross=6))
    assert not accel.status(pipe).patched


@pytest.mark.parametrize(
    "options",
    [
        {"spatial": 0},
        {"temporal": 1.5},
        {"cross": True},
        {"mlp": -1},
        {"mlp_blocks": 0},
        {"warmup": -1},
        {"tail": 0.5},
        {"min_steps": -2},
        {"window": 0.5},
        {"window": (0.1, 0.5, 0.8)},
        {"window": (-0.1, 0.5)},
        {"window": (0.8, 0.1)},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(accel.OptionError, match=next(iter(options))):
        PAB(**options)


def test_two_module_caches_conflict_by_name():
    from caching import FirstBlockCache

    with pytest.raises(accel.ConflictError, match=r"PAB.*FirstBlockCache"):
        accel.patch(CASES["flux"].make(), PAB(), FirstBlockCache())
