"""Self-attention of real models is what is offered, where its tokens are said to be."""

from typing import Any

import pytest
import torch
from torch import Tensor

import accel
from accel.attention import Attention
from accel.picture_tokens import Place
from tests.coverage.entries import ENTRIES
from tests.coverage.entry import Entry
from tests.tiny import CASES, Case
from tests.tiny.observe import class_contents, traces
from tests.unit.attending import (
    Attend,
    by_formula,
    by_formula_in_another_order,
    looked_at,
)

# Modules that attend to themselves in one denoiser call, and pipelines' calls of it in a step.
MODULES = {
    "wan": (4, 2),
    "hunyuan_video": (5, 2),
    "ltx": (4, 1),
    "cogvideox": (4, 1),
    "mochi": (4, 1),
    "flux_true_cfg": (6, 2),
    "qwen_image": (4, 2),
    "sd3": (4, 1),
    "pixart": (4, 1),
    "sdxl": (8, 1),
}
FAMILIES = pytest.mark.parametrize("case", [CASES[name] for name in MODULES], ids=str)
STEPS = 2


def odd(case: Case) -> dict[str, int]:
    """A size that makes three rows of five tokens, or five of three."""
    return {"height": 96, "width": 160} if case.name == "ltx" else {"height": 80, "width": 48}


@FAMILIES
def test_an_answer_of_none_is_bit_equal_and_asked_once_a_self_attention(case: Case) -> None:
    pipe = case.make()
    _, seen, refusals = looked_at(pipe)
    assert torch.equal(
        case.run(pipe, steps=STEPS, batch=2), case.run(case.make(), steps=STEPS, batch=2)
    )
    modules, calls = MODULES[case.name]
    samples = 4 if case.name == "mochi" else 1
    assert len(seen) == modules * calls * STEPS * samples
    assert refusals == []


@FAMILIES
@pytest.mark.parametrize("answer", [by_formula, by_formula_in_another_order])
def test_answers_by_the_formula_give_what_the_model_gives(case: Case, answer: Any) -> None:
    pipe = case.make()
    accel.patch(pipe, Attend(answer=answer))
    found = case.run(pipe, steps=STEPS, batch=2, **odd(case))
    expected = case.run(case.make(), steps=STEPS, batch=2, **odd(case))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@FAMILIES
def test_an_answer_reaches_the_output(case: Case) -> None:
    pipe = case.make()
    accel.patch(pipe, Attend(answer=lambda attention: torch.zeros_like(attention.query)))
    assert not torch.allclose(case.run(pipe, steps=STEPS), case.run(case.make(), steps=STEPS))


@FAMILIES
def test_every_offered_attention_tells_where_the_picture_is(case: Case) -> None:
    pipe = case.make()
    _, seen, _ = looked_at(pipe)
    case.run(pipe, steps=STEPS, **odd(case))
    assert seen.attentions
    for attention in seen.attentions:
        assert attention.unplaced is None
        assert attention.place is not None
        assert attention.place.lattice is not None
        frames, rows, columns = attention.place.lattice
        assert frames * rows * columns == attention.place.length


@FAMILIES
def test_removal_leaves_no_trace(case: Case) -> None:
    pipe = case.make()
    before, classes = traces(pipe), class_contents(case.denoiser(pipe))
    handle, _, _ = looked_at(pipe)
    case.run(pipe, steps=STEPS)
    assert class_contents(case.denoiser(pipe)) == classes
    handle.unpatch()
    assert traces(pipe) == before
    assert class_contents(case.denoiser(pipe)) == classes
    assert torch.equal(case.run(pipe, steps=STEPS), case.run(case.make(), steps=STEPS))


# Where text starts, of five tokens, in a sequence with a picture of 32 tokens in two frames or 16.
@pytest.mark.parametrize(("name", "text"), [("hunyuan_video", 32), ("qwen_image", 0)])
def test_text_tokens_that_are_padding_are_not_valid(name: str, text: int) -> None:
    case = CASES[name]
    pipe = case.make()
    _, seen, _ = looked_at(pipe)
    case.run(pipe, steps=STEPS, batch=2)
    absent = {
        tuple(map(tuple, (~attention.valid).nonzero().tolist()))
        for attention in seen.attentions
        if attention.valid is not None
    }
    # The negative prompts are one token shorter.
    assert absent - {()} == {((0, text + 4), (1, text + 4))}


# Why the place is not known in these models, of those that have self-attention to offer.
UNPLACED = {
    "DreamLiteTransformer2DModel": "how many tokens",
    "HunyuanImageTransformer2DModel": "how many tokens",
    "HunyuanVideoFramepackTransformer3DModel": "is handed 14 tokens; the picture has 8",
    "JoyImageEditPlusTransformer3DModel": "how many tokens",
    "Lumina2Transformer2DModel": "how Lumina2AttnProcessor2_0 orders",
    "MiniMaxH3Transformer3DModel": "how MiniMaxH3AttnProcessor orders",
    "MiniMaxMusic3Transformer1DModel": "how MiniMaxMusic3AttnProcessor orders",
    "PriorTransformer": "how many tokens",
    "StableAudioDiTModel": "how StableAudioAttnProcessor2_0 orders",
    "Transformer2DModel": "how many tokens",
    "TransformerTemporalModel": "how many tokens",
    "UVit2DModel": "how AttnProcessor2_0 orders",
}


def first_attention(entry: Entry, inputs: dict[str, Any]) -> Attention | None:
    model = entry.make()
    handle, seen, _ = looked_at(model, strict=False)
    with torch.no_grad(), handle.generation(2):
        # A model in no table is watched in its first call.
        for _ in range(2):
            seen.attentions.clear()
            model(**inputs)
            handle.advance()
    return seen.attentions[0] if seen.attentions else None


def poked(sample: Tensor, place: Place) -> tuple[Tensor, int, int]:
    """The sample with one patch changed, the patch's frame, and its number in the picture."""
    sample = sample.clone()
    if sample.dim() == 3:
        sample[:, place.length - 2] += 1
        return sample, 0, place.length - 2
    frames, rows, columns = place.lattice
    height, width = sample.shape[-2] // rows, sample.shape[-1] // columns
    # The last row's first patch, of the last frame.
    patch = sample[..., -height:, :width]
    if sample.dim() == 5 and frames > 1:
        time = 1 if sample.shape[1] == frames else 2
        patch = patch.narrow(time, sample.shape[time] - 1, 1)
    patch += 1
    return sample, frames - 1, frames * rows * columns - columns


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=str)
def test_a_changed_patch_changes_the_query_at_its_place(entry: Entry) -> None:
    inputs = entry.inputs()
    before = first_attention(entry, inputs)
    if before is None or before.place is None:
        assert (before is None) is (entry.name not in UNPLACED)
        assert before is None or UNPLACED[entry.name] in before.unplaced
        return
    sample, frame, token = poked(inputs[entry.moving], before.place)
    after = first_attention(entry, inputs | {entry.moving: sample})
    changed = (before.query != after.query).any(dim=3).any(dim=1).nonzero().tolist()
    print(changed, before.place, token)
    assert [0, before.place.start + token] in changed
    assert len(changed) == 1
