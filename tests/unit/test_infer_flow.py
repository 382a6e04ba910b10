"""Through which blocks the picture flows in models that no table knows, computed by hand."""

import pytest
import torch
from torch import Tensor, nn

import accel
from caching import DBCache
from tests.unit.flows import Model, Renamed, Skipping, Two, found, in_a_row, reused, runs
from tests.unit.toys import Chain, PairChain, Scale, drive, ones


class TwoLists(nn.Module):
    """A list for the text, then two for the picture: x2 x3, then x5 x7."""

    def __init__(self, *, apart: bool = False) -> None:
        super().__init__()
        self.last = nn.ModuleList(Scale(factor) for factor in (5, 7))
        self.first = nn.ModuleList(Scale(factor) for factor in (2, 3))
        self.text = nn.ModuleList(Scale(11) for _ in range(2))
        self.apart = apart

    def forward(self, hidden_states):
        text = in_a_row(self.text, hidden_states + 1)
        hidden_states = in_a_row(self.first, hidden_states)
        if self.apart:
            hidden_states = hidden_states + 0
        return in_a_row(self.last, hidden_states) + text


def test_lists_that_hand_the_picture_on_are_one_way_in_running_order():
    assert runs(found(TwoLists(), *ones(1))) == [["first.0", "first.1", "last.0", "last.1"]]
    # First block: 2.2; the others added 210 - 2; the text is 121 times 2.1, and always computed.
    assert reused(TwoLists(), *ones(1, 1.1)) == pytest.approx(2.2 + 208 + 121 * 2.1)


def test_lists_with_something_in_between_are_not_joined():
    assert runs(found(TwoLists(apart=True), *ones(1))) == [["last.0", "last.1"]]


class Joining(nn.Module):
    """Blocks of two streams, then blocks over both in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = PairChain().blocks
        self.joined = nn.ModuleList(Scale(factor) for factor in (2, 3))

    def forward(self, hidden_states, encoder_hidden_states):
        for block in self.pairs:
            encoder_hidden_states, hidden_states = block(hidden_states, encoder_hidden_states)
        joined = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        return in_a_row(self.joined, joined)[:, encoder_hidden_states.shape[1] :]


def test_blocks_over_both_streams_in_a_row_follow_blocks_over_two():
    sites = found(Joining(), torch.ones(1, 4, 1), torch.ones(1, 3, 1))
    assert runs(sites) == [["pairs.0", "pairs.1", "pairs.2"], ["joined.0", "joined.1"]]
    assert sites.direct


def _halving(x: Tensor) -> Tensor:
    return x.reshape(1, -1, 2).sum(dim=-1, keepdim=True)


def test_a_block_that_changes_the_tokens_always_runs_between_two_segments():
    functions = (
        *(lambda x: x * 2, lambda x: x * 3),
        _halving,
        *(lambda x: x * 5, lambda x: x * 7),
    )
    model = Model([Renamed(function) for function in functions], in_a_row)
    sites = found(model, torch.ones(1, 4, 1))
    assert runs(sites) == [["blocks.0", "blocks.1"], ["blocks.3", "blocks.4"]]
    assert sites.direct
    # Each of 4 tokens: 2.2, and 6 - 2 from the second block. Halved: twice that, in 2 tokens. The
    # last two blocks added 12 * 35 - 12 to each.
    expected = 2 * (2 * (2.2 + 4) + 12 * 34)
    first = torch.ones(1, 4, 1)
    assert reused(model, first, first * 1.1) == pytest.approx(expected)


def test_a_last_block_that_changes_the_tokens_always_runs():
    functions = (*(lambda x: x * 2, lambda x: x * 3), _halving)
    model = Model([Renamed(function) for function in functions], in_a_row)
    first = torch.ones(1, 4, 1)
    assert runs(found(model, first)) == [["blocks.0", "blocks.1"]]
    # Each of 4 tokens: 2.2, and 6 - 2 from the second block.
    assert reused(model, first, first * 1.1) == pytest.approx(4 * (2.2 + 4))


def _u_shaped(blocks, hidden_states):
    early = hidden_states = blocks[0](hidden_states)
    for block in blocks[1:-1]:
        hidden_states = block(hidden_states)
    return blocks[-1](hidden_states, early)


def test_late_blocks_that_get_early_outputs_are_skipped_but_never_left_in_the_tail():
    model = Model([Skipping(lambda h: h * 2) for _ in range(4)], _u_shaped)
    sites = found(model, *ones(1))
    assert len(sites.blocks) == 4
    assert not sites.direct
    # 1 -> 2 -> 4 -> 8 -> 16+2. First block: 2.2; the others added 18 - 2.
    assert reused(model, *ones(1, 1.1)) == pytest.approx(2.2 + 16)
    handle = accel.patch(model, DBCache(head=1, tail_blocks=1))
    with pytest.raises(accel.AccelUnsupportedError, match=r"tail_blocks is 1.*tail_blocks=0"):
        drive(model, handle, ones(1))


def _written_into(blocks, hidden_states):
    for block in blocks:
        hidden_states = block(hidden_states)
        hidden_states += 1
    return hidden_states * 2


def test_a_model_that_writes_into_what_a_block_returned_is_followed_but_not_direct():
    model = Model([Renamed(lambda x: x * 2) for _ in range(3)], _written_into)
    assert not found(model, *ones(1)).direct
    # 1 -> 2+1 -> 6+1 -> 14+1. First block: 2.2+1; the others added 14 - 3; 1 and x2 come after.
    assert reused(model, *ones(1, 1.1)) == pytest.approx(2 * (3.2 + 11 + 1))


def _early_output(blocks, hidden_states):
    early = blocks[1](blocks[0](hidden_states))
    return blocks[2](early) + early


def test_a_model_that_needs_an_early_output_at_its_end_is_refused():
    model = Model([Renamed(lambda x: x * 2) for _ in range(3)], _early_output)
    with pytest.raises(accel.AccelUnsupportedError, match=r"blocks\.0 .* gives another output"):
        found(model, *ones(1))


def test_a_model_that_uses_its_inputs_up_is_refused():
    def over(blocks, hidden_states, controls):
        for block in blocks:
            hidden_states = block(hidden_states) + controls.pop()
        return hidden_states

    model = Model([Renamed(lambda x: x * 2) for _ in range(3)], over)
    with pytest.raises(accel.AccelUnsupportedError, match=r"it fails \(IndexError"):
        found(model, *ones(1), [1, 2, 3])


def _crossing(blocks, hidden_states, encoder_hidden_states):
    decoded = hidden_states * 10
    for block in blocks[:2]:
        hidden_states, encoder_hidden_states = block(hidden_states, encoder_hidden_states)
    encoder_hidden_states = hidden_states
    for block in blocks[2:]:
        decoded, encoder_hidden_states = block(decoded, encoder_hidden_states)
    return decoded


@pytest.mark.parametrize("text_tokens", [3, 4])
def test_a_picture_that_becomes_the_text_of_another_starts_a_segment(text_tokens):
    model = Model([Two(lambda h, e: (h * 2 + e.sum(), e * 3)) for _ in range(5)], _crossing)
    sites = found(model, torch.ones(1, 4, 1), torch.ones(1, text_tokens, 1))
    assert runs(sites) == [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3", "blocks.4"]]


def test_blocks_that_run_twice_in_a_call_are_refused():
    def over(blocks, hidden_states):
        return in_a_row(blocks, in_a_row(blocks, hidden_states))

    with pytest.raises(accel.AccelUnsupportedError, match=r"blocks\.0 ran 2 times in one call"):
        found(Model([Renamed(lambda x: x * 2) for _ in range(3)], over), *ones(1))


def test_a_small_list_that_runs_twice_does_not_hide_the_stack():
    class Refining(Chain):
        def __init__(self):
            super().__init__(2, 3, 5)
            self.refiner = nn.ModuleList(Scale(2) for _ in range(2))

        def forward(self, hidden_states):
            hidden_states = in_a_row(self.refiner, in_a_row(self.refiner, hidden_states))
            return Chain.forward(self, hidden_states)

    assert runs(found(Refining(), *ones(1))) == [["blocks.0", "blocks.1", "blocks.2"]]


def test_a_long_list_of_other_modules_does_not_hide_the_stack():
    class Projecting(Chain):
        def __init__(self):
            super().__init__(2, 3, 5)
            self.projections = nn.ModuleList(nn.Linear(1, 2) for _ in range(9))

        def forward(self, hidden_states):
            for projection in self.projections:
                projection(hidden_states)
            return Chain.forward(self, hidden_states)

    assert runs(found(Projecting(), *ones(1))) == [["blocks.0", "blocks.1", "blocks.2"]]


def test_a_model_whose_lists_carry_nothing_says_so():
    model = Model([Renamed(lambda x: x.sum()) for _ in range(3)], lambda b, h: b[0](h) + b[1](h))
    with pytest.raises(accel.AccelUnsupportedError, match=r"blocks\.2 did not run"):
        found(model, *ones(1))
    model = Model([Renamed(lambda x: x.sum()) for _ in range(2)], lambda b, h: b[0](h) + b[1](h))
    with pytest.raises(accel.AccelUnsupportedError, match="nothing that is clearly one of its"):
        found(model, *ones(1))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_probing_works_in_every_mode_and_leaves_randomness_alone(mode):
    class Noisy(Chain):
        def forward(self, hidden_states):
            torch.rand(1)
            return Chain.forward(self, hidden_states)

    torch.manual_seed(0)
    torch.rand(1)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with mode():
        assert len(found(Noisy(2, 3, 5), *ones(1)).blocks) == 3
    assert torch.equal(torch.rand(1), expected)


def test_the_proof_calls_no_block():
    model = Chain(2, 3, 5)
    found(model, *ones(1))
    assert model.calls() == [1, 1, 1]
