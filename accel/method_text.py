"""Methods written as text, as command lines and settings files hold them: `DBCache(head=4)`."""

import ast
from collections.abc import Sequence
from typing import Any

from accel.errors import OptionError, nearest
from accel.method import Method
from accel.presets import methods, resolve

_EXAMPLE = 'for example "FirstBlockCache(threshold=0.1)"'


def parse_method(text: str) -> Method:
    """Returns the method that `text` writes as a call with keyword arguments, or as a bare name.

    The text is parsed, never evaluated: a name out of `accel.methods()`, and plain values
    (numbers, strings, True, False, None, tuples and lists of them). What `repr(method)` prints
    gives an equal method back.

    Raises:
        OptionError: the text has another form, or names no method or setting.
    """
    name, settings = _call(text)
    known = methods()
    if name not in known:
        raise OptionError(
            f"There is no method {name!r}.{nearest(name, known)} Methods are "
            f"{', '.join(sorted(known))}; presets go into --preset."
        )
    try:
        return known[name](**settings)
    except TypeError as error:
        raise OptionError(f"{name} cannot be set up from {text!r}: {error}.") from error


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


def _call(text: str) -> tuple[str, dict[str, Any]]:
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise OptionError(f"{text!r} is no method; expected {_EXAMPLE}.") from error
    if isinstance(body, ast.Name):
        return body.id, {}
    if not (isinstance(body, ast.Call) and isinstance(body.func, ast.Name)) or body.args:
        raise OptionError(
            f"{text!r} is no method; expected a name with keyword arguments, {_EXAMPLE}."
        )
    return body.func.id, {_name(keyword): _value(keyword) for keyword in body.keywords}


def _name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise OptionError(f"A method takes plain settings, not **: expected {_EXAMPLE}.")
    return keyword.arg


def _value(keyword: ast.keyword) -> Any:
    try:
        return ast.literal_eval(keyword.value)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(
            f"{keyword.arg}={ast.unparse(keyword.value)} is no plain value; expected a number, "
            "a string, True, False, None, or a list of these."
        ) from error
