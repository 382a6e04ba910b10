"""Copies of a patched pipeline or model are clean and run their own blocks."""

import copy
import gc
import io
import json
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import nn

import accel
from tests.conformance.support import MODULES, engaging, fresh, pairs, patched
from tests.tiny import Case
from tests.tiny.observe import objects, traces


def _attribute_names(owner: Any) -> set[str]:
    held = (vars(item) for item in objects(owner).values() if hasattr(item, "__dict__"))
    return {name for attributes in held for name in attributes}


def _zeroed(denoiser: nn.Module) -> None:
    for parameter in denoiser.parameters():
        parameter.data.zero_()


@pairs(MODULES)
def test_a_deep_copied_pipeline_is_clean_and_runs_its_own_blocks(case: Case, name: str) -> None:
    method = engaging(name)
    clean = case.make()
    pipe, _ = patched(case, method)
    duplicate = copy.deepcopy(pipe)
    assert traces(duplicate) == traces(clean)
    assert not accel.status(duplicate).patched
    assert torch.equal(case.run(duplicate), fresh(case))
    for denoiser in case.denoisers(duplicate):
        _zeroed(denoiser)
    assert not torch.equal(case.run(duplicate), fresh(case))
    assert torch.equal(case.run(pipe), fresh(case, method))


@pairs(MODULES)
def test_a_deep_copied_model_is_clean_and_runs_its_own_blocks(case: Case, name: str) -> None:
    method = engaging(name)
    pipe, _ = patched(case, method)
    case.run(pipe)
    duplicate = copy.deepcopy(case.denoiser(pipe))
    clean = case.make()
    case.run(clean)
    assert traces(duplicate) == traces(case.denoiser(clean))
    setattr(clean, case.denoiser_names[0], duplicate)
    assert torch.equal(case.run(clean), fresh(case))
    _zeroed(duplicate)
    assert not torch.equal(case.run(clean), fresh(case))
    assert torch.equal(case.run(pipe), fresh(case, method))


@pairs(MODULES)
def test_a_deep_copied_block_is_clean_and_its_own(case: Case, name: str) -> None:
    pipe, _ = patched(case, engaging(name))
    for path, module in case.denoiser(pipe).named_modules():
        duplicate = copy.deepcopy(module)
        assert not [item for item in _attribute_names(duplicate) if "accel" in item], path
        assert type(duplicate) is type(module)
        held = vars(duplicate).get("forward")
        assert held is None or held.__self__ is duplicate


@pairs(MODULES)
def test_a_deep_copy_under_hooks_that_came_later_runs_its_own_blocks(case: Case, name: str) -> None:
    pipe, _ = patched(case, engaging(name))
    for denoiser in case.denoisers(pipe):
        for module in denoiser.modules():
            add_hook_to_module(module, ModelHook(), append=True)
    duplicate = copy.deepcopy(pipe)
    assert torch.equal(case.run(duplicate), fresh(case))
    for denoiser in case.denoisers(duplicate):
        _zeroed(denoiser)
    assert not torch.equal(case.run(duplicate), fresh(case))
    assert torch.equal(case.run(pipe), fresh(case, engaging(name)))


@pairs(MODULES)
def test_a_copy_made_in_the_middle_of_a_generation_is_clean(case: Case, name: str) -> None:
    pipe, _ = patched(case, engaging(name))
    copies: list[Any] = []

    def duplicate(
        running: Any, step: int, _: object, kwargs: dict[str, object]
    ) -> dict[str, object]:
        if step == 2:
            copies.append(copy.deepcopy(running))
        return kwargs

    latents = case.run(pipe, callback_on_step_end=duplicate)
    assert torch.equal(latents, fresh(case, engaging(name)))
    assert not [item for item in _attribute_names(copies[0]) if "accel" in item]
    assert {"step", "set_timesteps"}.isdisjoint(vars(copies[0].scheduler))
    assert torch.equal(case.run(copies[0]), fresh(case))


@pairs(MODULES)
def test_a_pickled_model_is_clean(case: Case, name: str) -> None:
    pipe, _ = patched(case, engaging(name))
    duplicate = pickle.loads(pickle.dumps(case.denoiser(pipe)))
    clean = case.make()
    assert traces(duplicate) == traces(case.denoiser(clean))
    setattr(clean, case.denoiser_names[0], duplicate)
    assert torch.equal(case.run(clean), fresh(case))


@pairs(MODULES)
def test_a_pickled_pipeline_is_clean(case: Case, name: str) -> None:
    pipe, _ = patched(case, engaging(name))
    duplicate = pickle.loads(pickle.dumps(pipe))
    assert type(duplicate) is type(case.make())
    assert not [item for item in _attribute_names(duplicate) if "accel" in item]
    assert torch.equal(case.run(duplicate), fresh(case))


@pairs(MODULES)
def test_torch_save_of_a_whole_model_is_clean(case: Case, name: str) -> None:
    pipe, _ = patched(case, engaging(name))
    buffer = io.BytesIO()
    torch.save(case.denoiser(pipe), buffer)
    buffer.seek(0)
    duplicate = torch.load(buffer, weights_only=False)
    assert traces(duplicate) == traces(case.denoiser(case.make()))


@pairs(MODULES)
def test_state_dict_has_the_same_keys_and_loads_into_a_clean_model(case: Case, name: str) -> None:
    clean = case.denoiser(case.make())
    pipe, _ = patched(case, engaging(name))
    state = case.denoiser(pipe).state_dict()
    assert list(state) == list(clean.state_dict())
    clean.load_state_dict(state)
    names = [path for path, _ in clean.named_modules()]
    assert [path for path, _ in case.denoiser(pipe).named_modules()] == names


@pairs(MODULES)
def test_save_pretrained_writes_what_an_unpatched_pipeline_writes(
    case: Case, name: str, tmp_path: Path
) -> None:
    clean = case.make()
    pipe, _ = patched(case, engaging(name))
    clean.save_pretrained(tmp_path / "clean")
    pipe.save_pretrained(tmp_path / "patched")
    files = sorted(path.relative_to(tmp_path / "clean") for path in tmp_path.glob("clean/**/*"))
    saved = sorted(path.relative_to(tmp_path / "patched") for path in tmp_path.glob("patched/**/*"))
    assert saved == files
    for path in files:
        if path.suffix == ".json":
            assert json.loads((tmp_path / "patched" / path).read_text()) == json.loads(
                (tmp_path / "clean" / path).read_text()
            )
        elif (tmp_path / "clean" / path).is_file():
            assert (tmp_path / "patched" / path).read_bytes() == (
                tmp_path / "clean" / path
            ).read_bytes()


@pairs(MODULES)
def test_dropping_the_pipeline_frees_its_weights(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    case.run(pipe)
    watched = weakref.ref(case.denoiser(pipe))
    del pipe, handle
    gc.collect()
    assert watched() is None


@pairs(MODULES)
def test_a_handle_after_unpatch_does_not_keep_the_weights(case: Case, name: str) -> None:
    pipe, handle = patched(case, engaging(name))
    case.run(pipe)
    watched = weakref.ref(case.denoiser(pipe))
    handle.unpatch()
    del pipe
    gc.collect()
    assert watched() is None
    assert handle.report.engaged


@pytest.mark.parametrize("method", ["enable", "disable", "unpatch", "status"])
@pairs(MODULES[:1])
def test_a_handle_outlives_its_pipeline(case: Case, name: str, method: str) -> None:
    pipe, handle = patched(case, engaging(name))
    del pipe
    gc.collect()
    getattr(handle, method)()
