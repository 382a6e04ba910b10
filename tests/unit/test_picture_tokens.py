"""Where the picture's tokens are among a module's, for each way in which models hold a picture."""

from types import SimpleNamespace

import pytest
import torch

from accel.picture_tokens import Place, Text, picture_of


def picture(hidden, *, unet=False, config=None, **arguments):
    call = SimpleNamespace(hidden=hidden, argument=arguments.get)
    return picture_of(call, SimpleNamespace(**(config or {})), unet=unet)


def place(found, tokens, rows=1, *, text=None):
    return found.among(tokens, rows, text=text)


def ids(rows, columns):
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([torch.zeros_like(y), y, x], dim=-1).view(-1, 3).float()


def test_packed_tokens_are_the_picture_and_lie_as_their_places_say():
    found = picture(torch.ones(2, 15, 64), img_ids=ids(3, 5))
    assert place(found, 15) == Place(0, 15, (1, 3, 5))
    assert place(found, 20) is None


def test_packed_tokens_beside_a_reference_picture_are_the_picture_without_a_grid():
    both = torch.cat([ids(3, 5), ids(3, 5) + torch.tensor([1.0, 0, 0])])
    assert place(picture(torch.ones(1, 30, 64), img_ids=both), 30) == Place(0, 30, None)


def test_packed_videos_lie_as_their_sides_say():
    found = picture(torch.ones(1, 24, 8), num_frames=2, height=3, width=4)
    assert place(found, 24) == Place(0, 24, (2, 3, 4))


@pytest.mark.parametrize(
    ("shape", "config", "lattice"),
    [
        ((1, 4, 6, 10), {"patch_size": 2}, (1, 3, 5)),
        ((1, 4, 6, 10), {"patch_size": 1}, (1, 6, 10)),
        ((1, 4, 3, 6, 10), {"patch_size": (1, 2, 2), "in_channels": 4}, (3, 3, 5)),
        ((1, 3, 4, 6, 10), {"patch_size": 2, "in_channels": 4}, (3, 3, 5)),
        ((1, 3, 4, 6, 10), {"patch_size": 2, "patch_size_t": 2, "in_channels": 4}, (2, 3, 5)),
        ((1, 4, 4, 6, 10), {"patch_size": 2, "patch_size_t": None, "in_channels": 4}, (4, 3, 5)),
    ],
)
def test_latents_are_cut_into_patches_of_the_models_size(shape, config, lattice):
    tokens = lattice[0] * lattice[1] * lattice[2]
    found = picture(torch.ones(shape), config=config)
    assert place(found, tokens) == Place(0, tokens, lattice)
    # Text is left out where it is known to stand in front, or behind.
    assert place(found, tokens + 7, text=Text.FIRST) == Place(7, tokens, lattice)
    assert place(found, tokens + 7, text=Text.LAST) == Place(0, tokens, lattice)
    assert place(found, tokens + 7) is None
    assert all(place(found, tokens - 1, text=text) is None for text in Text)


def test_frames_handled_apart_are_found_where_the_batch_holds_them():
    found = picture(torch.ones(1, 4, 3, 6, 10), config={"patch_size": 2, "in_channels": 4})
    assert place(found, 15, rows=3) == Place(0, 15, (1, 3, 5))
    # A text of that many tokens is not one.
    assert place(found, 15) is None


@pytest.mark.parametrize("shape", [(1, 4, 9, 14), (1, 4, 8, 9, 14)])
def test_a_unet_holds_the_picture_at_the_resolution_of_each_level(shape):
    found = picture(torch.ones(shape), unet=True)
    assert place(found, 9 * 14) == Place(0, 126, (1, 9, 14))
    assert place(found, 5 * 7) == Place(0, 35, (1, 5, 7))
    assert place(found, 3 * 4) == Place(0, 12, (1, 3, 4))
    assert place(found, 77) is None


@pytest.mark.parametrize(
    "found",
    [
        picture([torch.ones(4, 8, 8)]),
        picture(torch.ones(1, 64)),
        picture(torch.ones(1, 4, 8, 8)),
        picture(torch.ones(1, 4, 8, 8), config={"patch_size": (2, 2)}),
    ],
)
def test_what_cannot_be_told_is_not_guessed(found):
    assert all(place(found, tokens, 4, text=Text.FIRST) is None for tokens in (4, 16, 64, 80))
