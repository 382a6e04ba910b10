"""Blocks that are alike run once: a model of sixty equal blocks is counted in a few calls."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from accel.work import Entry

_PLAIN = (int, float, bool, str, type(None), torch.dtype)


def replay_repeats(
    module: nn.Module, entries: dict[str, Entry], roles: Mapping[str, Hashable]
) -> None:
    """Has every module of a list answer as an equal one did before it, in form only.

    Only for a copy on the meta device, whose forwards this replaces: two blocks with the same
    settings, roles and shapes of parameters and arguments then do the same. What the first wrote
    into `entries` is written for the others.
    """
    known: dict[Hashable, tuple[dict[str, Entry], Any]] = {}
    for path, child in module.named_modules():
        if isinstance(child, nn.ModuleList):
            for name, block in child.named_children():
                place = f"{path}.{name}" if path else name
                _wrap(
                    block, place, entries, (*_structure(block), *_roles(block, place, roles)), known
                )


def _wrap(
    block: nn.Module,
    path: str,
    entries: dict[str, Entry],
    structure: Hashable,
    known: dict[Hashable, tuple[dict[str, Entry], Any]],
) -> None:
    original = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        key = (structure, _signature((args, kwargs)))
        if key not in known:
            before = dict(entries)
            output = original(*args, **kwargs)
            known[key] = dict(_added(before, entries, path)), output
            return output
        found, output = known[key]
        for below, entry in found.items():
            entries[path + below] = entries.get(path + below, Entry()).plus(entry)
        return tree_map(_fresh, output)

    block.forward = forward


def _added(
    before: dict[str, Entry], after: dict[str, Entry], path: str
) -> Iterator[tuple[str, Entry]]:
    for name, entry in after.items():
        if name == path or name.startswith(f"{path}."):
            yield name[len(path) :], entry.minus(before.get(name, Entry()))


def _roles(block: nn.Module, place: str, roles: Mapping[str, Hashable]) -> Iterator[Hashable]:
    for path, _ in block.named_modules():
        yield roles[f"{place}.{path}" if path else place]


def _structure(block: nn.Module) -> Iterator[Hashable]:
    for path, part in block.named_modules():
        settings = (
            (name, value if _plain(value) else type(value).__qualname__)
            for name, value in sorted(vars(part).items())
            if not name.startswith("_") and name != "forward"
        )
        tensors = (
            (name, tuple(tensor.shape), tensor.dtype)
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers())
        )
        yield path, type(part), tuple(settings), tuple(tensors)


def _plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_plain, value)))


def _signature(arguments: Any) -> Hashable:
    leaves, form = tree_flatten(arguments)
    return str(form), tuple(map(_leaf, leaves))


def _leaf(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return value if _plain(value) else id(value)


def _fresh(value: Any) -> Any:
    return torch.empty_like(value) if isinstance(value, Tensor) else value
