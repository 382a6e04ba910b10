"""What else speaks to a UNet, under both UNet caches, against an exchange without any rest."""

from typing import Any

import peft
import pytest
import torch
from torch import Tensor

import accel
from accel.method import Method
from caching import DeepCache, FasterDiffusion
from tests.tiny.models import Denoiser, unet
from tests.tiny.unets import Inputs, image_inputs, three_levels, with_ip_adapter
from tests.unit.unet_reference import (
    OPEN,
    ExchangedEncoder,
    ExchangedEntry,
    branches,
    evaluate,
    moved,
)

STALE = FasterDiffusion(every=2, prior_noise=0.0, **OPEN)


def _cases(denoiser: Denoiser) -> list[tuple[Method, Any]]:
    """Returns every branch of DeepCache and Faster Diffusion, each with its reference."""
    shallow: list[tuple[Method, Any]] = [
        (DeepCache(block=block, layer=layer, **OPEN), ExchangedEntry(denoiser, number))
        for block, layer, number in branches(denoiser)
    ]
    return [*shallow, (STALE, ExchangedEncoder(denoiser))]


def _pair(model: Denoiser, method: Method, first: Inputs, second: Inputs) -> list[Tensor]:
    with accel.patch(model, method) as handle:
        outputs = evaluate(model, handle, [(_fresh(first), 500), (_fresh(second), 300)])
        assert [item.action for item in handle.report.decisions] == ["computed", "reused"]
    return outputs


def _fresh(inputs: Inputs) -> Inputs:
    # The UNet empties the list of an adapter's features.
    return {
        name: list(value) if isinstance(value, list) else value for name, value in inputs.items()
    }


def _check(model: Denoiser, first: Inputs, second: Inputs) -> None:
    for method, reference in _cases(model):
        found = _pair(model, method, first, second)
        expected = [
            reference(_fresh(first), 500, keep=True),
            reference(_fresh(second), 300, keep=False),
        ]
        for output, other in zip(found, expected, strict=True):
            assert torch.equal(output, other), method


def _noise(salt: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(salt))


# Of `three_levels` on latents of 8 x 8: one for each feature that skips, and the middle.
_SKIPS = [(8, 8), (8, 8), (8, 4), (8, 4), (8, 2), (16, 2)]


def _control(salt: int) -> Inputs:
    residuals = [
        _noise(salt + index, 1, channels, side, side)
        for index, (channels, side) in enumerate(_SKIPS)
    ]
    return {
        "down_block_additional_residuals": residuals,
        "mid_block_additional_residual": _noise(salt + 9, 1, 16, 2, 2),
    }


def test_a_control_net_acts_on_what_runs_and_is_part_of_what_is_kept() -> None:
    inputs = image_inputs()
    _check(three_levels(), inputs | _control(10), moved(inputs) | _control(20))


def test_without_its_control_net_a_partial_run_would_differ() -> None:
    model, inputs = three_levels(), image_inputs()
    controlled = moved(inputs) | _control(20)
    for method, _ in _cases(model):
        found = _pair(model, method, inputs | _control(10), controlled)[1]
        # What was kept holds the control of the whole run.
        assert not torch.equal(_pair(model, method, inputs, controlled)[1], found), method
        without = _pair(model, method, inputs | _control(10), moved(inputs))[1]
        # Faster Diffusion's decoder takes nothing from a ControlNet but what was kept.
        assert torch.equal(without, found) is (method is STALE), method


def test_a_control_net_that_comes_as_a_tuple_is_taken_as_well() -> None:
    model, inputs, control = three_levels(), image_inputs(), _control(10)
    as_tuple = control | {
        "down_block_additional_residuals": tuple(control["down_block_additional_residuals"])
    }
    method = DeepCache(block=1, **OPEN)
    outputs = [
        _pair(model, method, inputs | given, inputs | given)[1] for given in (control, as_tuple)
    ]
    assert torch.equal(*outputs)


# Of `three_levels`: behind every down block, in the middle of the second.
_BLOCKS = [(8, 4), (8, 4), (16, 2)]


def _adapter(salt: int, name: str) -> Inputs:
    return {
        name: [
            _noise(salt + index, 1, channels, side, side)
            for index, (channels, side) in enumerate(_BLOCKS)
        ]
    }


def test_an_adapter_acts_on_what_runs_and_is_part_of_what_is_kept() -> None:
    name, inputs = "down_intrablock_additional_residuals", image_inputs()
    _check(three_levels(), inputs | _adapter(10, name), moved(inputs) | _adapter(20, name))


@pytest.mark.filterwarnings("ignore:.*T2I should not use:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*intrablock residual connections.*:FutureWarning")
def test_an_adapter_in_the_place_of_a_control_net_does_so_too() -> None:
    name, inputs = "down_block_additional_residuals", image_inputs()
    _check(three_levels(), inputs | _adapter(10, name), moved(inputs) | _adapter(20, name))


def test_free_u_scales_what_is_kept_once_and_not_again() -> None:
    model, inputs = unet(), image_inputs()
    model.enable_freeu(s1=0.9, s2=0.2, b1=1.5, b2=1.6)
    for method, _ in _cases(model):
        # Each evaluation scales anew, so that a kept feature must not have been scaled already.
        with accel.patch(model, method.__class__(**_thrice(method))) as handle:
            outputs = evaluate(model, handle, [(inputs, 500)] * 3)
            assert handle.report.reused == 2
        assert torch.equal(outputs[0], outputs[1]), method
        assert torch.equal(outputs[0], outputs[2]), method


def _thrice(method: Method) -> dict[str, Any]:
    if isinstance(method, DeepCache):
        return {"interval": 3, "block": method.block, "layer": method.layer, **OPEN}
    return {"every": 3, "prior_noise": 0.0, **OPEN}


def test_free_u_acts_in_partial_runs() -> None:
    model, inputs = unet(), image_inputs()
    plain = [_pair(model, method, inputs, moved(inputs))[1] for method, _ in _cases(model)]
    model.enable_freeu(s1=0.9, s2=0.2, b1=1.5, b2=1.6)
    for (method, _), before in zip(_cases(model), plain, strict=True):
        assert not torch.equal(_pair(model, method, inputs, moved(inputs))[1], before)


@pytest.mark.parametrize(("height", "width"), [(7, 5), (9, 8)])
def test_sizes_that_do_not_halve_evenly_work(height: int, width: int) -> None:
    inputs = image_inputs(height=height, width=width)
    _check(three_levels(), inputs, moved(inputs))


def test_no_middle_block_is_needed() -> None:
    inputs = image_inputs()
    _check(three_levels(mid_block_type=None), inputs, moved(inputs))


def test_an_ip_adapter_acts_in_partial_runs() -> None:
    model, inputs = with_ip_adapter(), image_inputs()
    images = [{"added_cond_kwargs": {"image_embeds": [_noise(salt, 1, 1, 12)]}} for salt in (3, 4)]
    _check(model, inputs | images[0], moved(inputs) | images[0])
    # The branch that ends above the only attending block does not see the image.
    for method, _ in _cases(model)[2:]:
        found = [_pair(model, method, inputs | image, moved(inputs) | image)[1] for image in images]
        assert not torch.equal(*found), method


def test_a_lora_loaded_between_generations_acts_in_partial_runs_and_comes_off() -> None:
    model, inputs = unet(), image_inputs()
    torch.manual_seed(3)
    for method, _ in _cases(model):
        with accel.patch(model, method) as handle:
            order = [(inputs, 500), (moved(inputs), 300)]
            before = evaluate(model, handle, order)
            config = peft.LoraConfig(target_modules=["to_q", "to_v"], init_lora_weights=False)
            model.add_adapter(config, "style")
            during = evaluate(model, handle, order)
            model.delete_adapters(["style"])
            after = evaluate(model, handle, order)
        assert not torch.equal(before[1], during[1]), method
        assert torch.allclose(before[1], after[1], atol=1e-5), method
