"""Presets and methods by name."""

import pytest

import accel
from accel.presets import resolve
from caching import DeepCache, FirstBlockCache, FoCa, LinearPlan
from tests.tiny import CASES


def test_no_argument_means_balanced():
    assert resolve(()) == resolve(("balanced",))


def test_every_preset_resolves_to_methods():
    assert set(accel.presets()) == {"quality", "balanced", "fast"}
    for name in accel.presets():
        assert all(isinstance(method, accel.Method) for method in resolve((name,)))


@pytest.mark.parametrize(
    ("case", "method"),
    [("flux", LinearPlan), ("wan_two_stage", LinearPlan), ("sd15", DeepCache)],
)
@pytest.mark.parametrize("preset", sorted(accel.presets()))
def test_a_preset_is_a_method_for_the_kind_of_model(case, method, preset):
    pipe = CASES[case].make()
    handle = accel.patch(pipe, preset)
    assert [type(chosen) for chosen in handle.methods] == [method]
    assert accel.patch(pipe, preset) is handle


def test_presets_rank_from_slow_to_fast_on_both_kinds():
    chosen = [resolve((name,))[0] for name in ("quality", "balanced", "fast")]
    shares = [each.suited(unet=False).share for each in chosen]
    unets = [each.suited(unet=True) for each in chosen]
    intervals = [(each.interval, -each.warmup) for each in unets]
    assert shares == sorted(set(shares), reverse=True)
    assert intervals == sorted(set(intervals))


def test_a_choice_by_model_is_neutral_where_both_are():
    choice = resolve(())[0].neutral()
    assert choice.suited(unet=True).interval == 1
    assert choice.suited(unet=False) == LinearPlan(predictor=FoCa())
    only = accel.Only(denoiser="unet", method=choice)
    assert only.suited(unet=True).method == choice.suited(unet=True)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (("balancd",), "Did you mean 'balanced'"),
        (("FirstBlockCach",), "Did you mean 'FirstBlockCache'"),
        (("FirstBlockCache",), r"pass an instance of it"),
        ((FirstBlockCache,), r"is a class"),
        ((FirstBlockCache(), "fast"), "cannot be combined"),
        ((3,), "3 is no method"),
    ],
)
def test_what_is_no_preset_or_method_is_refused_with_what_to_do(chosen, message):
    with pytest.raises(accel.OptionError, match=message):
        resolve(chosen)


def test_unknown_options_are_refused_by_python_itself():
    with pytest.raises(TypeError, match="treshold"):
        FirstBlockCache(treshold=0.1)


def test_every_method_names_its_source_and_tunables():
    for method in accel.methods().values():
        assert method.source
        assert all(hasattr(method, tunable.name) for tunable in method.tunables)
        assert str(method().neutral()).startswith(method.__name__)
