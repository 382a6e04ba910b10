"""A UNet of which only the way up runs, on everything that a whole run handed to it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from accel.layers import Call
from accel.method import Binding
from caching.decode_ahead import DecodeAhead
from caching.prior_noise import PriorNoise
from caching.unet import (
    SKIPS,
    UNetPath,
    handed,
    hush,
    layers,
    resnets,
    samplers,
    scales_in_place,
)
from caching.unet_cache import UNetCache, UNetRule
from caching.unet_memory import Memory

_UPSAMPLE = "upsample_size"
_MIDDLE = (0, -1)
# The first feature that skips is what enters the way down.
_ENTRY = "conv_in"


class DecoderUNet(UNetCache):
    """Keeps what goes into the up blocks, and lets the way down and the middle rest."""

    def __init__(
        self, rule: UNetRule, path: UNetPath, ahead: DecodeAhead, noise: PriorNoise
    ) -> None:
        super().__init__(rule, path)
        self._ahead = ahead
        self._noise = noise

    @property
    def layers_at_work(self) -> int:
        """Those of the way up."""
        return sum(len(resnets(site)) for site in self.path.up)

    @property
    def resting_paths(self) -> tuple[str, ...]:
        """The way down and the middle."""
        return tuple(site.path for site in (*self.path.down, *self.path.mid))

    @property
    def kept_paths(self) -> tuple[str, ...]:
        """What enters the way up: the middle's output and every feature that skips."""
        ends = [layer[-1].path for site in self.path.down for layer in layers(site)]
        between = [sampler.path for site in self.path.down for sampler in samplers(site)]
        return (_ENTRY, *ends, *between, *(site.path for site in self.path.mid))

    def bind_parts(self) -> Iterator[Binding]:
        """Yields the hooks of all blocks."""
        for site in self.path.down:
            yield Binding(site, partial(self.rest_down, handed=handed(site)))
        for site in self.path.mid:
            yield Binding(site, self.rest)
        for index, site in enumerate(self.path.up):
            yield Binding(site, partial(self._decode, index=index))

    def run_whole(self, call: Call, memory: Memory) -> Any:
        """The output of a whole run."""
        self._noise.watch(call, active=False)
        return super().run_whole(call, memory)

    def run_partly(self, call: Call, memory: Memory) -> Any:
        """The output of the way up, decoded now or together with an earlier evaluation's."""
        assert memory.blank is not None
        self._noise.watch(call, active=True)
        hush(call, memory.blank, skips=0, blocks=0)
        return self._ahead.run(call, memory.step)

    def _decode(self, call: Call, *, index: int) -> Any:
        memory = self.memory(call)
        if memory.rests:
            self._hand_in(call, memory, index)
        elif memory.keeps:
            if index == 0:
                memory.keep(call, _MIDDLE, call.hidden, written=scales_in_place(call.site))
            for number, skip in enumerate(call.argument(SKIPS)):
                memory.keep(call, (index, number), skip)
        return call.proceed()

    def _hand_in(self, call: Call, memory: Memory, index: int) -> None:
        count = len(resnets(call.site))
        skips = (memory.feature(call, (index, number)) for number in range(count))
        call.change(SKIPS, tuple(self._ahead.repeated(call, skip) for skip in skips))
        if index == 0:
            middle = memory.feature(call, _MIDDLE, written=scales_in_place(call.site))
            call.change("hidden_states", self._ahead.repeated(call, middle))
        # A model of an odd size tells each block the size of the next one's features.
        if call.argument(_UPSAMPLE) is not None and index + 1 < len(self.path.up):
            following = len(resnets(self.path.up[index + 1])) - 1
            call.change(_UPSAMPLE, memory.shape((index + 1, following))[2:])
