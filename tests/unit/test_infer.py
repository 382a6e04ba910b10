"""Which streams flow through models that no table knows, computed by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

import accel
from accel.sites import BlockIO
from tests.unit.flows import Block, Model, Renamed, Two, found, in_a_row, reused
from tests.unit.toys import PairChain, ones


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


class Marked(Block):
    def forward(self, registers: Tensor, hidden_states: Tensor) -> Any:
        return registers * 3, hidden_states * 2


def test_a_stream_called_as_everybody_calls_the_picture_is_the_picture():
    def over(blocks, hidden_states):
        registers = hidden_states + 1
        for block in blocks:
            registers, hidden_states = block(registers, hidden_states)
        return hidden_states + registers

    sites = found(Model([Marked(None) for _ in range(3)], over), *ones(1))
    assert sites.blocks[0].io == BlockIO("hidden_states", 1, "registers", 0)


def test_streams_that_go_now_this_way_now_that_are_not_guessed():
    def over(blocks, hidden_states, text):
        for index, block in enumerate(blocks):
            hidden_states, text = block(hidden_states, text)
            if index % 2:
                hidden_states, text = text, hidden_states
        return hidden_states + text

    model = Model([Two(lambda h, e: (h * 2, e * 3)) for _ in range(3)], over)
    with pytest.raises(accel.AccelUnsupportedError, match="nothing that is clearly one of its"):
        found(model, *ones(1), *ones(1))


def test_outputs_of_which_now_one_now_the_other_goes_on_are_no_two_streams():
    def over(blocks, hidden_states):
        for index, block in enumerate(blocks):
            hidden_states = block(hidden_states)[index % 2]
        return hidden_states

    model = Model([Renamed(lambda x: (x * 2, x * 3)) for _ in range(3)], over)
    with pytest.raises(accel.AccelUnsupportedError, match="nothing that is clearly one of its"):
        found(model, *ones(1))
