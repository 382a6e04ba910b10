"""What a pipeline looks like from outside: attributes, classes, live features, denoiser calls."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.hooks import ModelHook
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny.cases import Case, Pipeline


def _modules(owner: Any) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(owner, nn.Module):
        yield from owner.named_modules()
        return
    for name, part in owner.components.items():
        if isinstance(part, nn.Module):
            yield from part.named_modules(prefix=name)


def objects(owner: Any) -> dict[str, Any]:
    """Returns all that accel might touch, by path: modules, processors, scheduler, pipe."""
    found: dict[str, Any] = dict(_modules(owner))
    processors = {
        f"{path}.processor": module.processor
        for path, module in found.items()
        if hasattr(module, "processor")
    }
    found |= processors
    if not isinstance(owner, nn.Module):
        found |= {"<pipe>": owner, "<scheduler>": owner.scheduler}
    return found


def traces(owner: Any) -> dict[str, tuple[type, frozenset[str], Any, tuple[int, ...]]]:
    """Returns class, attribute names, `forward` and hook counts of every object, by path."""
    return {path: _trace(item) for path, item in objects(owner).items()}


def _trace(item: Any) -> tuple[type, frozenset[str], Any, tuple[int, ...]]:
    attributes = vars(item) if hasattr(item, "__dict__") else {}
    hooks = tuple(
        len(value)
        for name, value in sorted(attributes.items())
        if name.endswith("hooks") and isinstance(value, dict)
    )
    return type(item), frozenset(attributes), attributes.get("forward"), hooks


def class_contents(owner: Any) -> dict[type, dict[str, Any]]:
    """Returns what every class of these objects, and every base of theirs, holds."""
    classes = {base for item in objects(owner).values() for base in type(item).__mro__}
    return {cls: dict(vars(cls)) for cls in classes if cls.__module__ != "builtins"}


class CallCounter(ModelHook):  # type: ignore[misc]
    """What accelerate's `cpu_offload` installs, without the offloading: it sees every call."""

    def __init__(self) -> None:
        self.calls = 0

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Counts."""
        del module
        self.calls += 1
        return args, kwargs


class Births(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches which tensors that were made while it is active are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._born: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(item, Tensor):
                self._born.append(weakref.ref(item))
        return out

    def alive(self) -> list[tuple[int, ...]]:
        """Returns the shapes of the survivors, sorted."""
        return sorted(tuple(item.shape) for ref in self._born if (item := ref()) is not None)


@contextmanager
def counting(modules: list[nn.Module]) -> Iterator[Callable[[], int]]:
    """Counts the calls of these modules that reach their forward."""
    count = 0

    def tick(*_: Any) -> None:
        nonlocal count
        count += 1

    handles = [module.register_forward_pre_hook(tick) for module in modules]
    try:
        yield lambda: count
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def failing(case: Case, pipe: Pipeline, error: BaseException, at_call: int) -> Iterator[None]:
    """Lets the denoisers raise `error` instead of answering call number `at_call`."""
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > at_call:
            raise error

    handles = [module.register_forward_pre_hook(fail) for module in case.denoisers(pipe)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
