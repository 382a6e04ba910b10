"""Models in no table: established by one probing call, or refused with the lines to add."""

import pytest
from torch import nn

import accel
from caching import FirstBlockCache
from tests.unit.toys import Chain, Scale, drive, ones

METHOD = FirstBlockCache(threshold=10, warmup=0, tail=0, min_steps=0)


def test_the_probing_call_computes_and_the_next_ones_engage():
    model = Chain(2, 3, 5)
    handle = accel.patch(model, METHOD)
    assert "in no table" in str(handle.status())
    outputs = drive(model, handle, ones(1, 1, 1))
    assert [float(output) for output in outputs] == [30, 30, 30]
    assert [decision.action for decision in handle.report.decisions][-1] == "reused"


def test_unpatch_after_a_probe_leaves_nothing():
    model = Chain(2, 3, 5)
    before = [dict(module.__dict__) for module in model.modules()]
    handle = accel.patch(model, METHOD)
    drive(model, handle, ones(1, 1, 1))
    handle.unpatch()
    for block in model.blocks:
        block.calls = 0
    assert [dict(module.__dict__) for module in model.modules()] == before


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Scale(2)

    def forward(self, hidden_states):
        return self.layer(hidden_states)


def test_a_model_without_a_stack_is_refused_with_the_lines_to_add():
    with pytest.raises(accel.AccelUnsupportedError, match=r'DENOISERS\["Headless"\]'):
        accel.patch(Headless(), METHOD)


class Bottleneck(Chain):
    def forward(self, hidden_states):
        return self.blocks[0](hidden_states)


def test_blocks_that_do_not_run_are_refused_by_name_and_nothing_stays_hooked():
    model = Bottleneck(2, 3)
    handle = accel.patch(model, METHOD)
    with pytest.raises(accel.AccelUnsupportedError, match=r"blocks\.1 did not run"):
        drive(model, handle, ones(1))
    handle.unpatch()
    assert float(model(ones(1)[0])) == 2


def test_not_strict_leaves_the_model_as_it_is_and_says_why():
    model = Bottleneck(2, 3)
    handle = accel.patch(model, METHOD, strict=False)
    outputs = drive(model, handle, ones(1, 1))
    assert [float(output) for output in outputs] == [2, 2]
    # Said once, and not asked again at every call.
    assert str(handle.status()).count("did not run") == 1
    inert = accel.patch(Headless(), METHOD, strict=False)
    assert not inert.status().patched
    assert "Headless" in str(inert.status())
