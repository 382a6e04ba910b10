"""Other libraries' caches, hooks and offloading on the same denoiser."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.hooks import add_hook_to_module, remove_hook_from_module
from diffusers import FirstBlockCacheConfig, PyramidAttentionBroadcastConfig, TaylorSeerCacheConfig
from diffusers.hooks import apply_first_block_cache, apply_group_offloading
from diffusers.hooks.group_offloading import GroupOffloadingHook

import accel
from accel import ConflictError
from caching import FirstBlockCache
from tests.tiny import CASES, Case
from tests.tiny.observe import CallCounter, traces

SKIPPING = FirstBlockCache(threshold=10.0, warmup=1, tail=0, min_steps=0)


@pytest.fixture
def case() -> Case:
    return CASES["flux"]


DIFFUSERS_CACHES: dict[str, Callable[[Any], Any]] = {
    "first_block": lambda _: FirstBlockCacheConfig(threshold=0.5),
    "taylor": lambda _: TaylorSeerCacheConfig(cache_interval=2),
    "pyramid": lambda pipe: PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        current_timestep_callback=lambda: pipe.current_timestep,
    ),
}


@pytest.mark.parametrize("cache", sorted(DIFFUSERS_CACHES))
def test_an_enabled_cache_of_diffusers_is_a_conflict_and_stays(case: Case, cache: str) -> None:
    pipe = case.make()
    pipe.transformer.enable_cache(DIFFUSERS_CACHES[cache](pipe))
    before = traces(pipe)
    with pytest.raises(ConflictError, match=r"FluxTransformer2DModel.*replace=True"):
        accel.patch(pipe, SKIPPING)
    assert traces(pipe) == before
    assert pipe.transformer.is_cache_enabled


@pytest.mark.parametrize("cache", sorted(DIFFUSERS_CACHES))
def test_replace_takes_an_enabled_cache_of_diffusers_off(case: Case, cache: str) -> None:
    clean = case.make()
    plain = case.run(clean)
    accel.patch(clean, SKIPPING)
    pipe = case.make()
    pipe.transformer.enable_cache(DIFFUSERS_CACHES[cache](pipe))
    handle = accel.patch(pipe, SKIPPING, replace=True)
    assert not pipe.transformer.is_cache_enabled
    assert torch.equal(case.run(pipe), case.run(clean))
    handle.unpatch()
    assert torch.equal(case.run(pipe), plain)


def test_hooks_of_the_free_functions_are_a_conflict_too(case: Case) -> None:
    pipe = case.make()
    plain = case.run(case.make())
    apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=0.5))
    with pytest.raises(ConflictError, match="replace=True"):
        accel.patch(pipe, SKIPPING)
    accel.patch(pipe, SKIPPING, replace=True).unpatch()
    assert torch.equal(case.run(pipe), plain)


def test_a_cache_enabled_on_a_bare_denoiser_is_a_conflict(case: Case) -> None:
    transformer = case.make().transformer
    transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    with pytest.raises(ConflictError, match="enable_cache"):
        accel.patch(transformer, SKIPPING)


def test_a_cache_enabled_after_patching_is_warned_of(case: Case) -> None:
    pipe = case.make()
    handle = accel.patch(pipe, SKIPPING)
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=1e-9))
    case.run(pipe)
    assert any("cache of diffusers" in text for text in handle.report.warnings)
    handle.unpatch()
    pipe.transformer.disable_cache()
    assert torch.equal(case.run(pipe), case.run(case.make()))


def test_a_cache_of_cache_dit_is_a_conflict_and_replaceable(case: Case) -> None:
    cache_dit = pytest.importorskip("cache_dit")
    pipe = case.make()
    plain = case.run(case.make())
    config = cache_dit.DBCacheConfig(Fn_compute_blocks=1, residual_diff_threshold=0.9)
    cache_dit.enable_cache(pipe, cache_config=config)
    try:
        with pytest.raises(ConflictError, match="cache-dit"):
            accel.patch(pipe, SKIPPING)
        handle = accel.patch(pipe, SKIPPING, replace=True)
        case.run(pipe)
        assert handle.report.engaged
        handle.unpatch()
        assert torch.equal(case.run(pipe), plain)
    finally:
        if getattr(pipe, "_is_cached", False):
            cache_dit.disable_cache(pipe)


def test_two_of_our_methods_that_skip_blocks_conflict_by_name(case: Case) -> None:
    pipe = case.make()
    before = traces(pipe)
    with pytest.raises(ConflictError, match=r"FirstBlockCache.*FirstBlockCache"):
        accel.patch(pipe, SKIPPING, FirstBlockCache(threshold=0.5))
    assert traces(pipe) == before


def test_an_accelerate_hook_added_over_ours_survives_unpatch(case: Case) -> None:
    pipe = case.make()
    plain = case.run(pipe)
    handle = accel.patch(pipe, SKIPPING)
    counter = CallCounter()
    for module in (pipe.transformer, *pipe.transformer.transformer_blocks):
        add_hook_to_module(module, counter)
    case.run(pipe)
    handle.unpatch()
    counter.calls = 0
    assert torch.equal(case.run(pipe), plain)
    assert counter.calls == 6 * 4
    for module in (pipe.transformer, *pipe.transformer.transformer_blocks):
        remove_hook_from_module(module)
    assert torch.equal(case.run(pipe), plain)


def test_an_accelerate_hook_removed_while_patched_leaves_ours_working(case: Case) -> None:
    pipe, other = case.make(), case.make()
    add_hook_to_module(pipe.transformer.transformer_blocks[0], CallCounter())
    handle = accel.patch(pipe, SKIPPING)
    accel.patch(other, SKIPPING)
    remove_hook_from_module(pipe.transformer.transformer_blocks[0])
    case.run(pipe)
    handle.unpatch()
    assert torch.equal(case.run(pipe), case.run(case.make()))
    handle = accel.patch(pipe, SKIPPING)
    assert torch.equal(case.run(pipe), case.run(other))
    assert handle.report.engaged


def test_skipped_blocks_are_not_onloaded_under_group_offload(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.nn.Module] = []
    original = GroupOffloadingHook.pre_forward

    def pre_forward(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(module)
        return original(self, module, *args, **kwargs)

    monkeypatch.setattr(GroupOffloadingHook, "pre_forward", pre_forward)
    pipe = case.make()
    apply_group_offloading(
        pipe.transformer,
        onload_device=torch.device("cpu"),
        offload_device=torch.device("cpu"),
        offload_type="block_level",
        num_blocks_per_group=1,
    )
    handle = accel.patch(pipe, SKIPPING)
    case.run(pipe)
    assert handle.report.engaged
    computed = len(handle.report.decisions) - handle.report.reused
    blocks = [*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks]
    onloads = [sum(module is block for module in seen) for block in blocks]
    assert onloads == [6, *[computed] * 5]
