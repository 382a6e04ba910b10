"""Presets and methods by name."""

import pytest

import accel
from accel.presets import resolve
from caching import FirstBlockCache


def test_no_argument_means_balanced():
    assert resolve(()) == resolve(("balanced",))


def test_every_preset_resolves_to_methods():
    assert set(accel.presets()) == {"quality", "balanced", "fast"}
    for name in accel.presets():
        assert all(isinstance(method, accel.Method) for method in resolve((name,)))


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
