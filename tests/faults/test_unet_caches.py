"""Peers took a UNet's step from its timestep and its features from whatever image was before."""

from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

import accel
from accel.method import Method
from caching import DeepCache, FasterDiffusion
from tests.tiny import CASES, Case, Pipeline, assemble
from tests.tiny.models import shaken, unet
from tests.tiny.observe import traces

OPEN: dict[str, Any] = {"warmup": 0, "tail": 0, "min_steps": 0}
METHODS: list[Method] = [
    DeepCache(interval=3, **OPEN),
    FasterDiffusion(every=3, **OPEN),
    FasterDiffusion(every=3, parallel=3, **OPEN),
]
EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=["deep", "faster", "ahead"])


def _patched(case: Case, method: Method) -> tuple[Pipeline, accel.Patch]:
    pipe = case.make()
    return pipe, accel.patch(pipe, method)


@EVERY_METHOD
def test_image_to_image_from_another_start_reuses_nothing_of_the_image_before(
    method: Method,
) -> None:
    case = CASES["sd15_img2img"]
    pipe, handle = _patched(case, method)
    case.run(pipe, steps=10, strength=0.9)
    found = case.run(pipe, steps=10, strength=0.4, prompt=1)
    assert [item.action for item in handle.report.decisions][:2] == ["computed", "reused"]
    other, _ = _patched(case, method)
    assert torch.equal(found, case.run(other, steps=10, strength=0.4, prompt=1))


@EVERY_METHOD
def test_another_size_after_an_image_works(method: Method) -> None:
    case = CASES["sd15_img2img"]
    pipe, _ = _patched(case, method)
    case.run(pipe)
    other, _ = _patched(case, method)
    assert torch.equal(case.run(pipe, size="b"), case.run(other, size="b"))


@EVERY_METHOD
@pytest.mark.parametrize("keyword", [True, False])
def test_a_timestep_is_taken_however_it_is_passed(method: Method, keyword: bool) -> None:
    model, sample, text = unet(), torch.ones(1, 4, 8, 8), torch.ones(1, 3, 16)
    handle = accel.patch(model, method)
    with torch.no_grad(), handle.generation(3):
        for time in (900, 900, 1):
            if keyword:
                model(sample, timestep=time, encoder_hidden_states=text)
            else:
                model(sample, torch.tensor(time), text)
            handle.advance()
    assert [item.action for item in handle.report.decisions] == ["computed", "reused", "reused"]


@EVERY_METHOD
def test_timesteps_that_come_twice_are_two_evaluations(method: Method) -> None:
    case = CASES["sd15"]
    pipe, handle = _patched(case, method)
    pipe.scheduler = diffusers.HeunDiscreteScheduler.from_config(pipe.scheduler.config)
    case.run(pipe)
    times = pipe.scheduler.timesteps.tolist()
    assert len(set(times)) < len(times) == handle.report.steps == 11
    whole = [item.step for item in handle.report.decisions if not item.blocks_skipped]
    assert whole == [0, 3, 6, 9]


@EVERY_METHOD
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("EulerDiscreteScheduler", {}),
        ("EulerDiscreteScheduler", {"use_karras_sigmas": True}),
        ("EulerAncestralDiscreteScheduler", {}),
        ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
        ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
        ("UniPCMultistepScheduler", {}),
        ("PNDMScheduler", {}),
        ("KDPM2DiscreteScheduler", {}),
    ],
)
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")
def test_every_kind_of_schedule_rests_on_two_of_three_evaluations(
    method: Method, name: str, options: dict[str, Any]
) -> None:
    case = CASES["sd15"]
    pipe, handle = _patched(case, method)
    pipe.scheduler = getattr(diffusers, name).from_config(pipe.scheduler.config, **options)
    first = case.run(pipe, steps=7)
    assert torch.isfinite(first).all()
    assert torch.equal(case.run(pipe, steps=7), first)
    whole = [item.step for item in handle.report.decisions if not item.blocks_skipped]
    assert whole == list(range(0, handle.report.steps, 3))


@EVERY_METHOD
def test_enabling_twice_is_undone_like_enabling_once(method: Method) -> None:
    case = CASES["sd15"]
    pipe = case.make()
    plain = case.run(pipe)
    before = traces(pipe)
    for _ in range(2):
        handle = accel.patch(pipe, method)
        case.run(pipe)
        handle.enable()
        handle.enable()
    accel.patch(pipe, DeepCache(interval=2))
    assert accel.unpatch(pipe)
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), plain)


@EVERY_METHOD
def test_nothing_is_left_on_the_modules_inside_of_a_block_that_failed(method: Method) -> None:
    case = CASES["sd15"]
    pipe, _ = _patched(case, method)
    expected = case.run(pipe)
    before, calls = traces(pipe), []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the last layer failed")

    hook = pipe.unet.up_blocks[1].resnets[1].conv2.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="the last layer failed"):
        case.run(pipe, prompt=1)
    hook.remove()
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), expected)


def _controlled(method: Method | None) -> Pipeline:
    model = unet()
    control = diffusers.ControlNetModel.from_unet(
        model, conditioning_embedding_out_channels=(4, 4, 8, 8)
    )
    pipe = assemble(
        diffusers.StableDiffusionControlNetPipeline,
        diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        unet=model,
        controlnet=shaken(control, seed=1),
        requires_safety_checker=False,
    )
    if method is not None:
        accel.patch(pipe, method)
    return pipe


def _picture(pipe: Pipeline, begin: float, end: float, *, bright: bool = True) -> Tensor:
    """Returns the latents of six evaluations with a ControlNet in a part of them."""
    image = torch.full((1, 3, 64, 64), 1.0 if bright else 0.0)
    return CASES["sd15"].run(
        pipe, image=image, control_guidance_start=begin, control_guidance_end=end
    )


@EVERY_METHOD
def test_a_control_net_is_not_ignored(method: Method) -> None:
    pipe = _controlled(method)
    bright, dark = (_picture(pipe, 0.0, 1.0, bright=bright) for bright in (True, False))
    assert not torch.allclose(bright, dark, atol=1e-3)


def test_a_control_net_that_only_partial_evaluations_see_acts_in_them() -> None:
    # Evaluations 1 and 2 of 6, while 0, 3, 4 and 5 have no control: with an interval of 3 both rest
    # below the branch.
    pipe, plain = _controlled(METHODS[0]), _controlled(None)
    assert not torch.equal(_picture(plain, 1 / 6, 0.5), _picture(plain, 0.99, 1.0))
    some, none = _picture(pipe, 1 / 6, 0.5), _picture(pipe, 0.99, 1.0)
    assert not torch.allclose(some, none, atol=1e-4)


def test_a_control_net_of_the_key_evaluation_acts_in_those_decoded_from_it() -> None:
    handles = []
    for method in (FasterDiffusion(every=6, prior_noise=0.0, **OPEN), None):
        pipe = _controlled(method)
        handles.append([_picture(pipe, 0.0, end) for end in (0.17, 1.0)])
    # The first evaluation is the only one that runs whole, so its control is all that counts.
    assert torch.equal(*handles[0])
    assert not torch.equal(*handles[1])
