"""Sites of a model in no table: one call shows what flows, another proves what it showed."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from accel.copies import Overlay
from accel.errors import AccelUnsupportedError
from accel.infer import CannotInfer, NoStack, Passage, Position, Stack, find_flow, read_stack
from accel.models import with_parts
from accel.sites import Kind, ModelSites, Site, Streams
from accel.specs import REFUSED

# What a model's output may differ by, of its largest value, when it is computed once more.
_SAME = 1e-3


def candidate_lists(module: nn.Module) -> dict[str, tuple[Site, ...]]:
    """Every list of modules that may be a stack of blocks, by its path.

    Raises:
        AccelUnsupportedError: if there is none of two, or the model is known to have no use for it.
    """
    name = type(module).__name__
    if name in REFUSED:
        raise AccelUnsupportedError(f"accel leaves {name} alone: {REFUSED[name]}.")
    parts = (module, *module.children())
    if any(hasattr(part, side) for part in parts for side in ("down_blocks", "up_blocks")):
        raise AccelUnsupportedError(
            f"{name} is a UNet or an autoencoder that accel does not know: its `down_blocks` and "
            "`up_blocks` work at several resolutions, so it has no stack of transformer blocks to "
            "skip. Methods for UNets need it in DENOISERS in accel/specs.py."
        )
    lists = {
        path: tuple(
            Site(Kind.BLOCK, f"{path}.{index}", block) for index, block in enumerate(blocks)
        )
        for path, blocks in _lists(module, "")
    }
    if all(len(sites) < 2 for sites in lists.values()):  # noqa: PLR2004 -- one block is no stack
        raise AccelUnsupportedError(_refusal(module, "found no list of two blocks or more"))
    return lists


def _lists(module: nn.Module, path: str) -> Iterator[tuple[str, nn.ModuleList]]:
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        blocks = list(child) if isinstance(child, nn.ModuleList) else []
        if isinstance(child, nn.ModuleList) and blocks and all(map(_callable, blocks)):
            yield below, child
        else:
            yield from _lists(child, below)


def _callable(module: nn.Module) -> bool:
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict))


@dataclass(slots=True)
class _Watched:
    """What is known of one list of blocks while the model runs.

    Attributes:
        newest: tensors that its newest call returned, by position; versions: how often each of
            them had been written into by then.
        older: tensors that its other calls returned, by identity, without keeping them alive.
        copy: the newest call's output; kept, by path: the first output, the last, and those behind
            which the shapes change.
    """

    sites: tuple[Site, ...]
    passages: list[Passage] = field(default_factory=list)
    newest: dict[Position, Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    older: dict[int, "weakref.ref[Tensor]"] = field(default_factory=dict)
    copy: Any = None
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Parameters in the list."""
        return sum(p.numel() for site in self.sites for p in site.module.parameters())

    def is_unlike(self, tensor: Tensor) -> bool:
        """Whether an earlier call than the newest returned this, or it was written into since."""
        if id(tensor) in self.versions:
            return _version(tensor) != self.versions[id(tensor)]
        reference = self.older.get(id(tensor))
        return reference is not None and reference() is tensor

    def note(self, passage: Passage, output: Any) -> None:
        """Takes up a finished call."""
        if self.passages and passage.outputs != self.passages[-1].outputs:
            self.kept[self.passages[-1].site.path] = self.copy
        self.older |= {id(tensor): weakref.ref(tensor) for tensor in self.newest.values()}
        self.newest = _tensors(output)
        self.versions = {id(tensor): _version(tensor) for tensor in self.newest.values()}
        self.copy = _copied(output)
        if not self.passages:
            self.kept[passage.site.path] = self.copy
        self.passages.append(passage)

    def finish(self) -> None:
        """Keeps the last output and lets go of everything else."""
        if self.passages:
            self.kept[self.passages[-1].site.path] = self.copy
        self.newest.clear()
        self.versions.clear()
        self.older.clear()
        self.copy = None


class Probe:
    """Watches every list of blocks during one denoiser call, then tells the sites.

    An output that is the next block's argument, the same object, tells a stream for sure. Where a
    model does something in between, shapes and names must agree, or the model is refused. What was
    told is proved: run again with the blocks answering what they answered before, the model must
    give its output again. Meanwhile three blocks' outputs are held for each list.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._lists = {path: _Watched(sites) for path, sites in candidate_lists(module).items()}
        self._order = 0

    def __enter__(self) -> "Probe":
        self._overlays = ExitStack()
        for name, watched in self._lists.items():
            for site in watched.sites:
                _replace(self._overlays, site, self._recorder(name, site))
        return self

    def __exit__(self, *exception: object) -> None:
        self._overlays.close()
        for watched in self._lists.values():
            watched.finish()

    def _recorder(self, name: str, site: Site) -> Any:
        watched, inner = self._lists[name], getattr(site.module, _entry(site.module))

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(site.positions, args, strict=False)) | kwargs
            inputs = {key: value for key, value in given.items() if isinstance(value, Tensor)}
            links = {path: _links(other.newest, inputs) for path, other in self._lists.items()}
            lists = self._lists.values()
            clean = not any(w.is_unlike(tensor) for w in lists for tensor in inputs.values())
            order, self._order = self._order, self._order + 1
            shapes = {key: tuple(tensor.shape) for key, tensor in inputs.items()}
            output = inner(*args, **kwargs)
            passage = Passage(
                site=site,
                stack=name,
                order=order,
                inputs=shapes,
                outputs={p: tuple(tensor.shape) for p, tensor in _tensors(output).items()},
                length=len(output) if isinstance(output, Sequence) else None,
                links=links,
                clean=clean,
            )
            watched.note(passage, output)
            return output

        return forward

    def sites(self, again: Callable[[], Any], output: Any) -> ModelSites:
        """The model's sites, established from what flowed and proved by one more, short run.

        Args:
            again: makes the denoiser call that was watched once more.
            output: what it returned.

        Raises:
            AccelUnsupportedError: if a block did not run, its streams cannot be told apart, or the
                proof fails.
        """
        try:
            flow = find_flow(self._stacks())
        except CannotInfer as problem:
            raise AccelUnsupportedError(_refusal(self.module, str(problem))) from None
        self._prove(again, output, flow.blocks)
        return replace(with_parts(self.module, flow.blocks), direct=flow.direct)

    def _stacks(self) -> list[Stack]:
        stacks: list[Stack] = []
        problems: list[tuple[int, CannotInfer]] = []
        for name, watched in self._lists.items():
            if not watched.passages:
                continue
            try:
                stacks.append(_stack(name, watched))
            except CannotInfer as problem:
                problems.append((watched.size, problem))
        # What is no stack at all matters only if there is nothing else.
        largest = max((stack.size for stack in stacks), default=-1)
        serious = [
            (size, problem)
            for size, problem in problems
            if size > largest and not (stacks and isinstance(problem, NoStack))
        ]
        if serious:
            raise max(serious, key=lambda pair: pair[0])[1]
        return stacks

    def _prove(self, again: Callable[[], Any], output: Any, blocks: Sequence[Site]) -> None:
        kept = {path: out for watched in self._lists.values() for path, out in watched.kept.items()}
        first = blocks[0].path
        ends = {first, *{site.segment: site.path for site in blocks[1:]}.values()}
        with ExitStack() as overlays:
            for site in blocks:
                # A first block that was not kept runs again; only the others are skipped later.
                if site.path != first or first in kept:
                    answer = kept.get(site.path) if site.path in ends else None
                    _replace(overlays, site, _answering(site, answer))
            problem = _difference(again, output)
        if problem:
            raise AccelUnsupportedError(
                f"accel does not know {type(self.module).__name__}, and cannot skip its blocks: "
                f"when those behind {first} answer what they answered before, {problem}."
            )


def _stack(name: str, watched: _Watched) -> Stack:
    runs = Counter(passage.site.path for passage in watched.passages)
    for site in watched.sites:
        if runs[site.path] != 1:
            times = f"ran {runs[site.path]} times in one call" if runs[site.path] else "did not run"
            raise CannotInfer(f"{site.path} {times}")
    return read_stack(name, watched.passages, watched.size)


def _entry(module: nn.Module) -> str:
    # A module compiled in place is entered there.
    compiled = module._compiled_call_impl is not None  # noqa: SLF001 -- torch has no public name
    return "_compiled_call_impl" if compiled else "forward"


def _replace(overlays: ExitStack, site: Site, forward: Any) -> None:
    overlays.callback(Overlay(site.module, {_entry(site.module): forward}).remove)


def _answering(site: Site, answer: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        io = site.io
        if answer is not None:
            return io.write(io.read(answer))
        context = None if io.context is None else site.get(io.context, args, kwargs)
        return io.write(Streams(site.get(io.hidden, args, kwargs), context))

    return forward


def _links(outputs: Mapping[Position, Tensor], inputs: dict[str, Tensor]) -> dict[Position, str]:
    # Of several arguments that are one tensor, the first counts.
    return {
        position: name
        for position, output in outputs.items()
        for name, tensor in reversed(inputs.items())
        if output is tensor
    }


def _tensors(output: Any) -> dict[Position, Tensor]:
    if isinstance(output, Tensor):
        return {None: output}
    entries = enumerate(output) if isinstance(output, Sequence) else ()
    return {index: entry for index, entry in entries if isinstance(entry, Tensor)}


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 -- torch has no public name


def _copied(output: Any) -> Any:
    # Models write into what their last block returned.
    if isinstance(output, Tensor):
        return output.detach().clone()
    return tuple(map(_copied, output)) if isinstance(output, Sequence) else output


def _difference(again: Callable[[], Any], output: Any) -> str:
    """What is wrong with a second run of a denoiser call, or "" if it gives the output again."""
    expected = list(tensors_of(output))
    devices = {tensor.device for tensor in expected if tensor.device.type == "cuda"}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            found = list(tensors_of(again()))
    except Exception as error:  # noqa: BLE001 -- whatever it is, it says that the model cannot be skipped
        return f"it fails ({type(error).__name__}: {error})"
    if len(found) == len(expected) and all(map(_same, found, expected)):
        return ""
    return "it gives another output, so more of them matters than the streams that accel knows"


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of an output or argument, however deep in lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from (tensor for entry in value.values() for tensor in tensors_of(entry))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from (tensor for entry in value for tensor in tensors_of(entry))


def _same(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or not (expected.is_floating_point() and expected.numel()):
        return torch.equal(found, expected)
    scale = float(expected.detach().abs().max())
    return torch.allclose(found, expected, rtol=_SAME, atol=_SAME * scale, equal_nan=True)


def _refusal(module: nn.Module, problem: str) -> str:
    name = type(module).__name__
    return (
        f"accel does not know {name}, and could not work it out: {problem}. "
        "Add to accel/specs.py:\n"
        f'  DENOISERS["{name}"] = ModelSpec(("<list of blocks>",))\n'
        '  BLOCKS["<block class>"] = BlockIO(hidden_index=<n or None>, '
        'context="encoder_hidden_states", context_index=<n or None>)'
    )
