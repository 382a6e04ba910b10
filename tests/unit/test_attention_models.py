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
    denoiser = case.denoiser(pipe)
    # A first call leaves traces of the library's own.
    case.run(pipe, steps=STEPS)
    before, classes = traces(denoiser), class_contents(denoiser)
    handle, _, _ = looked_at(pipe)
    case.run(pipe, steps=STEPS)
    assert class_contents(denoiser) == classes
    handle.unpatch()
    assert traces(denoiser) == before
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


def test_a_sample_whose_text_is_all_padding_is_offered_as_the_picture_alone() -> None:
    case = CASES["mochi"]
    pipe = case.make()
    _, seen, refusals = looked_at(pipe)
    nothing = {"negative_prompt_attention_mask": torch.zeros(1, 5, dtype=torch.bool)}
    found = case.run(pipe, steps=STEPS, **nothing)
    assert torch.equal(found, case.run(case.make(), steps=STEPS, **nothing))
    # One call a sample: the negative prompt's, then the prompt's.
    first, second = seen.attentions[:2]
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert first.query.shape[2] == first.place.length
    assert second.query.shape[2] == second.place.length + 5
    assert first.place == second.place
    assert len(seen) == 4 * STEPS * 2
    assert refusals == []


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


# Its first blocks mix tokens by other means, before the first that attends.
MIXED_BEFORE = {"SanaWMTransformer3DModel"}


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


def poked(sample: Tensor, place: Place) -> tuple[Tensor, int]:
    """The sample with one patch changed, and that patch's number in the picture."""
    sample = sample.clone()
    if sample.dim() == 3:
        sample[:, place.length - 2] += 1
        return sample, place.length - 2
    frames, rows, columns = place.lattice
    height, width = sample.shape[-2] // rows, sample.shape[-1] // columns
    # The last row's first patch, of the last frame.
    patch = sample[..., -height:, :width]
    if sample.dim() == 5:
        time = 1 if sample.shape[1] == frames else 2
        # Where frames are handled apart, a sample's first row is its first frame.
        patch = patch.narrow(time, sample.shape[time] - 1 if frames > 1 else 0, 1)
    patch += 1
    return sample, place.length - columns


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=str)
def test_a_changed_patch_changes_the_query_at_its_place(entry: Entry) -> None:
    inputs = entry.inputs()
    before = first_attention(entry, inputs)
    if before is None or before.place is None:
        assert (before is None) is (entry.name not in UNPLACED)
        assert before is None or UNPLACED[entry.name] in before.unplaced
        return
    sample, token = poked(inputs[entry.moving], before.place)
    after = first_attention(entry, inputs | {entry.moving: sample})
    changed = (before.query != after.query).any(dim=3).any(dim=1).nonzero().tolist()
    if entry.name in MIXED_BEFORE:
        assert [0, before.place.start + token] in changed
    else:
        assert changed == [[0, before.place.start + token]]


@pytest.mark.parametrize(("name", "index", "side"), [("sd15", 0, 8), ("sdxl", 0, 4)])
def test_a_changed_place_changes_a_unets_query_there_most(name: str, index: int, side: int) -> None:
    case = CASES[name]
    queries = []
    for poke in (0.0, 3.0):
        pipe = case.make()
        _, seen, _ = looked_at(pipe)
        latents = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        latents[:, :, 4:6, 2:4] += poke
        case.run(pipe, steps=1, latents=latents, guidance_scale=1.0)
        attention = seen.attentions[index]
        assert attention.place == Place(0, side**2, (1, side, side))
        queries.append(attention.query)
    change = (queries[1] - queries[0]).norm(dim=(1, 3))[0]
    row, column = divmod(int(change.argmax()), side)
    # Convolutions before it spread the change to neighbours.
    assert abs(row - 5 * side // 8) <= 1
    assert abs(column - 3 * side // 8) <= 1
