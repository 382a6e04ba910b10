"""Makes copies of a patched object (`deepcopy`, `pickle`, `torch.save`) come out unpatched."""

import copyreg
from collections.abc import Iterable
from typing import Any

_ABSENT = object()


class Hidden:
    """Which entries of an object's `__dict__` are ours, and what a clean copy has instead."""

    __slots__ = ("cls", "displaced", "keys", "owner")

    def __init__(
        self, owner: Any, cls: type, displaced: dict[str, Any], keys: Iterable[str]
    ) -> None:
        self.owner = owner
        self.cls = cls
        self.displaced = displaced
        self.keys = frozenset(keys)


def clean_reduce(hidden: Hidden, protocol: Any) -> Any:
    """What `__reduce_ex__` of the unpatched object would have returned."""
    owner = hidden.owner
    cls: Any = type(owner)
    function, arguments, *rest = cls.__reduce_ex__(owner, protocol)
    if function is getattr(copyreg, "__newobj__", None):
        # Pickle compares the class that this function is given with the object's present one.
        function = new_instance
    arguments = tuple(hidden.cls if item is cls else item for item in arguments)
    if rest and isinstance(rest[0], dict):
        state = {key: value for key, value in rest[0].items() if key not in hidden.keys}
        rest[0] = {**state, **hidden.displaced}
    return (function, arguments, *rest)


def new_instance(cls: type, *arguments: Any) -> Any:
    """An instance that was not initialised, for pickles of patched objects to start from."""
    return cls.__new__(cls, *arguments)


class Overlay:
    """Entries laid over an object's `__dict__`, to be taken off in any order.

    They come off cleanly whoever else laid something over them. While they lie there, copies of
    the object are made as if they did not.
    """

    def __init__(self, owner: Any, values: dict[str, Any], *, cls: type | None = None) -> None:
        self.owner = owner
        self.values = dict(values)
        attributes = owner.__dict__
        self.displaced = {key: attributes[key] for key in values if key in attributes}
        hidden = Hidden(owner, cls or type(owner), self.displaced, (*values, "__reduce_ex__"))
        if "__reduce_ex__" not in attributes:
            self.values["__reduce_ex__"] = lambda protocol: clean_reduce(hidden, protocol)
        attributes.update(self.values)

    def remove(self) -> None:
        """Takes off what still is ours. An entry that somebody replaced since stays theirs."""
        attributes = self.owner.__dict__
        for key, value in self.values.items():
            if attributes.get(key, _ABSENT) is not value:
                continue
            if key in self.displaced:
                attributes[key] = self.displaced[key]
            else:
                del attributes[key]
