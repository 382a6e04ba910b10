"""One patched denoiser: its layers, its session, and the check that methods reach the model."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from accel.clock import Clock
from accel.errors import AccelUnsupportedError
from accel.layers import LAYER_KEY, Call, Layer
from accel.method import Method
from accel.models import denoiser_site, find_spec, known_sites
from accel.probe import Probe, candidate_lists
from accel.report import Timeline
from accel.session import Session
from accel.sites import Kind, ModelSites, Site
from accel.store import Store

if TYPE_CHECKING:
    from accel.handle import Patch

_TRACK_ORDER = -2
_PROBE_ORDER = -1
# What computes in parts is inside of everything that may skip the computation.
_MEMORY_ORDER = 1000


class Engine:
    """Binds methods to one denoiser and opens its generations."""

    def __init__(
        self, module: nn.Module, methods: tuple[Method, ...], patch: "Patch", *, strict: bool
    ) -> None:
        self.module = module
        self.patch = patch
        self.session = Session(self.name, self)
        self.notes: list[str] = []
        self._methods = methods
        self._strict = strict
        self._layers: dict[int, Layer] = {}
        self._bound: list[tuple[Method, list[Layer]]] = []
        self._sites: ModelSites | None = None
        self._proved = False
        self._probed = False

    @property
    def name(self) -> str:
        """The denoiser's class name."""
        return type(self.module).__name__

    @property
    def hooked_modules(self) -> int:
        """How many modules carry a layer."""
        return len(self._layers)

    def install(self) -> None:
        """Puts the layers on. A model in no table is probed at its first call and bound then.

        Raises:
            AccelUnsupportedError: if the model's structure or a method's needs cannot be met.
        """
        spec = find_spec(self.module)
        root = self._layer(denoiser_site(self.module), **self._context_entry())
        root.add(_TRACK_ORDER, self.session.track)
        if spec is not None:
            self._bind(known_sites(self.module, spec))
        else:
            candidate_lists(self.module)
            root.add(_PROBE_ORDER, self._probe)
            self.notes.append(
                f"{self.name} is in no table: its streams are established in its first call"
            )

    def remove(self) -> None:
        """Takes all layers off."""
        for layer in self._layers.values():
            layer.remove()
        self._layers.clear()

    def open(self, clock: Clock, stack: ExitStack, store: Store | None = None) -> Timeline | None:
        """Opens a generation until the stack closes; returns None while disabled."""
        for layer in self._layers.values():
            layer.reattach()
        blocks = 0 if self._sites is None else len(self._sites.blocks)
        timeline = Timeline(self.name, tuple(map(str, self._methods)), blocks)
        session = self.session.open(clock, timeline, store, wait=self.patch.wait)
        opened = stack.enter_context(session)
        if opened is not None and getattr(self.module, "is_cache_enabled", False):
            timeline.warn(
                f"a cache of diffusers was enabled on {self.name} after patching; the two add up "
                "their errors"
            )
        return None if opened is None else timeline

    def refuse(self, error: AccelUnsupportedError) -> None:
        """Raises what only a call can show, or notes it once if the patch is not strict.

        Raises:
            AccelUnsupportedError: the error.
        """
        with self._refusal_as_note():
            raise error

    def _context_entry(self) -> dict[str, Any]:
        original = getattr(self.module, "cache_context", None)
        if original is None:
            return {}
        session = self.session

        @functools.wraps(original)
        def cache_context(name: str, *args: Any, **kwargs: Any) -> ExitStack:
            stack = ExitStack()
            stack.enter_context(original(name, *args, **kwargs))
            stack.enter_context(session.context(name))
            return stack

        return {"cache_context": cache_context}

    def _layer(self, site: Site, **extras: Any) -> Layer:
        layer = self._layers.get(id(site.module))
        if layer is None:
            layer = self._layers[id(site.module)] = Layer(site, self.session, **extras)
        return layer

    def _bind(self, sites: ModelSites) -> None:
        for method in self._methods:
            layers = []
            for binding in method.bind(sites):
                layer = self._layer(binding.site)
                layer.add(method.order, binding.hook)
                layers.append(layer)
            if not layers:
                raise AccelUnsupportedError(
                    f"{method} found nothing to hook in {self.name}. `accel.methods()` lists the "
                    "others."
                )
            self._bound.append((method, layers))
        self._bind_memory(sites)
        self._layers[id(self.module)].add(
            max((method.order for method in self._methods), default=0), self._prove
        )
        self._sites = sites
        self._note_broken_graphs()

    def _bind_memory(self, sites: ModelSites) -> None:
        memory = self.patch.memory
        if memory is not None:
            for binding in memory.bind(sites):
                self._layer(binding.site).add(_MEMORY_ORDER, binding.hook)
            self.notes.extend(memory.notes(sites))

    def _note_broken_graphs(self) -> None:
        compiled = tuple(
            f"{path}."
            for path, module in self.module.named_modules()
            if path and module._compiled_call_impl is not None  # noqa: SLF001 -- torch has no public name
        )
        paths = (layer.site.path for layer in self._layers.values())
        if compiled and any(path.startswith(compiled) for path in paths):
            self.notes.append(
                f"blocks of {self.name} are compiled and hooks inside of them break their graphs; "
                "compile their attention and MLPs instead"
            )

    def _probe(self, call: Call) -> Any:
        if self._probed:
            return call.proceed()
        with Probe(self.module) as probe:
            output = call.proceed()
        with self._refusal_as_note():
            self._bind(probe.sites(call.proceed, output))
        self._probed = True
        return output

    def _prove(self, call: Call) -> Any:
        """Innermost hook: in the first call, checks that every method reached the model."""
        output = call.proceed()
        if not self._proved:
            self._proved = True
            with self._refusal_as_note():
                for method, layers in self._bound:
                    self._check_reached(method, layers)
        return output

    def _check_reached(self, method: Method, layers: list[Layer]) -> None:
        if any(layer.fired for layer in layers if layer.site.kind is not Kind.DENOISER):
            return
        if all(layer.site.kind is Kind.DENOISER for layer in layers):
            return
        raise AccelUnsupportedError(
            f"{method} hooked {len(layers)} modules of {self.name}, but its first call used none "
            "of them, so nothing would be accelerated. Was the model compiled as a whole or "
            "replaced after patching? Unpatch it and patch again."
        )

    @contextmanager
    def _refusal_as_note(self) -> Iterator[None]:
        try:
            yield
        except AccelUnsupportedError as error:
            if self._strict:
                raise
            if str(error) not in self.notes:
                self.notes.append(str(error))


def engine_of(module: nn.Module) -> Engine | None:
    """The engine whose layers this denoiser carries, or None."""
    layer = module.__dict__.get(LAYER_KEY)
    return None if layer is None else layer.session.owner
