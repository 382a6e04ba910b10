"""Which modules may compute some of their tokens alone: what is said, and whether it is true."""

import diffusers
import pytest
import torch
from diffusers.models.attention import FeedForward
from peft import LoraConfig
from peft.tuners.lora import Linear as LoraLinear
from torch import nn

from accel.models import find_spec, known_sites
from accel.pointwise import mixing
from accel.sites import BlockIO, Kind, Site
from tests.tiny import DENOISERS
from tests.tiny.models import shaken


def site(module, kind=Kind.MLP, hidden="hidden_states"):
    return Site(kind, "blocks.0.ff", module, BlockIO(hidden=hidden))


def why(module, *args, kind=Kind.MLP, **kwargs):
    found = site(module, kind)
    first = next(iter(found.positions))
    io = BlockIO(hidden=first)
    return mixing(Site(kind, "blocks.0.ff", module, io), args or (torch.ones(1, 4, 8),), kwargs)


def width(module):
    return next(part.in_features for part in module.modules() if isinstance(part, nn.Linear))


def sites_of(name):
    model = DENOISERS[name]()
    return known_sites(model, find_spec(model))


@pytest.mark.parametrize("name", sorted(set(DENOISERS) - {"sana"}))
def test_an_mlp_that_passes_computes_each_token_as_it_does_among_all(name):
    sites = sites_of(name)
    assert sites.mlp
    some = torch.tensor([1, 4, 6])
    for found in sites.mlp:
        tokens = torch.randn(2, 7, width(found.module), generator=torch.Generator().manual_seed(0))
        assert mixing(found, (tokens,), {}) is None
        whole = found.module(tokens)
        torch.testing.assert_close(found.module(tokens[:, some]), whole[:, some])


@pytest.mark.parametrize("name", ["pixart", "wan", "ltx", "sana", "unet", "unet_xl"])
def test_cross_attention_that_passes_computes_each_query_as_it_does_among_all(name):
    sites = sites_of(name)
    assert sites.cross
    some = torch.tensor([0, 2, 5])
    generator = torch.Generator().manual_seed(0)
    for found in sites.cross:
        tokens = torch.randn(2, 7, found.module.to_q.in_features, generator=generator)
        text = torch.randn(2, 5, found.module.to_k.in_features, generator=generator)
        given = {"encoder_hidden_states": text}
        assert mixing(found, (tokens,), given) is None
        whole = found.module(tokens, **given)
        torch.testing.assert_close(found.module(tokens[:, some], **given), whole[:, some])


def test_a_convolutional_mlp_is_known_to_mix_tokens():
    sites = sites_of("sana")
    pixels, tokens = torch.ones(1, 16, 4, 4), torch.ones(1, 16, 16)
    assert "not called on a list of tokens" in mixing(sites.mlp[0], (pixels,), {})
    assert mixing(sites.mlp[0], (tokens,), {}) == "GLUMBConv holds GLUMBConv"


class Mean(nn.Module):
    """Mixes tokens without any module for it."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, hidden_states):
        return self.proj(hidden_states) + hidden_states.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "part"),
    [
        (Mean(), "Mean"),
        (nn.Sequential(nn.Linear(8, 8), nn.Conv1d(4, 4, 1)), "Conv1d"),
        (nn.Sequential(nn.LayerNorm((4, 8))), "LayerNorm"),
        (nn.Sequential(nn.BatchNorm1d(4)), "BatchNorm1d"),
        (nn.Sequential(nn.Sequential(Mean())), "Mean"),
    ],
)
def test_what_is_not_known_to_be_pointwise_is_named(module, part):
    assert why(module) == f"{type(module).__name__} holds {part}"


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(8, 8),
        nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(8), nn.RMSNorm(8)),
        *(FeedForward(8, activation_fn=name) for name in ("geglu", "swiglu", "linear-silu")),
    ],
)
def test_linear_maps_activations_dropout_and_norms_along_channels_are_pointwise(module):
    assert why(module) is None


def test_an_adapter_on_a_linear_map_is_pointwise():
    module = FeedForward(8)
    module.net[2] = LoraLinear(module.net[2], "default", LoraConfig(r=2), r=2)
    assert why(module) is None


def test_an_mlp_that_is_handed_more_than_tokens_is_refused():
    class Modulated(FeedForward):
        def forward(self, hidden_states, temb=None, scale=1.0):
            return super().forward(hidden_states) * scale

    tokens = torch.ones(1, 4, 8)
    assert why(Modulated(8), tokens, scale=2.0) is None
    assert why(Modulated(8), tokens, tokens) == "Modulated is also handed temb"
    assert why(Modulated(8), tokens, temb=(tokens,)) == "Modulated is also handed temb"


def test_cross_attention_with_something_for_single_queries_is_refused():
    module = shaken(diffusers.models.attention_processor.Attention(8, cross_attention_dim=8))
    tokens, text = torch.ones(1, 4, 8), torch.ones(1, 3, 8)

    def said(**given):
        return why(module, tokens, kind=Kind.CROSS_ATTENTION, **given)

    assert said(encoder_hidden_states=text) is None
    assert said(encoder_hidden_states=text, attention_mask=torch.ones(1, 3)) is None
    assert said(encoder_hidden_states=text, attention_mask=torch.ones(1, 1, 3)) is None
    assert "mask for each query" in said(
        encoder_hidden_states=text, attention_mask=torch.ones(1, 4, 3)
    )
    rotary = (torch.ones(4, 8), torch.ones(4, 8))
    assert "image_rotary_emb" in said(encoder_hidden_states=text, image_rotary_emb=rotary)
    assert "nothing to attend to" in said(encoder_hidden_states=None)
    module.group_norm = nn.GroupNorm(2, 8)
    assert "group_norm over all tokens" in said(encoder_hidden_states=text)
