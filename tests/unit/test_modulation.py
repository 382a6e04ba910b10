"""What TeaCache compares is what really reaches the first attention, family by family."""

from typing import Any

import pytest
import torch

import accel
from accel.layers import Call
from accel.method import Binding
from caching import LinearPlan, MagCache, TeaCache
from caching.modulation import modulated_input
from tests.tiny import CASES


class Watch(LinearPlan):
    """Looks at the first block's modulated input before the block runs."""

    def bind(self, model: Any) -> Any:
        yield Binding(model.blocks[0], self._look)

    def _look(self, call: Call) -> Any:
        SEEN.append(modulated_input(call))
        return call.proceed()


SEEN: list[torch.Tensor] = []


@pytest.mark.parametrize(
    "name", ["flux", "sd3", "wan", "pixart", "ltx", "dit", "cogvideox", "mochi"]
)
def test_the_modulated_input_is_what_the_first_attention_receives(name: str) -> None:
    case = CASES[name]
    pipe = case.make()
    block = case.denoiser(pipe).get_submodule(_first_block(case.denoiser(pipe)))
    attention = getattr(block, "attn1", None) or block.attn
    received: list[torch.Tensor] = []

    def note(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        received.append(kwargs.get("hidden_states", args[0] if args else None))

    attention.register_forward_pre_hook(note, with_kwargs=True)
    SEEN.clear()
    with accel.patch(pipe, Watch(steps=6)):
        case.run(pipe)
    for seen, true in zip(SEEN, received, strict=True):
        torch.testing.assert_close(seen.float(), true.float(), atol=1e-5, rtol=1e-4)


def test_a_block_with_another_kind_of_modulation_gives_its_embedding() -> None:
    case = CASES["qwen_image"]
    pipe = case.make()
    SEEN.clear()
    with accel.patch(pipe, Watch(steps=6)):
        case.run(pipe)
    assert {tensor.shape for tensor in SEEN} == {(1, 24)}
    assert not torch.equal(SEEN[0], SEEN[-1])


def _first_block(denoiser: Any) -> str:
    stack = next(name for name in ("transformer_blocks", "blocks") if hasattr(denoiser, name))
    return f"{stack}.0"


@pytest.mark.parametrize("method", [TeaCache(threshold=0.3), MagCache(threshold=0.3)])
def test_a_calibrated_method_reuses_from_its_first_generation_on(method: Any) -> None:
    pipe = accel.zoo.load("scenes-flux")
    pipe.set_progress_bar_config(disable=True)
    call = {"height": 16, "width": 16, "num_inference_steps": 12, "max_sequence_length": 24}
    prompts = accel.zoo.prompts("scenes-flux", 2)
    found = accel.calibrate(pipe, method, prompts, **call)
    assert found != method
    assert not accel.status(pipe).patched
    handle = accel.patch(pipe, found)
    pipe(prompts[0], output_type="latent", **call)
    assert handle.report.engaged
    with pytest.raises(accel.ConflictError, match="unpatch"):
        accel.calibrate(pipe, method, prompts)


@pytest.mark.parametrize("method", [TeaCache(), MagCache()])
def test_too_few_evaluations_teach_nothing(method: Any) -> None:
    pipe = accel.zoo.load("scenes-flux")
    pipe.set_progress_bar_config(disable=True)
    call = {"height": 16, "width": 16, "num_inference_steps": 1, "output_type": "latent"}
    with pytest.raises(accel.OptionError, match="saw"):
        accel.calibrate(pipe, method, ["a red bag"], **call)
    assert not accel.status(pipe).patched
