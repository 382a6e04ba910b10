"""Work is counted exactly, by part and by module, on every family, without running the model."""

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import accel
from accel.errors import AccelUnsupportedError, OptionError
from accel.flops import count, without_weights
from accel.parts import sites_to_count
from accel.work import Form, Inputs, Part
from caching import FirstBlockCache
from tests.coverage.entries import ENTRIES
from tests.tiny import models
from tests.tiny.observe import traces
from tests.tiny.unets import UNETS
from tests.unit.full_sizes import FULL_SIZES, FullSize, empty

# They look at the values of masks or lengths, or ask torch for what the meta device lacks.
_NEED_VALUES = {
    "Cosmos3OmniTransformer",
    "ErnieImageTransformer2DModel",
    "GlmImageTransformer2DModel",
    "HeliosTransformer3DModel",
    "HiDreamImageTransformer2DModel",
    "HunyuanVideo15Transformer3DModel",
    "HunyuanVideoFramepackTransformer3DModel",
    "Ideogram4Transformer2DModel",
    "Lumina2Transformer2DModel",
    "MochiTransformer3DModel",
    "NucleusMoEImageTransformer2DModel",
    "OmniGenTransformer2DModel",
    "QwenImage21Transformer2DModel",
    "WanAnimate2Transformer3DModel",
}
# Torch's own counter cannot watch its attention.
_UNCOUNTABLE = {"Kandinsky6SRTransformer3DModel"}
_REFUSED = {"DualTransformer2DModel", "AnyFlowFARTransformer3DModel"}


@torch.no_grad()
def reference(model: Any, inputs: dict[str, Any]) -> int:
    """Returns the FLOPs that torch's counter finds in a real call."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(**inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - _UNCOUNTABLE))
def test_every_transformer_is_counted_as_torch_counts_a_real_call(name: str) -> None:
    model, inputs = ENTRIES[name].make(), ENTRIES[name].inputs()
    if name in _NEED_VALUES:
        with pytest.raises(AccelUnsupportedError, match=f"{name} looks at the values"):
            count(model, Inputs(kwargs=inputs))
    work = count(model, Inputs(kwargs=inputs), on_meta=name not in _NEED_VALUES).work
    assert work.total == reference(model, inputs)
    assert work.model == name
    # Some have modules that this call does not run.
    assert 0 < work.weights <= sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted(UNETS))
def test_every_unet_is_counted_as_torch_counts_a_real_call(name: str) -> None:
    make, make_inputs = UNETS[name]
    model, inputs = make(), make_inputs() | {"timestep": torch.tensor(5.0)}
    work = count(model, Inputs(kwargs=inputs)).work
    assert work.total == reference(model, inputs)
    assert work.flops[Part.CONVOLUTION] > 0
    assert work.weights == sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("full", FULL_SIZES, ids=str)
def test_published_models_cost_what_the_whole_count_says(full: FullSize) -> None:
    work = count(full.make(), full.call()).work
    assert work.total == pytest.approx(full.teraflops * 1e12, rel=0.01)
    assert work.flops[Part.CORE] / work.total == pytest.approx(full.core, abs=0.006)


def wan_inputs(frames: int = 2, dtype: torch.dtype = torch.float32) -> Inputs:
    """Returns the shapes of a call of the tiny Wan: 16 tokens a frame."""
    return Inputs(
        kwargs={
            "hidden_states": empty(1, 4, frames, 8, 8).to(dtype),
            "encoder_hidden_states": empty(1, 5, models.TEXT_DIM).to(dtype),
            "timestep": empty(1),
        }
    )


def test_parts_of_a_cross_attention_transformer_follow_the_formulas() -> None:
    work = count(models.wan(), wan_inputs()).work
    # Four blocks, 24 wide, MLPs of 32, 2 x 4 x 4 tokens beside 5 of text.
    layers, d, f, n, t = 4, 24, 32, 32, 5
    assert (work.tokens, work.context_tokens, work.batch) == (n, 0, 1)
    assert work.flops[Part.CORE] == layers * 4 * n**2 * d
    assert work.flops[Part.PROJECTIONS] == layers * 8 * n * d**2
    assert work.flops[Part.CROSS] == layers * (4 * n * d**2 + 4 * t * d**2 + 4 * n * t * d)
    assert work.flops[Part.MLP] == layers * 4 * n * f * d
    assert work.flops[Part.CONVOLUTION] == 0


def test_parts_of_a_joint_transformer_follow_the_formulas() -> None:
    model, inputs = models.flux(), ENTRIES["FluxTransformer2DModel"].inputs()
    work = count(model, Inputs(kwargs=inputs)).work
    # Three double and three single blocks, 24 wide, 16 + 5 tokens; the single ones end in one
    # projection of attention and MLP, which counts to the MLP.
    d, s = 24, 21
    assert (work.tokens, work.context_tokens) == (16, 5)
    assert work.flops[Part.CORE] == 6 * 4 * s**2 * d
    assert work.flops[Part.PROJECTIONS] == 3 * 8 * s * d**2 + 3 * 6 * s * d**2
    assert work.flops[Part.MLP] == 3 * 16 * s * d**2 + 3 * (8 + 10) * s * d**2


def test_a_unets_transformer_block_follows_the_formulas() -> None:
    make, make_inputs = UNETS["sd15"]
    work = count(make(), Inputs(kwargs=make_inputs() | {"timestep": empty(1)})).work
    path = "down_blocks.0.attentions.0.transformer_blocks.0"
    block = work.below([path])
    n, d, t, c = 64, 8, 3, models.TEXT_DIM
    assert block.total == 36 * n * d**2 + 4 * t * c * d + 4 * n**2 * d + 4 * n * t * d
    assert block.total + work.without([path]).total == work.total


def test_blocks_share_the_work_and_what_is_left_is_outside_of_them() -> None:
    model = models.wan()
    work = count(model, wan_inputs()).work
    blocks = [work.below([site.path]) for site in sites_to_count(model).blocks]
    assert len({block.total for block in blocks}) == 1
    outside = work.without([f"blocks.{index}" for index in range(4)])
    assert outside.flops[Part.REST] == outside.total == work.flops[Part.REST]
    assert sum(block.total for block in blocks) + outside.total == work.total
    assert blocks[0].launches > 0
    assert blocks[0].moved > 0


def test_a_path_does_not_take_in_those_that_begin_alike() -> None:
    work = count(models.flux(num_layers=12), _flux_inputs()).work
    one, ten = (work.below([f"transformer_blocks.{index}"]).total for index in (1, 10))
    assert one == ten > 0


def _flux_inputs() -> Inputs:
    return Inputs(kwargs=ENTRIES["FluxTransformer2DModel"].inputs())


def test_bytes_grow_with_the_dtype_and_flops_do_not() -> None:
    model = models.wan()
    single = count(model, wan_inputs()).work
    double = count(model.double(), wan_inputs(dtype=torch.float64)).work
    assert double.weights == 2 * single.weights
    assert double.flops == single.flops
    assert 1.8 < double.moved / single.moved < 2.2


def test_counting_leaves_the_model_alone_patched_or_not() -> None:
    model, inputs = models.flux(), _flux_inputs()
    before, plain = traces(model), count(model, inputs).work
    assert traces(model) == before
    with accel.patch(model, FirstBlockCache()):
        assert count(model, inputs).work == plain
    assert traces(model) == before


def test_a_copy_without_weights_has_neither_memory_nor_hooks() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, inputs = models.flux(), _flux_inputs()
    plain = count(model, inputs).work.flops
    model.register_forward_hook(lambda *_: pytest.fail("ran"))
    accelerate.cpu_offload(model)
    bare = without_weights(model)
    assert {tensor.device.type for tensor in (*bare.parameters(), *bare.buffers())} == {"meta"}
    assert count(model, inputs).work.flops == plain


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_models_that_nobody_denoises_with_are_refused_with_the_reason(name: str) -> None:
    from tests.coverage.verdict import uncalled

    with pytest.raises(AccelUnsupportedError, match=f"accel leaves {name} alone"):
        sites_to_count(uncalled(name))


def test_a_module_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(AccelUnsupportedError, match="does not know Linear"):
        count(torch.nn.Linear(2, 2), Inputs((empty(1, 2),)))


def test_a_missing_input_is_named_with_what_the_model_takes() -> None:
    inputs = Inputs(kwargs={"hidden_states": empty(1, 4, 2, 8, 8)})
    with pytest.raises(
        OptionError, match=r"WanTransformer3DModel.*hidden_states \[1, 4, 2, 8, 8\]"
    ):
        count(models.wan(), inputs)
    with pytest.raises(OptionError, match=r"'timestep'.*it takes hidden_states, timestep"):
        count(models.wan(), inputs)


def test_inputs_in_form_hold_nothing_of_the_call() -> None:
    tensor = torch.ones(2, 3)
    deep = Inputs.like((tensor,), {"a": {"b": [tensor, 1, "x"]}, "c": (None, tensor.double())})
    assert deep.light
    assert deep.args[0] == deep.kwargs["a"]["b"][0] == Form((2, 3), torch.float32)
    double = deep.on_meta().kwargs["c"][1]
    assert (double.shape, double.dtype) == (tensor.shape, torch.float64)
    assert double.device.type == "meta"
    assert not Inputs.like((), {"cache": [object()]}).light
    assert not Inputs((tensor,)).light


def test_sizes_that_do_not_fit_are_shown() -> None:
    inputs = wan_inputs()
    wrong = {**inputs.kwargs, "encoder_hidden_states": empty(1, 5, 7)}
    with pytest.raises(OptionError, match=r"encoder_hidden_states \[1, 5, 7\].*what the pipeline"):
        count(models.wan(), Inputs(kwargs=wrong))
