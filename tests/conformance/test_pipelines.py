"""What stock pipelines do around the denoiser: siblings, partial guidance, late starts."""

from typing import Any

import diffusers
import peft
import pytest
import torch

import accel
from tests.conformance.support import engaging, fresh, neutral, pairs, patched
from tests.tiny import CASES, Case
from tests.tiny.observe import counting, traces


def _guide_on_some_steps(case: Case) -> Any:
    """Returns the documented callback trick: guidance off after step 0, on again after step 3."""

    def callback(running: Any, step: int, _: object, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step in {0, 3}:
            running._guidance_scale = 1.0 if step == 0 else case.guidance
        return kwargs

    return callback


@pairs(("wan", "wan_two_stage"))
def test_guidance_on_only_some_steps_keeps_the_branches_apart(case: Case, name: str) -> None:
    callback = _guide_on_some_steps(case)
    plain = case.make()
    with counting(case.denoisers(plain)) as count:
        expected = case.run(plain, callback_on_step_end=callback)
    assert count() == 12 - 3

    pipe, handle = patched(case, neutral(name))
    assert torch.equal(case.run(pipe, callback_on_step_end=callback), expected)
    decisions = [decision for report in handle.reports for decision in report.decisions]
    steps_of = {
        branch: sorted(item.step for item in decisions if item.branch == branch)
        for branch in {item.branch for item in decisions}
    }
    assert steps_of == {"cond": [0, 1, 2, 3, 4, 5], "uncond": [0, 4, 5]}


@pairs(("sd3_skip_layer",))
def test_an_extra_call_on_some_steps_is_a_branch_of_its_own(case: Case, name: str) -> None:
    pipe, handle = patched(case, neutral(name))
    case.run(pipe)
    steps = [[d.step for d in handle.report.decisions if d.branch == b] for b in ("0", "1")]
    assert steps == [[0, 1, 2, 3, 4, 5], [2, 3, 4]]


@pairs(("flux_true_cfg", "flux_img2img", "qwen_image", "hunyuan_video", "wan"))
def test_guidance_in_two_calls_has_two_branches_with_every_step_each(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    case.run(pipe)
    branches = {decision.branch for decision in handle.report.decisions}
    assert len(branches) == 2
    for branch in branches:
        steps = [item.step for item in handle.report.decisions if item.branch == branch]
        assert steps == list(range(case.evaluations(6)))


@pairs(("sd15",))
def test_dropping_the_guidance_half_of_the_batch_midway_gives_a_finite_image(
    case: Case, name: str
) -> None:
    def callback(running: Any, step: int, _: object, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            running._guidance_scale = 0.0
            kwargs["prompt_embeds"] = kwargs["prompt_embeds"].chunk(2)[-1]
        return kwargs

    extra: dict[str, Any] = {
        "callback_on_step_end": callback,
        "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"],
    }
    expected = case.run(case.make(), **extra)
    pipe, _ = patched(case, neutral(name))
    assert torch.equal(case.run(pipe, **extra), expected)
    pipe, _ = patched(case, engaging(name))
    assert torch.isfinite(case.run(pipe, **extra)).all()
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))


@pairs(("sd15", "sdxl"))
def test_guidance_rescale_works(case: Case, name: str) -> None:
    pipe, _ = patched(case, neutral(name))
    expected = case.run(case.make(), guidance_rescale=0.7)
    assert torch.equal(case.run(pipe, guidance_rescale=0.7), expected)


@pairs(("flux_img2img",))
@pytest.mark.parametrize(("strength", "evaluations"), [(0.3, 2), (0.5, 3), (0.7, 5), (1.0, 6)])
def test_an_image_to_image_run_counts_the_steps_it_makes(
    case: Case, name: str, strength: float, evaluations: int
) -> None:
    method = engaging(name)
    pipe, handle = patched(case, method)
    case.run(pipe)
    latents = case.run(pipe, strength=strength)
    assert torch.equal(latents, fresh(case, method, strength=strength))
    assert (handle.report.steps, handle.report.num_steps) == (evaluations, evaluations)


SIBLINGS = [
    ("flux", "FluxImg2ImgPipeline", "flux_img2img"),
    ("sd15", "StableDiffusionImg2ImgPipeline", "sd15_img2img"),
]


@pytest.mark.parametrize(("source", "cls", "same_as"), SIBLINGS)
def test_from_pipe_siblings_are_real_show_the_shared_patch_and_work(
    source: str, cls: str, same_as: str
) -> None:
    case = CASES[source]
    for _, name in _methods_for(case):
        method = engaging(name)
        pipe, handle = patched(case, method)
        sibling = getattr(diffusers, cls).from_pipe(pipe)
        assert type(sibling).__name__ == cls
        assert type(sibling).__module__.startswith("diffusers.")
        status = accel.status(sibling)
        assert name in str(status)
        handle.unpatch()
        assert name not in str(accel.status(sibling))
        sibling.set_progress_bar_config(disable=True)
        assert torch.equal(CASES[same_as].run(sibling), fresh(CASES[same_as]))


def _methods_for(case: Case) -> list[tuple[Case, str]]:
    return [(param.values[0], param.values[1]) for param in pairs((case.name,)).args[1]]


@pairs(("flux", "sd15"))
def test_a_sibling_can_be_patched_beside_its_source(case: Case, name: str) -> None:
    method = engaging(name)
    cls, other_name = next(rest for source, *rest in SIBLINGS if source == case.name)
    other = CASES[other_name]
    pipe, handle = patched(case, method)
    sibling = getattr(diffusers, cls).from_pipe(pipe)
    sibling.set_progress_bar_config(disable=True)
    before = traces(sibling)["<pipe>"]
    # One denoiser has one patch, which now drives both pipelines.
    assert accel.patch(sibling, method) is handle
    assert torch.equal(other.run(sibling), fresh(other, method))
    assert torch.equal(case.run(pipe), fresh(case, method))
    handle.unpatch()
    assert traces(sibling)["<pipe>"][0] is before[0]
    assert torch.equal(other.run(sibling), fresh(other))
    assert torch.equal(case.run(pipe), fresh(case))


@pairs(("flux", "wan", "sd15"))
def test_the_pipeline_still_looks_like_itself(case: Case, name: str) -> None:
    clean = case.make()
    pipe, _ = patched(case, engaging(name))
    assert isinstance(pipe, type(clean))
    assert repr(pipe) == repr(clean)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(type(pipe), attribute) == getattr(type(clean), attribute)
    assert list(pipe.components) == list(clean.components)


@pairs(("sd15", "flux"))
def test_model_cpu_offload_hooks_of_the_pipeline_are_freed_as_before(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    assert torch.equal(case.run(pipe.to("cpu")), fresh(case, engaging(name)))
    pipe.maybe_free_model_hooks()
    handle.unpatch()
    pipe.remove_all_hooks()
    assert traces(pipe).keys() == traces(case.make()).keys()


@pairs(("flux",))
def test_a_lora_added_after_patching_takes_effect_and_comes_off(case: Case, name: str) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)
    first = case.run(pipe)
    torch.manual_seed(3)
    config = peft.LoraConfig(target_modules=["to_q"], init_lora_weights=False)
    pipe.transformer.add_adapter(config, "test")
    assert not torch.equal(case.run(pipe), first)
    pipe.transformer.delete_adapters(["test"])
    assert torch.allclose(case.run(pipe), first, atol=1e-5)
