"""The language models: bidirectional, block-causal and shifted, in every attention of transformers.

Also the fixtures that are shaped like the remote code of LLaDA and Dream.
"""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from accel.errors import AccelUnsupportedError, OptionError
from accel.zoo.language.blueprint import SHAPES, Shape, new_model, save_model, shape_named
from accel.zoo.language.drive import Drive, aligned_logits, as_bias, block_ids, may_attend
from accel.zoo.language.fast_forward import cast_weights, hidden_states
from accel.zoo.language.vocabulary import END_ID, MASK_ID, vocabulary
from tests.tiny.dream import dream
from tests.tiny.llada import llada

SMALL = Shape(hidden_size=64, intermediate_size=96, num_layers=2)
BLOCKS = Shape(hidden_size=64, intermediate_size=96, num_layers=2, block_length=4)
SHIFTED = Shape(hidden_size=64, intermediate_size=96, num_layers=2, logits_shifted=True)
ATTENTIONS = ("eager", "sdpa")


def random_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, len(vocabulary()), (rows, length), generator=generator)


def changed_at(ids: Tensor, column: int) -> Tensor:
    changed = ids.clone()
    changed[:, column] = ids[:, column] % (len(vocabulary()) - 6) + 6
    assert not torch.equal(changed, ids)
    return changed


@torch.no_grad()
def reached(model, ids: Tensor, column: int) -> list[int]:
    """The positions whose aligned logits change with the token in `column`."""
    drive, valid = Drive.of(model), torch.ones_like(ids, dtype=torch.bool)
    before, after = (
        aligned_logits(model, drive, each, valid) for each in (ids, changed_at(ids, column))
    )
    differs = (before - after).abs().amax((0, 2)) > 1e-6
    return differs.nonzero()[:, 0].tolist()


def loaded(model, folder: Path, attention: str):
    from transformers import LlamaForCausalLM

    save_model(folder, model)
    return LlamaForCausalLM.from_pretrained(
        folder, local_files_only=True, attn_implementation=attention
    ).eval()


@pytest.mark.parametrize("name", list(SHAPES))
def test_sizes_are_as_promised(name: str) -> None:
    count = sum(weight.numel() for weight in new_model(SHAPES[name]).parameters())
    low, high = (1.5e6, 2.5e6) if name == "tiny-llada" else (0.9e6, 1.2e6)
    assert low <= count <= high


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_token_reaches_every_position(attention: str) -> None:
    model = new_model(SMALL).eval()
    model.set_attn_implementation(attention)
    assert reached(model, random_ids(2, 12), 11) == list(range(12))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_saved_model_is_bidirectional_again(attention: str, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    model = loaded(new_model(SMALL), tmp_path, attention)
    assert type(model) is LlamaForCausalLM
    assert model.config._attn_implementation == attention
    assert model.dtype == torch.float32
    assert reached(model, random_ids(2, 12), 11) == list(range(12))


def test_a_saved_model_says_how_it_is_driven(tmp_path: Path) -> None:
    for number, shape in enumerate((SMALL, BLOCKS, SHIFTED)):
        model = loaded(new_model(shape), tmp_path / str(number), "sdpa")
        expected = Drive(MASK_ID, END_ID, shape.block_length, shape.logits_shifted)
        assert Drive.of(model) == expected


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_tokens_reach_only_their_own_and_later_blocks(attention: str) -> None:
    model = new_model(BLOCKS).eval()
    model.set_attn_implementation(attention)
    ids = random_ids(2, 12)
    assert reached(model, ids, 3) == list(range(12))
    assert reached(model, ids, 4) == list(range(4, 12))
    assert reached(model, ids, 11) == [8, 9, 10, 11]


def test_blocks_are_counted_from_the_first_valid_token() -> None:
    valid = torch.ones(2, 10, dtype=torch.bool)
    valid[1, :3] = False
    ids = block_ids(valid, 4)
    assert ids[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert ids[1, 3:].tolist() == [0, 0, 0, 0, 1, 1, 1]
    allowed = may_attend(valid, 4)[1, 0]
    assert allowed[6].tolist() == [False] * 3 + [True] * 4 + [False] * 3
    assert not allowed[:, :3].any()


def test_a_bias_hides_what_may_not_be_seen() -> None:
    bias = as_bias(torch.tensor([True, False]), torch.bfloat16)
    assert torch.equal(bias.softmax(-1), torch.tensor([1.0, 0.0], dtype=torch.bfloat16))


@pytest.mark.parametrize("shape", [SMALL, BLOCKS, SHIFTED], ids=["plain", "blocks", "shifted"])
def test_padding_on_the_left_changes_nothing(shape: Shape) -> None:
    model, ids = new_model(shape).eval(), random_ids(1, 10)
    drive = Drive.of(model)
    padded = torch.cat((torch.full((1, 5), 17), ids), dim=1)
    valid = torch.arange(15)[None] >= 5
    with torch.no_grad():
        alone = aligned_logits(model, drive, ids, torch.ones_like(ids, dtype=torch.bool))
        beside = aligned_logits(model, drive, padded, valid)[:, 5:]
    # A shifted model has no prediction for the first token of its sequence.
    first = int(shape.logits_shifted)
    torch.testing.assert_close(alone[:, first:], beside[:, first:], atol=2e-6, rtol=0)


def test_shifted_logits_are_read_one_row_early() -> None:
    model, ids = new_model(SHIFTED).eval(), random_ids(2, 8)
    valid = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        raw = model(input_ids=ids).logits
        aligned = aligned_logits(model, Drive.of(model), ids, valid)
    for position in range(1, 8):
        assert torch.equal(aligned[:, position], raw[:, position - 1])


@pytest.mark.parametrize("shape", [SMALL, BLOCKS], ids=["plain", "blocks"])
def test_the_forward_pass_of_training_equals_the_stock_one(shape: Shape) -> None:
    model, ids = new_model(shape, seed=3), random_ids(3, 20)
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[0, :6] = False
    drive = Drive.of(model)
    bias = as_bias(may_attend(valid, shape.block_length), torch.float32)
    weights = cast_weights(model, torch.float32)
    hidden = hidden_states(model, weights, ids, torch.arange(20), bias)
    expected = aligned_logits(model, drive, ids, valid)
    torch.testing.assert_close(model.lm_head(hidden)[valid], expected[valid], atol=1e-5, rtol=1e-5)


def test_equal_seeds_give_equal_weights_and_leave_the_global_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (new_model(SMALL, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    weights = [model.lm_head.weight for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_unknown_models_are_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no language model 'tiny-lada'; .*'tiny-llada'"):
        shape_named("tiny-lada")


@pytest.mark.parametrize(
    "config", [{"eos_token_id": 3}, {"eos_token_id": 3, "mask_token_id": None}]
)
def test_a_model_without_a_mask_token_is_refused(config: dict) -> None:
    with pytest.raises(AccelUnsupportedError, match="mask_token_id"):
        Drive.of(SimpleNamespace(config=SimpleNamespace(**config)))


@pytest.mark.parametrize("make", [llada, dream])
def test_the_fixtures_see_both_ways_and_survive_saving(make, tmp_path: Path) -> None:
    model, ids = make(), torch.arange(12).reshape(1, 12)
    changed = ids.clone()
    changed[0, -1] = 20
    with torch.no_grad():
        logits = model(ids).logits
        assert not torch.allclose(logits[:, 0], model(changed).logits[:, 0])
        model.save_pretrained(tmp_path)
        again = type(model).from_pretrained(tmp_path)
        assert torch.equal(again(ids).logits, logits)
    assert (model.config.mask_token_id, model.config.eos_token_id) == (30, 31)


def test_the_llada_fixture_hides_padding_and_refuses_a_cache() -> None:
    model, ids = llada(), torch.arange(8).reshape(1, 8)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])
    changed = ids.clone()
    changed[0, :2] = 25
    with torch.no_grad():
        one, other = (model(each, attention_mask=mask).logits for each in (ids, changed))
        assert not torch.allclose(model(ids).logits[:, 2:], one[:, 2:])
    assert torch.equal(one[:, 2:], other[:, 2:])
    with pytest.raises(AssertionError, match="no cache"):
        model(ids, use_cache=True)


def test_the_llada_fixture_keeps_keys_before_the_rotation() -> None:
    block = llada().model.transformer.blocks[0]
    x = torch.randn(1, 6, 24, generator=torch.Generator().manual_seed(0))
    whole, _ = block(x)
    _, past = block(x[:, :4], use_cache=True)
    ahead = block.attn_norm(x)
    assert torch.allclose(
        past[0], block.k_proj(ahead[:, :4]).unflatten(-1, (2, 12)).transpose(1, 2)
    )
    tail, _ = block(x[:, 4:], layer_past=past)
    torch.testing.assert_close(tail, whole[:, 4:])


def test_the_dream_fixture_places_tokens_by_position_ids() -> None:
    model, ids = dream(), torch.arange(6).reshape(1, 6)
    with torch.no_grad():
        plain = model(ids, "full").logits
        moved = model(ids, "full", torch.arange(6)[None] + 9).logits
        spread = model(ids, "full", 2 * torch.arange(6)[None]).logits
    torch.testing.assert_close(plain, moved, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(plain, spread, atol=1e-3)


def test_the_dream_fixture_generates_alike_with_and_without_padding() -> None:
    model, ids = dream(), torch.tensor([[3, 1, 4]])
    padded = torch.cat((torch.tensor([[9, 9]]), ids), dim=1)
    alone = model.diffusion_generate(ids).sequences[:, 3:]
    beside = model.diffusion_generate(padded, torch.tensor([[0, 0, 1, 1, 1]])).sequences[:, 5:]
    assert torch.equal(alone, beside)
    assert not (alone == model.config.mask_token_id).any()


def test_the_dream_fixture_passes_keys_and_values_through_a_cache() -> None:
    from transformers import DynamicCache

    model, ids = dream(), torch.arange(6).reshape(1, 6)
    cache = DynamicCache()
    with torch.no_grad():
        model(ids[:, :4], "full", past_key_values=cache)
        held = copy.deepcopy(cache)
        tail = model(ids[:, 4:], "full", past_key_values=cache).logits
        last = model(ids[:, 4:], "full", past_key_values=held, num_logits_to_keep=1).logits
    assert cache.get_seq_length() == 6
    torch.testing.assert_close(tail[:, -1:], last)
