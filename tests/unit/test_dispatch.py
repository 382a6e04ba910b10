"""Attention that goes to another backend of diffusers is led through torch, and back afterwards."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from diffusers import attention_backend
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from torch import Tensor
from torch.nn.attention import SDPBackend

import accel
from accel import AccelUnsupportedError
from accel.attention import Attention
from accel.dispatch import through_torch
from tests.tiny import CASES
from tests.unit.attending import Attend, Outside, Seen, by_formula, looked_at


@contextmanager
def chosen(pipe: Any, how: str) -> Iterator[None]:
    """Chooses a backend of diffusers, for the model or for all of the process."""
    with ExitStack() as stack:
        # What is chosen for a model is left behind as the choice of the process.
        stack.enter_context(attention_backend("native"))
        if how == "model":
            pipe.transformer.set_attention_backend("_native_math")
        stack.enter_context(attention_backend("native" if how == "model" else "_native_math"))
        yield


@pytest.mark.parametrize("how", ["process", "model"])
def test_another_backend_of_diffusers_is_led_through_torch_and_stays_for_what_is_not_answered(
    how: str,
) -> None:
    case = CASES["flux"]
    pipe = case.make()
    with chosen(pipe, how):
        names = [dict(vars(module.processor)) for module in processing(pipe)]
        expected = case.run(pipe, steps=2)
        handle, seen, _ = looked_at(pipe)
        with Outside() as outside:
            assert torch.equal(case.run(pipe, steps=2), expected)
        assert len(seen) == 12
        assert outside.kernels == [{SDPBackend.MATH}] * 12
        handle.unpatch()
        accel.patch(pipe, Attend(answer=by_formula))
        with Outside() as outside:
            torch.testing.assert_close(case.run(pipe, steps=2), expected, atol=1e-4, rtol=1e-4)
        assert outside.kernels == []
        assert [dict(vars(module.processor)) for module in processing(pipe)] == names


def processing(pipe: Any) -> list[Any]:
    return [module for module in pipe.transformer.modules() if hasattr(module, "processor")]


def test_a_backend_that_may_need_block_masks_is_left_alone_and_named() -> None:
    case = CASES["flux"]
    pipe = case.make()
    for module in processing(pipe):
        module.processor._attention_backend = "flex"
    accel.patch(pipe, Attend(answer=Seen()))
    with pytest.raises(AccelUnsupportedError, match="FluxAttnProcessor, backend 'flex'"):
        case.run(pipe, steps=2)


class Processor:
    """As those of diffusers: a backend on the class, another on an instance."""

    _attention_backend = None


def test_a_shared_processor_is_put_back_when_the_last_is_through() -> None:
    processor = Processor()
    processor._attention_backend = "sage"
    first, second = ExitStack(), ExitStack()
    assert first.enter_context(through_torch(processor)).backend == "sage"
    assert second.enter_context(through_torch(processor)).backend == "sage"
    first.close()
    assert processor._attention_backend == "native"
    second.close()
    assert vars(processor) == {"_attention_backend": "sage"}


def test_what_was_not_on_the_instance_is_not_on_it_after() -> None:
    class Sage(Processor):
        _attention_backend = "sage"

    processor = Sage()
    with through_torch(processor):
        assert processor._attention_backend == "native"
    assert vars(processor) == {}


def test_a_backend_chosen_meanwhile_stays() -> None:
    processor = Processor()
    processor._attention_backend = "sage"
    with through_torch(processor):
        processor._attention_backend = "xformers"
    assert vars(processor) == {"_attention_backend": "xformers"}


@pytest.mark.parametrize("processor", [None, object(), Processor(), lambda: None])
def test_what_goes_through_torch_anyhow_is_left_alone(processor: Any) -> None:
    before = dict(getattr(processor, "__dict__", {}))
    with through_torch(processor) as detour:
        assert detour is None
        assert getattr(processor, "__dict__", {}) == before


def test_threads_whose_models_share_a_processor_do_not_disturb_each_other() -> None:
    case = CASES["flux"]
    shared = FluxAttnProcessor()
    shared._attention_backend = "_native_math"
    together = threading.Barrier(2, timeout=60)
    found = {}

    def answer(attention: Attention) -> Tensor:
        # Both are inside of a call of the processor.
        together.wait()
        return by_formula(attention)

    def generate(number: int, pipe: Any) -> None:
        found[number] = case.run(pipe, steps=2)

    threads = []
    for number in range(2):
        pipe = case.make()
        pipe.transformer.set_attn_processor(shared)
        accel.patch(pipe, Attend(answer=answer))
        threads.append(threading.Thread(target=generate, args=(number, pipe)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = case.run(case.make(), steps=2)
    for number in range(2):
        torch.testing.assert_close(found[number], expected, atol=1e-4, rtol=1e-4)
    assert vars(shared) == {"_attention_backend": "_native_math"}
