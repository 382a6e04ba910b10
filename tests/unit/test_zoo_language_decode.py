"""The plain decoder, and oracles that say what it must give."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from accel.errors import AccelUnsupportedError, OptionError
from accel.zoo.language.blueprint import Shape, new_model
from accel.zoo.language.decode import Plan, blank_canvas, decode
from accel.zoo.language.oracle import (
    Oracle,
    coupled_oracle,
    independent_oracle,
    shuffle_oracle,
)
from accel.zoo.language.vocabulary import MASK_ID

SAMPLES = 8000
PROMPT = [0]
BLOCKS = Shape(hidden_size=64, intermediate_size=96, num_layers=2, block_length=4)
PLAIN = Shape(hidden_size=64, intermediate_size=96, num_layers=2)


class Watched(nn.Module):
    """A model that keeps the ids of every call, and how long the prompts are."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model, self.config, self.dtype = model, model.config, model.dtype
        self.seen: list[Tensor] = []

    def forward(self, input_ids, attention_mask=None):
        self.seen.append(input_ids.clone())
        return self.model(input_ids=input_ids, attention_mask=attention_mask)

    def masks(self) -> list[list[int]]:
        """How many masks each row held, call by call."""
        return [(ids == self.config.mask_token_id).sum(1).tolist() for ids in self.seen]


def endless(shape: Shape):
    """A random model that never says its answer has ended."""
    model = new_model(shape).eval()
    model.config.eos_token_id = None
    return Watched(model)


def drawn(oracle: Oracle, gen_length: int, tokens_per_step: int, block_length: int = 0) -> Tensor:
    plan = Plan(
        gen_length=gen_length,
        tokens_per_step=tokens_per_step,
        block_length=block_length,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
    )
    return decode(oracle, [PROMPT] * SAMPLES, plan).tokens


def three_sigma(probability: float) -> float:
    return 3 * (probability * (1 - probability) / SAMPLES) ** 0.5 + 1e-9


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_pass_commits_exactly_so_many_tokens(count: int) -> None:
    model = endless(PLAIN)
    plan = Plan(gen_length=12, tokens_per_step=count, block_length=12)
    decoded = decode(model, [[7, 8, 9], [7, 8, 9, 10, 11]], plan)
    expected = [[left] * 2 for left in range(12, 0, -count)]
    assert model.masks() == expected
    assert decoded.forwards.tolist() == [len(expected)] * 2
    assert not (decoded.tokens == MASK_ID).any()


def test_blocks_are_finished_from_left_to_right() -> None:
    model = endless(PLAIN)
    decode(model, [[7, 8, 9]], Plan(gen_length=12, tokens_per_step=3, block_length=4))
    assert model.masks() == [[12], [9], [8], [5], [4], [1]]
    for ids in model.seen:
        masked = (ids[0, 3:] == MASK_ID).nonzero()[:, 0]
        first_block = int(masked[0]) // 4
        assert set(range(4 * first_block + 4, 12)) <= set(masked.tolist())


def test_a_model_with_blocks_of_its_own_counts_them_from_the_prompt() -> None:
    model = endless(BLOCKS)
    decode(model, [[7, 8, 9]], Plan(gen_length=6, tokens_per_step=4))
    # One answer token shares the block of the prompt's three.
    assert model.masks() == [[6], [5], [1]]


def test_padding_moves_no_block_and_no_token() -> None:
    model = endless(BLOCKS)
    short, long = [7, 8, 9], [20, 21, 22, 23, 24, 25, 26]
    plan = Plan(gen_length=9, tokens_per_step=2)
    both = decode(model, [short, long], plan)
    for row, prompt in enumerate((short, long)):
        alone = decode(model, [prompt], plan)
        assert torch.equal(alone.tokens[0], both.tokens[row])
        assert alone.forwards[0] == both.forwards[row]


class Scripted(nn.Module):
    """A model that is sure of one answer, position by position, as much as it is told to be."""

    dtype = torch.float32

    def __init__(self, answer: list[int], sureness: list[float]) -> None:
        super().__init__()
        self.answer, self.sureness = torch.tensor(answer), torch.tensor(sureness)
        self.config = SimpleNamespace(mask_token_id=9, eos_token_id=8)
        self.calls = 0

    def forward(self, input_ids, attention_mask=None):
        self.calls += 1
        logits = torch.zeros(*input_ids.shape, 10)
        logits[..., 9] = 50.0
        for place, (token, sure) in enumerate(zip(self.answer, self.sureness, strict=True)):
            logits[:, input_ids.shape[1] - len(self.answer) + place, token] = sure
        return SimpleNamespace(logits=logits)


def test_the_surest_tokens_come_first_and_an_ended_answer_stops() -> None:
    model = Scripted([1, 2, 8, 8, 8, 8], [3.0, 5.0, 4.0, 1.0, 1.0, 1.0])
    decoded = decode(model, [[0]], Plan(gen_length=6))
    assert decoded.tokens.tolist() == [[1, 2, 8, 8, 8, 8]]
    assert model.calls == 3
    sure_of_the_end = Scripted([1, 2, 8, 8, 8, 8], [1.0, 1.5, 4.0, 5.0, 5.0, 5.0])
    decoded = decode(sure_of_the_end, [[0]], Plan(gen_length=6))
    assert decoded.tokens.tolist() == [[1, 2, 8, 8, 8, 8]]
    assert decoded.forwards.tolist() == [6]


def test_whatever_follows_the_end_is_filled_with_it() -> None:
    model = Scripted([8, 1, 2], [9.0, 5.0, 5.0])
    decoded = decode(model, [[0]], Plan(gen_length=3, tokens_per_step=3))
    assert decoded.tokens.tolist() == [[8, 8, 8]]


def test_of_equally_sure_tokens_the_first_is_taken() -> None:
    model = Watched(Scripted([1, 1, 1, 1], [2.0, 2.0, 2.0, 2.0]))
    decode(model, [[0]], Plan(gen_length=4))
    assert [int((ids == 9).nonzero()[0, 1]) for ids in model.seen] == [1, 2, 3, 4]


def test_prompts_are_aligned_where_the_answers_begin() -> None:
    canvas, valid = blank_canvas([[1, 2, 3], [4]], 2, MASK_ID)
    assert canvas[:, 2].tolist() == [3, 4]
    assert (canvas[:, 3:] == MASK_ID).all()
    assert valid.tolist() == [[True] * 5, [False, False, True, True, True]]


@pytest.mark.parametrize(
    ("option", "value"),
    [("gen_length", 0), ("tokens_per_step", 0), ("block_length", -1), ("temperature", -0.5)],
)
def test_numbers_out_of_range_are_named(option: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"{option} is {value}; it must be"):
        Plan(**{"gen_length": 4, option: value})


def test_a_model_with_blocks_of_its_own_takes_no_other() -> None:
    with pytest.raises(OptionError, match="trained with blocks of 4"):
        decode(endless(BLOCKS), [[7]], Plan(gen_length=4, block_length=8))


@pytest.mark.parametrize("prompts", [[], [[7], []]])
def test_missing_prompts_are_refused(prompts: list[list[int]]) -> None:
    with pytest.raises(OptionError, match="expected one or more, not empty"):
        decode(endless(PLAIN), prompts, Plan(gen_length=4))


def test_a_model_without_a_mask_token_is_not_decoded() -> None:
    model = endless(PLAIN)
    del model.config.mask_token_id
    with pytest.raises(AccelUnsupportedError, match="mask_token_id"):
        decode(model, [[7]], Plan(gen_length=4))


def brute_force(oracle: Oracle, tokens: list[int], position: int, token: int) -> float:
    """The conditional probability by summing over the law in Python."""
    mask = oracle.config.mask_token_id
    fits = joint = 0.0
    for sequence, weight in zip(oracle.sequences.tolist(), oracle.law.tolist(), strict=True):
        if all(given in {mask, each} for given, each in zip(tokens, sequence, strict=True)):
            fits += weight
            joint += weight * (sequence[position] == token)
    return joint / fits


@pytest.mark.parametrize("shifted", [False, True])
def test_logits_are_exact_conditional_marginals(shifted: bool) -> None:
    sequences = torch.tensor([[0, 1, 2], [0, 2, 2], [1, 1, 0], [2, 2, 2], [2, 0, 1]])
    weights = torch.tensor([3.0, 1.0, 2.0, 0.5, 1.5])
    oracle = Oracle(sequences, weights, vocab_size=4, prompt_length=2, logits_shifted=shifted)
    for given in ([3, 3, 3], [0, 3, 3], [3, 2, 3], [3, 3, 2], [0, 3, 2], [2, 0, 1]):
        logits = oracle(torch.tensor([[7, 7, *given]])).logits[0]
        for position, token in itertools.product(range(3), range(4)):
            found = logits[2 + position - shifted].softmax(-1)[token].item()
            assert found == pytest.approx(brute_force(oracle, given, position, token), abs=1e-6)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(("count", "valid"), [(1, 1.0), (2, 3 / 8), (4, 3 / 32)])
def test_validity_of_a_shuffle_follows_arithmetic(count: int, valid: float, shifted: bool) -> None:
    oracle = shuffle_oracle(4, logits_shifted=shifted)
    tokens = drawn(oracle, 4, count)
    share = (oracle.probability(tokens) > 0).double().mean().item()
    assert share == pytest.approx(valid, abs=three_sigma(valid))


def three_pairs() -> Oracle:
    sequences = torch.tensor([[0, 1], [1, 0], [1, 1]])
    return Oracle(sequences, torch.tensor([0.2, 0.3, 0.5]), vocab_size=3)


def test_one_token_at_a_time_from_left_to_right_draws_from_the_joint_law() -> None:
    oracle = three_pairs()
    assert oracle.total_variation(drawn(oracle, 2, 1, block_length=1)) < 0.02


def test_tokens_drawn_at_once_have_their_marginals_and_no_more() -> None:
    oracle = three_pairs()
    # Marginals (.2, .8) and (.3, .7) against the law's .2, .3 and .5.
    product = (0.2 * 0.7, 0.8 * 0.3, 0.8 * 0.7)
    expected = 0.5 * (
        sum(abs(a - b) for a, b in zip((0.2, 0.3, 0.5), product, strict=True)) + 0.2 * 0.3
    )
    assert oracle.total_variation(drawn(oracle, 2, 2)) == pytest.approx(expected, abs=0.02)


def test_committing_the_surest_draw_favours_what_is_probable() -> None:
    oracle = three_pairs()
    # 00 (.06) commits the second 0; 01 (.14) the second 1, leaving 0 in 2 of 7; 1? (.8) the first.
    found = (0.14 * 2 / 7, 0.06 + 0.8 * 3 / 8, 0.14 * 5 / 7 + 0.8 * 5 / 8)
    expected = 0.5 * sum(abs(a - b) for a, b in zip((0.2, 0.3, 0.5), found, strict=True))
    assert oracle.total_variation(drawn(oracle, 2, 1)) == pytest.approx(expected, abs=0.02)


def test_coupled_names_fit_by_chance_when_drawn_at_once() -> None:
    oracle = coupled_oracle(5)
    assert (oracle.probability(drawn(oracle, 2, 1)) > 0).all()
    share = (oracle.probability(drawn(oracle, 2, 2)) > 0).double().mean().item()
    assert share == pytest.approx(0.2, abs=three_sigma(0.2))


def test_independent_tokens_lose_nothing_in_parallel() -> None:
    oracle = independent_oracle([[0.1, 0.9], [0.5, 0.5], [0.7, 0.3]])
    assert oracle.total_variation(drawn(oracle, 3, 3)) < 0.02
    tokens = torch.tensor([[1, 0, 0]])
    assert oracle.probability(tokens).item() == pytest.approx(0.9 * 0.5 * 0.7)


def test_tokens_that_cannot_be_together_count_as_nothing_given() -> None:
    oracle = coupled_oracle(2)
    impossible, nothing = torch.tensor([[0, 3]]), torch.tensor([[4, 4]])
    assert torch.equal(oracle.marginals(impossible), oracle.marginals(nothing))
    assert oracle.probability(impossible).item() == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sequences": torch.zeros(3)}, r"expected \[M, N\]"),
        ({"weights": torch.ones(2)}, r"expected \[M, N\]"),
        ({"vocab_size": 2}, "reach from 0 to 1; with a vocab_size of 2 they are 0 to 0"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0])}, "0 or more"),
        ({"weights": torch.zeros(3)}, "not all 0"),
        ({"sequences": torch.zeros(3, 2, dtype=torch.long)}, "given twice"),
        ({"prompt_length": 0}, "prompt_length is 0"),
    ],
)
def test_laws_that_are_none_are_refused(change: dict, said: str) -> None:
    law = {
        "sequences": torch.tensor([[0, 1], [1, 0], [1, 1]]),
        "weights": torch.ones(3),
        "vocab_size": 3,
        **change,
    }
    with pytest.raises(OptionError, match=said):
        Oracle(law.pop("sequences"), law.pop("weights"), **law)


def test_sequences_of_another_length_are_refused() -> None:
    with pytest.raises(OptionError, match=r"knows 5 positions \(1 of them prompt\); 4 were given"):
        shuffle_oracle(4)(torch.zeros(1, 4, dtype=torch.long))


def test_a_mask_over_the_sequence_is_refused_and_over_the_prompt_is_not() -> None:
    oracle, ids = shuffle_oracle(2), torch.tensor([[0, 2, 2]])
    oracle(ids, torch.tensor([[0, 1, 1]]))
    with pytest.raises(OptionError, match="hides part of the sequence"):
        oracle(ids, torch.tensor([[1, 1, 0]]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: shuffle_oracle(0), "1 to 7"),
        (lambda: shuffle_oracle(8), "1 to 7"),
        (lambda: coupled_oracle(0), "names is 0"),
        (lambda: independent_oracle([[1.0], [0.5, 0.5]]), r"\[1, 2\] tokens"),
    ],
)
def test_oracles_out_of_range_are_refused(make, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()
