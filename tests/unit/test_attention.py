"""What of a module's attention is offered, what is refused and why; nothing stays behind."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import attention_backend
from torch import Tensor, nn

import accel
from accel import AccelUnsupportedError, OptionError
from accel.attention import Attention
from tests.tiny import CASES
from tests.unit.attending import Attend, Outside, Seen, by_formula
from tests.unit.toys import drive

TOKENS = 6
INF = float("inf")


class SelfAttention(nn.Module):
    """Two heads of four channels over the tokens themselves, as these options say."""

    def __init__(self, *args: Any, heads: int = 2, **options: Any) -> None:
        super().__init__()
        self.args, self.options, self.heads = args, options, heads
        self.absent = False

    def forward(self, hidden_states: Tensor) -> Tensor:
        if self.absent:
            return hidden_states
        query = hidden_states.unflatten(2, (2, 4)).transpose(1, 2)
        key, value = 2 * query[:, : self.heads], 3 * query[:, : self.heads]
        attended = F.scaled_dot_product_attention(query, key, value, *self.args, **self.options)
        return attended.transpose(1, 2).flatten(2)


class Flat(nn.Module):
    """Attention of one head without a dimension for it."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(hidden_states, hidden_states, hidden_states)


class Block(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attn = attention

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + self.attn(hidden_states)


class Model(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(attention), Block(SelfAttention())])

    def forward(self, hidden_states: Tensor) -> Tensor:
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return hidden_states


def sample(seed: int = 0, rows: int = 2) -> Tensor:
    return torch.randn(rows, TOKENS, 8, generator=torch.Generator().manual_seed(seed))


def patched(attention: nn.Module, answer: Any, **options: Any) -> tuple[Model, accel.Patch]:
    """A model that has been probed, so that its first attention is what is offered first."""
    model = Model(attention)
    handle = accel.patch(model, Attend(answer=answer, **options))
    drive(model, handle, [sample()])
    return model, handle


def offered(attention: nn.Module) -> tuple[Attention | None, list[str]]:
    """What is offered of this module, and why something is not; its output stays the model's."""
    seen, refusals = Seen(), list[str]()
    model, handle = patched(attention, seen, refusals=refusals)
    seen.attentions.clear()
    refusals.clear()
    found = drive(model, handle, [sample(1)])[0]
    assert torch.equal(found, Model(attention)(sample(1)))
    first = seen.attentions[0] if len(seen) == 2 else None
    return first, refusals


def test_what_is_offered_is_what_the_module_asked_for() -> None:
    attention, refusals = offered(SelfAttention())
    query = sample(1).unflatten(2, (2, 4)).transpose(1, 2)
    assert torch.equal(attention.query, query)
    assert torch.equal(attention.key, 2 * query)
    assert torch.equal(attention.value, 3 * query)
    assert (attention.mask, attention.valid, attention.ordinal) == (None, None, 0)
    assert attention.scale == 0.5
    assert attention.place == (0, TOKENS, None)
    assert refusals == []


def test_a_scale_of_the_modules_own_is_passed_on() -> None:
    assert offered(SelfAttention(scale=0.3))[0].scale == 0.3


def test_fewer_heads_of_keys_stay_fewer() -> None:
    attention, refusals = offered(SelfAttention(heads=1, enable_gqa=True))
    assert attention.key.shape == (2, 1, TOKENS, 4)
    assert refusals == []


def test_the_answer_is_what_the_module_gets() -> None:
    for attention in (SelfAttention(), SelfAttention(heads=1, enable_gqa=True)):
        model, handle = patched(attention, by_formula)
        found = drive(model, handle, [sample(1)])[0]
        torch.testing.assert_close(found, Model(attention)(sample(1)), atol=1e-4, rtol=1e-4)


PADDING = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


@pytest.mark.parametrize("options", [{"attn_mask": PADDING[:, None, None]}, {}])
def test_a_mask_of_missing_keys_says_which_are_valid(options: dict[str, Any]) -> None:
    positional = () if options else (PADDING[:, None, None],)
    attention, refusals = offered(SelfAttention(*positional, **options))
    assert attention.valid.tolist() == PADDING.tolist()
    assert attention.mask.shape == (2, 1, 1, TOKENS)
    assert refusals == []


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (SelfAttention(is_causal=True), "it is causal"),
        (SelfAttention(None, 0.0, True), "it is causal"),
        (SelfAttention(torch.eye(TOKENS) > 0), "its mask has a row for each query"),
        (Flat(), "of 3 dimensions"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_its_reason(
    attention: nn.Module, reason: str
) -> None:
    found, refusals = offered(attention)
    assert found is None
    assert len(refusals) == 1
    assert reason in refusals[0]


def test_attention_to_other_tokens_runs_as_it_would_beside_it() -> None:
    class Both(SelfAttention):
        def forward(self, hidden_states: Tensor) -> Tensor:
            query = hidden_states.unflatten(2, (2, 4)).transpose(1, 2)
            memory = torch.cat([query, query + 1], dim=2)
            looked_up = F.scaled_dot_product_attention(query, memory, memory)
            attended = super().forward(hidden_states)
            return attended + looked_up.transpose(1, 2).flatten(2)

    attention, refusals = offered(Both())
    assert attention.key.shape == attention.query.shape
    assert refusals == []


def test_dropout_is_refused() -> None:
    seen, refusals = Seen(), list[str]()
    model, handle = patched(SelfAttention(dropout_p=0.5), seen, refusals=refusals)
    drive(model, handle, [sample(1)])
    assert set(refusals) == {"it has a dropout of 0.5"}


def test_values_of_another_width_are_refused() -> None:
    class Wide(SelfAttention):
        def forward(self, hidden_states: Tensor) -> Tensor:
            query = hidden_states.unflatten(2, (2, 4)).transpose(1, 2)
            value = torch.cat([query, query], dim=3)
            attended = F.scaled_dot_product_attention(query, query, value)
            return attended[..., :4].transpose(1, 2).flatten(2)

    found, refusals = offered(Wide())
    assert found is None
    assert refusals == ["its values have 8 channels, its queries 4"]


def test_attention_that_gradients_go_through_is_refused() -> None:
    seen, refusals = Seen(), list[str]()
    model, handle = patched(SelfAttention(), seen, refusals=refusals)
    seen.attentions.clear()
    hidden = sample(1).requires_grad_()
    drive(model, handle, [hidden])[0].sum().backward()
    assert hidden.grad is not None
    assert len(seen) == 0
    assert set(refusals) == {"gradients are asked for"}
    with torch.no_grad():
        drive(model, handle, [hidden])
    assert len(seen) == 2


def test_attention_of_a_sequence_split_over_devices_is_refused() -> None:
    attention = SelfAttention()
    attention.processor = SimpleNamespace(_parallel_config="two devices")
    found, refusals = offered(attention)
    assert found is None
    assert refusals == ["its sequence is split over devices"]


def test_without_anybody_to_tell_the_report_warns_of_refusals_once() -> None:
    model, handle = patched(SelfAttention(is_causal=True), Seen())
    drive(model, handle, [sample(1), sample(2)])
    said = "attention of blocks.0.attn is computed as the model does: it is causal"
    assert handle.report.warnings.count(said) == 1


def test_under_autocast_the_answer_gets_what_the_model_would_compute_with() -> None:
    seen = Seen()
    model, handle = patched(SelfAttention(), seen)
    seen.attentions.clear()
    with torch.autocast("cpu", torch.bfloat16):
        drive(model, handle, [sample(1)])
    assert {attention.query.dtype for attention in seen.attentions} == {torch.bfloat16}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda attention: attention.query.double(),
        lambda attention: attention.query.transpose(1, 2),
    ],
)
def test_an_answer_of_another_shape_or_dtype_is_an_error(wrong: Any) -> None:
    with pytest.raises(
        OptionError, match=r"answer for blocks.0.attn is .* expected \(2, 2, 6, 4\)"
    ):
        drive(*patched(SelfAttention(), wrong), [sample(1)])


def test_attention_inside_of_an_answer_is_torchs_own() -> None:
    def dense(attention: Attention) -> Tensor:
        return F.scaled_dot_product_attention(attention.query, attention.key, attention.value)

    model, handle = patched(SelfAttention(), dense)
    with Outside() as outside:
        found = drive(model, handle, [sample(1)])[0]
    assert torch.equal(found, Model(SelfAttention())(sample(1)))
    assert len(outside.kernels) == 2


def test_attention_in_another_thread_is_not_seen() -> None:
    seen = Seen()

    def elsewhere(attention: Attention) -> None:
        thread = threading.Thread(target=lambda: Model(SelfAttention())(sample(2)))
        thread.start()
        thread.join()
        seen(attention)

    model, handle = patched(SelfAttention(), elsewhere)
    seen.attentions.clear()
    drive(model, handle, [sample(1)])
    assert len(seen) == 2


def test_an_error_in_an_answer_gets_out_and_leaves_nothing_behind() -> None:
    case = CASES["flux"]
    pipe = case.make()
    expected = case.run(pipe, steps=2)
    processors = [
        module.processor for module in pipe.transformer.modules() if hasattr(module, "processor")
    ]
    before = [dict(vars(processor)) for processor in processors]

    def fail(attention: Attention) -> Tensor | None:
        if attention.place.length:
            raise ZeroDivisionError
        return None

    handle = accel.patch(pipe, Attend(answer=fail))
    with attention_backend("_native_math"), pytest.raises(ZeroDivisionError):
        case.run(pipe, steps=2)
    assert [dict(vars(processor)) for processor in processors] == before
    assert torch._C._len_torch_function_stack() == 0
    handle.disable()
    assert torch.equal(case.run(pipe, steps=2), expected)


def test_without_a_look_at_the_denoiser_there_is_no_place_and_that_is_said() -> None:
    seen = Seen()
    patched(SelfAttention(), seen, pictures=False)
    model, handle = patched(SelfAttention(), seen, pictures=False)
    drive(model, handle, [sample(1)])
    assert {(item.place, item.unplaced) for item in seen.attentions} == {
        (None, "nothing looks at the denoiser's call (`pictured`)")
    }


def test_a_module_that_never_asks_torch_is_named_with_its_processor() -> None:
    case = CASES["sana"]
    pipe = case.make()
    accel.patch(pipe, Attend(answer=Seen()))
    with pytest.raises(
        AccelUnsupportedError,
        match=r"transformer_blocks.0.attn1 \(.*processor SanaLinearAttnProcessor2_0\).*it never",
    ):
        case.run(pipe, steps=2)


def test_where_the_user_asked_for_it_such_modules_are_noted_once() -> None:
    case = CASES["sana"]
    pipe = case.make()
    handle = accel.patch(pipe, Attend(answer=Seen()), strict=False)
    for _ in range(2):
        assert torch.equal(case.run(pipe, steps=2), case.run(case.make(), steps=2))
    assert len([note for note in handle.status().notes if "No self-attention of" in note]) == 1


def test_a_module_that_asked_torch_before_may_leave_it_out() -> None:
    attention = SelfAttention()
    model, handle = patched(attention, Seen())
    with handle.generation(2):
        model(sample(1))
        handle.advance()
        attention.absent = True
        model(sample(2))
    # A generation in which it never does is another matter.
    with pytest.raises(AccelUnsupportedError, match=r"blocks\.0\.attn"):
        drive(model, handle, [sample(3)])
