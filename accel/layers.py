"""The one wrapper that accel puts on somebody's module: ordered around-hooks with exact removal.

A `Layer` sets `forward` on the module *instance*. Torch's forward hooks cannot skip a module,
diffusers' registry does not undo in any order, and class swaps are without effect once accelerate
has set an instance `forward`.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from operator import itemgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling

from accel.copies import Overlay
from accel.errors import AccelUnsupportedError
from accel.sites import Hook, Kind, Site, Streams, uncompiled

if TYPE_CHECKING:
    from accel.session import Generation, Session

Memo = TypeVar("Memo")

LAYER_KEY = "_accel_layer"


class Call:
    """One call of a hooked module.

    A hook looks at it, changes it, lets it proceed, or answers in its place.
    """

    __slots__ = ("_depth", "_layer", "_uncompiled", "args", "generation", "kwargs")

    def __init__(
        self,
        layer: "Layer",
        depth: int,
        generation: "Generation",
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        uncompiled: bool = False,
    ) -> None:
        self._layer = layer
        self._depth = depth
        self._uncompiled = uncompiled
        self.generation = generation
        self.args = args
        self.kwargs = kwargs

    def proceed(self, streams: Streams | None = None) -> Any:
        """The output of the hooks below and the module, on other streams if they are given."""
        args, kwargs = self.args, self.kwargs
        if streams is not None:
            site = self._layer.site
            args, kwargs = site.put(site.io.hidden, streams.hidden, args, kwargs)
            if site.io.context_index is not None and site.io.context is not None:
                args, kwargs = site.put(site.io.context, streams.context, args, kwargs)
        return self._layer.run(
            self._depth, self.generation, args, kwargs, uncompiled=self._uncompiled
        )

    def proceed_with(self, inner: Iterable[tuple[Site, Hook]]) -> Any:
        """The output of the hooks below and the module, with hooks on modules inside of it.

        They are on for this one call. A compiled module has no place for them in its graph, so it
        runs uncompiled.
        """
        with ExitStack() as stack:
            for site, hook in inner:
                layer = Layer(site, self._layer.session)
                stack.callback(layer.remove)
                layer.add(0, hook)
            self._uncompiled = True
            return self.proceed()

    def change(self, name: str, value: Any) -> None:
        """Gives the argument called `name` another value for the hooks below and the module."""
        self.args, self.kwargs = self.site.put(name, value, self.args, self.kwargs)

    @property
    def site(self) -> Site:
        """Where this call happens."""
        return self._layer.site

    @property
    def step(self) -> int:
        """Model evaluations of this generation so far (Heun has two a step), counted from 0."""
        return self.generation.step

    @property
    def num_steps(self) -> int | None:
        """Model evaluations of this generation, or None where the scheduler does not tell."""
        return self.generation.num_steps

    @property
    def sigma(self) -> float | None:
        """Noise level of this evaluation, or None where the scheduler does not tell."""
        return self.generation.sigma

    @property
    def time(self) -> float | None:
        """Timestep of this evaluation as a share of the trained ones, from 1 (noise) to 0.

        None where neither the scheduler nor the number of evaluations tells.
        """
        return self.generation.time

    @property
    def branch(self) -> str:
        """Guidance branch: the `cache_context` name, else which conditioning the call carries."""
        return self.generation.branch

    @property
    def hidden(self) -> Tensor:
        """The visual stream that goes in, [B, N, C] in a transformer block."""
        site = self._layer.site
        hidden: Tensor = site.get(site.io.hidden, self.args, self.kwargs)
        return hidden

    @property
    def context(self) -> Tensor | None:
        """The text stream that goes in, or None in a one-stream module."""
        site = self._layer.site
        if site.io.context_index is None or site.io.context is None:
            return None
        return site.get(site.io.context, self.args, self.kwargs)  # type: ignore[no-any-return]  # what the model passes

    @property
    def streams(self) -> Streams:
        """Both streams that go in."""
        return Streams(self.hidden, self.context)

    def argument(self, name: str) -> Any:
        """The argument called `name`, however it was passed, or None where it is left out."""
        return self._layer.site.get(name, self.args, self.kwargs)

    def read(self, output: Any) -> Streams:
        """The streams in an output of this module."""
        return self._layer.site.io.read(output)

    def write(self, streams: Streams) -> Any:
        """An output that the module itself might have returned."""
        return self._layer.site.io.write(streams)

    def local(self, owner: object, factory: Callable[[], Memo]) -> Memo:
        """State of `owner` for this site and branch, from first use to the generation's end."""
        return self.generation.state((id(owner), self.site.path, self.generation.branch), factory)

    def shared(self, owner: object, factory: Callable[[], Memo]) -> Memo:
        """State of `owner` for this denoiser and branch, from first use to the generation's end."""
        return self.generation.state((id(owner), "", self.generation.branch), factory)

    def keep(
        self, streams: Streams, what: str = "", *, stays: bool = False, shared: bool = False
    ) -> Streams | None:
        """The same streams, to be kept beyond this call in their place; None if there is no room.

        All that a method keeps of features goes through here, since the user may have limited
        the memory for it (`LightCache`). What is kept instead of it must be let go of before.

        Args:
            streams: what is to be kept.
            what: the report calls it, behind the site's path; one name for each thing kept here.
            stays: whether every evaluation needs it, so that swapping it out is of no use.
            shared: whether the model may write into it.
        """
        generation = self.generation
        if generation.store is None:
            return streams
        name = f"{self.site.path} {what}".strip()
        return generation.store.put(generation.lane, name, streams, stays=stays, shared=shared)

    def expect(self, *, reuse: bool) -> None:
        """Says whether what is kept for this branch is about to be used, so that it is at hand."""
        if self.generation.store is not None:
            self.generation.store.expect(self.generation.lane, reuse=reuse)

    def refuse(self, error: AccelUnsupportedError) -> None:
        """Raises the error, or notes it where the user asked for that (`strict=False`)."""
        self._layer.session.owner.refuse(error)

    def decide(self, action: str, reason: str, **numbers: Any) -> None:
        """Reports what was decided for this denoiser call; `report.Decision` has the numbers."""
        self.generation.decide(action, reason, **numbers)


class Layer:
    """The hooks of one module of one denoiser.

    Removal leaves the module's `__dict__` as it was, in any order. If somebody wraps the module
    after us, removal turns this layer into a pass-through that they keep calling.
    """

    def __init__(self, site: Site, session: "Session", **extras: Any) -> None:
        self.site = site
        self.session = session
        self._hooks: list[tuple[int, Hook]] = []
        self._chain: tuple[Hook, ...] = ()
        self._extras = extras
        self.fired = False
        self._attach()

    def _attach(self) -> None:
        module = self.site.module
        # A module compiled in place is entered through `_compiled_call_impl`. Wrapping that instead
        # of `forward` keeps our hooks outside of the compiled region: no graph break, and
        # `fullgraph=True` still holds.
        compiled = module._compiled_call_impl is not None  # noqa: SLF001 -- torch has no public name
        self._entry = name = "_compiled_call_impl" if compiled else "forward"
        self.inner: Callable[..., Any] = getattr(module, name)
        self.wrapper: Callable[..., Any] | None = _wrapper(self)
        entries = {name: self.wrapper, LAYER_KEY: self, "compile": self._compile, **self._extras}
        self._overlay = Overlay(module, entries)

    def reattach(self) -> None:
        """Lays the layer on again where somebody's removal of an earlier wrapper took it along.

        accelerate puts back the `forward` that it found, and with it drops what came later. A
        wrapper that is not ours is taken to hold us inside.
        """
        module = self.site.module
        entry = module.__dict__.get(self._entry)
        plain = getattr(entry, "__func__", None) is type(module).forward
        if self.wrapper is not None and (entry is None or plain):
            self.remove()
            self._attach()

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the module as if it were not hooked, then hooks the compiled call."""
        if self.site.kind is Kind.DENOISER:
            raise AccelUnsupportedError(
                f"Compiling {type(self.site.module).__name__} as a whole would trace accel's "
                "decisions into the graph. Compile its blocks instead "
                "(`compile_repeated_blocks()`), before or after patching."
            )
        self.remove()
        try:
            self.site.module.compile(*args, **kwargs)
        finally:
            self._attach()

    def add(self, order: int, hook: Hook) -> None:
        """Adds a hook; lower orders run outside of higher ones, equal ones as they were added."""
        self._hooks.append((order, hook))
        self._hooks.sort(key=itemgetter(0))
        self._chain = tuple(hook for _, hook in self._hooks)

    def remove(self) -> None:
        """Takes the layer off its module. Safe to call again."""
        self.wrapper = None
        self._overlay.remove()

    def run(
        self,
        depth: int,
        generation: "Generation",
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        uncompiled: bool = False,
    ) -> Any:
        """Runs the hooks from `depth` on, then the module."""
        chain = self._chain
        self.fired = True
        if depth == len(chain):
            return (self._eager if uncompiled else self.inner)(*args, **kwargs)
        return chain[depth](Call(self, depth + 1, generation, args, kwargs, uncompiled=uncompiled))

    @property
    def _eager(self) -> Callable[..., Any]:
        module = self.site.module
        original = uncompiled(module)
        if self._entry == "forward" and original is module:
            return self.inner
        eager: Callable[..., Any] = original._call_impl  # noqa: SLF001 -- torch has no public name
        return eager


def _wrapper(layer: Layer) -> Callable[..., Any]:
    session, inner, eager = layer.session, layer.inner, _eager()

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # pragma: no cover -- the compiler reads this, nobody runs it
            return eager(layer, args, kwargs)
        generation = session.generation
        if generation is None or generation.thread != get_ident() or layer.wrapper is not forward:
            return inner(*args, **kwargs)
        return layer.run(0, generation, args, kwargs)

    return forward


@functools.cache
def _eager() -> Callable[..., Any]:
    # Somebody compiles a module around ours: decisions must not be traced into that graph, or every
    # step would recompile it. Made lazily since `disable` imports torch's compiler.
    disable: Callable[..., Callable[..., Any]] = torch.compiler.disable  # untyped in torch

    def run(layer: Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return layer.wrapper(*args, **kwargs) if layer.wrapper else layer.inner(*args, **kwargs)

    return disable(run)
