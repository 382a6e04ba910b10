"""Memory options: what they accept and report, chunks of feed-forwards, decoding in parts."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from diffusers import AutoencoderKL
from torch import nn

import accel
from accel import LightCache, OptionError
from accel.method import Binding
from accel.sites import ModelSites
from caching import PAB, DBCache, FirstBlockCache, FoCa, MagCache, TaylorSeer
from tests.conformance.support import engaging, fresh
from tests.tiny import CASES

REUSING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, None),
        (4096, 4096),
        ("4096B", 4096),
        ("2KiB", 2048),
        ("1.5 MiB", 1_572_864),
        ("2GiB", 2_147_483_648),
    ],
)
def test_a_budget_is_a_number_of_bytes_or_has_a_unit(budget, expected):
    assert LightCache(budget=budget).budget_bytes == expected


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0},
        {"budget": -1},
        {"budget": 1.5},
        {"budget": True},
        {"budget": "2GB"},
        {"budget": "0MiB"},
        {"budget": "much"},
        {"chunk_tokens": 0},
        {"chunk_tokens": 1.0},
        {"decode": "thin"},
        {"swap": 1},
    ],
    ids=str,
)
def test_an_option_out_of_its_range_is_refused_by_name(options):
    (name,) = options
    with pytest.raises(OptionError, match=f"LightCache: {name} is"):
        LightCache(**options)


@pytest.mark.parametrize("memory", ["2GiB", LightCache, 3])
def test_what_is_no_memory_option_is_refused_and_nothing_is_patched(memory):
    pipe = CASES["dit"].make()
    with pytest.raises(OptionError, match=r"memory is .*expected accel\.LightCache"):
        accel.patch(pipe, REUSING, memory=memory)
    assert not accel.status(pipe).patched


def test_patching_again_with_other_memory_options_replaces_the_patch():
    pipe = CASES["dit"].make()
    first = accel.patch(pipe, REUSING, memory=LightCache())
    assert accel.patch(pipe, REUSING, memory=LightCache()) is first
    second = accel.patch(pipe, REUSING)
    assert second is not first
    assert second.memory is None


def test_the_report_tells_the_peaks_and_names_what_did_not_fit():
    case = CASES["flux_true_cfg"]
    pipe = case.make()
    method = TaylorSeer(interval=2, warmup=1, tail=0, min_steps=0)
    with accel.patch(pipe, method, memory=LightCache(budget=4000, swap=False)) as handle:
        case.run(pipe)
        tight = handle.report
    assert 0 < tight.most_on_device <= 4000
    assert tight.most_on_host == 0
    assert tight.not_kept
    assert any("transformer_blocks.0" in name for name in tight.not_kept)
    name, size = next(iter(tight.not_kept.items()))
    assert any(f"{name} ({size} bytes)" in warning for warning in tight.warnings)
    assert "of 4000 bytes" in str(tight)
    assert accel.Report.from_dict(tight.to_dict()) == tight
    with accel.patch(pipe, method, memory=LightCache()) as handle:
        case.run(pipe)
        swapped = handle.report
    assert swapped.not_kept == {}
    assert swapped.most_on_host == swapped.bytes_held > swapped.most_on_device
    assert "on the host" in str(swapped)
    with accel.patch(pipe, method) as handle:
        case.run(pipe)
        assert handle.report.most_on_device is None
        assert "on the host" not in str(handle.report)


def test_a_stack_that_does_not_fit_is_computed_throughout():
    case = CASES["flux_true_cfg"]
    pipe = case.make()
    handle = accel.patch(pipe, REUSING, memory=LightCache(budget=1000, swap=False))
    assert torch.equal(case.run(pipe), fresh(case))
    assert handle.report.reused == 0
    assert any("residual" in name or "change" in name for name in handle.report.not_kept)


@pytest.mark.parametrize(
    "method",
    [
        DBCache(head=1, threshold=10.0, predictor=FoCa(), warmup=2, tail=0, min_steps=0),
        # Learns in its first generation, from residuals that it keeps.
        MagCache(threshold=10.0, retention=0.0, warmup=1, tail=0, min_steps=0),
    ],
    ids=lambda method: type(method).__name__,
)
def test_guesses_and_lessons_are_the_same_from_the_host(method):
    case = CASES["flux_true_cfg"]
    found = []
    for memory in (None, LightCache(), LightCache(budget="1MiB")):
        pipe = case.make()
        accel.patch(pipe, copy.deepcopy(method), memory=memory)
        found.append([case.run(pipe) for _ in range(2)])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("name", ["flux_true_cfg", "sd15", "pixart"])
@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_feed_forwards_in_chunks_compute_the_same(name, limit):
    case = CASES[name]
    pipe = case.make()
    widest = 0
    feed_forwards = [
        module for module in case.denoiser(pipe).modules() if type(module).__name__ == "FeedForward"
    ]

    def watch(_, args):
        nonlocal widest
        widest = max(widest, args[0].shape[:-1].numel())

    # What a chunk's first layer is given.
    handles = [module.net[0].register_forward_pre_hook(watch) for module in feed_forwards]
    method = engaging("PAB")
    with accel.patch(pipe, method, memory=LightCache(swap=False, chunk_tokens=limit)) as handle:
        torch.testing.assert_close(case.run(pipe), fresh(case, method), rtol=1e-4, atol=1e-4)
        notes = handle.status().notes
    assert widest <= limit if feed_forwards else notes
    assert feed_forwards or not notes
    for hook in handles:
        hook.remove()
    assert torch.equal(case.run(pipe), fresh(case))


class _Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=1, keepdim=True)


def test_a_feed_forward_that_looks_at_other_tokens_stays_whole_and_is_named():
    case = CASES["pixart"]
    pipe = case.make()
    block = case.denoiser(pipe).transformer_blocks[0]
    block.ff = nn.Sequential(block.ff, _Mixing())
    expected = case.run(pipe)
    method = engaging("PAB").neutral()
    handle = accel.patch(pipe, method, memory=LightCache(chunk_tokens=5))
    torch.testing.assert_close(case.run(pipe), expected, rtol=1e-4, atol=1e-4)
    assert any("Sequential" in note for note in handle.status().notes)


def test_a_model_without_feed_forwards_is_said_to_have_none():
    sites = ModelSites(denoiser=accel.models.denoiser_site(nn.Linear(2, 2)))
    assert list(LightCache(chunk_tokens=1).bind(sites)) == []
    assert "Linear has no feed-forwards" in " ".join(LightCache(chunk_tokens=1).notes(sites))
    assert list(LightCache().notes(sites)) == []


def _with_decoder(case):
    """A pipeline of this case with an autoencoder, of one level and so without upsampling."""
    pipe = case.make()
    torch.manual_seed(1)
    channels = case.denoiser(pipe).config.out_channels
    vae = AutoencoderKL(latent_channels=channels, block_out_channels=(8,), norm_num_groups=4)
    pipe.register_modules(vae=vae.eval())
    return pipe


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("decode", ["whole", "sliced", "tiled"])
def test_the_decoder_works_in_parts_while_patched_and_as_before_afterwards(decode, before):
    pipe = _with_decoder(CASES["sd15"])
    pipe.vae.use_slicing = before
    state = dict(vars(pipe.vae))
    handle = accel.patch(pipe, engaging("PAB"), memory=LightCache(decode=decode))
    switches = pipe.vae.use_slicing, pipe.vae.use_tiling
    assert switches == (before or decode != "whole", decode == "tiled")
    clean = copy.deepcopy(pipe.vae)
    assert (clean.use_slicing, clean.use_tiling) == (before, False)
    handle.disable()
    assert vars(pipe.vae) == state
    handle.enable()
    handle.enable()
    assert (pipe.vae.use_slicing, pipe.vae.use_tiling) == switches
    handle.unpatch()
    assert vars(pipe.vae) == state


class _VideoDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.use_framewise_decoding = False


def test_a_decoder_that_goes_frame_by_frame_is_asked_to():
    decoder = _VideoDecoder()
    pipe = SimpleNamespace(components={"vae": decoder, "scheduler": None})
    assert list(LightCache().lay_over(pipe)) == []
    (overlay,) = LightCache(decode="tiled").lay_over(pipe)
    assert decoder.use_framewise_decoding
    overlay.remove()
    assert vars(decoder) == vars(_VideoDecoder())


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing(PAB):
    def bind(self, model):
        yield Binding(model.denoiser, lambda call: call.proceed())
        message = "no"
        raise RuntimeError(message)


def test_a_patch_that_fails_leaves_the_decoder_as_it_was():
    pipe = _with_decoder(CASES["sd15"])
    state = dict(vars(pipe.vae))
    with pytest.raises(RuntimeError, match="no"):
        accel.patch(pipe, Failing(), memory=LightCache(decode="tiled"))
    assert vars(pipe.vae) == state
    old = accel.patch(pipe, engaging("PAB"), memory=LightCache())
    with pytest.raises(RuntimeError, match="no"):
        accel.patch(pipe, Failing(), memory=LightCache(decode="tiled"))
    assert (pipe.vae.use_slicing, pipe.vae.use_tiling) == (True, False)
    old.unpatch()
    assert vars(pipe.vae) == state


def test_pictures_decoded_in_parts_are_the_same():
    case = CASES["sd15"]
    decoded = []

    def count(_, args):
        decoded.append(len(args[0]))

    pictures = []
    for memory in (None, LightCache(), LightCache(decode="tiled")):
        pipe = _with_decoder(case)
        pipe.vae.decoder.register_forward_pre_hook(count)
        accel.patch(pipe, engaging("PAB"), memory=memory)
        pictures.append(case.run(pipe, batch=2, output_type="pt"))
    assert decoded == [2, 1, 1, 1, 1]
    # Smaller than a tile, so that there is nothing to blend.
    for other in pictures[1:]:
        torch.testing.assert_close(other, pictures[0], rtol=1e-4, atol=1e-4)


def test_a_denoiser_alone_has_no_decoder_to_change():
    case = CASES["flux_img2img"]
    pipe = case.make()
    memory = LightCache(decode="tiled")
    with accel.patch(pipe.transformer, REUSING, memory=memory) as handle:
        assert handle.enabled
