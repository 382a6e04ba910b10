"""Specs against the real classes of the installed library."""

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import nn

from accel import specs
from accel.errors import AccelUnsupportedError
from accel.models import find_denoisers, find_spec, known_sites
from accel.sites import Kind
from tests.coverage.entries import ENTRIES
from tests.tiny import CASES, DENOISERS


@pytest.mark.parametrize("name", sorted(DENOISERS))
def test_every_family_is_in_the_table_and_looks_as_it_says(name):
    module = DENOISERS[name]()
    spec = find_spec(module)
    assert spec is not None
    sites = known_sites(module, spec)
    assert sites.attention
    assert sites.mlp
    modules = dict(module.named_modules())
    parts = (*sites.attention, *sites.temporal, *sites.cross, *sites.mlp)
    for site in (*sites.blocks, *parts, *sites.down, *sites.mid, *sites.up):
        assert modules[site.path] is site.module
    assert bool(sites.blocks) != bool(sites.down)


def test_a_subclass_is_found_by_its_base():
    class Mine(UNet2DConditionModel):
        pass

    assert find_spec(Mine.__new__(Mine)) is specs.DENOISERS["UNet2DConditionModel"]


def test_a_unet_has_paths_and_no_stack():
    module = next(make() for make in DENOISERS.values() if isinstance(make(), UNet2DConditionModel))
    sites = known_sites(module, find_spec(module))
    assert [site.kind for site in sites.mid] == [Kind.MID]
    assert len(sites.down) == len(module.down_blocks)


class FluxTransformer2DModel(nn.Module):
    """Named like a model in the table, but with other insides."""

    def __init__(self, **lists):
        super().__init__()
        for name, blocks in lists.items():
            setattr(self, name, nn.ModuleList(blocks))

    def forward(self, hidden_states):
        return hidden_states


class FluxTransformerBlock(nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"layers": [nn.Identity()]}, "no stack of blocks called 'transformer_blocks'.*layers"),
        (
            {"transformer_blocks": [nn.Identity()], "single_transformer_blocks": []},
            "class Identity",
        ),
        (
            {"transformer_blocks": [FluxTransformerBlock()], "single_transformer_blocks": []},
            r"takes \(x\).*hidden_states and encoder_hidden_states",
        ),
    ],
)
def test_a_spec_that_does_not_fit_the_module_is_refused(lists, message):
    module = FluxTransformer2DModel(**lists)
    with pytest.raises(AccelUnsupportedError, match=message):
        known_sites(module, find_spec(module))


def test_two_stage_pipelines_have_two_denoisers():
    pipe = CASES["wan_two_stage"].make()
    assert set(find_denoisers(pipe)) == {"transformer", "transformer_2"}


_PACKAGES = (
    "diffusers.models.transformers",
    "diffusers.models.unets",
    "diffusers.models.controlnets",
    "diffusers.pipelines.audioldm2",
)


def test_every_block_class_in_the_table_exists_in_the_library():
    import importlib
    import pkgutil

    names = set()
    for package in map(importlib.import_module, _PACKAGES):
        found = (info.name for info in pkgutil.iter_modules(package.__path__))
        for module in found:
            names |= set(vars(importlib.import_module(f"{package.__name__}.{module}")))
    names |= set(vars(importlib.import_module("diffusers.models.attention")))
    missing = {*specs.BLOCKS, *specs.DENOISERS} - names
    assert not missing


def test_sites_find_and_replace_arguments_by_name():
    from accel.sites import Site

    class Takes(nn.Module):
        def forward(self, hidden_states, temb=None):
            return hidden_states

    site = Site(Kind.BLOCK, "x", Takes())
    assert site.get("temb", (1, 2), {}) == 2
    assert site.get("temb", (1,), {"temb": 3}) == 3
    assert site.get("temb", (1,), {}) is None
    assert site.put("temb", 5, (1, 2), {}) == ((1, 5), {})
    assert site.put("temb", 5, (1,), {}) == ((1,), {"temb": 5})


def test_streams_lack_what_either_side_lacks():
    from accel.sites import Streams

    one, two = torch.ones(1), torch.full((1,), 2.0)
    assert (Streams(two, two) - Streams(one)).context is None
    both = Streams(two, two) - Streams(one, one)
    assert float(both.context) == 1
    assert both.nbytes == 8
    assert not Streams(one).matches(Streams(one, one))
    assert not Streams(one).matches(Streams(one.double()))


@pytest.mark.parametrize(
    ("name", "attention", "cross"),
    [("wan", 4, 4), ("sd3", 4, 0), ("pixart", 4, 4), ("flux", 6, 0), ("unet", 4, 4), ("dit", 4, 0)],
)
def test_cross_attention_is_told_from_self_attention_and_joint_attention(name, attention, cross):
    module = DENOISERS[name]()
    sites = known_sites(module, find_spec(module))
    assert (len(sites.attention), len(sites.temporal), len(sites.cross)) == (attention, 0, cross)
    assert {site.kind for site in sites.cross} <= {Kind.CROSS_ATTENTION}


def test_a_second_self_attention_is_no_cross_attention():
    from diffusers import SD3Transformer2DModel

    module = SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=12,
        dual_attention_layers=(0,),
    )
    sites = known_sites(module, find_spec(module))
    assert [site.path.split(".")[-1] for site in sites.attention] == ["attn", "attn2", "attn"]
    assert not sites.cross


SMALL_UNET = {
    "sample_size": 8,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "cross_attention_dim": 16,
}


@pytest.mark.parametrize(
    ("cls", "blocks", "options"),
    [
        ("UNetMotionModel", "Motion", {"norm_num_groups": 4, "num_attention_heads": 2}),
        ("UNet3DConditionModel", "3D", {"norm_num_groups": 4, "attention_head_dim": 4}),
        (
            "UNetSpatioTemporalConditionModel",
            "SpatioTemporal",
            {"num_attention_heads": (2, 2), "projection_class_embeddings_input_dim": 96},
        ),
    ],
)
def test_attention_over_frames_is_told_from_attention_over_pictures(cls, blocks, options):
    import diffusers

    if cls == "UNetSpatioTemporalConditionModel":
        options = {**options, "addition_time_embed_dim": 32, "block_out_channels": (32, 32)}
    module = getattr(diffusers, cls)(
        **SMALL_UNET
        | {
            "down_block_types": (f"CrossAttnDownBlock{blocks}", f"DownBlock{blocks}"),
            "up_block_types": (f"UpBlock{blocks}", f"CrossAttnUpBlock{blocks}"),
        }
        | options
    )
    sites = known_sites(module, find_spec(module))
    assert sites.attention
    assert sites.temporal
    assert sites.cross
    over_frames = ("motion_modules", "temp", "transformer_in")
    assert all(any(word in site.path for word in over_frames) for site in sites.temporal)
    assert not any(any(word in site.path for word in over_frames) for site in sites.attention)


def test_attention_over_frames_is_told_from_attention_over_a_picture():
    module = ENTRIES["LatteTransformer3DModel"].make()
    sites = known_sites(module, find_spec(module))
    assert (len(sites.attention), len(sites.temporal), len(sites.cross)) == (3, 3, 3)
    assert len(sites.mlp) == 6
