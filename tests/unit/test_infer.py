"""What flows through models that no table knows, on models small enough to compute by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import accel
from accel.probe import Probe
from accel.sites import BlockIO, ModelSites
from caching import DBCache, FirstBlockCache
from tests.unit.toys import Chain, PairChain, Scale, drive, ones

METHOD = FirstBlockCache(threshold=10, warmup=0, tail=0, min_steps=0)


def found(model: nn.Module, *inputs: Any) -> ModelSites:
    """Returns the sites that one call of the model shows."""
    with Probe(model) as probe:
        output = model(*inputs)
    return probe.sites(lambda: model(*inputs), output)


def runs(sites: ModelSites) -> list[list[str]]:
    """Returns the paths of the blocks by segment."""
    segments: dict[int, list[str]] = {}
    for site in sites.blocks:
        segments.setdefault(site.segment, []).append(site.path)
    return list(segments.values())


def reused(model: nn.Module, first: Any, second: Any, *others: Tensor) -> float:
    """Returns what a reused second step gives, after a probing call and a computed first step."""
    handle = accel.patch(model, METHOD)
    drive(model, handle, [first], *others)
    outputs = drive(model, handle, [first, second], *others)
    assert handle.report.reused == 1
    return float(outputs[1].sum())


class Model(nn.Module):
    """Blocks in a list, and a forward of one's own over them."""

    def __init__(self, blocks: Sequence[nn.Module], forward: Callable[..., Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.over = forward

    def forward(self, hidden_states: Tensor, *others: Any) -> Any:
        return self.over(self.blocks, hidden_states, *others)


class Block(nn.Module):
    """A block that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.zeros(1), requires_grad=False)


class Renamed(Block):
    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Skipping(Block):
    def forward(self, hidden_states: Tensor, skip: Tensor | None = None) -> Any:
        return self.function(hidden_states) if skip is None else self.function(hidden_states) + skip


class Two(Block):
    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Any:
        return self.function(hidden_states, encoder_hidden_states)


def in_a_row(blocks: nn.ModuleList, stream: Any) -> Any:
    for block in blocks:
        stream = block(stream)
    return stream


def test_streams_of_equal_shape_are_told_by_what_the_next_block_gets():
    sites = found(PairChain(), ones(1)[0], ones(1)[0])
    expected = BlockIO("hidden_states", 1, "encoder_hidden_states", 0)
    assert {site.io for site in sites.blocks} == {expected}
    # By hand: 1 -> 2+1 -> 6+3 -> 18+9 = 27. First block: 2.2+1; the others added 27 - 3.
    assert reused(PairChain(), *ones(1, 1.1), *ones(1)) == pytest.approx(3.2 + 24)


class Aloof(PairChain):
    def forward(self, hidden_states, encoder_hidden_states):
        for block in self.blocks:
            text, hidden_states = block(hidden_states, encoder_hidden_states)
            encoder_hidden_states, hidden_states = text.clone(), hidden_states.clone()
        return hidden_states


def test_where_nothing_is_handed_on_streams_are_told_by_their_shapes():
    sites = found(Aloof(), torch.ones(1, 4, 1), torch.ones(1, 3, 1))
    assert sites.blocks[0].io == BlockIO("hidden_states", 1, "encoder_hidden_states", 0)
    assert not sites.direct


def test_equal_shapes_that_nothing_tells_apart_are_not_guessed():
    with pytest.raises(accel.AccelUnsupportedError, match="nothing that is clearly one of its"):
        found(Aloof(), *ones(1), *ones(1))


def test_any_name_will_do_where_the_next_block_gets_the_output():
    model = Model([Renamed(lambda x, f=factor: x * f) for factor in (2, 3, 5)], in_a_row)
    assert {site.io for site in found(model, *ones(1)).blocks} == {BlockIO("x")}
    # First block: 2.2; the others added 30 - 2.
    assert reused(model, *ones(1, 1.1)) == pytest.approx(2.2 + 28)


class Named(Block):
    def forward(self, left: Tensor, right: Tensor) -> Any:
        return left * 2, right * 3


def _both(blocks, hidden_states):
    left, right = hidden_states, hidden_states + 1
    for block in blocks:
        left, right = block(left, right)
    return left + right


def test_two_streams_whose_names_do_not_tell_the_picture_are_refused():
    with pytest.raises(accel.AccelUnsupportedError, match=r"'left' and 'right'.*do not tell"):
        found(Model([Named(None) for _ in range(3)], _both), *ones(1))


def test_a_list_that_comes_out_is_read_like_a_tuple():
    def over(blocks, hidden_states, text):
        for block in blocks:
            hidden_states, text = block(hidden_states, text)
        return hidden_states + text

    model = Model([Two(lambda h, e: [h * 2, e * 3]) for _ in range(3)], over)
    sites = found(model, *ones(1), *ones(1))
    assert sites.blocks[0].io == BlockIO("hidden_states", 0, "encoder_hidden_states", 1)
    # First block: 2.2 and 3; the others added 8 - 2 and 27 - 3.
    assert reused(model, *ones(1, 1.1), *ones(1)) == pytest.approx(2.2 + 6 + 27)


def test_a_further_output_that_nobody_needs_is_left_empty():
    def over(blocks, hidden_states):
        for block in blocks:
            hidden_states, _ = block(hidden_states)
        return hidden_states

    model = Model(
        [Renamed(lambda x, f=factor: (x * f, torch.ones(7))) for factor in (2, 3, 5)], over
    )
    assert {site.io for site in found(model, *ones(1)).blocks} == {
        BlockIO("x", hidden_index=0, length=2)
    }
    assert reused(model, *ones(1, 1.1)) == pytest.approx(2.2 + 28)


def _with_weights(blocks, hidden_states):
    total = 0
    for block in blocks:
        hidden_states, weights = block(hidden_states)
        total = total + weights.sum()
    return hidden_states, total


def test_a_further_output_that_the_model_needs_is_refused():
    blocks = [Renamed(lambda x: (x * 2, torch.ones(7))) for _ in range(3)]
    with pytest.raises(accel.AccelUnsupportedError, match=r"blocks\.0 .* it fails \(AttributeErr"):
        found(Model(blocks, _with_weights), *ones(1))


class Three(Block):
    def forward(self, hidden_states: Tensor, text: Tensor, audio: Tensor) -> Any:
        return hidden_states * 2, text * 2, audio * 2


def test_a_third_stream_is_refused():
    def over(blocks, hidden_states):
        streams = (hidden_states, hidden_states + 1, hidden_states + 2)
        for block in blocks:
            streams = block(*streams)
        return sum(streams)

    with pytest.raises(accel.AccelUnsupportedError, match="carries 3 streams"):
        found(Model([Three(None) for _ in range(3)], over), *ones(1))


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
    return hidden_states


def test_a_model_that_writes_into_what_a_block_returned_is_followed_but_not_direct():
    model = Model([Renamed(lambda x: x * 2) for _ in range(3)], _written_into)
    assert not found(model, *ones(1)).direct
    # 1 -> 2+1 -> 6+1 -> 14+1. First block: 2.2+1; the others added 14 - 3, and 1 comes after.
    assert reused(model, *ones(1, 1.1)) == pytest.approx(3.2 + 11 + 1)


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
