"""The verbs on real pipelines: same, other, rollback, foreign caches, siblings, on and off."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FluxImg2ImgPipeline

import accel
from accel.method import Binding, Method, Only
from caching import DBCache, FirstBlockCache
from tests.tiny import CASES

FLUX = CASES["flux"]
METHOD = FirstBlockCache(threshold=10, warmup=1, tail=0, min_steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaks(Method):
    """Fails after its first binding."""

    def neutral(self):
        return self

    def bind(self, model):
        yield Binding(model.blocks[0], lambda call: call.proceed() * 0)
        raise RuntimeError("half-way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Method):
    """Binds nothing."""

    def neutral(self):
        return self

    def bind(self, model):
        yield from ()


def _run_and_fail(pipe):
    FLUX.run(pipe)
    raise ZeroDivisionError("mid-way")


def keys(pipe):
    modules = (set(module.__dict__) for module in pipe.transformer.modules())
    return [type(pipe), set(pipe.__dict__), set(pipe.scheduler.__dict__), *modules]


def test_equal_methods_give_the_same_handle_and_others_replace_it():
    pipe = FLUX.make()
    first = accel.patch(pipe, METHOD)
    assert accel.patch(pipe, FirstBlockCache(threshold=10, warmup=1, tail=0, min_steps=0)) is first
    second = accel.patch(pipe, DBCache(head=1))
    assert second is not first
    assert not first.status().patched
    assert not first.enabled
    first.unpatch()
    assert accel.status(pipe).methods == ("DBCache(head=1)",)


@pytest.mark.parametrize("method", [Breaks(), Nothing(), DBCache(head=99)])
def test_a_patch_that_fails_leaves_a_clean_pipeline_clean(method):
    pipe = FLUX.make()
    before = keys(pipe)
    with pytest.raises((RuntimeError, accel.AccelUnsupportedError)):
        accel.patch(pipe, method)
    assert keys(pipe) == before


def test_a_patch_that_fails_leaves_the_earlier_one_at_work():
    pipe = FLUX.make()
    handle = accel.patch(pipe, METHOD)
    with pytest.raises(RuntimeError, match="half-way"):
        accel.patch(pipe, Breaks())
    FLUX.run(pipe)
    assert handle.report.engaged
    assert accel.patch(pipe, METHOD) is handle


def test_two_methods_that_skip_the_same_blocks_conflict():
    pipe = FLUX.make()
    before = keys(pipe)
    with pytest.raises(accel.ConflictError, match="FirstBlockCache and DBCache both"):
        accel.patch(pipe, METHOD, DBCache())
    assert keys(pipe) == before


def test_an_enabled_cache_of_diffusers_conflicts_unless_replaced():
    pipe = FLUX.make()
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.5))
    with pytest.raises(accel.ConflictError, match="replace=True"):
        accel.patch(pipe, METHOD)
    assert pipe.transformer.is_cache_enabled
    accel.patch(pipe, METHOD, replace=True)
    assert not pipe.transformer.is_cache_enabled


def test_a_cache_enabled_after_patching_is_reported():
    pipe = FLUX.make()
    handle = accel.patch(pipe, METHOD)
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=1e-9))
    FLUX.run(pipe)
    assert any("diffusers" in warning for warning in handle.report.warnings)


def test_off_is_exact_and_on_engages_again():
    pipe = FLUX.make()
    plain = FLUX.run(pipe)
    handle = accel.patch(pipe, METHOD)
    handle.disable()
    assert torch.equal(FLUX.run(pipe), plain)
    assert not handle.reports
    assert "off" in str(handle.status())
    handle.enable()
    assert not torch.equal(FLUX.run(pipe), plain)


def test_the_scoped_form_always_restores():
    pipe = FLUX.make()
    plain, before = FLUX.run(pipe), keys(pipe)
    with pytest.raises(ZeroDivisionError, match="mid-way"), accel.patch(pipe, METHOD):
        _run_and_fail(pipe)
    assert keys(pipe) == before
    assert torch.equal(FLUX.run(pipe), plain)


def test_a_sibling_shares_the_denoiser_and_says_so_until_it_is_patched_too():
    pipe = FLUX.make()
    handle = accel.patch(pipe, METHOD)
    sibling = FluxImg2ImgPipeline(**pipe.components)
    status = accel.status(sibling)
    assert status.patched
    assert "another pipeline" in str(status)
    assert accel.patch(sibling, METHOD) is handle
    assert "another pipeline" not in str(accel.status(sibling))
    assert accel.unpatch(sibling)
    assert type(sibling) is FluxImg2ImgPipeline
    assert not accel.status(pipe).patched


def test_unpatching_what_is_not_patched_is_no_error():
    pipe = FLUX.make()
    assert not accel.unpatch(pipe)
    assert str(accel.status(pipe)) == "not patched"


@pytest.mark.parametrize("steps", [0, -3])
def test_zero_steps_are_refused_before_the_pipeline_runs(steps):
    pipe = FLUX.make()
    accel.patch(pipe, METHOD)
    with pytest.raises(accel.OptionError, match="at least 1"):
        pipe(num_inference_steps=steps)


@pytest.mark.parametrize("target", [None, 3, "pipe", object(), [1]])
def test_an_object_that_is_no_pipeline_is_refused_by_type(target):
    with pytest.raises(accel.AccelUnsupportedError, match=type(target).__name__):
        accel.patch(target)
    assert not accel.status(target).patched


def test_a_pipeline_without_a_denoiser_is_refused_with_its_parts():
    class Odd:
        def __init__(self):
            self.components = {"vae": torch.nn.Linear(1, 1), "name": "x"}

        def __call__(self):
            return None

    with pytest.raises(accel.AccelUnsupportedError, match=r"vae \(Linear\)"):
        accel.patch(Odd(), METHOD)


def test_a_denoiser_compiled_as_a_whole_is_refused_with_the_way_out():
    pipe = FLUX.make()
    pipe.transformer.compile(backend="eager")
    with pytest.raises(accel.AccelUnsupportedError, match="compile_repeated_blocks"):
        accel.patch(pipe, METHOD)
    with pytest.raises(accel.AccelUnsupportedError, match="FluxTransformer2DModel is compiled"):
        accel.patch(torch.compile(FLUX.make().transformer, backend="eager"), METHOD)


def test_targets_for_the_tuner_are_refused_with_what_to_do():
    with pytest.raises(accel.OptionError, match="preset"):
        accel.patch(FLUX.make(), quality="psnr>=30")


def test_a_patched_pipeline_is_collected_with_its_weights():
    pipe = FLUX.make()
    accel.patch(pipe, METHOD)
    FLUX.run(pipe)
    weights = weakref.ref(pipe.transformer.proj_out.weight)
    del pipe
    gc.collect()
    assert weights() is None


def test_the_documented_signature_of_the_pipeline_stays():
    import inspect

    pipe = FLUX.make()
    before = inspect.signature(pipe.__call__)
    accel.patch(pipe, METHOD)
    assert inspect.signature(pipe.__call__) == before
    assert type(pipe).__name__ == "FluxPipeline"
    assert isinstance(pipe, type(FLUX.make()))


def test_each_denoiser_of_a_pipeline_may_have_a_method_of_its_own() -> None:
    case = CASES["wan_two_stage"]
    pipe = case.make()
    plain = case.run(pipe)
    first = FirstBlockCache(threshold=10.0, warmup=0, tail=0, min_steps=0)
    never = first.neutral()
    handle = accel.patch(
        pipe,
        Only(denoiser="transformer", method=never),
        Only(denoiser="transformer_2", method=first),
    )
    assert not torch.equal(case.run(pipe), plain)
    assert [report.engaged for report in handle.reports] == [False, True]
    assert accel.patch(pipe, *handle.methods) is handle
    handle.unpatch()
    assert torch.equal(case.run(pipe), plain)


def test_a_denoiser_that_no_method_is_meant_for_is_left_alone() -> None:
    case = CASES["wan_two_stage"]
    pipe = case.make()
    handle = accel.patch(pipe, Only(denoiser="transformer_2", method=FirstBlockCache()))
    assert handle.status().denoisers == ("transformer_2 (WanTransformer3DModel)",)
    assert "forward" not in vars(pipe.transformer)


def test_methods_for_one_denoiser_may_not_conflict_and_must_find_it() -> None:
    pipe = CASES["wan_two_stage"].make()
    one = Only(denoiser="transformer", method=FirstBlockCache())
    with pytest.raises(accel.ConflictError, match="both want"):
        accel.patch(pipe, one, DBCache())
    with pytest.raises(accel.OptionError, match="no denoiser 'unet'; there is transformer, trans"):
        accel.patch(pipe, Only(denoiser="unet", method=FirstBlockCache()))
    with pytest.raises(accel.OptionError, match="expected a method"):
        Only(denoiser="transformer", method=one)
    assert not accel.status(pipe).patched
    assert one.neutral().method == FirstBlockCache().neutral()
