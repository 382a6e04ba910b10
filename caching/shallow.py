"""A UNet of which only what stands above one branch runs, on one kept feature from below."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from accel.layers import Call
from accel.method import Binding
from accel.sites import Hook, Site, uncompiled
from caching.unet import (
    SKIPS,
    Branch,
    UNetPath,
    answer,
    at_rest,
    handed,
    hush,
    layers,
    resnets,
    samplers,
    scales_in_place,
)
from caching.unet_cache import UNetCache, UNetRule
from caching.unet_memory import Memory

_FEATURE = (0, 0)


class ShallowUNet(UNetCache):
    """Keeps what enters the layer at which a branch ends, and lets everything below rest."""

    def __init__(self, rule: UNetRule, path: UNetPath, branch: Branch) -> None:
        super().__init__(rule, path)
        self._branch = branch
        entered, left = path.up[branch.up], path.down[branch.down]
        above, below = layers(left)[: branch.layer], layers(left)[branch.layer :]
        self._below = at_rest([site for layer in below for site in layer] + samplers(left))
        self._before = layers(entered)[: branch.inner]
        self._layers_above = len(above) + sum(
            len(resnets(site)) for site in path.down[: branch.down]
        )
        # A T2I adapter adds to the output of a block: of the last layer, or behind the block.
        attends = getattr(uncompiled(left.module), "has_cross_attention", False)
        adapted = not self._below or (attends and bool(above) and not below)
        self._adapted = branch.down + adapted

    @property
    def layers_at_work(self) -> int:
        """Those above the branch, on the way down and on the way up."""
        return self._layers_above + self._branch.skip + 1

    @property
    def resting_paths(self) -> tuple[str, ...]:
        """Everything below the branch."""
        branch, path = self._branch, self.path
        whole = (*path.down[branch.down + bool(branch.layer) :], *path.mid, *path.up[: branch.up])
        inner = [site for site, _ in self._below] if branch.layer else []
        before = [site for layer in self._before for site in layer]
        return tuple(site.path for site in (*whole, *inner, *before))

    @property
    def kept_paths(self) -> tuple[str, ...]:
        """What ends in front of the layer at which the branch ends."""
        if self._before:
            return (self._before[-1][-1].path,)
        deeper = (*self.path.down[-1:], *self.path.mid, *self.path.up[: self._branch.up])
        return (deeper[-1].path,)

    def bind_parts(self) -> Iterator[Binding]:
        """Yields the hooks of all blocks below the branch and of the two through which it goes."""
        branch, path = self._branch, self.path
        for index, site in enumerate(path.down[branch.down :]):
            if index or not branch.layer:
                yield Binding(site, partial(self.rest_down, handed=handed(site)))
            elif self._below:
                yield Binding(site, self._leave)
        for site in (*path.mid, *path.up[: branch.up]):
            yield Binding(site, self.rest)
        yield Binding(path.up[branch.up], self._enter)

    def run_partly(self, call: Call, memory: Memory) -> Any:
        """The output of the shallow part."""
        assert memory.blank is not None
        hush(call, memory.blank, skips=self._branch.skip + 1, blocks=self._adapted)
        return call.proceed()

    def _leave(self, call: Call) -> Any:
        """The down block of the branch: its lower layers and its downsampler rest."""
        rests = self.memory(call).rests
        return call.proceed_with(self._below) if rests else call.proceed()

    def _enter(self, call: Call) -> Any:
        """The up block of the branch: keeps what enters its layer, or runs from there."""
        memory, written = self.memory(call), scales_in_place(call.site)
        if memory.rests:
            return self._resume(call, memory.feature(call, _FEATURE, written=written))
        if not memory.keeps:
            return call.proceed()
        if not self._before:
            memory.keep(call, _FEATURE, call.hidden, written=written)
            return call.proceed()
        watch = partial(self._watch, memory=memory, written=written)
        return call.proceed_with([(inner, watch) for inner in self._before[-1]])

    def _watch(self, call: Call, *, memory: Memory, written: bool) -> Any:
        # Of a layer's modules the last one to run has the last word.
        output = call.proceed()
        feature = output[0] if isinstance(output, tuple) else output
        memory.keep(call, _FEATURE, feature, written=written)
        return output

    def _resume(self, call: Call, kept: Tensor) -> Any:
        if not self._before:
            call.change("hidden_states", kept)
            return call.proceed()
        # The block joins features for its resting layers too: one channel is enough for that.
        blank = kept.new_zeros((kept.shape[0], 1, *kept.shape[2:]))
        rested = len(self._before)
        call.change("hidden_states", blank)
        call.change(SKIPS, (*call.argument(SKIPS)[:-rested], *(blank for _ in range(rested))))
        return call.proceed_with(self._handing_in(kept))

    def _handing_in(self, kept: Tensor) -> list[tuple[Site, Hook]]:
        *earlier, last = self._before
        resnet, *behind = last
        return [
            *at_rest([site for layer in earlier for site in layer]),
            (resnet, lambda call: answer(call, kept)),
            *at_rest(behind),
        ]
