"""Methods written as text, as command lines and settings files hold them: `DBCache(head=4)`."""

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from accel.errors import OptionError, nearest
from accel.memory import LightCache
from accel.method import Method
from accel.presets import PACKAGES, methods, resolve

_EXAMPLE = 'for example "FirstBlockCache(threshold=0.1)"'
# A method with a part, such as DBCache(predictor=Newton(1)), is two calls deep.
_DEPTH = 3


def parse_method(text: str) -> Method:
    """Returns the method that `text` writes as a call, or as a bare name.

    The text is parsed, never evaluated. It may hold names out of `accel.methods()`, parts that the
    method packages export (such as `Newton(1)`), and plain values: numbers, strings, True, False,
    None, and lists of them. What `repr(method)` prints gives an equal method back.

    Raises:
        OptionError: the text has another form, or names no method or setting.
    """
    method: Method = _build(_read(text, f"method; expected {_EXAMPLE}"), methods(), _DEPTH)
    return method


def parse_memory(text: str) -> LightCache:
    """Returns the memory options that `text` writes, as `LightCache(budget='2GiB')`.

    Raises:
        OptionError: the text has another form, or names another thing or setting.
    """
    expected = "memory option; expected for example \"LightCache(budget='2GiB')\""
    memory: LightCache = _build(_read(text, expected), {"LightCache": LightCache}, 0)
    return memory


def _read(text: str, expected: str) -> ast.Call:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise OptionError(f"{text!r} is no {expected}.") from error
    call = ast.Call(func=body, args=[], keywords=[]) if isinstance(body, ast.Name) else body
    if not isinstance(call, ast.Call):
        raise OptionError(f"{text!r} is no {expected}.")
    return call


def choose(preset: str | None, texts: Sequence[str]) -> tuple[Method, ...]:
    """Returns the methods of a preset, or those written in `texts`, or the default preset's.

    Raises:
        OptionError: both are given, or something in them does not exist.
    """
    if preset is not None and texts:
        raise OptionError("Give --preset or --method, not both: a preset is a choice of methods.")
    if preset is not None:
        return resolve((preset,))
    return resolve(tuple(parse_method(text) for text in texts))


def _build(call: ast.Call, known: Mapping[str, type], depth: int) -> Any:
    name = ast.unparse(call.func)
    if name not in known:
        raise OptionError(
            f"There is no {name!r} here.{nearest(name, known)} Expected {', '.join(sorted(known))}."
        )
    values = [_value(argument, depth) for argument in call.args]
    settings = {_name(keyword): _value(keyword.value, depth) for keyword in call.keywords}
    try:
        return known[name](*values, **settings)
    except TypeError as error:
        names = list(inspect.signature(known[name]).parameters)
        # What is particular to it comes before what it shares with others.
        takes = ", ".join(sorted(names, key=lambda each: each not in known[name].__annotations__))
        raise OptionError(
            f"{ast.unparse(call)} cannot be set up ({error}). {name} takes {takes}."
        ) from error


def _name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise OptionError(f"A method takes plain settings, not **: expected {_EXAMPLE}.")
    return keyword.arg


def _value(node: ast.expr, depth: int) -> Any:
    if isinstance(node, ast.Call) and depth > 0:
        return _build(node, _parts(), depth - 1)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(
            f"{ast.unparse(node)} is no plain value; expected a number, a string, True, False, "
            "None, or a list of these."
        ) from error


def _parts() -> dict[str, type]:
    """Settings of methods that are objects themselves: exported dataclasses that are no methods."""
    exported = (
        getattr(package, name)
        for package in map(importlib.import_module, PACKAGES)
        for name in package.__all__
    )
    return {
        part.__name__: part
        for part in exported
        if isinstance(part, type)
        and dataclasses.is_dataclass(part)
        and not issubclass(part, Method)
    }
