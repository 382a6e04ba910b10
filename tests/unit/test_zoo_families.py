"""What the zoo offers by name: pipelines from blueprints, publishing, checksums, measuring."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from accel import zoo
from accel.errors import AccelError, OptionError
from accel.zoo import catalogue, evaluate, families, pictures, publish, solvers
from accel.zoo.evaluate import Bench, Subject
from accel.zoo.families import FAMILIES, Drawing, Family, drawing, family
from accel.zoo.scenes import sample_scenes
from accel.zoo.video import save_attention
from accel.zoo.video.clips import sample_clips
from tests.unit.untrained_zoo import UNET, VIDEO, published, runs, untrained

__all__ = ["published", "runs", "untrained"]

Capture = pytest.CaptureFixture[str]
SMALL_CLIP = {"height": 32, "width": 32, "num_frames": 5, "max_sequence_length": 32}
MEGABYTE = 1_000_000


def offered_by(protocol: type) -> set[str]:
    """What a protocol and those that it stands on ask for."""
    asked = set(protocol.__annotations__) | {name for name in vars(protocol) if name[0] != "_"}
    return asked if protocol is Family else asked | offered_by(Family)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_name_offers_everything(name: str) -> None:
    for attribute in offered_by(Family):
        assert hasattr(family(name), attribute), attribute
    assert importlib.util.find_spec(family(name).PUBLISHER)


@pytest.mark.parametrize("name", [UNET, VIDEO, "scenes-flux"])
def test_who_draws_offers_all_of_drawing(name: str) -> None:
    offered = drawing(name)
    for attribute in offered_by(Drawing):
        assert hasattr(offered, attribute), attribute
    about = offered.ABOUT
    offered.check_call(about.call)
    families.check_words(name, about.example)
    assert offered.understood(about.example)
    assert not offered.understood("a red bag")


def test_language_models_draw_nothing() -> None:
    with pytest.raises(OptionError, match="tiny-dream is a language model; it makes no pictures"):
        drawing("tiny-dream")


@pytest.mark.parametrize("scheduler", ["own", "unipc", "dpm", "euler"])
def test_the_unet_runs_under_every_solver_and_equal_seeds_agree(
    untrained: dict[str, Any], monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    pipe = untrained[UNET]
    monkeypatch.setattr(pipe, "scheduler", solvers.noise()[scheduler]())
    assert int(pipe.scheduler.config.num_train_timesteps) == 1000

    def draw(seed: int, guidance: float) -> Any:
        generator = torch.Generator().manual_seed(seed)
        call = {"num_inference_steps": 3, "guidance_scale": guidance, "output_type": "np"}
        return pipe("a large red bag on a mint ground", generator=generator, **call).images[0]

    first = draw(1, 2.0)
    assert first.shape == (64, 64, 3)
    assert np.isfinite(first).all()
    assert np.array_equal(first, draw(1, 2.0))
    assert not np.array_equal(first, draw(2, 2.0))
    assert not np.array_equal(first, draw(1, 1.0))


def test_solvers_for_noise_meet_where_steps_are_many(
    untrained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, makers = untrained[UNET], solvers.noise()
    latents = {}
    for name in ("own", "dpm", "euler"):
        monkeypatch.setattr(pipe, "scheduler", makers[name]())
        latents[name] = pipe(
            "small blue trousers on a grey ground",
            generator=torch.Generator().manual_seed(0),
            num_inference_steps=20,
            guidance_scale=1.0,
            height=16,
            width=16,
            output_type="latent",
        ).images
    size = latents["own"].square().mean()
    for name in ("dpm", "euler"):
        assert (latents[name] - latents["own"]).square().mean() < size / 10


@pytest.mark.parametrize("scheduler", ["own", "unipc", "dpm"])
def test_every_solver_takes_flux_through_the_same_levels(scheduler: str) -> None:
    pipe = zoo.load("scenes-flux")
    pipe.scheduler = solvers.flow("euler", 1.0)[scheduler]()
    prompt = "a large red bag on a mint ground"
    latents = pipe(prompt, height=16, width=16, num_inference_steps=4, output_type="latent").images
    assert torch.isfinite(latents).all()
    levels = torch.as_tensor(pipe.scheduler.sigmas)
    assert torch.allclose(levels, torch.tensor([1, 0.75, 0.5, 0.25, 0]), atol=2e-3)


@pytest.mark.parametrize("scheduler", ["own", "euler", "dpm"])
def test_video_runs_under_every_solver_and_equal_seeds_agree(
    untrained: dict[str, Any], monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    pipe = untrained[VIDEO]
    monkeypatch.setattr(pipe, "scheduler", solvers.flow("unipc", 3.0)[scheduler]())

    def draw(seed: int, prompt: str = "a small red bag bouncing up on a mint ground") -> Any:
        generator = torch.Generator().manual_seed(seed)
        call = {**SMALL_CLIP, "num_inference_steps": 3, "guidance_scale": 2.0}
        return pipe(prompt, generator=generator, **call).frames[0]

    first = draw(1)
    assert first.shape == (5, 32, 32, 3)
    assert np.isfinite(first).all()
    assert np.array_equal(first, draw(1))
    assert not np.array_equal(first, draw(2))


def test_a_whole_clip_has_more_than_4096_tokens_and_comes_back_at_its_length(
    untrained: dict[str, Any],
) -> None:
    pipe, call = untrained[VIDEO], dict(family(VIDEO).ABOUT.call)
    frames, height, width = save_attention.grid(pipe, call)
    assert frames * height * width == 4608
    latents = torch.zeros(1, 8, frames, height * 2, width)
    assert pipe.vae.decode(latents).sample.shape == (1, 3, call["num_frames"], 64, 64)


def test_published_weights_are_half_precision_and_small(published: Path) -> None:
    for name in (UNET, VIDEO):
        files = list((published / name).rglob("*.safetensors"))
        assert sum(path.stat().st_size for path in files) < 20 * MEGABYTE
        for path in files:
            with safe_open(path, framework="pt") as weights:
                kinds = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118
            assert kinds == {"F16"}, path
        assert not list((published / name).rglob("*.bin"))


def test_loading_by_name_gives_the_stock_pipelines(published: Path, untrained: Any) -> None:
    from diffusers import StableDiffusionPipeline, WanPipeline

    assert zoo.names() == (UNET, VIDEO)
    for name, kind in ((UNET, StableDiffusionPipeline), (VIDEO, WanPipeline)):
        pipe = zoo.load(name)
        assert type(pipe) is kind
        assert {w.dtype for w in pipe.vae.parameters()} == {torch.float32}
        call = zoo.card(name).call
        assert call["guidance_scale"] == 2.0
        assert call["negative_prompt"] == ""
    weight = untrained[VIDEO].transformer.proj_out.weight
    assert torch.equal(pipe.transformer.proj_out.weight, weight.half().float())
    readme = (published / VIDEO / "README.md").read_text("utf-8")
    assert 'frames = pipe(prompt, **zoo.card("scenes-video").call).frames[0]' in readme
    assert "accel zoo eval scenes-video" in readme


def test_video_prompts_describe_clips(published: Path) -> None:
    assert zoo.prompts(VIDEO, 4) == [clip.caption() for clip in sample_clips(4)]
    with pytest.raises(OptionError, match="4096"):
        zoo.prompts(VIDEO, 5000)


def test_a_weight_file_of_other_content_is_named(published: Path) -> None:
    path = published / UNET / "unet" / "diffusion_pytorch_model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(AccelError, match=f"{path} has the SHA-256 .* not what was published"):
        zoo.load(UNET)


def test_what_was_measured_is_told_on_card_and_readme(published: Path, tmp_path: Path) -> None:
    row = {"kind": 0.5, "direction": 0.25, "steadiness_db": 30.0}
    results = {
        "recommended": row,
        "accuracy": {"own": {"24": row}},
        "psnr_db": {"own": {"24": {"recommended_mean": 33.0, "converged_mean": 22.0}}},
    }
    record = evaluate.write_record(tmp_path / "r.json", "zoo", {}, [0], results)
    publish.write_card(published / VIDEO, 1.0, {"vae": 1.0}, record)
    publish.write_readme(published / VIDEO)
    card = zoo.card(VIDEO)
    assert card.figures["recommended"]["direction"] == 0.25
    assert "negative_prompt" not in card.call
    readme = (published / VIDEO / "README.md").read_text("utf-8")
    assert "kind 50.0%, direction 25.0%" in readme
    assert "| 24 | 50.0% / 25.0% |" in readme
    assert "| 24 | 33.0 / 22.0 |" in readme


def test_models_still_to_be_trained_are_told_from_unknown_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "HERE", tmp_path)
    with pytest.raises(OptionError, match="accel zoo train scenes-video"):
        zoo.card(VIDEO)
    with pytest.raises(OptionError, match=r"no model 'scenes-vide'.*Did you mean 'scenes-video'"):
        family("scenes-vide")


class Echo:
    """A pipeline whose picture is as bright as its seed and steps say."""

    scheduler = None

    def __call__(self, prompts: list[str], *, generator: Any, **call: Any) -> Any:
        seeds = torch.tensor([float(g.initial_seed()) for g in generator])
        error = 1.0 / call["num_inference_steps"]
        self.negative = call.get("negative_prompt")
        self.images = (seeds / 10 + error)[:, None, None, None].expand(-1, 3, 2, 2)
        return self


def test_curves_measure_the_distance_to_both_references() -> None:
    bench = Bench(
        schedulers={"own": object, "dpm": object},
        guidance="guidance_scale",
        tasks=sample_scenes,
        figures=lambda images, tasks: {"bright": round(images.mean().item(), 3)},
        output="images",
        batch=2,
        counts={},
        steps=(20, 10),
    )
    subject = Subject(bench, Echo(), {"num_inference_steps": 20, "negative_prompt": ""})
    scenes = sample_scenes(3)
    curves = evaluate.psnr_curves(subject, scenes)
    assert curves["own"]["20"]["recommended_mean"] == 100
    assert curves["dpm"]["10"]["recommended_worst"] == round(-20 * np.log10(0.05), 2)
    assert curves["own"]["10"]["converged_mean"] == round(-20 * np.log10(0.1 - 1 / 140), 2)
    assert evaluate.accuracy_curves(subject, scenes)["dpm"]["10"] == {"bright": 0.2}
    assert subject.pipe.negative == [""]


def test_attention_is_saved_as_it_was_computed_on(untrained: dict[str, Any]) -> None:
    pipe = untrained[VIDEO]
    call = {**SMALL_CLIP, "num_inference_steps": 3, "guidance_scale": 2.0}
    before = [list(block.attn1.__dict__) for block in pipe.transformer.blocks]
    found = save_attention.record(pipe, "a small red bag", [0, 5], [1], **call)
    assert {key.rsplit(".", 1)[0] for key in found} == {
        f"1.{branch}.{layer}" for branch in ("cond", "uncond") for layer in (0, 5)
    }
    assert {tuple(tensor.shape) for tensor in found.values()} == {(3, 3 * 8 * 16, 64)}
    assert not torch.equal(found["1.cond.5.k"], found["1.uncond.5.k"])
    assert [list(block.attn1.__dict__) for block in pipe.transformer.blocks] == before
    assert not any(block.attn1._forward_hooks for block in pipe.transformer.blocks)


@pytest.mark.parametrize(
    ("layers", "steps", "message"), [([6], [0], "layers 0 to 5"), ([0], [3], "from 0 to 2")]
)
def test_layers_and_steps_that_are_not_there_are_refused(
    untrained: dict[str, Any], layers: list[int], steps: list[int], message: str
) -> None:
    call = {**SMALL_CLIP, "num_inference_steps": 3, "guidance_scale": 1.0}
    with pytest.raises(OptionError, match=message):
        save_attention.record(untrained[VIDEO], "a small red bag", layers, steps, **call)


def test_a_card_without_checksums_is_damaged(published: Path) -> None:
    path = published / UNET / "card.json"
    entries = json.loads(path.read_text("utf-8"))
    del entries["sha256"]
    path.write_text(json.dumps(entries), encoding="utf-8")
    with pytest.raises(AccelError, match="is damaged"):
        zoo.load(UNET)


def test_pictures_are_judged_on_both_questions() -> None:
    bench = pictures.bench(solvers.noise(), "guidance_scale")
    found = bench.figures(torch.zeros(2, 3, 64, 64), bench.tasks(2))
    assert set(found) == {"kind", "colour", "both"}
