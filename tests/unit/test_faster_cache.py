"""FasterCache: attention by hand, and guidance on real pipelines against the published formula."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import accel
from caching import FasterCache
from tests.tiny import CASES
from tests.tiny.observe import counting
from tests.unit.toys import Adding, Chain, Tower, drive, ones, probed

OPEN = {"warmup": 0, "tail": 0, "min_steps": 0, "start": 1.0}
GUIDED = {"interval": 1, "guidance_start": 1.0, "warmup": 1, "tail": 0, "min_steps": 0}

BATCHED = ["sd3", "sd3_heun", "sd3_skip_layer", "pixart", "cogvideox", "ltx", "mochi"]
BATCHED += ["aura_flow", "sana", "sd15", "sdxl"]
TWO_CALLS = ["flux_true_cfg", "flux_img2img", "wan", "hunyuan_video", "qwen_image", "chroma"]
TWO_CALLS += ["cogview4"]


def floats(outputs):
    return [float(output) for output in outputs]


def test_attention_goes_on_by_the_weighted_change_of_the_computed_outputs():
    model = Tower(Adding(attn=1), Adding(attn=1))
    method = FasterCache(weight=0.5, guidance_interval=1, **{**OPEN, "warmup": 2})
    handle = probed(model, method)
    # Computed at 0, 1 and 3. The modules give x and 2x: at x = 1, 2 they go on to 2.5 and 5; at
    # 2, 10 to 14 and 28. What was extrapolated before is no part of that.
    outputs = floats(drive(model, handle, ones(1, 2, 0, 10, 0)))
    assert outputs == pytest.approx([4, 8, 7.5, 40, 42])
    assert [d.action for d in handle.report.decisions][2:] == ["forecast", "computed", "forecast"]
    assert handle.report.decisions[2].reason == "attention extrapolated"


def test_with_one_computed_output_it_is_held():
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, FasterCache(weight=0.5, guidance_interval=1, **OPEN))
    assert floats(drive(model, handle, ones(1, 0))) == pytest.approx([4, 3])


def test_the_weight_rises_with_the_place_on_the_schedule():
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, FasterCache(interval=9, guidance_interval=1, **{**OPEN, "warmup": 2}))
    outputs = floats(drive(model, handle, ones(1, 2, 0, 0, 0)))
    # Five evaluations: at 2, 3 and 4 the place is 0.6, 0.4 and 0.2, the weight the rest to 1.
    assert outputs[2:] == pytest.approx([3 * (2 + weight) for weight in (0.4, 0.6, 0.8)])


def test_attention_begins_at_its_place_on_the_schedule():
    model = Tower(Adding(attn=1), Adding(attn=1))
    handle = probed(model, FasterCache(interval=99, guidance_interval=1, **{**OPEN, "start": 0.5}))
    drive(model, handle, ones(*[1] * 10))
    assert [d.step for d in handle.report.decisions if d.action == "forecast"] == [6, 7, 8, 9]


def test_cross_attention_is_left_alone():
    model = Tower(Adding(attn1=1, attn2=1), Adding(attn1=1, attn2=1))
    handle = probed(model, FasterCache(guidance_interval=1, **OPEN))
    drive(model, handle, ones(1, 1, 1, 1))
    assert model.calls("attn1") == [2, 2]
    assert model.calls("attn2") == [4, 4]


@contextmanager
def recording(module):
    """Records keyword arguments and prediction of every call of the denoiser."""
    calls = []

    def note(_, args, kwargs, output):
        calls.append((args, kwargs, output[0].clone()))

    handle = module.register_forward_hook(note, with_kwargs=True)
    yield calls
    handle.remove()


def published(difference, time):
    """Returns the weighted difference, computed as published in the shifted spectrum."""
    low_weight = 1.1 if 0.099 < time < 0.901 else 1.0
    high_weight = 1.1 if time < 0.301 else 1.0
    height, width = difference.shape[-2:]
    rows, columns = np.mgrid[:height, :width]
    circle = (rows - height // 2) ** 2 + (columns - width // 2) ** 2 <= (
        min(height, width) // 5
    ) ** 2
    spectrum = np.fft.fftshift(np.fft.fft2(difference.numpy()), axes=(-2, -1))
    weighted = spectrum * np.where(circle, low_weight, high_weight)
    return torch.from_numpy(np.fft.ifft2(np.fft.ifftshift(weighted, axes=(-2, -1))).real).float()


def generate(name, steps=12, **options):
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, FasterCache(guidance_interval=4, **{**GUIDED, **options}))
    with recording(case.denoiser(pipe)) as calls:
        latents = case.run(pipe, steps=steps)
    assert torch.isfinite(latents).all()
    places = [timestep / 1000 for timestep in pipe.scheduler.timesteps.tolist()]
    return handle.report, calls, places[-handle.report.steps :]


@pytest.mark.parametrize("name", BATCHED)
def test_in_a_batch_the_second_half_runs_and_the_first_is_rebuilt_as_published(name):
    report, calls, places = generate(name)
    plain = CASES[name].denoiser(CASES[name].make())
    checked, last = 0, None
    # A call of skip-layer guidance is one on half of the rows.
    whole = max(len(output) for _, _, output in calls)
    for decision, (args, kwargs, output) in zip(report.decisions, calls, strict=True):
        if len(output) < whole:
            assert decision.action != "reused"
            continue
        u, c = output.chunk(2)
        if decision.action != "reused":
            last = u - c
            continue
        checked += 1
        with torch.no_grad():
            exact = plain(*args, **kwargs)[0].chunk(2)[1]
        torch.testing.assert_close(c, exact, atol=1e-4, rtol=1e-4)
        if u.dim() >= 4:
            torch.testing.assert_close(
                u, c + published(last, places[decision.step]), atol=1e-4, rtol=1e-4
            )
    assert checked >= 6


@pytest.mark.parametrize("name", TWO_CALLS)
def test_in_two_calls_the_second_is_rebuilt_as_published(name):
    report, calls, places = generate(name)
    plain = CASES[name].denoiser(CASES[name].make())
    checked = 0
    pairs = zip(report.decisions[1::2], calls[0::2], calls[1::2], strict=True)
    for decision, (args, kwargs, c), (_, _, u) in pairs:
        if decision.action != "reused":
            last = u - c
            continue
        checked += 1
        with torch.no_grad():
            exact = plain(*args, **kwargs)[0]
        torch.testing.assert_close(c, exact, atol=1e-4, rtol=1e-4)
        if u.dim() >= 4:
            torch.testing.assert_close(
                u, c + published(last, places[decision.step]), atol=1e-4, rtol=1e-4
            )
        else:
            assert not torch.allclose(u, c)
    assert checked >= 4
    assert all(decision.action == "computed" for decision in report.decisions[2::2])


@pytest.mark.parametrize("name", ["sd15", "wan", "flux_true_cfg"])
def test_rebuilt_predictions_save_the_runs_of_what_they_stand_for(name):
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, FasterCache(guidance_interval=4, **GUIDED))
    denoiser = case.denoiser(pipe)
    rows = []
    inner = next(iter(module for path, module in denoiser.named_modules() if path.endswith("to_q")))
    inner.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    with counting([inner]) as count:
        case.run(pipe, steps=12)
    reused = handle.report.reused
    assert reused >= 8
    if case.cfg == "batched":
        assert rows == [1 if d.action == "reused" else 2 for d in handle.report.decisions]
    else:
        assert count() == len(handle.report.decisions) - reused


def test_a_pipeline_that_steps_both_halves_is_left_alone():
    # DiT's hands its scheduler both halves, both guided: no half is known to be unconditional.
    report, _, _ = generate("dit")
    assert report.reused == 0
    assert not report.engaged


def test_attention_and_guidance_work_together():
    for name in ("sd15", "sd3", "wan", "chroma"):
        report, _, _ = generate(name, interval=2, start=1.0)
        actions = {decision.action for decision in report.decisions}
        assert {"reused", "forecast", "computed"} <= actions | {"computed"}
        assert report.modules_skipped > report.modules_run / 2


def test_a_stack_without_attention_is_refused():
    model = Chain(2, 3)
    handle = accel.patch(model, FasterCache())
    with pytest.raises(accel.AccelUnsupportedError, match=r"FasterCache.*none in Chain"):
        drive(model, handle, ones(1))


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 0},
        {"guidance_interval": 1.5},
        {"start": 2.0},
        {"guidance_start": -0.1},
        {"weight": -1.0},
        {"low_weight": -1.0},
        {"high_weight": "1.1"},
        {"warmup": -1},
        {"tail": 0.5},
        {"min_steps": -2},
    ],
)
def test_a_bad_option_is_refused_by_name(options):
    with pytest.raises(accel.OptionError, match=next(iter(options))):
        FasterCache(**options)
