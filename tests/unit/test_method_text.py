"""Methods in text are parsed, never evaluated, and what does not exist is named."""

import pytest

import accel
from accel import LightCache
from accel.errors import OptionError
from accel.method_text import choose, parse_memory, parse_method
from accel.presets import resolve
from caching import DBCache, FirstBlockCache, Newton


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("FirstBlockCache", FirstBlockCache()),
        ("FirstBlockCache()", FirstBlockCache()),
        (" FirstBlockCache(threshold=0.25, warmup=3) ", FirstBlockCache(threshold=0.25, warmup=3)),
        ("FirstBlockCache(predictor=Newton(2))", FirstBlockCache(predictor=Newton(2))),
        ("DBCache(head=1)", DBCache(head=1)),
    ],
)
def test_text_gives_the_method_it_writes(text: str, method: accel.Method) -> None:
    assert parse_method(text) == method


@pytest.mark.parametrize("name", sorted(accel.methods()))
def test_what_repr_prints_gives_an_equal_method(name: str) -> None:
    method = accel.methods()[name]()
    assert parse_method(repr(method)) == method
    assert parse_method(repr(method.neutral())) == method.neutral()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FirstBlokCache(threshold=1)", "Did you mean 'FirstBlockCache'"),
        ("balanced", "There is no 'balanced'"),
        ("", "is no method"),
        ("FirstBlockCache(", "is no method"),
        ("1 + 1", "is no method"),
        ("FirstBlockCache(0.1)", "takes threshold"),
        ("FirstBlockCache(treshold=0.1)", "FirstBlockCache takes threshold"),
        ("FirstBlockCache(**{'threshold': 0.1})", r"not \*\*"),
        ("FirstBlockCache(threshold=x)", "x is no plain value"),
        ("FirstBlockCache(threshold=-1)", "threshold is -1"),
        ("FirstBlockCache(predictor=Newtn(1))", "Did you mean 'Newton'"),
        ("__import__('os').system('true')", "There is no"),
        ("FirstBlockCache(threshold=__import__('os').getpid())", "There is no"),
        ("FirstBlockCache(threshold=[].__class__)", "no plain value"),
        ("FirstBlockCache(predictor=Newton(Newton(Newton(Newton(Newton(1))))))", "no plain value"),
        ("(" * 5000, "is no method"),
    ],
)
def test_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_method(text)


def test_memory_options_are_written_as_in_python() -> None:
    assert parse_memory("LightCache") == LightCache()
    memory = LightCache(budget="2GiB", swap=False, chunk_tokens=512, decode="tiled")
    assert parse_memory(repr(memory)) == memory


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2GiB", r"'2GiB' is no memory option; expected .*LightCache\(budget='2GiB'\)"),
        ("LightCach()", "Did you mean 'LightCache'"),
        ("LightCache(budget='much')", "budget is 'much'"),
        ("LightCache(limit=1)", "LightCache takes .*budget"),
    ],
)
def test_other_memory_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_memory(text)


def test_choice_is_a_preset_or_methods_or_the_default() -> None:
    assert choose("fast", []) == resolve(("fast",))
    assert choose(None, ["DBCache(head=1)"]) == (DBCache(head=1),)
    assert choose(None, []) == resolve(())
    with pytest.raises(OptionError, match="not both"):
        choose("fast", ["DBCache"])
    with pytest.raises(OptionError, match="fsat"):
        choose("fsat", [])
