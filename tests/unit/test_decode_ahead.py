"""Evaluations decoded as one batch, against decoding them one by one."""

from types import SimpleNamespace

import diffusers
import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor2_0

import accel
from tests.tiny.models import unet
from tests.tiny.observe import counting
from tests.tiny.unets import UNETS, image_inputs, with_ip_adapter
from tests.unit.unet_reference import SCHEDULERS, actions, faster, generate, runs


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
@pytest.mark.parametrize("case", ["sd15", "sdxl"])
def test_decoding_ahead_gives_what_decoding_one_by_one_gives(scheduler, case):
    one, first, calls = generate(faster(every=4), scheduler, case, steps=8)
    many, second, fewer = generate(faster(every=4, parallel=8), scheduler, case, steps=8)
    torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-5)
    assert first.report.decisions == second.report.decisions
    # Of four evaluations, one runs whole and three are decoded in one call.
    evaluations = first.report.steps
    assert calls == evaluations
    assert fewer == sum(step % 4 in {0, 1} for step in range(evaluations))
    assert not second.report.warnings


def test_no_more_evaluations_are_decoded_ahead_than_asked_for():
    one = generate(faster(every=6), steps=6)[0]
    latents, _, calls = generate(faster(every=6, parallel=2), steps=6)
    # Whole, two, two, one.
    assert calls == 4
    torch.testing.assert_close(latents, one, rtol=1e-4, atol=1e-5)


def test_several_pictures_and_guidance_keep_their_places_in_the_batch():
    for request in ({"batch": 3}, {"guidance": 1.0}, {"size": "b"}):
        one = generate(faster(every=5), steps=5, **request)[0]
        many = generate(faster(every=5, parallel=4), steps=5, **request)[0]
        torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-5)


def scheduled(model, method, inputs, *, steps=4, each=lambda step, time: {"timestep": time}):
    """Returns outputs, handle and decodings of a generation that a scheduler counts."""
    scheduler, outputs = diffusers.DDIMScheduler(), []
    with (
        accel.patch(model, method) as handle,
        torch.no_grad(),
        counting(runs(model.up_blocks[0])[:1]) as count,
        handle.generation(pipe=SimpleNamespace(scheduler=scheduler)),
    ):
        scheduler.set_timesteps(steps)
        for step, time in enumerate(scheduler.timesteps):
            given = inputs | each(step, time)
            outputs.append(model(**given).sample)
            scheduler.step(outputs[-1], time, given["sample"])
    return outputs, handle, count()


@pytest.mark.parametrize("name", sorted(UNETS))
def test_every_unet_decodes_ahead(name):
    make, inputs = UNETS[name]
    one, _, calls = scheduled(make(), faster(every=4), inputs(batch=2))
    many, _, fewer = scheduled(make(), faster(every=4, parallel=4), inputs(batch=2))
    assert (calls, fewer) == (4, 2)
    for left, right in zip(one, many, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


class _Halves:
    """An attention processor that treats the halves of a batch differently, as guidance may."""

    def __init__(self):
        self.inner = AttnProcessor2_0()

    def __call__(self, *args, **kwargs):
        first, second = self.inner(*args, **kwargs).chunk(2)
        return torch.cat([first, 0.5 * second])


def test_attention_that_takes_the_halves_of_a_batch_finds_them():
    model = unet()
    model.set_attn_processor(_Halves())
    one = scheduled(model, faster(every=4), image_inputs(batch=4))[0]
    many = scheduled(model, faster(every=4, parallel=4), image_inputs(batch=4))[0]
    for left, right in zip(one, many, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_new_conditioning_is_decoded_anew():
    def switch(running, step, _, kwargs):
        del running
        if step == 1:
            kwargs["prompt_embeds"] = kwargs["prompt_embeds"] + 1
        return kwargs

    extra = {
        "callback_on_step_end": switch,
        "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"],
    }
    one = generate(faster(every=6), steps=6, **extra)[0]
    many = generate(faster(every=6, parallel=6), steps=6, **extra)[0]
    torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(many, generate(faster(every=6), steps=6)[0], atol=1e-3)


class _Keyed:
    """An attention processor that takes keywords: a scale, and a mask that it ignores."""

    def __init__(self):
        self.inner = AttnProcessor2_0()

    def __call__(self, attn, hidden_states, *args, factor=1.0, note=None, **kwargs):
        del note
        return self.inner(attn, hidden_states, *args, **kwargs) * factor


def test_new_conditioning_in_the_same_branch_is_decoded_anew():
    def each(step, time):
        return {"timestep": time, "cross_attention_kwargs": {"factor": 0.5 if step > 2 else 1.0}}

    model, inputs = unet(), image_inputs()
    model.set_attn_processor(_Keyed())
    one = scheduled(model, faster(every=4), inputs, each=each)[0]
    many, _, calls = scheduled(model, faster(every=4, parallel=4), inputs, each=each)
    assert calls == 3
    for left, right in zip(one, many, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_what_was_decoded_ahead_is_dropped_with_the_features_it_came_from():
    model, inputs = unet(), image_inputs()

    def each(step, time):
        wider = image_inputs(width=10)["sample"] if step >= 2 else inputs["sample"]
        return {"timestep": time, "sample": wider}

    one = scheduled(model, faster(every=5), inputs, steps=5, each=each)[0]
    many, handle, _ = scheduled(model, faster(every=5, parallel=5), inputs, steps=5, each=each)
    assert actions(handle) == ["computed", "reused", "forced", "reused", "reused"]
    for left, right in zip(one, many, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_conditions_in_lists_and_dictionaries_are_repeated_and_recognised():
    # Pipelines build the dictionary anew at every step, around the same tensors.
    model, images = with_ip_adapter(), [torch.ones(2, 1, 12)]

    def each(_, time):
        return {"timestep": time, "added_cond_kwargs": {"image_embeds": list(images)}}

    inputs = image_inputs(batch=2)
    one = scheduled(model, faster(every=4), inputs, each=each)[0]
    many, handle, calls = scheduled(model, faster(every=4, parallel=4), inputs, each=each)
    assert calls == 2
    assert not handle.report.warnings
    for left, right in zip(one, many, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ({"timestep": 500}, "the scheduler's timesteps"),
        ({"timestep": torch.tensor(500)}, "straight from the scheduler"),
        ({"cross_attention_kwargs": {"note": torch.ones(1, 1)}}, "`cross_attention_kwargs`"),
        ({"class_labels": torch.tensor(3)}, "`class_labels`"),
    ],
)
def test_what_cannot_be_decoded_ahead_is_decoded_one_by_one_and_said(more, missing):
    model = unet()
    model.set_attn_processor(_Keyed())
    _, handle, calls = scheduled(
        model,
        faster(every=4, parallel=4),
        image_inputs(),
        each=lambda _, time: {"timestep": time, **more},
    )
    assert (calls, handle.report.reused) == (4, 3)
    assert any("one by one" in text and missing in text for text in handle.report.warnings)


def test_single_evaluations_between_key_ones_have_nothing_to_be_decoded_ahead():
    _, handle, calls = scheduled(
        unet(),
        faster(every=2, parallel=4),
        image_inputs(),
        each=lambda *_: {"timestep": 500},
    )
    assert calls == 4
    assert not handle.report.warnings
