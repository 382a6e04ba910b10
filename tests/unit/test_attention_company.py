"""Attention is answered beside what else is on a model: adapters, offloading, compilers."""

from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import pytest
import torch
from accelerate.hooks import add_hook_to_module
from diffusers.hooks import apply_group_offloading
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from peft import LoraConfig
from torch._dynamo.testing import CompileCounter

import accel
from accel.picture_tokens import Place
from tests.coverage.entries import ENTRIES
from tests.tiny import CASES, Pipeline
from tests.tiny.conditioned import CONDITIONED
from tests.tiny.observe import CallCounter
from tests.tiny.unets import image_inputs, with_ip_adapter
from tests.unit.attending import Attend, by_formula, looked_at

STEPS = 2


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def lora(pipe: Pipeline) -> None:
    config = LoraConfig(target_modules=["to_q", "to_k", "to_v"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipe.transformer.add_adapter(config)


def hooked(pipe: Pipeline) -> None:
    for module in pipe.transformer.modules():
        if type(module).__name__.endswith("Attention"):
            add_hook_to_module(module, CallCounter())


def offloaded(pipe: Pipeline) -> None:
    accelerate.cpu_offload(pipe.transformer, execution_device=torch.device("cpu"))


def group_offloaded(pipe: Pipeline) -> None:
    cpu = torch.device("cpu")
    apply_group_offloading(pipe.transformer, cpu, cpu, "leaf_level")


def fused(pipe: Pipeline) -> None:
    pipe.transformer.fuse_qkv_projections()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("flux", lora),
        ("wan", lora),
        ("flux", hooked),
        ("flux", offloaded),
        ("sd3", offloaded),
        ("wan", group_offloaded),
        ("flux", fused),
        ("cogvideox", fused),
        ("sd3", fused),
        ("aura_flow", fused),
    ],
)
def test_what_else_is_on_a_model_stays_in_force(
    name: str, change: Callable[[Pipeline], None], when: str
) -> None:
    case = CASES[name]
    plain, pipe = case.make(), case.make()
    change(plain)
    if when == "before":
        change(pipe)
    handle, seen, refusals = looked_at(pipe)
    if when == "after":
        change(pipe)
    expected = case.run(plain, steps=STEPS)
    assert torch.equal(case.run(pipe, steps=STEPS), expected)
    assert refusals == []
    assert all(attention.place is not None for attention in seen.attentions)
    handle.unpatch()
    accel.patch(pipe, Attend(answer=by_formula))
    torch.testing.assert_close(case.run(pipe, steps=STEPS), expected, atol=1e-4, rtol=1e-4)


def test_keys_of_an_ip_adapter_beside_flux_are_not_offered() -> None:
    conditioned = next(item for item in CONDITIONED.values() if "ip_adapter" in item.case.name)
    case = conditioned.case
    pipe, plain = case.make(), case.make()
    _, seen, refusals = looked_at(pipe)
    expected = case.run(plain, steps=STEPS, **conditioned.this)
    assert torch.equal(case.run(pipe, steps=STEPS, **conditioned.this), expected)
    calls = len(seen.attentions) // 6
    assert len(seen.attentions) == 6 * calls
    assert {attention.query.shape[2] for attention in seen.attentions} == {21}
    assert refusals == []
    assert not torch.allclose(expected, case.run(case.make(), steps=STEPS, **conditioned.other))


def test_as_many_keys_of_an_ip_adapter_as_the_picture_has_tokens_are_not_self_attention() -> None:
    conditioned = next(item for item in CONDITIONED.values() if "ip_adapter" in item.case.name)
    case = conditioned.case
    pipe = case.make()
    _, seen, _ = looked_at(pipe)
    # Four keys for the adapter's picture, and a picture of four tokens.
    case.run(pipe, steps=STEPS, height=32, width=32, **conditioned.this)
    assert {attention.query.shape[2] for attention in seen.attentions} == {9}


def test_an_ip_adapter_beside_a_unet_stays_in_force() -> None:
    model, plain = with_ip_adapter(), with_ip_adapter()
    inputs = image_inputs() | {
        "timestep": torch.tensor([500]),
        "added_cond_kwargs": {"image_embeds": [torch.ones(1, 1, 12)]},
    }
    handle, seen, refusals = looked_at(model)
    with torch.no_grad(), handle.generation(1):
        found = model(**inputs).sample
    assert torch.equal(found, plain(**inputs).sample)
    assert {attention.place.lattice for attention in seen.attentions} == {(1, 4, 4), (1, 2, 2)}
    assert refusals == []


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", ["flux", "wan"])
@pytest.mark.parametrize("what", ["attention", "block", "projection"])
def test_compiled_modules_are_answered_all_the_same(name: str, what: str) -> None:
    case = CASES[name]
    pipe = case.make()
    blocks = [
        module
        for module in pipe.transformer.modules()
        if type(module).__name__.endswith("TransformerBlock")
    ]
    for block in blocks:
        attention = getattr(block, "attn", None) or block.attn1
        parts = {"attention": attention, "block": block, "projection": attention.to_q}
        parts[what].compile(backend="eager")
    handle, seen, _ = looked_at(pipe)
    expected = case.run(case.make(), steps=STEPS)
    torch.testing.assert_close(case.run(pipe, steps=STEPS), expected)
    assert len(seen.attentions) == len(blocks) * STEPS * (2 if name == "wan" else 1)
    handle.unpatch()
    torch.testing.assert_close(case.run(pipe, steps=STEPS), expected)


@pytest.mark.usefixtures("_fresh_compiler")
def test_an_answer_is_in_no_graph() -> None:
    case = CASES["wan"]
    pipe = case.make()
    counter = CompileCounter()
    for block in pipe.transformer.blocks:
        block.attn1.compile(backend=counter, fullgraph=True)
    handle = accel.patch(pipe, Attend(answer=by_formula))
    case.run(pipe, steps=STEPS)
    assert counter.frame_count == 0
    handle.unpatch()
    case.run(pipe, steps=STEPS)
    assert counter.frame_count > 0


class Own:
    """A processor of the user's own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return FluxAttnProcessor()(*args, **kwargs)


class Derived(FluxAttnProcessor):
    """One that is made of a known one."""


@pytest.mark.parametrize(
    ("processor", "unplaced"),
    [(Own(), "how Own orders text and picture is not known"), (Derived(), None)],
)
def test_a_processor_of_the_users_own_is_answered(processor: Any, unplaced: str | None) -> None:
    case = CASES["flux"]
    pipe, plain = case.make(), case.make()
    pipe.transformer.set_attn_processor(processor)
    handle, seen, _ = looked_at(pipe)
    expected = case.run(plain, steps=STEPS)
    assert torch.equal(case.run(pipe, steps=STEPS), expected)
    assert {attention.unplaced for attention in seen.attentions} == {unplaced}
    assert len(seen) == 6 * STEPS
    handle.unpatch()
    accel.patch(pipe, Attend(answer=by_formula))
    torch.testing.assert_close(case.run(pipe, steps=STEPS), expected, atol=1e-4, rtol=1e-4)


def test_frames_that_a_model_handles_apart_have_their_places_and_time_has_none() -> None:
    entry = ENTRIES["LatteTransformer3DModel"]
    model = entry.make()
    handle, seen, refusals = looked_at(model)
    with torch.no_grad(), handle.generation(1):
        model(**entry.inputs())
    places = [attention.place for attention in seen.attentions]
    assert places == [Place(0, 16, (1, 4, 4)), None] * 3
    assert refusals == []


def test_attention_over_frames_alone_is_offered_without_a_place() -> None:
    case = CASES["animatediff"]
    pipe = case.make()
    _, seen, refusals = looked_at(pipe)
    assert torch.equal(case.run(pipe, steps=STEPS), case.run(case.make(), steps=STEPS))
    found = {(item.query.shape[2], item.place is not None) for item in seen.attentions}
    assert found == {(64, True), (16, True), (2, False)}
    reasons = {item.unplaced for item in seen.attentions if item.place is None}
    assert reasons == {"it is over the frames of single places"}
    assert refusals == []
