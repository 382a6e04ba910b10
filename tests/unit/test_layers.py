"""Layers: order of hooks, exact removal, copies, compilation, and who may call through."""

import copy
import io
import pickle
import threading

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from torch import nn
from torch._dynamo.testing import CompileCounter

from accel.clock import Clock
from accel.errors import AccelUnsupportedError
from accel.layers import Layer
from accel.report import Timeline
from accel.session import Generation, Session
from accel.sites import BlockIO, Kind, Site, Streams
from tests.unit.toys import Pair, Scale

ONE_STREAM = BlockIO()


def layered(module, *hooks, kind=Kind.BLOCK, io=ONE_STREAM):
    session = Session("Toy", None)
    session.generation = Generation(Clock(), Timeline("Toy", (), 0))
    layer = Layer(Site(kind, "block", module, io), session)
    for order, hook in hooks:
        layer.add(order, hook)
    return layer


X = torch.ones(1, 1, 1)


def test_hooks_nest_by_order_and_may_skip_the_module():
    module, seen = Scale(2), []

    def outer(call):
        seen.append("outer")
        return call.proceed() + 1

    def inner(call):
        seen.append("inner")
        return call.proceed() * 10

    layered(module, (5, inner), (1, outer))
    assert float(module(X)) == 21
    assert seen == ["outer", "inner"]
    layered(Scale(3), (0, lambda call: call.hidden - 1))


def test_a_hook_that_does_not_proceed_skips_the_module():
    module = Scale(2)
    layered(module, (0, lambda call: call.write(Streams(call.hidden + 4))))
    assert float(module(X)) == 5
    assert module.calls == 0


@pytest.mark.parametrize("keyword", [False, True])
def test_streams_are_found_and_replaced_however_they_are_passed(keyword):
    module = Pair()
    io = BlockIO(hidden_index=1, context="encoder_hidden_states", context_index=0)

    def double(call):
        streams = call.streams
        return call.proceed(Streams(streams.hidden * 2, streams.context * 2))

    layered(module, (0, double), io=io)
    named = {"hidden_states": X, "encoder_hidden_states": X}
    context, hidden = module(**named) if keyword else module(X, X)
    assert (float(context), float(hidden)) == (6, 6)


def test_a_one_stream_module_runs_on_the_stream_it_is_given():
    module = Scale(2)
    layered(module, (0, lambda call: call.proceed(Streams(call.hidden + 4))))
    assert float(module(X)) == 10


@pytest.mark.parametrize("keyword", [False, True])
def test_an_argument_can_be_changed_for_the_hooks_below_and_the_module(keyword):
    module, seen = Scale(2), []

    def change(call):
        call.change("hidden_states", call.hidden + 4)
        return call.proceed()

    def note(call):
        seen.append(float(call.hidden))
        return call.proceed()

    layered(module, (0, change), (1, note))
    assert float(module(hidden_states=X) if keyword else module(X)) == 10
    assert seen == [5]


class Times(nn.Module):
    """A module that multiplies and, unlike `Scale`, keeps no count that a graph would depend on."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)), requires_grad=False)

    def forward(self, hidden_states):
        return hidden_states * self.factor


class Twice(nn.Module):
    """A block of two modules, 6 times its input."""

    def __init__(self, part=Scale):
        super().__init__()
        self.parts = nn.ModuleList([part(2), part(3)])

    def forward(self, hidden_states):
        return self.parts[1](self.parts[0](hidden_states))


def inner_hooks(module, *hooks):
    return [
        (Site(Kind.LAYER, f"parts.{index}", part), hook)
        for index, (part, hook) in enumerate(zip(module.parts, hooks, strict=True))
    ]


def test_hooks_inside_of_a_module_are_on_for_one_call_only():
    module = Twice()
    before = [dict(part.__dict__) for part in module.parts]
    hooks = inner_hooks(module, lambda call: call.hidden, lambda call: call.proceed() + 1)
    layered(
        module,
        (0, lambda call: call.proceed_with(hooks) if float(call.hidden) == 1 else call.proceed()),
        (1, lambda call: call.proceed() * 10),
    )
    assert float(module(X)) == 40
    assert [dict(part.__dict__) for part in module.parts] == [
        {**attributes, "calls": part.calls}
        for attributes, part in zip(before, module.parts, strict=True)
    ]
    assert [part.calls for part in module.parts] == [0, 1]
    assert float(module(X * 2)) == 120


def test_hooks_inside_of_a_module_come_off_when_it_fails():
    module = Twice()
    before = [dict(part.__dict__) for part in module.parts]

    def fail(_):
        raise ZeroDivisionError("the part failed")

    hooks = inner_hooks(module, fail, fail)
    layered(module, (0, lambda call: call.proceed_with(hooks)))
    with pytest.raises(ZeroDivisionError, match="the part failed"):
        module(X)
    assert [dict(part.__dict__) for part in module.parts] == before


@pytest.mark.parametrize("how", ["in_place", "wrapped"])
def test_a_compiled_module_runs_uncompiled_with_hooks_inside_and_compiled_without(how):
    inner, counter = Twice(Times), CompileCounter()
    if how == "in_place":
        inner.compile(backend=counter, fullgraph=True)
        module = inner
    else:
        module = torch.compile(inner, backend=counter, fullgraph=True)
    hooks = inner_hooks(inner, lambda call: call.hidden, lambda call: call.proceed() + 1)
    step = []
    layered(
        module,
        (0, lambda call: call.proceed_with(hooks) if len(step) % 2 else call.proceed()),
        (1, lambda call: call.proceed() * 10),
    )
    for expected in (60, 40, 60, 40):
        assert float(module(X)) == expected
        step.append(1)
    assert counter.frame_count == 1


def test_a_call_tells_where_it_happens():
    module, seen = Scale(2), []

    def note(call):
        seen.append((call.site.path, call.step, call.num_steps, call.sigma, call.branch))
        return call.proceed()

    layered(module, (0, note))
    module(X)
    assert seen == [("block", 0, None, None, "0")]


def test_removal_leaves_every_key_as_it_was():
    module = Scale(2)
    before = dict(module.__dict__)
    layer = layered(module, (0, lambda call: call.proceed()))
    assert module.__dict__ != before
    layer.remove()
    layer.remove()
    assert module.__dict__ == before


def test_somebody_who_wrapped_later_keeps_a_pass_through():
    module, calls = Scale(2), []
    layer = layered(module, (0, lambda call: call.proceed() * 100))
    ours = module.forward
    module.forward = lambda *args: (calls.append(1), ours(*args))[1]
    assert float(module(X)) == 200
    layer.remove()
    assert float(module(X)) == 2
    assert len(calls) == 2


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize("remove_ours_first", [True, False])
def test_accelerate_hooks_survive_in_any_order(ours_first, remove_ours_first):
    class Plus(ModelHook):
        def post_forward(self, module, output):
            return output + 1

    module, hook = Scale(2), (0, lambda call: call.proceed() * 10)
    if ours_first:
        layer = layered(module, hook)
        add_hook_to_module(module, Plus())
    else:
        add_hook_to_module(module, Plus())
        layer = layered(module, hook)
    assert float(module(X)) == (21 if ours_first else 30)
    for ours in (remove_ours_first, not remove_ours_first):
        layer.remove() if ours else remove_hook_from_module(module)
    assert float(module(X)) == 2


@pytest.mark.parametrize("copier", ["deepcopy", "pickle", "torch.save"])
def test_copies_are_clean_and_run_their_own_weights(copier):
    module = nn.Sequential(Scale(2))
    layered(module[0], (0, lambda call: call.proceed() * 100))
    if copier == "deepcopy":
        clone = copy.deepcopy(module)
    elif copier == "pickle":
        clone = pickle.loads(pickle.dumps(module))
    else:
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        clone = torch.load(buffer, weights_only=False)
    assert set(clone[0].__dict__) == set(Scale(2).__dict__)
    with torch.no_grad():
        clone[0].factor.zero_()
    assert float(clone(X)) == 0
    assert float(module(X)) == 200


def test_a_copy_keeps_the_forward_that_lay_below_ours():
    module = Scale(2)
    module.forward = pickle.loads(pickle.dumps(float))
    layered(module, (0, lambda call: call.proceed()))
    assert copy.deepcopy(module).__dict__["forward"] is float


def test_calls_from_another_thread_pass_through():
    module, results = Scale(2), []
    layered(module, (0, lambda call: call.proceed() * 100))
    thread = threading.Thread(target=lambda: results.append(float(module(X))))
    thread.start()
    thread.join()
    assert results == [2]
    assert float(module(X)) == 200


@pytest.mark.parametrize("compile_first", [True, False])
def test_hooks_stay_outside_of_a_block_compiled_in_place(compile_first):
    module = Scale(2)
    before = set(module.__dict__)
    if compile_first:
        module.compile(backend="eager", fullgraph=True)
    layer = layered(module, (0, lambda call: call.proceed() * (10 if call.step == 0 else 1)))
    if not compile_first:
        module.compile(backend="eager", fullgraph=True)
    assert float(module(X)) == 20
    layer.remove()
    assert float(module(X)) == 2
    assert set(module.__dict__) == before | {"_compiled_call_impl"}


def test_hooks_run_once_when_a_graph_around_them_is_compiled():
    module, runs = nn.Sequential(Scale(2), Scale(3)), []

    def hook(call):
        runs.append(call.step)
        return call.proceed() * 10

    layered(module[0], (0, hook))
    compiled = torch.compile(module, backend="eager")
    for _ in range(3):
        assert float(compiled(X)) == 60
    assert runs == [0, 0, 0]


def test_compiling_a_patched_denoiser_as_a_whole_is_refused():
    module = Scale(2)
    layered(module, (0, lambda call: call.proceed()), kind=Kind.DENOISER)
    with pytest.raises(AccelUnsupportedError, match="compile_repeated_blocks"):
        module.compile()
