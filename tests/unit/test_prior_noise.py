"""Prior noise against adding it in the pipeline's callback, and against another scale."""

import diffusers
import torch

import accel
from caching import FasterDiffusion
from tests.tiny import CASES
from tests.tiny.models import unet
from tests.tiny.unets import image_inputs
from tests.unit.unet_reference import SCHEDULERS, evaluate, faster, generate


def _noisy(strength, every=2):
    return faster(every=every, prior_noise=strength)


def test_prior_noise_is_added_below_half_of_the_training_schedule_once_something_was_reused():
    pipe = CASES["sd15"].make()
    accel.patch(pipe, faster(every=2))
    start = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    times = []

    def add(running, step, time, kwargs):
        times[:] = running.scheduler.timesteps.tolist()
        if step + 1 < len(times) and step >= 1 and times[step + 1] < 500:
            kwargs["latents"] = kwargs["latents"] + 0.1 * start
        return kwargs

    request = {"steps": 8, "latents": start}
    expected = CASES["sd15"].run(pipe, callback_on_step_end=add, **request)
    assert [time < 500 for time in times] == [False] * 4 + [True] * 4
    found, handle, _ = generate(_noisy(0.1), **request)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, generate(faster(every=2), **request)[0])
    assert not handle.report.warnings


def test_prior_noise_follows_the_scale_of_the_scheduler():
    # Euler solves what DDIM solves, on latents that are larger by sqrt(1 + sigma^2). With the noise
    # scaled alike, both must still agree.
    def run(scheduler, strength):
        pipe = CASES["sd15"].make()
        config = {**pipe.scheduler.config, "set_alpha_to_one": True}
        pipe.scheduler = SCHEDULERS[scheduler].from_config(config, timestep_spacing="leading")
        accel.patch(pipe, _noisy(strength))
        return CASES["sd15"].run(pipe, steps=8)

    torch.testing.assert_close(run("euler", 0.0), run("ddim", 0.0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(run("euler", 0.3), run("ddim", 0.3), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(run("ddim", 0.3), run("ddim", 0.0), rtol=1e-2, atol=1e-2)


def test_schedules_that_compute_throughout_get_no_noise():
    plain = CASES["sd15"].run(CASES["sd15"].make(), steps=6)
    assert torch.equal(generate(FasterDiffusion(prior_noise=1.0))[0], plain)


def test_runs_that_start_from_an_image_get_no_noise():
    def run(strength):
        pipe = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(CASES["sd15"].make())
        pipe.set_progress_bar_config(disable=True)
        accel.patch(pipe, _noisy(strength))
        image = torch.zeros(1, 4, 8, 8)
        return CASES["sd15_img2img"].run(pipe, image=image)

    assert torch.equal(run(0.5), run(0.0))


def test_a_scheduler_without_cumulative_alphas_gets_no_noise_and_that_is_said():
    model, inputs = unet(), image_inputs()
    handle = accel.patch(model, _noisy(0.5))
    evaluate(model, handle, [(inputs, 500)] * 2)
    assert any("prior noise was left out" in text for text in handle.report.warnings)
