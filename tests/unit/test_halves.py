"""Which prediction was unconditional, from the pipeline's own arithmetic; calls on half a batch."""

import pytest
import torch
from torch import nn

from accel.sites import Kind, Site
from caching.halves import half_call, unconditional_of

GENERATOR = torch.Generator().manual_seed(0)
U = torch.randn(1, 4, 8, 8, generator=GENERATOR)
C = U + 0.1 * torch.randn(1, 4, 8, 8, generator=GENERATOR)


@pytest.mark.parametrize("scale", [1.5, 3.0, 7.5, 100.0])
@pytest.mark.parametrize("factor", [1.0, -1.0, 0.7])
def test_the_unconditional_prediction_is_found_in_either_place(scale, factor):
    guided = factor * (U + scale * (C - U))
    assert unconditional_of(U, C, guided) == 0
    assert unconditional_of(C, U, guided) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_found_in_half_precision(dtype):
    u, c = U.to(dtype), C.to(dtype)
    assert unconditional_of(u, c, u + 4.0 * (c - u)) == 0


def test_it_is_found_beside_learned_variances():
    u, c = (torch.cat([tensor, torch.randn(1, 4, 8, 8)], dim=1) for tensor in (U, C))
    assert unconditional_of(u, c, U + 3 * (C - U)) == 0


@pytest.mark.parametrize(
    "guided",
    [
        (U + C) / 2,  # a mean has no unconditional half
        C,
        U * C,
        torch.randn(1, 4, 8, 8),
        torch.zeros(1, 4, 8, 8),
        torch.full((1, 4, 8, 8), float("nan")),
        (U + 3 * (C - U))[..., :4],
        (U + 3 * (C - U)).flatten(1),
        None,
    ],
    ids=["mean", "one", "product", "noise", "zero", "nan", "cut", "flat", "none"],
)
def test_anything_else_than_guidance_is_not_guessed(guided):
    assert unconditional_of(U, C, guided) is None
    assert unconditional_of(C, U, guided) is None


def test_equal_predictions_tell_nothing():
    assert unconditional_of(U, U, U) is None


class Takes(nn.Module):
    def forward(self, hidden_states, timestep, encoder_hidden_states=None, **others):
        return hidden_states


SITE = Site(Kind.DENOISER, "", Takes())


@pytest.mark.parametrize("half", [0, 1])
def test_every_batched_argument_is_halved_however_deep_it_lies(half):
    batch = torch.tensor([10, 11, 20, 21])
    own = batch.chunk(2)[half]
    args, kwargs = half_call(
        SITE,
        (batch, batch),
        {
            "encoder_hidden_states": batch,
            "added_cond_kwargs": {"time_ids": batch, "images": [batch, (batch,)]},
        },
        4,
        half,
    )
    assert all(torch.equal(arg, own) for arg in args)
    assert torch.equal(kwargs["encoder_hidden_states"], own)
    added = kwargs["added_cond_kwargs"]
    assert torch.equal(added["time_ids"], own)
    assert torch.equal(added["images"][0], own)
    assert torch.equal(added["images"][1][0], own)


def test_a_text_for_every_frame_is_halved_by_clip():
    # Two clips, one a guidance branch, of three frames: the text comes six times.
    text, mask = torch.arange(6).reshape(6, 1), torch.arange(6)
    kwargs = {"encoder_hidden_states": text, "encoder_attention_mask": mask, "sigmas": mask}
    _, halved = half_call(SITE, (torch.randn(2, 4, 3, 8, 8),), kwargs, 2, 1)
    assert halved["encoder_hidden_states"].flatten().tolist() == [3, 4, 5]
    assert halved["encoder_attention_mask"].tolist() == [3, 4, 5]
    assert halved["sigmas"] is mask


def test_what_is_one_for_the_whole_batch_stays_whole():
    table = torch.randn(4, 3)
    kwargs = {
        "img_ids": table,
        "image_rotary_emb": (table, table),
        "timestep": torch.tensor(500),
        "guidance": torch.ones(1),
        "return_dict": False,
        "attention_kwargs": None,
    }
    args, halved = half_call(SITE, (torch.randn(4, 2, 8, 8),), kwargs, 4, 1)
    assert args[0].shape == (2, 2, 8, 8)
    assert halved["img_ids"] is table
    assert halved["image_rotary_emb"] == (table, table)
    assert {name: halved[name] for name in ("return_dict", "attention_kwargs")} == {
        "return_dict": False,
        "attention_kwargs": None,
    }
    assert halved["timestep"] is kwargs["timestep"]
    assert halved["guidance"] is kwargs["guidance"]
