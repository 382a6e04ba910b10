"""FLOPs, bytes and launches of one denoiser call, counted on a copy without weights.

The copy's tensors are on torch's meta device: shapes are worked out and nothing is computed.
`torch.utils.flop_counter` counts; what it counts goes to the module that is running.
"""

import copy
import inspect
import math
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from accel.errors import AccelUnsupportedError, OptionError
from accel.parts import part_of, roles_of, sites_to_count
from accel.probe import tensors_of
from accel.repeats import replay_repeats
from accel.sites import ModelSites, uncompiled
from accel.work import Entry, Form, Inputs, Work

# What other libraries put on modules to move weights about; the copy has none to move.
_FOREIGN = ("_hf_hook", "_diffusers_hook", "_old_forward", "forward", "__reduce_ex__")
# Operations that make room or look at something, and run nothing.
_IDLE = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "detach", "lift_fresh"})
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "cudnn_convolution"})
_PROJECTING = frozenset({"mm", "addmm", "_scaled_mm", *_CONVOLUTIONS})


class Counted(NamedTuple):
    """What a call does, and what it gives: the real thing, or its form on the meta device."""

    work: Work
    output: Any


def count(module: nn.Module, inputs: Inputs, *, on_meta: bool = True) -> Counted:
    """What a denoiser does in one call.

    Args:
        module: a denoiser, patched or not.
        inputs: the arguments of a call, real or in form only (`Inputs.like`).
        on_meta: whether a copy without weights runs. If off, the module itself does, on inputs with
            values: for models that look at those.

    Raises:
        OptionError: if an input is missing, or does not fit the model.
        AccelUnsupportedError: if it is no denoiser that accel knows, or one that looks at values.
    """
    _check_complete(module, inputs)
    sites = sites_to_count(module)
    counter = _Counter(module, sites)
    model = module
    if on_meta:
        model = without_weights(module)
        replay_repeats(model, counter.entries, counter.roles)
        inputs = inputs.on_meta()
    try:
        with counter.watching(model), torch.no_grad():
            output = model(*inputs.args, **inputs.kwargs)
    except Exception as error:
        raise _refusal(module, inputs, error, on_meta=on_meta) from error
    return Counted(counter.work(), output)


def without_weights(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have no memory, without anybody's hooks."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if parameter else empty
    for part in module.modules():
        memo |= {id(held): None for name in _FOREIGN[:2] if (held := vars(part).get(name))}
    bare = copy.deepcopy(module, memo)
    for part in bare.modules():
        for name in _FOREIGN:
            vars(part).pop(name, None)
        for hooks in (part._forward_hooks, part._forward_pre_hooks):  # noqa: SLF001 -- no other name
            hooks.clear()
        # Other libraries' kernels have no form on the meta device, and torch's does as much.
        processor: Any = getattr(part, "processor", None)
        if getattr(processor, "_attention_backend", None) is not None:
            processor._attention_backend = None  # noqa: SLF001 -- diffusers has no other name for it
    return bare.eval()


class _Counter:
    """Watches one call and books what it does on the module that does it."""

    def __init__(self, module: nn.Module, sites: ModelSites) -> None:
        self.entries: dict[str, Entry] = {}
        self._name = type(uncompiled(module)).__name__
        self._sites = sites
        self.roles = roles_of(module, sites)
        self._running = [""]
        self._lengths = (0, 0)
        self._batch = 1

    def watching(self, model: nn.Module) -> ExitStack:
        """Counts whatever this model does until the context closes."""
        stack = ExitStack()
        for path, part in model.named_modules():
            enter, leave = partial(self._enter, path), partial(self._leave, path)
            stack.callback(part.register_forward_pre_hook(enter).remove)
            stack.callback(part.register_forward_hook(leave).remove)
        flops = stack.enter_context(_flop_counter())
        operations = stack.enter_context(_Operations(self, flops))
        stack.enter_context(_FusedAttention(operations))
        return stack

    def work(self) -> Work:
        """What was counted."""
        tokens, context = self._lengths
        return Work(self._name, dict(self.entries), tokens, context, self._batch)

    def book(self, flops: float, moved: float, *, core: bool, convolution: bool) -> None:
        """Counts one operation."""
        path = self._running[-1]
        part = part_of(self.roles[path], core=core, convolution=convolution)
        entry = self.entries.get(path, Entry())
        booked = Entry({part: flops} if flops else {}, moved, 1.0, entry.weights, entry.output)
        self.entries[path] = entry.plus(booked)

    def _enter(self, path: str, module: nn.Module, args: Any) -> None:
        del args
        self._running.append(path)
        if path not in self.entries:
            weights = sum(parameter.nbytes for parameter in module.parameters(recurse=False))
            self.entries[path] = Entry(weights=float(weights))

    def _leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        self._running.pop()
        tensors = list(tensors_of(output))
        size = sum(tensor.nbytes for tensor in tensors)
        self.entries[path] = replace(self.entries[path], output=size)
        if path == "" and tensors:
            self._batch = len(tensors[0]) if tensors[0].dim() else 1
            if self._sites.down:
                self._lengths = math.prod(tensors[0].shape[2:]), 0
        if self._sites.blocks and path == self._sites.blocks[0].path:
            self._lengths = self._read_lengths(output)

    def _read_lengths(self, output: Any) -> tuple[int, int]:
        """Tokens of the picture and of the text beside it, as the first block returned them."""
        io = self._sites.blocks[0].io
        try:
            streams = io.read(output)
            context = streams.context
            return streams.hidden.shape[1], 0 if context is None else context.shape[1]
        except (AttributeError, IndexError, KeyError, TypeError):
            # A block that no table describes.
            return max((t.shape[1] for t in tensors_of(output) if t.dim() > 1), default=0), 0


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it bare
    """Sees every operation: what the counter below finds in it, or what it moves."""

    def __init__(self, counter: _Counter, flops: FlopCounterMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it bare
        self.in_attention = False
        self._counter = counter
        self._flops = flops

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        before = self._flops.get_total_flops()
        output = func(*args, **(kwargs or {}))
        found = self._flops.get_total_flops() - before
        name = func.overloadpacket.__name__
        if self.in_attention:
            if found:
                self._counter.book(found, 0.0, core=True, convolution=False)
        elif not (func.is_view or name in _IDLE):
            moved = 0 if found else sum(t.nbytes for t in tensors_of([args, output]))
            self._counter.book(
                found, moved, core=name not in _PROJECTING, convolution=name in _CONVOLUTIONS
            )
        return output


class _FusedAttention(TorchFunctionMode):
    """Says when torch's attention runs, which on the meta device is several operations."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        outer, self._operations.in_attention = self._operations.in_attention, True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._operations.in_attention = outer


@cache
def _attention_on_cpu() -> dict[Any, Any]:
    def flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]  # torch leaves it bare

    # The one kernel of torch's attention that its counter does not know.
    return {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flops}  # noqa: SLF001 -- its name


def _flop_counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping=_attention_on_cpu())


def _check_complete(module: nn.Module, inputs: Inputs) -> None:
    signature = inspect.signature(type(uncompiled(module)).forward)
    try:
        signature.bind(module, *inputs.args, **inputs.kwargs)
    except TypeError as error:
        raise OptionError(
            f"{type(uncompiled(module)).__name__} cannot be called with "
            f"{_shapes(inputs) or 'nothing'}: {error}. Its cost depends on every input; it takes "
            f"{', '.join(list(signature.parameters)[1:])}."
        ) from error


def _refusal(
    module: nn.Module, inputs: Inputs, error: Exception, *, on_meta: bool
) -> AccelUnsupportedError | OptionError:
    name = type(uncompiled(module)).__name__
    reason = (
        f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no reason given'])[0]}"
    )
    valueless = isinstance(error, NotImplementedError) or any(
        word in str(error).lower() for word in ("meta", "scalartype", "data-dependent")
    )
    if on_meta and valueless:
        return AccelUnsupportedError(
            f"{name} looks at the values of its inputs, so its cost cannot be counted without "
            f"running it ({reason}). Count a real call: count(model, inputs, on_meta=False)."
        )
    return OptionError(
        f"{name} does not take inputs of these sizes ({_shapes(inputs)}): {reason}. Give what the "
        "pipeline passes to it."
    )


def _shapes(inputs: Inputs) -> str:
    named = [*((str(index), value) for index, value in enumerate(inputs.args))]
    named += list(inputs.kwargs.items())
    return ", ".join(
        f"{name} {list(value.shape) if isinstance(value, (Form, Tensor)) else type(value).__name__}"
        for name, value in named
        if value is not None
    )
