"""ToCa on real tiny models: what it equals at its ends, which tokens it chooses, what it holds."""

from itertools import pairwise

import pytest
import torch

import accel
from caching import PAB, ToCa
from tests.tiny import CASES

OPEN = {"warmup": 1, "tail": 0, "min_steps": 0}
# No factors: `ratio` is the share in every module.
EVEN = {"layer_weight": 0.0, "mlp_factor": 1.0, "cross_factor": 1.0, "cell_bonus": 0.0}


@pytest.mark.parametrize("name", ["wan", "pixart", "dit", "sd3", "sd15"])
def test_on_a_real_model_a_ratio_of_zero_equals_holding_all_modules(name):
    case = CASES[name]
    found = {}
    for method in (
        ToCa(interval=3, ratio=0.0, **EVEN, **OPEN),
        PAB(spatial=3, cross=3, mlp=3, mlp_blocks=None, window=(0.0, 1.0), **OPEN),
    ):
        pipe = case.make()
        accel.patch(pipe, method)
        found[type(method)] = case.run(pipe)
    assert torch.equal(found[ToCa], found[PAB])


@pytest.mark.parametrize("name", ["wan", "pixart", "dit", "sd15"])
def test_on_a_real_model_a_ratio_of_one_equals_computing_all_but_attention(name):
    case = CASES[name]
    found = {}
    for method in (
        ToCa(interval=3, ratio=1.0, **EVEN, **OPEN),
        PAB(spatial=3, cross=None, window=(0.0, 1.0), **OPEN),
    ):
        pipe = case.make()
        accel.patch(pipe, method)
        found[type(method)] = case.run(pipe)
    assert torch.equal(found[ToCa], found[PAB])


def outputs_of(pipe, module, case, **request):
    """Returns what a module returned in each of its calls of one generation."""
    seen = []
    hook = module.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
    case.run(pipe, **request)
    hook.remove()
    return seen


def changed(new, old):
    """Returns which tokens [B, N] differ."""
    return (new != old).any(dim=-1)


REFRESHING = ToCa(interval=6, ratio=0.25, **EVEN, **OPEN)


def test_both_halves_of_a_batch_choose_the_same_tokens_and_two_pictures_their_own():
    case = CASES["sd3"]
    pipe = case.make()
    accel.patch(pipe, REFRESHING)
    seen = outputs_of(pipe, pipe.transformer.transformer_blocks[1].ff, case, batch=2)
    apart = 0
    for old, new in pairwise(seen):
        rows = changed(new, old)
        assert rows.sum(dim=1).tolist() == [4] * 4
        assert torch.equal(rows[:2], rows[2:])
        apart += int(not torch.equal(rows[0], rows[1]))
    assert apart


@pytest.mark.parametrize("name", ["wan", "flux_true_cfg"])
def test_both_calls_of_a_step_choose_the_same_tokens(name):
    case = CASES[name]
    pipe = case.make()
    accel.patch(pipe, REFRESHING)
    blocks = pipe.transformer.blocks if name == "wan" else pipe.transformer.transformer_blocks
    seen = outputs_of(pipe, blocks[1].ffn if name == "wan" else blocks[1].ff, case)
    first, second = seen[0::2], seen[1::2]
    for step in range(1, 6):
        rows = changed(first[step], first[step - 1])
        assert rows.sum() == rows.shape[1] // 4
        assert torch.equal(rows, changed(second[step], second[step - 1]))


def test_tokens_computed_alone_equal_those_of_the_whole_input():
    case = CASES["pixart"]
    pipe = case.make()
    block = pipe.transformer.transformer_blocks[0]
    accel.patch(pipe, ToCa(interval=6, ratio=0.25, **EVEN, **OPEN))
    whole = case.make().transformer.transformer_blocks[0].ff
    inputs = []
    hook = block.ff.register_forward_pre_hook(lambda _, args: inputs.append(args[0].clone()))
    seen = outputs_of(pipe, block.ff, case)
    hook.remove()
    for step in range(1, 5):
        rows = changed(seen[step], seen[step - 1])
        torch.testing.assert_close(seen[step][rows], whole(inputs[step])[rows])
        assert torch.equal(seen[step][~rows], seen[step - 1][~rows])


def test_text_in_front_of_the_picture_is_held_and_never_chosen():
    case = CASES["cogvideox"]
    pipe = case.make()
    accel.patch(pipe, ToCa(interval=6, ratio=0.5, **EVEN, **OPEN))
    seen = outputs_of(pipe, pipe.transformer.transformer_blocks[0].ff, case)
    for old, new in pairwise(seen):
        rows = changed(new, old)
        text = rows.shape[1] - 2 * int(rows[0].sum())
        assert text == 5
        assert not rows[:, :text].any()


@pytest.mark.parametrize("name", ["sd3", "flux", "qwen_image", "cogview4"])
def test_mlps_of_the_text_are_held(name):
    case = CASES[name]
    pipe = case.make()
    handle = accel.patch(pipe, ToCa(interval=6, ratio=0.5, **EVEN, **OPEN))
    block = pipe.transformer.transformer_blocks[0]
    own = getattr(block, "ff_context", None) or getattr(block, "txt_mlp", None)
    seen = outputs_of(pipe, own or block.ff, case)
    # CogView 4 has one MLP for both, called on the picture, then on the text; two calls a step.
    texts = seen[1::4] if own is None else seen[:: len(seen) // 6]
    assert texts[0].shape[1] == 5
    for text in texts[1:5]:
        assert torch.equal(text, texts[0])
    assert handle.report.warnings == ()


def test_an_mlp_that_mixes_tokens_is_held_whole_and_said_to_be():
    case = CASES["sana"]
    pipe = case.make()
    handle = accel.patch(pipe, ToCa(interval=6, ratio=0.5, **EVEN, **OPEN))
    seen = outputs_of(pipe, pipe.transformer.transformer_blocks[0].ff, case)
    for output in seen[1:]:
        assert torch.equal(output, seen[0])
    assert any("ff (GLUMBConv) is held whole" in warning for warning in handle.report.warnings)


def test_the_bonus_changes_which_tokens_are_chosen():
    case = CASES["dit"]
    chosen = []
    for bonus in (0.0, 1000.0):
        pipe = case.make()
        accel.patch(
            pipe,
            ToCa(interval=6, ratio=0.25, cell=2, **{**EVEN, "cell_bonus": bonus}, **OPEN),
        )
        seen = outputs_of(pipe, pipe.transformer.transformer_blocks[0].ff, case)
        chosen.append(changed(seen[1], seen[0])[0].view(4, 4))
    # With four tokens and four cells, a large bonus leaves one for each cell.
    cells = chosen[1].view(2, 2, 2, 2).sum(dim=(1, 3))
    assert cells.tolist() == [[1, 1], [1, 1]]
    assert not torch.equal(chosen[0], chosen[1])
