"""Bad input: a clear error that says what was found, and nothing has changed."""

import math
from typing import Any

import diffusers
import pytest
import torch
from torch import nn

import accel
from accel import AccelUnsupportedError, OptionError
from caching import DBCache, FirstBlockCache
from tests.tiny import CASES, Pipeline
from tests.tiny.models import vae
from tests.tiny.observe import traces


@pytest.fixture
def pipe() -> Pipeline:
    return CASES["flux"].make()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("balansed", "balanced"), ("Fast", "fast"), ("first_block_cache", "FirstBlockCache")],
)
def test_an_unknown_preset_names_the_nearest(pipe: Pipeline, name: str, meant: str) -> None:
    before = traces(pipe)
    with pytest.raises(OptionError, match=f"{name}.*{meant}"):
        accel.patch(pipe, name)
    assert traces(pipe) == before


def test_a_name_that_resembles_nothing_lists_the_presets(pipe: Pipeline) -> None:
    with pytest.raises(OptionError, match=r"zzzzzz.*quality.*balanced.*fast"):
        accel.patch(pipe, "zzzzzz")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((FirstBlockCache,), "FirstBlockCache.*instance"),
        (("FirstBlockCache",), "FirstBlockCache.*instance"),
        (("fast", FirstBlockCache()), "fast.*alone"),
        ((None,), "None"),
        ((0.1,), "0.1"),
        (({"threshold": 0.1},), "threshold"),
        ((("fast",),), "fast"),
    ],
)
def test_what_is_no_method_is_refused(pipe: Pipeline, given: tuple[Any, ...], words: str) -> None:
    before = traces(pipe)
    with pytest.raises(OptionError, match=words):
        accel.patch(pipe, *given)
    assert traces(pipe) == before


@pytest.mark.parametrize("method", [FirstBlockCache, DBCache])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threshold", math.nan),
        ("threshold", -0.1),
        ("threshold", "0.1"),
        ("threshold", None),
        ("threshold", True),
        ("warmup", -1),
        ("warmup", 1.5),
        ("tail", -1),
        ("tail", math.nan),
        ("max_streak", 0),
        ("max_streak", -2),
        ("batch", "median"),
        ("predictor", "psychic"),
    ],
)
def test_an_option_outside_its_range_is_refused_by_name(
    method: type[Any], option: str, value: Any
) -> None:
    with pytest.raises(OptionError, match=rf"{method.__name__}.*{option}"):
        method(**{option: value})


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan])
def test_a_head_of_no_blocks_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"DBCache.*head"):
        DBCache(head=value)


def test_more_head_and_tail_blocks_than_the_model_has_are_refused(pipe: Pipeline) -> None:
    before = traces(pipe)
    with pytest.raises(AccelUnsupportedError, match=r"DBCache.*FluxTransformer2DModel has 6"):
        accel.patch(pipe, DBCache(head=5, tail_blocks=4))
    assert traces(pipe) == before


def test_a_misspelt_option_is_refused_with_its_name() -> None:
    with pytest.raises(TypeError, match="treshold"):
        FirstBlockCache(treshold=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("goal", [{"quality": "psnr>=30"}, {"speedup": 2.0}])
def test_a_goal_for_the_tuner_says_that_there_is_none_yet(
    pipe: Pipeline, goal: dict[str, Any]
) -> None:
    before = traces(pipe)
    with pytest.raises(OptionError, match=f"{next(iter(goal))}="):
        accel.patch(pipe, **goal)
    assert traces(pipe) == before


@pytest.mark.parametrize(
    "target",
    [None, 3, "a prompt", object(), [], FirstBlockCache(), diffusers.DDIMScheduler()],
    ids=lambda target: type(target).__name__,
)
def test_what_is_neither_pipeline_nor_denoiser_is_refused_by_class(target: Any) -> None:
    with pytest.raises(AccelUnsupportedError, match=type(target).__name__):
        accel.patch(target)


@pytest.mark.parametrize(
    "module",
    [nn.Linear(2, 2), vae(), nn.ModuleList([nn.Linear(2, 2)])],
    ids=lambda m: type(m).__name__,
)
def test_a_module_that_is_no_denoiser_is_refused_by_class_and_left_alone(
    module: nn.Module,
) -> None:
    before = traces(module)
    with pytest.raises(AccelUnsupportedError, match=type(module).__name__):
        accel.patch(module)
    assert traces(module) == before


def test_not_strict_leaves_what_cannot_be_patched_as_it_is() -> None:
    case = CASES["sd15"]
    pipe = case.make()
    plain = case.run(pipe)
    before = traces(pipe)
    handle = accel.patch(pipe, FirstBlockCache(), strict=False)
    assert traces(pipe) == before
    assert torch.equal(case.run(pipe), plain)
    assert "UNet2DConditionModel" in str(handle.status())
    handle.unpatch()


def test_unpatching_what_was_never_patched_is_harmless(pipe: Pipeline) -> None:
    before = traces(pipe)
    assert accel.unpatch(pipe) is False
    assert accel.unpatch(pipe.transformer) is False
    assert traces(pipe) == before


@pytest.mark.parametrize("steps", [0, -3])
def test_impossible_step_counts_are_refused_before_anything_runs(
    pipe: Pipeline, steps: int
) -> None:
    accel.patch(pipe)
    with pytest.raises(OptionError, match=str(steps)):
        CASES["flux"].run(pipe, steps=steps)
